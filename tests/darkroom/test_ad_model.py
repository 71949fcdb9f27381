"""The transformer: against one written plainly, with its cache against without, and what it cannot see."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from darkroom.distillation import rollout
from darkroom.distillation.ad_options import Config
from darkroom.distillation.context import NO_ACTION, NO_CELL, NO_REWARD, Context
from darkroom.distillation.rollout import Acting, CachedPolicy
from darkroom.distillation.shape import LAYOUTS, STATES
from darkroom.distillation.transformer import Transformer, causal_attention_with_dropout
from darkroom.rooms.batch import RoomBatch
from darkroom.rooms.grid import centre, transitions
from darkroom.rooms.play import Tasks

SMALL = replace(
    Config(window=12, width=12, layers=2, heads=3, feed_forward=20).shape(size=5, limit=6), reach=4
)


def model_of(seed: int = 0, **changes) -> Transformer:
    """A model with weights large enough to distinguish tokens."""
    model = Transformer(replace(SMALL, **changes), torch.Generator().manual_seed(seed))
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    return model.eval()


@given(
    st.lists(st.floats(0.02, 1), min_size=5, max_size=5),
    st.floats(0, 0.9),
    st.integers(0, 5),
)
def test_label_smoothing_is_removed_from_the_policy(weights, share, zeros):
    """Against the targets' own mean, whose logarithm fits them best; actions that are never taken stay out."""
    p = torch.tensor(weights, dtype=torch.float64)
    p[: min(zeros, 4)] = 0
    p /= p.sum()
    taken = torch.eye(5, dtype=torch.float64) * (1 - share) + share / 5  # targets by action
    model = model_of(label_smoothing=share)
    assert torch.allclose(model.policy((p @ taken).log()), p, atol=1e-9)
    # As torch spreads them: their loss is least there.
    logits = (p @ taken).log().requires_grad_()
    loss = sum(
        p[action] * F.cross_entropy(logits, torch.tensor(action), label_smoothing=share)
        for action in range(5)
    )
    assert torch.autograd.grad(loss, logits)[0].abs().max() < 1e-9


def windows(rows: int, steps: int, seed: int = 0, size: int = 5) -> Context:
    """Played by agents that do not care, the first from the beginning on."""
    rng = np.random.default_rng(seed)
    rooms = RoomBatch(rng.integers(size**2, size=rows), size, limit=6)
    sizes = np.full(rows, size)
    now, context = Context.first(rooms.cells, sizes), Context.empty(sizes, steps)
    for step in range(steps):
        context.put(step, now)
        actions, cells, times = rng.integers(5, size=rows), rooms.cells, rooms.times.copy()
        gave = rooms.step(actions)
        now = Context.empty(sizes, 1)
        for into, values in zip(
            (
                now.previous_cells,
                now.previous_times,
                now.actions,
                now.rewards,
                now.cells,
                now.times,
            ),
            (cells, times, actions, gave.rewards, gave.cells, rooms.times),
            strict=True,
        ):
            into[:, 0] = values
    return context


