"""The network against a plain unroll with torch's own modules and autograd, in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from skills.agents import kernels
from skills.agents.film_layers import CELL_PARTS, PARTS, SECOND_PARTS, MissionIndex
from skills.agents.kernels import AREA, CELL_SIZES
from skills.agents.network import (
    Network,
    Sequences,
    Shape,
    initial_weights,
    named_views,
    weight_count,
    with_two_objects,
)
from skills.levels.codes import ACTIONS, DOOR, MISSION_SIZES, PUT

STEPS, ENVS = 6, 5
WHICH = np.array([4, 0, 2])


def _sequences(
    shape: Shape, rng: np.random.Generator
) -> tuple[Sequences, np.ndarray, MissionIndex]:
    cells = [rng.integers(0, size, (STEPS, ENVS, AREA)) for size in (*CELL_SIZES[:2], 3)]
    cells[0][..., 27] = rng.integers(4, 6, (STEPS, ENVS))  # a key in the hand, now and then
    cells[2][cells[0] != DOOR] = 0
    parts = [rng.integers(0, size, (STEPS, ENVS)) for size in MISSION_SIZES]
    if shape.two_objects:
        put = rng.random((STEPS, ENVS)) < 0.7
        parts[0][put] = PUT
        for part, size in zip(parts[1:], MISSION_SIZES[1:], strict=True):
            part[put] += rng.integers(0, size, put.sum()) << 4
    codes, missions = np.stack(parts, -1).astype(np.uint8), MissionIndex()
    kept = rng.standard_normal((ENVS, shape.kept)).astype(np.float32)
    if shape.keep_locks:
        kept[:, -1] = rng.integers(0, 1 << CELL_SIZES[1], ENVS)
    sequences = Sequences(
        np.stack(cells, -1).reshape(STEPS, ENVS, -1).astype(np.uint8),
        rng.integers(0, 4, (STEPS, ENVS)).astype(np.uint8),
        missions.rows(codes),
        rng.random((STEPS, ENVS)) < 0.3,
        kept,
        WHICH,
    )
    return sequences, codes, missions


def _weights(shape: Shape) -> np.ndarray:
    flat = initial_weights(shape, torch.Generator().manual_seed(1))
    return flat + 0.1 * np.random.default_rng(2).standard_normal(len(flat)).astype(np.float32)


def _locked(triples: np.ndarray, known: set[int]) -> set[int]:
    """Colours of locked doors: known before and not observed unlocked, or observed locked now."""
    others = {colour for kind, colour, state in triples.tolist() if kind == 4 and state != 2}
    return known - others | {c for kind, c, state in triples.tolist() if (kind, state) == (4, 2)}


def _fitting(triples: np.ndarray, locked: set[int]) -> np.ndarray:
    """A separate state for keys whose locked door is known, and for locked doors whose key is carried."""
    changed = triples.copy()
    carried = {colour for kind, colour, _ in triples[27:28] if kind == 5}
    for new, (kind, colour, state) in zip(changed, triples, strict=True):
        if (kind == 5 and colour in locked) or ((kind, state) == (4, 2) and colour in carried):
            new[2] = 4
    return changed


def _fits(cell: np.ndarray, code: np.ndarray) -> int:
    """Whether an object has the mission's colour (1) and type (2); 0 for what no mission speaks of."""
    verb, colour, kind, _ = map(int, code)
    if cell[0] not in (4, 5, 6, 7, 8):
        return 0
    first = int(colour % 16 in (6, cell[1])) + 2 * int(kind % 16 in (0, cell[0]))
    if verb != PUT:
        return first
    return first + 4 * int(colour // 16 in (6, cell[1])) + 8 * int(kind // 16 in (0, cell[0]))


def _film(code: np.ndarray, weights: dict[str, torch.Tensor]) -> torch.Tensor:
    """The sum of the embeddings of the mission's words."""
    film = sum(weights[name][int(code[i]) % 16] for i, name in enumerate(PARTS))
    if SECOND_PARTS[0] not in weights:
        return film
    second = [int(number) // 16 + 1 if code[0] == PUT else 0 for number in code[1:]]
    return film + sum(weights[name][i] for name, i in zip(SECOND_PARTS, second, strict=True))


def _plain(
    sequences: Sequences, codes: np.ndarray, shape: Shape, weights: dict[str, torch.Tensor]
) -> torch.Tensor:
    """Logits and values [T, S, 8], a step and a sequence at a time."""
    columns = []
    for n in sequences.which:
        memory, rows = torch.from_numpy(sequences.memory[n, : shape.memory]).double(), []
        locks = {c for c in range(6) if shape.keep_locks and int(sequences.memory[n, -1]) >> c & 1}
        for t in range(STEPS):
            film = _film(codes[t, n], weights)
            scale, shift, bias = film.split((shape.channels, shape.channels, shape.hidden))
            triples = sequences.images[t, n].reshape(AREA, 3).astype(int)
            known = locks if shape.keep_locks and not sequences.begins[t, n] else set()
            locks = _locked(triples, known)
            triples = _fitting(triples, locks)
            cells = sum(weights[name][triples[:, i]] for i, name in enumerate(CELL_PARTS))
            match = weights["match"][[_fits(cell, codes[t, n]) for cell in triples]]
            hidden = weights["input"] @ torch.relu(cells * (1 + scale) + shift + match).flatten()
            hidden = torch.relu(
                hidden + bias + weights["direction"][int(sequences.directions[t, n])]
            )
            if shape.recurrent:
                memory = torch.zeros_like(memory) if sequences.begins[t, n] else memory
                bias_hidden = torch.cat(
                    (torch.zeros(2 * shape.memory).double(), weights["memory_bias"])
                )
                memory = torch.gru_cell(
                    hidden[None],
                    memory[None],
                    weights["inner"],
                    weights["memory"],
                    weights["inner_bias"],
                    bias_hidden,
                )[0]
            else:
                memory = torch.relu(weights["inner"] @ hidden + weights["inner_bias"])
            rows.append(weights["head"] @ memory + weights["skip"] @ hidden + weights["head_bias"])
        columns.append(torch.stack(rows))
    return torch.stack(columns, 1)


@pytest.mark.parametrize(
    "flags",
    [
        {"recurrent": True},
        {"keep_locks": True},
        {"recurrent": False},
        {"keep_locks": True, "two_objects": True},
    ],
)
def test_outputs_and_gradients_are_those_of_a_plain_unroll(flags: dict[str, bool]) -> None:
    shape = Shape(channels=8, hidden=24, memory=16, **flags)
    rng = np.random.default_rng(3)
    sequences, codes, missions = _sequences(shape, rng)
    flat = _weights(shape)
    network = Network(shape, flat)
    outputs = network.forward(sequences, network.film_tables(missions)).copy()
    weights = {
        name: torch.from_numpy(view).double().requires_grad_()
        for name, view in named_views(flat, shape).items()
    }
    expected = _plain(sequences, codes, shape, weights)
    np.testing.assert_allclose(outputs, expected.detach(), rtol=0, atol=1e-5)
    grad_outputs = rng.standard_normal(outputs.shape).astype(np.float32)
    (expected * torch.from_numpy(grad_outputs)).sum().backward()
    gradient = np.full_like(flat, 7)  # all of it has to be written
    network.backward(grad_outputs.copy(), named_views(gradient, shape))
    for name, actual in named_views(gradient, shape).items():
        reference = weights[name].grad.numpy()
        np.testing.assert_allclose(
            actual, reference, rtol=0, atol=2e-5 * max(1, np.abs(reference).max()), err_msg=name
        )
        assert np.abs(reference).max() > 1e-3, name


def test_weights_for_two_objects_keep_the_outputs_of_missions_with_one() -> None:
    shape = Shape(channels=4, hidden=16, memory=12, keep_locks=True)
    wide = replace(shape, two_objects=True)
    sequences, _, missions = _sequences(shape, np.random.default_rng(3))
    flat, initial = _weights(shape), _weights(wide)
    outputs = [
        network.forward(sequences, network.film_tables(missions)).copy()
        for network in (Network(shape, flat), Network(wide, with_two_objects(flat, shape, initial)))
    ]
    np.testing.assert_array_equal(*outputs)
    assert np.abs(outputs[0]).max() > 0.1


def test_weights_for_two_objects_differ_by_the_second_object() -> None:
    shape = Shape(channels=4, hidden=16, memory=12)
    wide = replace(shape, two_objects=True)
    flat = with_two_objects(_weights(shape), shape, _weights(wide))
    network, missions = Network(wide, flat), MissionIndex()
    put = np.array([[PUT, 1 + (colour << 4), 1, 0] for colour in range(3)], np.uint8)
    missions.rows(put)
    film = network.film_tables(missions).film
    assert all(np.abs(film[i] - film[j]).max() > 0 for i, j in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.parametrize("keep_locks", [True, False])
def test_memory_is_cleared_at_the_start_of_an_episode(keep_locks: bool) -> None:
    shape = Shape(channels=4, hidden=16, memory=12, keep_locks=keep_locks)
    rng = np.random.default_rng(4)
    sequences, _, missions = _sequences(shape, rng)
    sequences.begins[:] = False
    sequences.begins[3] = True
    network = Network(shape, _weights(shape))
    films = network.film_tables(missions)
    before = network.forward(sequences, films).copy()
    sequences.images[:3] = 0
    sequences.memory[:, : shape.memory] += 1
    after = network.forward(sequences, films)
    assert (before[:3] != after[:3]).all(axis=(1, 2)).all()
    np.testing.assert_array_equal(before[3:], after[3:])


@pytest.mark.parametrize("keep_locks", [True, False])
def test_single_steps_equal_the_whole_sequence(keep_locks: bool) -> None:
    shape = Shape(channels=4, hidden=16, memory=12, keep_locks=keep_locks)
    rng = np.random.default_rng(5)
    sequences, _, missions = _sequences(shape, rng)
    network = Network(shape, _weights(shape))
    films = network.film_tables(missions)
    whole = network.forward(sequences, films).copy()
    memory = sequences.memory[WHICH]
    for t in range(STEPS):
        now = slice(t, t + 1)
        here = [
            part[now][:, WHICH]
            for part in (sequences.images, sequences.directions, sequences.rows, sequences.begins)
        ]
        one = network.forward(Sequences(*here, memory, np.arange(len(WHICH))), films)[0]
        np.testing.assert_allclose(one, whole[t], rtol=0, atol=1e-6)
        memory = network.memory_after


def test_gates_are_accurate() -> None:
    x = np.linspace(-20, 20, 4001, dtype=np.float32)
    zeros = np.zeros((1, len(x)), np.float32)
    # With the update gate closed, the output is the new gate, tanh.
    inputs = np.concatenate([zeros, zeros - 30, x[None]], 1)
    out = np.zeros_like(zeros)
    kernels.gru(inputs, np.zeros_like(inputs), np.zeros(len(x), np.float32), zeros, out)
    np.testing.assert_allclose(out[0], np.tanh(x.astype(np.float64)), rtol=0, atol=2e-6)


def test_drawn_actions_follow_the_policy_and_log_probs_are_theirs() -> None:
    logits = np.random.default_rng(6).standard_normal(ACTIONS).astype(np.float32) * 2
    draws = 200_000
    outputs = np.tile(np.append(logits, np.float32(9)), (draws, 1))
    actions, log_probs = np.zeros(draws, np.int64), np.zeros(draws, np.float32)
    kernels.sample_actions(
        outputs, np.random.default_rng(7).random(draws), False, actions, log_probs
    )
    expected = torch.log_softmax(torch.from_numpy(logits).double(), 0).numpy()
    shares = np.bincount(actions, minlength=ACTIONS) / draws
    np.testing.assert_allclose(shares, np.exp(expected), rtol=0, atol=5 * 0.5 / draws**0.5)
    np.testing.assert_allclose(log_probs, expected[actions], rtol=0, atol=1e-6)
    kernels.sample_actions(outputs, np.zeros(draws), True, actions, log_probs)
    assert (actions == logits.argmax()).all()


def test_gradients_of_the_policy_are_autograds() -> None:
    rng = np.random.default_rng(8)
    outputs = rng.standard_normal((4, 3, ACTIONS + 1)).astype(np.float32)
    actions, which = rng.integers(0, ACTIONS, (4, 6)), np.array([5, 1, 2])
    grad_log_probs, grad_values = rng.standard_normal((2, 4, 3)).astype(np.float32)
    leaf = torch.from_numpy(outputs.copy()).double().requires_grad_()
    every = torch.log_softmax(leaf[..., :ACTIONS], -1)
    taken = every.gather(-1, torch.from_numpy(actions[:, which])[..., None])[..., 0]
    entropy = -(every.exp() * every).sum(-1)
    ((taken * torch.from_numpy(grad_log_probs)).sum() + 0.3 * entropy.sum()
     + (leaf[..., ACTIONS] * torch.from_numpy(grad_values)).sum()).backward()  # fmt: skip
    log_probs, entropies = np.zeros((2, 4, 3), np.float32)
    kernels.log_probs_and_entropies(outputs, actions, which, log_probs, entropies)
    np.testing.assert_allclose(log_probs, taken.detach(), atol=1e-5)
    np.testing.assert_allclose(entropies, entropy.detach(), atol=1e-5)
    kernels.log_probs_and_entropies_backward(
        outputs, actions, which, entropies, grad_log_probs, np.float32(0.3), grad_values
    )
    np.testing.assert_allclose(outputs, leaf.grad, atol=1e-5)


def test_every_weight_has_its_place() -> None:
    shape = Shape(16, 128, 128)
    flat = np.arange(weight_count(shape), dtype=np.float32)
    together = np.concatenate([view.ravel() for view in named_views(flat, shape).values()])
    np.testing.assert_array_equal(together, flat)
