"""RAGEN's search: its runs, and what a group takes over from earlier groups."""

import json

import pytest

from runcatalog.guild import child_runs, finished_runs
from runcatalog.record import UserError
from textgames import search
from textgames.search import Config

SMALL = {"env": "frozenlake", "model": "tiny", "lr_scale": 300.0, "reuse": False}


@pytest.fixture
def finished(tmp_path, monkeypatch):
    """Finished searches: {group: best values}."""
    best = {}

    def newest(operation, flags):
        assert operation == search.SEARCH
        assert flags["model"] == "tiny"
        assert flags["dry-run"] == "no"
        return f"{flags['group']}" if flags["group"] in best else None

    def result(child):
        return {"result": {"best": best[int(child.run)]}}

    monkeypatch.setattr(finished_runs, "newest_finished", newest)
    monkeypatch.setattr(child_runs.ChildRun, "result_json", property(result))
    return best


@pytest.mark.parametrize(("group", "count"), [(1, 9), (2, 4), (3, 6), (4, 9)])
def test_a_group_has_ragens_runs(finished, group, count):
    finished |= {
        1: {"train-batch-size": 16, "n-rollout": 4}, 2: {"actor-lr": 0.0015}, 3: {"kl-coef": 0.1},
    }  # fmt: skip
    config = Config(**SMALL, group=group, train_flags="prompt=grid micro-batch-size=1")
    runs = search.planned_runs(config, search.fixed_values(config))
    assert len(runs) == len({run.name for run in runs}) == count
    for run in runs:
        assert run.operation == "ragen:train"
        assert (run.flags["adv-estimator"], run.flags["prompt"]) == ("grpo", "grid")
        assert int(run.flags["updates"]) == 500 // int(run.flags["train-batch-size"])
        if group > 1:
            assert (run.flags["train-batch-size"], run.flags["n-rollout"]) == ("16", "4")
        if group < 3:
            assert run.flags["kl-coef"] == "0.04"  # the default of a later group
    if group == 2:
        assert {float(run.flags["actor-lr"]) for run in runs} == {0.00015, 0.0003, 0.0015, 0.003}
    if group == 3:
        assert {run.flags["actor-lr"] for run in runs} == {"0.0015"}


def test_values_on_the_command_line_replace_the_best(finished):
    finished |= {1: {"train-batch-size": 16, "n-rollout": 4}}
    values = search.fixed_values(Config(**SMALL, group=2, n_rollout=8))
    assert (values["train-batch-size"], values["n-rollout"]) == (16, 8)
    values = search.fixed_values(
        Config(**SMALL, group=3, train_batch_size=2, n_rollout=3, actor_lr=1e-3)
    )
    assert (values["train-batch-size"], values["n-rollout"], values["actor-lr"]) == (2, 3, 1e-3)


def test_an_earlier_group_has_to_be_searched(finished):
    finished |= {1: {"train-batch-size": 16, "n-rollout": 4}}
    with pytest.raises(UserError, match=r"no finished search of group 2 .* or give actor-lr=…"):
        search.fixed_values(Config(**SMALL, group=3))


def test_a_dry_run_prints_the_runs(tmp_path, monkeypatch, capsys):
    for name in ("RUN_ID", "GUILD_OP", "RECORD", "PROJECT_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (
        ("RECORD_MLFLOW", "off"), ("GUILD_HOME", str(tmp_path)), ("RUN_DIR", str(tmp_path / "run")),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    search.main(Config(**SMALL, dry_run=True))
    assert capsys.readouterr().out.count("guild run ragen:train env=frozenlake model=tiny") == 9
    result = json.loads((tmp_path / "run/result.json").read_text())["result"]
    assert result["summary"] == "9 runs, none of them started"


def test_a_search_needs_guild(monkeypatch):
    monkeypatch.delenv("GUILD_HOME", raising=False)
    with pytest.raises(UserError, match="a search runs under Guild: `guild run ragen:search`"):
        search.main(Config(**SMALL))


@pytest.mark.parametrize(
    ("flags", "line"),
    [("prompt", "not of the form name=value"), ("seed=2", "sets seed"), ("env=bandit", "sets env"),
     ("actor-lr=1", "sets actor-lr"), ("n-rollout=2 n-rollout=3", "given twice")],
)  # fmt: skip
def test_flags_of_the_runs_are_checked(flags, line):
    with pytest.raises(UserError, match=f"--train-flags: .*{line}"):
        Config(**SMALL, group=2, train_flags=flags)


@pytest.mark.parametrize(
    ("group", "given", "line"),
    [
        (1, {"actor_lr": 3e-4}, "--actor-lr: in group 1 it belongs into train-flags"),
        (
            1,
            {"train_batch_size": 2, "n_rollout": 3},
            "--train-batch-size: in group 1 it is searched",
        ),
        (2, {"actor_lr": 3e-4}, "--actor-lr: in group 2 it is searched"),
    ],
)
def test_a_value_of_a_parameter_that_is_searched_or_comes_later_is_refused(group, given, line):
    with pytest.raises(UserError, match=line):
        Config(**SMALL, group=group, **given)


def test_a_failed_run_is_a_row(monkeypatch):
    config = Config(**SMALL, group=2, train_batch_size=2, n_rollout=2)
    runs = {run.name: run for run in search.planned_runs(config, search.fixed_values(config))}
    for number, run in enumerate(runs.values()):
        run.run = f"{number:08x}"
    metrics = {f"{n:08x}": {"greedy/score": n, "greedy/success": n / 4} for n in range(4)}
    monkeypatch.setattr(
        child_runs.ChildRun, "result_json",
        property(lambda child: {"result": {"metrics": metrics[child.run]}}),
    )  # fmt: skip
    worst = next(iter(runs))
    result = search.result(config, runs, {worst, list(runs)[3]})
    assert result["best"] == {"actor-lr": 0.0015}
    assert result["metrics"] == {"best_score": 2, "failed": 2.0, "runs": 4.0}
    assert result["table"]["rows"][0] == [worst, "failed", "", "00000000"]


@pytest.mark.parametrize(
    ("visible", "free"), [(None, ["0", "2"]), ("4,5,6", ["4", "6"]), ("GPU-a, 5,1", ["GPU-a", "1"])]
)
def test_a_run_gets_a_free_gpu_among_those_that_this_process_may_use(monkeypatch, visible, free):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    memory = [(9, 10), (1, 10), (10, 10)]  # free and whole, of three GPUs: there is none here
    monkeypatch.setattr("torch.cuda.device_count", lambda: len(memory))
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda index: memory[index])
    assert [place["CUDA_VISIBLE_DEVICES"] for place in search.free_gpus()] == free