def plain(model: Transformer, context: Context) -> torch.Tensor:
    """Logits of `one` and `three`, a number after the other: loops and sums as the papers' formulas."""
    shape, weights = model.shape, dict(model.named_parameters())
    rows, steps = context.cells.shape
    logits = torch.zeros(rows, steps, 5)
    places, others = weights["tables.places"], weights["tables.others"]

    def cell(value: int, size: int, moment: int) -> torch.Tensor:
        if value == NO_CELL:
            return torch.zeros(shape.width)
        if shape.states == "table":
            return places[moment][value]
        row, column = divmod(value, size)
        first = places[2 * moment][row - size // 2 + shape.reach]
        return first + places[2 * moment + 1][column - size // 2 + shape.reach]

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        centred = x - x.mean()
        return (
            centred / torch.sqrt((centred**2).mean() + 1e-5) * weights[f"{name}.scale"][0]
            + (weights[f"{name}.shift"][0])
        )

    for r in range(rows):
        tokens = []
        size = int(context.sizes[r])
        for t in range(steps):
            at = {
                name: int(getattr(context, name)[r, t])
                for name in (
                    "previous_cells",
                    "previous_times",
                    "actions",
                    "rewards",
                    "cells",
                    "times",
                )
            }
            action, reward, time = others[at["actions"]], others[6 + at["rewards"]], others[9:]
            if shape.layout == "one":
                tokens.append(
                    cell(at["previous_cells"], size, 1) + action + reward
                    + cell(at["cells"], size, 0) + time[at["times"]]
                )  # fmt: skip
            else:
                then = time[at["previous_times"]] if at["actions"] != NO_ACTION else 0
                tokens += [action + then, reward + time[at["times"]]]
                tokens.append(cell(at["cells"], size, 0) + time[at["times"]])
        if shape.positions == "learned":
            tokens = [token + weights["positions"][i] for i, token in enumerate(tokens)]
        xs = [norm(token, "norm_tokens") for token in tokens]
        for layer in range(shape.layers):
            name = f"blocks.{layer}"

            def linear(x: torch.Tensor, which: str, name: str = name) -> torch.Tensor:
                return (
                    x @ weights[f"{name}.{which}.weight"][0] + weights[f"{name}.{which}.bias"][0, 0]
                )

            projected = [linear(norm(x, f"{name}.norm_attention"), "project") for x in xs]
            head_width = shape.width // shape.heads
            after = []
            for i in range(len(xs)):
                read = []
                for head in range(shape.heads):
                    part = slice(head * head_width, (head + 1) * head_width)
                    query = projected[i][: shape.width][part]
                    scores = [
                        math.exp(
                            float(query @ projected[j][shape.width : 2 * shape.width][part])
                            / head_width**0.5
                        )
                        for j in range(i + 1)
                    ]
                    values = [projected[j][2 * shape.width :][part] for j in range(i + 1)]
                    read.append(
                        sum(s * v for s, v in zip(scores, values, strict=True)) / sum(scores)
                    )
                after.append(xs[i] + linear(torch.cat(read), "collect"))
            xs = [
                x + linear(F.gelu(linear(norm(x, f"{name}.norm_feed"), "feed_in")), "feed_out")
                for x in after
            ]
        per = 1 if shape.layout == "one" else 3
        for t in range(steps):
            last = norm(xs[per * t + per - 1], "norm_last")
            logits[r, t] = weights["head.weight"] @ last + weights["head.bias"]
    return logits


@pytest.mark.parametrize("layout", ["one", "three"])
@pytest.mark.parametrize(("states", "positions"), [("row_column", "learned"), ("table", "time")])
def test_it_is_the_transformer_of_the_formulas(layout, states, positions):
    model = model_of(layout=layout, states=states, positions=positions)
    context = windows(2, 5)
    with torch.no_grad():
        assert torch.allclose(model(context), plain(model, context), atol=2e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_attention_is_causal(layout):
    model, context = model_of(layout=layout), windows(3, 10)
    changed = context.copy()
    other = windows(3, 10, seed=1)
    changed.put(6, other.cut(6, 10))
    with torch.no_grad():
        one, two = model(context), model(changed)
    assert torch.allclose(one[:, :6], two[:, :6], atol=1e-6)
    assert (one[:, 6:] - two[:, 6:]).abs().max() > 1e-3


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_field_of_a_step_changes_the_logits(layout):
    model, context = model_of(layout=layout), windows(2, 8)
    with torch.no_grad():
        before = model(context)[:, -1]
        for field, value in (("actions", 1), ("rewards", 1), ("cells", 3), ("times", 4)):
            changed = context.copy()
            array = getattr(changed, field)
            array[:, 5] = np.where(array[:, 5] == value, 0, value)
            assert (model(changed)[:, -1] - before).abs().min(0).values.max() > 1e-5, field


def test_streams_attend_to_each_other_with_separate_weights():
    """Without the weights for another stream's values the state's stream alone is left."""
    model, context = model_of(layout="cross"), windows(2, 8)
    width = SMALL.width
    with torch.no_grad():
        for block in model.blocks:
            block.collect.weight[:, width:] = 0
        alone = model(context)
        changed = context.copy()
        changed.rewards[:, 2] = 1 - changed.rewards[:, 2]
        changed.actions[:, 3] = (changed.actions[:, 3] + 1) % 5
        assert torch.equal(model(changed), alone)
        changed.cells[:, 2] = (changed.cells[:, 2] + 1) % 25
        assert not torch.allclose(model(changed)[:, -1], alone[:, -1])


@settings(max_examples=9, deadline=None)
@given(
    st.sampled_from(LAYOUTS), st.sampled_from(STATES), st.sampled_from(["learned", "time"]),
    st.integers(0, 2**31),
)  # fmt: skip
def test_outputs_with_the_cache_equal_those_without(layout, states, positions, seed):
    """At every step, also after the window was full and halved, and again."""
    model = model_of(seed % 7, layout=layout, states=states, positions=positions)
    rng = np.random.default_rng(seed)
    rooms = RoomBatch(rng.integers(25, size=4), 5, limit=int(rng.integers(2, 7)))
    policy, lengths = CachedPolicy(model, rooms.cells, rooms.sizes), []
    for _ in range(31):
        logits = policy.logits()
        lengths.append(policy.length)
        with torch.no_grad():
            uncached = model(policy.window.cut(0, policy.length))[:, -1]
        assert torch.allclose(logits, uncached, atol=1e-5)
        actions = rng.integers(5, size=4)
        step = rooms.step(actions)
        policy.observe(actions, step.rewards, step.cells, rooms.times)
    # 12 steps fill the window; then the newer 6 are kept and the step itself.
    assert lengths == [*range(1, 13), *range(7, 13), *range(7, 13), *range(7, 13), 7]


def test_the_window_has_the_latest_steps():
    context, model = windows(3, 30), model_of()
    policy = CachedPolicy(model, context.cells[:, 0], context.sizes)
    for step in range(30):
        policy.logits()
        for field in ("previous_cells", "previous_times", "actions", "rewards", "cells", "times"):
            kept = getattr(policy.window, field)[:, : policy.length]
            assert (kept == getattr(context, field)[:, step + 1 - policy.length : step + 1]).all()
        if step < 29:
            after = context.cut(step + 1, step + 2)
            policy.observe(
                *(getattr(after, f)[:, 0] for f in ("actions", "rewards", "cells", "times"))
            )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_ring_equals_the_window_until_it_is_full_and_keeps_older_steps(layout):
    model = model_of(layout=layout, positions="time")
    context = windows(3, 30)
    ring = CachedPolicy(model, context.cells[:, 0], context.sizes, "ring")
    with torch.no_grad():
        for step in range(30):
            logits = ring.logits()
            begin = max(0, step - 11)
            uncached = model(context.cut(begin, step + 1))[:, -1]
            same = torch.allclose(logits, uncached, atol=1e-5)
            # Deeper blocks remember forgotten steps.
            assert same == (step < 12)
            assert ring.length == min(step + 1, 12)
            if step < 29:
                after = context.cut(step + 1, step + 2)
                ring.observe(
                    *(getattr(after, f)[:, 0] for f in ("actions", "rewards", "cells", "times"))
                )


def test_a_ring_of_one_block_equals_a_sliding_window():
    """A single block reads exactly the last steps of the window."""
    model = model_of(layers=1, positions="time")
    context = windows(3, 30)
    ring = CachedPolicy(model, context.cells[:, 0], context.sizes, "ring")
    with torch.no_grad():
        for step in range(30):
            uncached = model(context.cut(max(0, step - 11), step + 1))[:, -1]
            assert torch.allclose(ring.logits(), uncached, atol=1e-5)
            if step < 29:
                after = context.cut(step + 1, step + 2)
                ring.observe(
                    *(getattr(after, f)[:, 0] for f in ("actions", "rewards", "cells", "times"))
                )


def test_a_ring_with_places_and_rooms_out_of_reach_are_refused():
    model = model_of()
    with pytest.raises(ValueError, match="positions=time"):
        CachedPolicy(model, np.zeros(1, int), np.array([5]), "ring")
    with pytest.raises(ValueError, match="11 x 11"):
        CachedPolicy(model, np.zeros(1, int), np.array([11]))
    assert model.shape.fits(9)
    assert not replace(SMALL, states="table").fits(9)


@pytest.mark.parametrize("states", ["row_column", "fourier"])
def test_cells_are_embedded_relative_to_the_centre(states):
    """The same walk in a larger room, and in a room that is moved, is the same to those who know rows and columns."""
    model, small = model_of(states=states), windows(2, 6, size=3)
    larger = small.copy()
    for field in ("previous_cells", "cells"):
        cells = getattr(larger, field)
        row, column = np.divmod(cells, 3)
        cells[:] = np.where(cells == NO_CELL, NO_CELL, (row + 1) * 5 + column + 1)
    larger.sizes[:] = 5
    moved = larger.copy()
    for field in ("previous_cells", "cells"):
        cells = getattr(moved, field)
        cells[:] = np.where(cells == NO_CELL, NO_CELL, cells - 5 + 1)  # up by one, right by one
    with torch.no_grad():
        assert torch.equal(model(small), model(larger))
        usual = torch.arange(5) - 2 + SMALL.reach
        places = torch.stack([usual + 1, usual - 1]).expand(2, 2, 5)
        assert torch.allclose(model(moved, coordinates=places), model(larger), atol=1e-6)
        same = torch.stack([usual, usual]).expand(2, 2, 5)
        assert torch.equal(model(larger, coordinates=same), model(larger))
        assert not torch.allclose(model(moved), model(larger))


def test_actions_are_sampled_with_their_probabilities():
    model = model_of()
    cells = np.full(20_000, 12)
    policy = CachedPolicy(model, cells, np.full(20_000, 5))
    rng = np.random.default_rng(0)
    single = CachedPolicy(model, cells[:1], np.array([5]))
    probabilities = torch.softmax(single.logits()[0], 0).numpy()
    drawn = np.bincount(policy.sample(rng.random(20_000)), minlength=5) / 20_000
    assert np.abs(drawn - probabilities).max() < 4 * 0.5 / 20_000**0.5
    best = CachedPolicy(model, cells[:3], np.full(3, 5)).greedy()
    assert (best == probabilities.argmax()).all()


@pytest.mark.parametrize("terminating", [True, False])
def test_paths_are_those_of_the_agents_that_are_scored(terminating):
    """Returns and paths of the same agents agree."""
    model, goals = model_of(), [6, 7, 11, 13, 17, 24]
    tasks = Tasks.of_rooms([(5, goals)], 6, terminating)
    returns, lengths = rollout.learn_in_context(
        model, tasks, Acting(7, "halve", greedy=False), 1, np.random.default_rng(2)
    )
    cells = rollout.paths(model, tasks, Acting(7, "halve", greedy=False), np.random.default_rng(2))
    assert cells.shape == (len(goals), 7, 7)
    for task, goal in enumerate(goals):
        for episode, path in enumerate(cells[task]):
            walked = path[path >= 0]
            assert walked[0] == centre(5)
            assert (path[len(walked) :] == -1).all()
            assert len(walked) == lengths[task, 0, episode] + 1
            assert (walked[1:] == goal).sum() == returns[task, 0, episode]
            for here, there in itertools.pairwise(walked):
                assert there in transitions(5)[here]
    assert returns.any()


def test_dropout_is_off_when_it_plays_and_on_when_it_learns():
    model, context = model_of(attention_dropout=0.5, residual_dropout=0.2), windows(2, 6)
    with torch.no_grad():
        assert torch.equal(model(context), model(context))
        model.train()
        assert not torch.equal(model(context), model(context))


def test_nothing_happened_before_the_first_step():
    first = Context.first(np.array([4, 12]), np.array([5, 5]))
    assert (first.previous_cells == NO_CELL).all()
    assert (first.actions == NO_ACTION).all()
    assert (first.rewards == NO_REWARD).all()
    assert first.cells[:, 0].tolist() == [4, 12]


@pytest.mark.parametrize("steps", [5, 128, 200])
def test_dropped_attention_is_attention_without_dropout_and_right_on_average(steps):
    generator = torch.Generator().manual_seed(steps)
    parts = [torch.randn(2, 3, steps, 4, generator=generator) for _ in range(3)]
    for part in parts:
        part.requires_grad_()
    expected = F.scaled_dot_product_attention(*parts, is_causal=True)
    same = causal_attention_with_dropout(*parts, 0.0)
    assert torch.allclose(same, expected, atol=1e-5)
    # The gradients too: of every input.
    weights = torch.randn(expected.shape, generator=generator)
    ours = torch.autograd.grad((same * weights).sum(), parts)
    theirs = torch.autograd.grad((expected * weights).sum(), parts)
    for one, two in zip(ours, theirs, strict=True):
        assert torch.allclose(one, two, atol=1e-4)
    torch.manual_seed(0)
    with torch.no_grad():
        mean = sum(causal_attention_with_dropout(*parts, 0.25) for _ in range(200)) / 200
        assert (mean - expected).abs().mean() < 0.05
        # The first step attends to itself alone: its value scaled by dropout, or zero.
        first = torch.stack(
            [causal_attention_with_dropout(*parts, 0.25)[:, :, 0] for _ in range(200)]
        )
        values = parts[2][:, :, 0]
        zero = (first == 0).all(-1)
        assert abs(zero.float().mean() - 0.25) < 0.05
        assert torch.allclose(first[~zero], (values / 0.75).expand_as(first)[~zero])
