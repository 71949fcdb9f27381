"""The metrics of a series, from tiny training runs."""

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from door import metrics, series_redraw, train_hnppo, train_ppo
from door.continual import evaluations, formulas, steps
from door.env.scripted import ScriptedHook
from door.training import evaluation, snapshots, summary, trainer
from door.training.evaluation import HeldOutWorlds
from rl.normalise import ObservationNormaliser
from rl.policy import Policy
from runcatalog import record
from runcatalog.model import committed
from runcatalog.record.evaluation import evaluation_set
from runcatalog.record.journal.files import write_json
from runcatalog.record.journal.metrics import read_points

RUN_VARIABLES = ("RUN_DIR", "RUN_ID", "GUILD_OP", "MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "RECORD")
WORLDS = 12  # instead of 100, in training and here
SEED = 31  # whose untrained policy opens a few doors when its actions are large
SMALL = {
    "num_envs": 8, "num_steps": 16, "minibatch_size": 64, "epochs": 1, "env_steps": 4 * 128, "seed": SEED,
    "eval_interval": 2, "video": False, "network_size": "16 16",
}  # fmt: skip


class Place:
    """A folder of runs and series; nothing goes to MLflow."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.patch = root, monkeypatch
        for name in RUN_VARIABLES:
            monkeypatch.delenv(name, raising=False)
        (root / "guild.yml").write_text("")
        monkeypatch.setenv("PROJECT_DIR", str(root))
        monkeypatch.setenv("RECORD_MLFLOW", "off")
        monkeypatch.setattr(evaluations, "WORLDS", WORLDS)
        monkeypatch.setattr(trainer, "WORLDS", WORLDS)
        monkeypatch.setattr(summary, "learning_curve", lambda *arguments: None)

    def train(self, name: str, kind: str = "ppo", **flags) -> Path:
        script = {"ppo": train_ppo, "hnppo": train_hnppo}[kind]
        if kind == "ppo":
            new = {} if "pretrained" in flags else {"mean_gain": 4.0}
            flags = {"lr": 1e-9} | new | flags
        self.patch.setenv("RUN_DIR", str(self.root / name))
        script.main(script.Config(**(SMALL | flags)))
        return self.root / name

    def series(self, name: str, *runs: Path) -> str:
        """A folder of links as a series leaves it."""
        folder = self.root / name / "steps"
        folder.mkdir(parents=True)
        (self.root / name / "journal").mkdir()
        write_json(self.root / name / "journal" / "run.json", {"id": name})
        for index, run in enumerate(runs):
            facts = json.loads((run / "journal" / "run.json").read_text())
            (folder / f"{index}_{facts['flags']['task']}").symlink_to(run)
        return str(folder)

    def metrics(self, name: str, **flags) -> dict:
        self.patch.setenv("RUN_DIR", str(self.root / name))
        return metrics.main(metrics.Config(**({"seed": SEED, "worlds": 6, "every": 1} | flags)))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with pytest.MonkeyPatch.context() as monkeypatch:
        place = Place(tmp_path_factory.mktemp("metrics"), monkeypatch)
        pull = place.train("pull", task="pull")
        left = place.train("left", task="pull_left")
        tuned = place.train("tuned", task="pull_left", pretrained=str(pull))
        place.series("fresh", pull, left)
        place.series("tuning", pull, tuned)
        yield place


@pytest.fixture(scope="module")
def whole(place) -> dict:
    """Metrics of the fine-tuned series."""
    folders = {
        "series_steps": str(place.root / "tuning/steps"),
        "reference_steps": str(place.root / "fresh/steps"),
    }
    return place.metrics("whole", **folders) | {"folders": folders}


def _points(directory: Path) -> dict[str, dict[int, float]]:
    points: dict[str, dict[int, float]] = {}
    for point in read_points(directory / "journal" / "metrics.jsonl"):
        assert point.step not in points.setdefault(point.name, {}), point
        points[point.name][point.step] = point.value
    return points


@pytest.mark.parametrize("index", [0, 1])
def test_evaluations_do_not_depend_on_previous_policies(index):
    seeds = record.Seeds(9)
    with HeldOutWorlds(seeds=seeds, worlds=4, index=index) as worlds:
        for hook, task in (
            ("lever", "pull"),
            ("pull", "pull"),
            ("round", "round"),
            ("pull", "pull"),
        ):
            own = worlds.evaluate(ScriptedHook(hook), task)
            alone = evaluation.evaluate(
                ScriptedHook(hook), task, seeds=seeds, worlds=4, index=index, threads=1
            )
            assert own.episode_return == alone.episode_return
            assert np.array_equal(own.successes, alone.successes)
            assert own.max_penetration == alone.max_penetration
            assert worlds.opening_rate(ScriptedHook(hook), task) == own.opening_rate


def test_others_are_tried_only_after_a_success_in_the_first():
    seeds = record.Seeds(9)

    def opens(rows):
        hooks = {2: ScriptedHook("pull"), 6: ScriptedHook("pull")}  # each counts its decisions
        return lambda obs: hooks[len(obs)](obs) * np.isin(np.arange(len(obs)), rows)[:, None]

    with (
        HeldOutWorlds(seeds=seeds, worlds=6, index=1) as every,
        HeldOutWorlds(seeds=seeds, worlds=6, index=1, first=2) as staged,
    ):
        for rows, tried in (((1, 4), True), ((0, 2, 3), True), ((3, 4), False), ((), False)):
            rate = every.opening_rate(opens(rows), "pull")
            assert rate == len(rows) / 6
            assert staged.opening_rate(opens(rows), "pull") == (rate if tried else 0)


def test_fewer_worlds_are_the_first_of_the_others():
    results = []
    for count in (5, 12):
        with HeldOutWorlds(seeds=record.Seeds(2), worlds=count, index=1) as worlds:
            worlds.evaluate(lambda obs: np.zeros((len(obs), 6)), "lever")
            env = worlds._envs["lever"]
            results.append((env.worlds[:5], env.replay()[:5]))
    assert results[0][0] == results[1][0]
    assert np.array_equal(results[0][1], results[1][1])


def test_the_diagonal_equals_the_reported_rates(place, whole):
    runs = [place.root / "pull", place.root / "tuned"]
    reported = [json.loads((run / "result.json").read_text())["result"]["metrics"] for run in runs]
    matrix = evaluations.final_matrix(steps.folders(place.root / "tuning/steps"), threads=3)
    assert [metrics["opening_rate"] for metrics in reported] == np.diagonal(matrix).tolist()
    assert matrix.max() > 0  # or all of this would say nothing
    points = _points(place.root / "whole")
    columns = [
        [points[f"matrix/{j}_{task}"][end] for end in (4, 8)]
        for j, task in ((0, "pull"), (1, "pull_left"))
    ]
    assert np.array_equal(np.array(columns).T, matrix)
    assert whole["result"]["metrics"]["accuracy"] == formulas.accuracy(matrix)
    sets = [json.loads((run / "result.json").read_text())["result"]["evaluation"] for run in runs]
    joined = evaluation_set(
        "test", "test worlds of all tasks", [tasks["digest"] for tasks in sets], ""
    )
    assert whole["result"]["evaluation"] == joined.to_json()
    assert "another version" not in (place.root / "whole/journal/events.jsonl").read_text()


def test_the_curves_equal_evaluations_of_the_snapshots(place, whole):
    points = _points(place.root / "whole")
    # Of a task's start there is no point but the first's: the one before has just ended.
    assert sorted(points["success/1_pull_left"]) == [0, 2, 4, 6, 8]
    for run, update, at in (("pull", 2, 2), ("tuned", 4, 8)):
        policy = snapshots.load(dict(snapshots.paths(place.root / run))[update])[0][1]
        for name in ("0_pull", "1_pull_left"):
            direct = evaluation.evaluate(
                policy, name[2:], seeds=record.Seeds(SEED), worlds=6, index=evaluation.VALIDATION
            )
            assert points[f"success/{name}"][at] == direct.opening_rate
    both = points["success/0_pull"][8], points["success/1_pull_left"][8]
    assert points["average_performance"][8] == pytest.approx(sum(both) / 2)


def test_transfer_uses_the_runs_own_validations(place, whole):
    """Against the fresh networks' curves; the start of a fresh network is evaluated here."""
    points = _points(place.root / "whole")
    own = _points(place.root / "tuned")["validation_opening_rate"]
    fresh = _points(place.root / "left")["validation_opening_rate"]
    assert sorted(own) == [0, 2, 4]
    assert sorted(fresh) == [2, 4]
    start = points["fresh/1_pull_left"][0]
    policy = snapshots.load(snapshots.paths(place.root / "left")[0][1])[0][1]
    direct = evaluation.evaluate(
        policy, "pull_left", seeds=record.Seeds(SEED), worlds=WORLDS, index=evaluation.VALIDATION
    )
    assert start == direct.opening_rate
    area = [
        (a + 2 * b + c) / 4 for a, b, c in ((own[0], own[2], own[4]), (start, fresh[2], fresh[4]))
    ]
    results = whole["result"]["metrics"]
    assert results["forward_transfer_auc/1_pull_left"] == pytest.approx(
        (area[0] - area[1]) / (1 - area[1])
    )
    assert results["forward_transfer_auc/0_pull"] == 0  # the same run
    assert results["forward_transfer_auc"] == pytest.approx(
        results["forward_transfer_auc/1_pull_left"] / 2
    )


def test_decisions_before_the_first_update_delay_a_curve(place, whole):
    series, reference = (
        steps.read(steps.folders(place.root / name / "steps")) for name in ("tuning", "fresh")
    )
    late = [series[0], dataclasses.replace(series[1], decisions_before=256)]
    points = _points(place.root / "whole")
    own = _points(place.root / "tuned")["validation_opening_rate"]
    fresh = _points(place.root / "left")["validation_opening_rate"]
    place.patch.setenv("RUN_DIR", str(place.root / "late"))
    with record.start(metrics.Config(seed=SEED), study="door") as run:
        transfer = evaluations.Evaluations(
            run, late, reference, every=1, curve_worlds=6, threads=1
        ).transfer()
    # Up to 512 decisions, where the fresh curve ends: 256 of the trial, then updates 0 and 2.
    area = (0 + own[0]) / 4 + (own[0] + own[2]) / 4
    start = points["fresh/1_pull_left"][0]
    of_fresh = (start + 2 * fresh[2] + fresh[4]) / 4
    assert transfer[1] == pytest.approx((area - of_fresh) / (1 - of_fresh))


def test_the_result_has_table_figures_progress_and_parents(place, whole):
    result = whole["result"]
    assert result["objective"]["name"] == "accuracy"
    assert result["objective"]["at"] == 8
    assert result["variant"] == {"method": "PPO fine-tuning"}
    table = result["table"]
    assert table["columns"] == ["success after", "0 pull", "1 pull_left", "mean"]
    assert [row[0] for row in table["rows"]] == [
        "0 pull", "1 pull_left", "forgetting", "forward transfer (AUC)"
    ]  # fmt: skip
    assert {len(row) for row in table["rows"]} == {4}
    for name in ("matrix.svg", "success.svg"):
        svg = (place.root / "whole" / "artifacts" / name).read_text()
        assert svg.count("pull_left") >= 1
    progress = json.loads((place.root / "whole/journal/progress.json").read_text())
    assert progress["done"] == progress["total"]
    parents = json.loads((place.root / "whole/journal/parents.json").read_text())["parents"]
    assert parents == ["tuning", "fresh"]


def test_a_loss_that_rounds_to_zero_has_no_sign_in_the_table():
    series = [SimpleNamespace(task=task) for task in ("pull", "lever")]
    lost, transfer = np.array([-0.004, 0.0]), np.array([0.0, -0.004])
    rows = metrics._table(series, np.eye(2), lost, transfer)["rows"]
    assert rows[-2] == ["forgetting", "0 %", "0 %", "0 %"]
    assert rows[-1] == ["forward transfer (AUC)", "0.00", "0.00", "0.00"]
    lost, transfer = np.array([-0.01, 0.0]), np.array([0.0, -0.25])
    rows = metrics._table(series, np.eye(2), lost, transfer)["rows"]
    assert rows[-2:] == [
        ["forgetting", "-1 %", "0 %", "0 %"],
        ["forward transfer (AUC)", "0.00", "-0.25", "-0.12"],
    ]


def test_killed_anywhere_and_restarted_it_ends_the_same(place, whole):
    class Killed(BaseException):
        pass

    evaluated = HeldOutWorlds.opening_rate
    calls: list[int] = []

    def counted(self, policy, task):
        calls.append(1)
        if len(calls) in (3, 9):
            raise Killed
        return evaluated(self, policy, task)

    place.patch.setattr(HeldOutWorlds, "opening_rate", counted)
    try:
        for _ in range(2):
            with pytest.raises(Killed):
                place.metrics("broken", **whole["folders"])
        resumed = place.metrics("broken", **whole["folders"])
    finally:
        place.patch.setattr(HeldOutWorlds, "opening_rate", evaluated)
    assert resumed["result"] == whole["result"]
    assert resumed["digest"] == whole["digest"]
    assert resumed["resume_mismatch"] == 0
    # matrix, starts of two fresh runs and of the series' first, curves; the two that were killed again
    assert len(calls) == 4 + 3 + 5 * 2 + 2


def _kept(place, name: str, task: str, tasks: list[str]) -> Path:
    """A run's directory with other policies in its last snapshot."""
    source = place.root / ("pull" if task == "pull" else "left")
    copy = place.root / name
    shutil.copytree(source, copy)
    policies = [
        (task, Policy([torch.zeros(2, 15)], ObservationNormaliser(15), squash=False))
        for task in tasks
    ]
    snapshots.save(copy, 4, policies)
    return copy


def test_a_learned_task_is_evaluated_with_its_own_policy(tmp_path):
    """As in the source: task j is tried with task embedding min(i, j) after learning task i."""
    tasks = ["pull", "pull_left", "lever"]
    series = [SimpleNamespace(task=task) for task in tasks]

    class Worlds:
        def opening_rate(self, policy, task):
            return int(policy.tensors[0][0, 0]), task

    for i in range(3):
        kept = [
            (task, Policy([torch.full((2, 15), float(k))], ObservationNormaliser(15), squash=False))
            for k, task in enumerate(tasks[: i + 1])
        ]
        several = snapshots.save(tmp_path, i, kept)
        (tmp_path / f"{i}").mkdir()
        alone = snapshots.save(tmp_path / f"{i}", i, kept[-1:])
        for j, task in enumerate(tasks):
            assert evaluations.snapshot_rate(series, i, several, Worlds())(j) == (min(i, j), task)
            assert evaluations.snapshot_rate(series, i, alone, Worlds())(j) == (i, task)


def test_snapshots_are_chosen_from_the_last_back():
    step = SimpleNamespace(snapshots=[(update, None) for update in (0, 10, 20, 30, 40, 44)])
    assert evaluations.curve_updates(step, 1, first=True) == [0, 10, 20, 30, 40, 44]
    assert evaluations.curve_updates(step, 2, first=False) == [10, 30, 44]
    assert evaluations.curve_updates(step, 99, first=True) == [0, 44]


def test_unsuitable_series_and_references_are_one_line_errors(place):
    root = place.root
    pull, left, tuned = root / "pull", root / "left", root / "tuned"
    fresh, tuning = str(root / "fresh/steps"), str(root / "tuning/steps")

    def refused(words: str, series: str, reference: str = fresh, **flags) -> None:
        with pytest.raises(record.UserError, match=words) as error:
            place.metrics("refused", series_steps=series, reference_steps=reference, **flags)
        assert "\n" not in str(error.value)
        assert not (root / "refused").exists()

    refused(r"nowhere: no steps; choose", str(root / "nowhere"))
    gap = Path(place.series("gap", pull, tuned))
    (gap / "1_pull_left").rename(gap / "2_pull_left")
    refused(r"gap/steps: step 1 is missing; there are 0_pull, 2_pull_left", str(gap))
    refused(r"seed: 8, but the series has 31; add seed=31", tuning, seed=8)
    other = place.root / "other"
    shutil.copytree(tuned, other)
    facts = json.loads((other / "journal/run.json").read_text())
    (other / "journal/run.json").write_text(json.dumps(facts | {"seed": 7}))
    refused(
        r"1_pull_left: seed 7, but .*0_pull has 31; a series has the same",
        place.series("seeds", pull, other),
    )
    refused(r"reference: seed 7, but the series has 31; choose", tuning, _with(place, "seeds2", 7))
    refused(
        r"reference: no run learned pull_left; the runs are pull$",
        tuning,
        place.series("one", pull),
    )
    refused(r"reference: .*tuned learned pull_left after another", tuning, tuning)
    order = place.series("order", left, _kept(place, "kept", "pull", ["pull_left", "round"]))
    refused(r"000004.safetensors: policies of pull_left, round; .* of pull_left, pull$", order)
    named = Path(place.series("named", pull, tuned))
    (named / "1_pull_left").rename(named / "1_lever")
    refused(r"1_lever: that run learned pull_left, not lever", str(named))
    refused(r"a series has two tasks or more", str(root / "one/steps"))
    bare = root / "bare"
    shutil.copytree(tuned, bare)
    shutil.rmtree(bare / "policies")
    refused(
        r"1_pull_left: no policies in policies/.*run it again", place.series("bare2", pull, bare)
    )
    (bare / "result.json").write_text(
        '{"status": "FAILED", "reason": "gradient explosion at update 1"}'
    )
    refused(r"1_pull_left: that run failed: gradient explosion.*finish", str(root / "bare2/steps"))
    (bare / "result.json").unlink()
    refused(r"1_pull_left: that run not finished; finish", str(root / "bare2/steps"))
    shutil.rmtree(bare)
    refused(
        r"1_pull_left \(a link to .*bare\): not a run of door training", str(root / "bare2/steps")
    )
    blind = root / "blind"
    shutil.copytree(left, blind)
    (blind / "journal/metrics.jsonl").write_text("")
    refused(r"blind: no validations.*eval-interval", tuning, place.series("blind2", pull, blind))


def _with(place, name: str, seed: int) -> str:
    """The fresh networks as if of another seed."""
    copies = []
    for run in ("pull", "left"):
        copy = place.root / f"{name}-{run}"
        shutil.copytree(place.root / run, copy)
        facts = json.loads((copy / "journal/run.json").read_text())
        (copy / "journal/run.json").write_text(json.dumps(facts | {"seed": seed}))
        copies.append(copy)
    return place.series(name, *copies)


def _record(points: dict, run: str, seed: int, started: int, operation: str) -> dict:
    metrics_curves = {name: {"curve": sorted(curve.items())} for name, curve in points.items()}
    return {
        "run": run, "operation": operation, "seed": seed, "started": started, "status": "FINISHED",
        "metrics": metrics_curves, "flags": {},
    }  # fmt: skip


def test_the_catalogs_figures_use_the_newest_record_per_seed(place, whole, tmp_path, monkeypatch):
    points = _points(place.root / "whole")
    folder = tmp_path / "records"
    folder.mkdir()
    runs = [("a", 1, 5, "door:metrics_series8"), ("b", 1, 9, "door:metrics_series8"),
            ("c", 2, 1, "door:metrics_series8"), ("d", 1, 1, "ppo:train")]  # fmt: skip
    for run, *about in runs:
        (folder / f"{run}.json").write_text(json.dumps(_record(points, run, *about)))
    newest = series_redraw.newest(committed.finished_runs(folder))
    assert {name: [run["run"] for run in runs] for name, runs in newest.items()} == {
        "door:metrics_series8": ["b", "c"]
    }
    drawn: list[np.ndarray] = []
    monkeypatch.setattr(series_redraw, "matrix", lambda path, tasks, rates: drawn.append(rates))
    paths = series_redraw.draw("door:metrics_series8", newest["door:metrics_series8"], tmp_path)
    results = whole["result"]["metrics"]
    for (i, j), name in {(0, 0): "after_training/0_pull", (1, 0): "final_performance/0_pull",
                         (1, 1): "after_training/1_pull_left"}.items():  # fmt: skip
        assert drawn[0][i, j] == results[name]
    assert drawn[0].max() > 0
    assert "each of 2 seeds" in paths[1].read_text()
    before = paths[1].read_bytes()
    series_redraw.draw("door:metrics_series8", newest["door:metrics_series8"], tmp_path)
    assert paths[1].read_bytes() == before
    lone = {name: curve for name, curve in points.items() if "1_pull_left" not in name}
    other = _record(lone, "e" * 32, 3, 1, "door:metrics_series8")
    with pytest.raises(record.UserError, match=r"eeeeeeee learned pull, b pull, pull_left"):
        series_redraw.draw(
            "door:metrics_series8", [*newest["door:metrics_series8"], other], tmp_path
        )
