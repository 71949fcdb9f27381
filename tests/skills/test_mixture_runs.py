"""Whole runs of `skill:distill` and `skill:moe`, interrupted and resumed, and their figures."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from runcatalog import record
from runcatalog.model import committed
from runcatalog.record.evaluation import outcomes_of
from runcatalog.record.training.checkpoint import save_checkpoint
from skills import benchmark, distill, moe, redraw
from skills.agents import checkpoints, evaluation, mixture_kernels
from skills.agents.evaluation import play
from skills.agents.mixture import Mixture
from skills.agents.network import Network, Shape, initial_weights, weight_count
from skills.agents.policy import NetworkAgent
from skills.figures import gif, plots
from skills.learning.options import SPECIALISTS
from skills.learning.ppo import Learner
from skills.levels.minigrid import pictures
from skills.levels.minigrid.env import SkillsEnv

SHORT = {
    "stage": "all0", "epochs": 1, "epoch_steps": 4096, "envs": 16, "rollout": 16, "minibatches": 2, "channels": 4,
    "hidden": 16, "memory": 16, "eval_interval": 6, "eval_episodes": 5, "save_interval": 4, "threads": 1,
    "episodes": 12,
}  # fmt: skip


@pytest.fixture(scope="module")
def specialists(tmp_path_factory) -> dict[str, str]:
    """Flags that name one agent per verb, as checkpoints."""
    flags = {}
    for number, (verb, stage) in enumerate(
        {"gtg": "gtg1", "gto": "gto0", "pkp": "pkpc3", "tgl": "all0"}.items()
    ):
        shape = Shape(4, 16, 8 + number)
        network = Network(shape, initial_weights(shape, torch.Generator().manual_seed(number)))
        network.weights["head"][:-1] *= 300  # clear preferences, different per agent
        folder = tmp_path_factory.mktemp("agents") / verb
        save_checkpoint(
            folder / "checkpoints", 1, checkpoints.named_tensors(network), checkpoints.description(shape, stage),
            run_id=f"{number:032x}",
        )  # fmt: skip
        flags[verb] = str(folder)
    return flags


@pytest.fixture(scope="module")
def wholes(run_main, tmp_path_factory, specialists) -> dict[str, Path]:
    """Uninterrupted runs."""
    folders = {}
    for script, workers in ((distill, 4), (moe, 2)):
        folders[script.__name__] = tmp_path_factory.mktemp("whole")
        flags = SHORT | specialists | {"workers": workers}
        run_main(folders[script.__name__], script, **flags)
    return folders


@pytest.mark.parametrize(("script", "workers"), [(distill, 4), (moe, 2)])
def test_an_interrupted_run_resumes_bit_equal(
    run_main, monkeypatch, tmp_path, specialists, wholes, script, workers
) -> None:
    flags = SHORT | specialists | {"workers": workers}
    whole = json.loads((wholes[script.__name__] / "result.json").read_text())
    collect = Learner.collect

    def breaks(self, update) -> None:
        if update == 11:
            raise RuntimeError("broken off")
        collect(self, update)

    with monkeypatch.context() as patched:
        patched.setattr(Learner, "collect", breaks)
        with pytest.raises(RuntimeError, match="broken off"):
            run_main(tmp_path / "broken", script, **flags)
    resumed = run_main(tmp_path / "broken", script, **flags | {"threads": 2})
    assert resumed["session"] == 2
    assert resumed["resume_mismatch"] == 0
    assert resumed["digest"] == whole["digest"]
    assert resumed["result"] == whole["result"]
    agent = checkpoints.load(tmp_path / "broken")
    (played,) = [
        evaluation.play_sampled_and_greedy(agent, "all0", range(12), np.random.default_rng(1))[
            "greedy"
        ]
    ]
    assert played.rate == whole["result"]["metrics"]["success/greedy"]
    (_, greedy) = outcomes_of(whole["result"]).values()
    assert greedy.success[:, 0].tolist() == played.success.tolist()


def test_a_gate_reports_its_experts(wholes) -> None:
    folder = wholes[moe.__name__]
    written = json.loads((folder / "result.json").read_text())
    metrics = written["result"]["metrics"]
    for verb in SPECIALISTS:
        for what in ("gate", "highest"):
            shares = [metrics[f"{what}/{verb}/{expert}"] for expert in SPECIALISTS]
            assert sum(shares) == pytest.approx(1, abs=1e-6)
        assert 0 < metrics[f"gate_entropy/{verb}"] < np.log(4) + 1e-6
    svg = (folder / "artifacts/gate.svg").read_text()
    assert all(f">{verb.upper()}<" in svg for verb in SPECIALISTS)
    parents = json.loads((folder / "journal/parents.json").read_text())["parents"]
    assert parents == [f"{number:032x}" for number in range(4)]


def test_a_verb_that_no_episode_has_leaves_its_cells_empty(run_main, tmp_path, specialists) -> None:
    flags = SHORT | specialists | {"workers": 2, "episodes": 1, "epoch_steps": 256}
    result = run_main(tmp_path / "run", moe, **flags)["result"]
    for verb, *row in result["table"]["rows"]:
        occurs = f"gate_entropy/{verb.lower()}" in result["metrics"]
        assert all(bool(cell) == occurs for cell in row[:5])
        assert all(row[5:])
    assert sum(name.startswith("gate_entropy/") for name in result["metrics"]) == 1


def test_an_expert_is_named_once(run_main, tmp_path, specialists) -> None:
    flags, agent = SHORT | specialists | {"workers": 2}, specialists["pkp"]
    with pytest.raises(record.UserError, match=r"--more: .* is named twice"):
        moe.Config(**flags, more=f"all6 {agent}  all6")
    with pytest.raises(record.UserError, match=r"--more: .* are the same agent"):
        run_main(
            tmp_path / "run", moe, **flags,
            more=f"{agent}/checkpoints {agent}/checkpoints/00000001",
        )  # fmt: skip


def test_a_mixture_cannot_teach(specialists, wholes) -> None:
    """Nor what was trained on another verb."""
    for folder in (wholes[moe.__name__], specialists["gtg"]):
        with pytest.raises(record.UserError, match="--pkp"):
            checkpoints.load_specialists({"pkp": folder})
    with pytest.raises(record.UserError, match="--workers"):
        distill.Config(**specialists, workers=6, envs=48)


def test_an_interrupted_benchmark_plays_only_the_missing_episodes(
    run_main, monkeypatch, tmp_path, specialists
) -> None:
    chosen = f"{specialists['gtg']} {specialists['pkp']}"
    flags = {"agents": chosen, "stages": "gtg0 pkp0", "episodes": 10}
    whole = run_main(tmp_path / "whole", benchmark, **flags)
    both, left = evaluation.play_sampled_and_greedy, iter(range(3))

    def breaks(*about):
        next(left)
        return both(*about)

    with monkeypatch.context() as patched:
        patched.setattr(evaluation, "play_sampled_and_greedy", breaks)
        with pytest.raises(StopIteration):
            run_main(tmp_path / "broken", benchmark, **flags)
        left = iter(range(1))  # of four cells three are there
        resumed = run_main(tmp_path / "broken", benchmark, **flags)
    assert resumed["result"] == whole["result"]
    outcomes, metrics = outcomes_of(whole["result"]), whole["result"]["metrics"]
    rates = {name for name in metrics if name.startswith("success/")}
    assert outcomes.keys() == rates
    assert all(outcomes[name].success.mean() == metrics[name] for name in rates)


def test_a_single_agent_has_its_outcomes_under_a_name_without_it(
    run_main, tmp_path, specialists
) -> None:
    """So two runs are compared level by level, whatever their agents are called."""
    flags = {"stages": "gtg0 pkp0", "episodes": 10}
    results = [
        run_main(tmp_path / verb, benchmark, **flags, agents=specialists[verb])["result"]
        for verb in ("gtg", "pkp")
    ]
    first, second = (outcomes_of(result)["mean_success"] for result in results)
    assert first.levels == second.levels
    assert first.success.mean() == pytest.approx(results[0]["objective"]["value"])


def test_figures_show_the_records(tmp_path) -> None:
    names, stages = ["gtg1", "pkp4", "all6", "distill", "moe"], ["gtg1", "all6"]
    rates = {
        (name, stage): 0.1 * i + 0.05 * j
        for i, name in enumerate(names)
        for j, stage in enumerate(stages)
    }
    played = {
        "run": "b" * 32, "started": 2, "flags": {"agents": " ".join(names), "stages": " ".join(stages)},
        "metrics": {f"success/{n}/{s}/sampled": {"last": rate} for (n, s), rate in rates.items()},
        "result": {},  # that of many agents has no room for them
    }  # fmt: skip
    ends = {"chain/end/gtg0": 4e6, "chain/end/gtg1": 6e6}
    curves = {"chain/success": [[1e6, 0.5], [6e6, 0.9]], "chain/lr": [[1e6, 1e-3], [6e6, 1e-5]]}
    stage = {"run": "a" * 32, "flags": {"eval-episodes": 500}}
    curriculum = {
        "run": "c" * 32, "parents": [stage["run"]], "flags": {"name": "gtg"},
        "metrics": {name: {"last": value, "curve": [[value, value]]} for name, value in ends.items()}
        | {name: {"last": curve[-1][1], "curve": curve} for name, curve in curves.items()},
    }  # fmt: skip
    records = {
        "skill:benchmark": [played], "skill:curriculum": [curriculum], "skill:gtg0": [stage],
    }  # fmt: skip
    batch = {"flags": {}, "metrics": {}, "result": {"batch": True, "method": "grid"}}
    records = committed.without_batches({name: [*runs, batch] for name, runs in records.items()})
    for folder in (tmp_path / "once", tmp_path / "again"):
        folder.mkdir()
        drawn = redraw.draw(records, folder)
        assert [path.name for path in drawn] == ["benchmark_agents.svg", "chain_gtg.svg"]
    by_agent, chain = (path.read_text() for path in drawn)
    for figure in (by_agent, chain):
        assert figure.encode() == (tmp_path / "once" / drawn.pop(0).name).read_bytes()
    for word in ("GTG", "PKP", "ALL", "DIS", "MOE", "45.0"):
        assert f">{word}<" in by_agent
    assert ">gtg0<" in chain
    assert ">learning rate<" in chain
    assert ">95 % interval of 500 validation episodes<" in chain


def test_the_committed_records_can_be_drawn(tmp_path) -> None:
    folder = Path(__file__).parents[2] / "experiments/records/skills"
    records = committed.without_batches(committed.finished_runs(folder))
    assert {"skill:benchmark", "skill:curriculum"} <= records.keys()
    drawn = [path.name for path in redraw.draw(records, tmp_path)]
    assert drawn[0] == "benchmark_agents.svg"
    assert set(drawn[1:]) >= {"chain_gtg.svg", "chain_pkp.svg"}


def test_a_chain_is_read_back_as_it_was_logged() -> None:
    curriculum = {
        "metrics": {
            "chain/success": {"curve": [[10, 0.25], [20, 0.5]]},
            "chain/lr": {"curve": [[5, 1e-3]]},
            "chain/end/b": {"last": 20.0},
            "chain/end/a": {"last": 12.0},
        }
    }
    chain = redraw.chain_of(curriculum)
    assert chain == plots.Chain({"a": 12.0, "b": 20.0}, ([10, 20], [0.25, 0.5]), ([5], [1e-3]))
    assert redraw.chain_of({"metrics": {}}) is None


def test_an_expert_that_is_sure_does_not_make_a_mixture_infinite() -> None:
    opinions = np.zeros((1, 2, 7), np.float32)
    opinions[0, :, 3] = 1
    outputs = np.array([[40.0, -40.0, 0.5]], np.float32)
    weights, out = np.zeros((1, 2), np.float32), np.zeros((1, 8), np.float32)
    mixture_kernels.mix_policies(outputs, opinions, weights, out)
    assert np.isfinite(out).all()
    assert out[0, :7].argmax() == 3


def test_an_animation_shows_every_step_and_the_gates_weights() -> None:
    shape = Shape(4, 16, 8)
    experts = {
        name: NetworkAgent(
            Network(shape, initial_weights(shape, torch.Generator().manual_seed(number)))
        )
        for number, name in enumerate(("a", "b"))
    }
    gate = Shape(4, 16, 8, choices=2)
    network = Network(gate, np.zeros(weight_count(gate), np.float32))
    network.weights["head_bias"][0] = np.log(3)  # three quarters to the first in every state
    mixture = Mixture(NetworkAgent(network), experts)
    played = play(mixture, "gtg0", [5], None)
    shown = gif.frames(mixture, "gtg0", 5)
    assert len(shown) == played.steps[0] + 1
    blue, orange = (tuple(bytes.fromhex(colour[1:])) for colour in plots.COLOURS[:2])
    for image in shown:
        colours = [tuple(pixel) for pixel in image[-1].tolist()]
        assert colours == [blue] * 99 + [orange] * 33
    env = SkillsEnv("gtg0")
    env.reset(seed=5)
    plain = gif.frames(experts["a"], "gtg0", 5)
    np.testing.assert_array_equal(plain[0][-11 * 12 :], pictures.picture(env, 12))
    both = gif.side_by_side([shown[:1], shown])
    assert len(both) == len(shown) + gif.WAIT
    np.testing.assert_array_equal(both[-1][:, : 11 * 12], shown[0])


def test_an_animation_is_written_as_a_gif(wholes, monkeypatch, tmp_path, capsys) -> None:
    path = tmp_path / "episode.gif"
    monkeypatch.setattr(
        sys, "argv", ["gif", str(wholes[distill.__name__]), str(path), "--stage", "pkp0", "--sampled"]
    )  # fmt: skip
    gif.main()
    assert "kB" in capsys.readouterr().out
    with Image.open(path) as animation:
        assert animation.n_frames > 1
        assert animation.width == 11 * 12  # one verb: one episode
    with pytest.raises(record.UserError, match=r"episode\.png.*\.gif"):
        gif.make(wholes[distill.__name__], tmp_path / "episode.png")
    with pytest.raises(record.UserError, match="--stage"):
        gif.make(wholes[distill.__name__], path, "gtg9")
    with pytest.raises(record.UserError, match=r"there is no folder .*/missing"):
        gif.make(wholes[distill.__name__], tmp_path / "missing/episode.gif")
    for seed in (-1, 1 << 63):
        with pytest.raises(record.UserError, match=f"--seed: {seed} is no integer"):
            gif.make(wholes[distill.__name__], path, seed=seed)
