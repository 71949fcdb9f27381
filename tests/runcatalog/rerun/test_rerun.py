"""`catalog rerun`: runs of a project in git, repeated after its code has changed."""

import argparse
import itertools
import json
import math
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from runcatalog.cli import rerun
from runcatalog.model.errors import CatalogError
from runcatalog.rerun.checkout import checked_out, full_id
from runcatalog.rerun.outcome import Outcome, compare
from runcatalog.rerun.rerun import Repeater

SCRIPT = '''
"""Learns a number; may start from what another run learned."""
import argparse
from dataclasses import dataclass
from pathlib import Path
import numpy as np
from runcatalog import record
from runcatalog.record.training.checkpoint import load_checkpoint

@dataclass(frozen=True)
class Config(record.Config):
    lr: float = record.option(5e-3, "learning rate", low=0, high=1)

def main(config):
    with record.start(config, study="toy") as run:
        value = 0.0
        if Path("start").exists():
            before = load_checkpoint(Path("start"))
            run.add_parent(before.run_id)
            value = float(before.tensors["value"][0])
        rng = run.seeds.generator("x")
        for update in range(1, 11):
            value += FACTOR * config.lr * rng.random()
            run.log({"value": value}, step=update)
        run.checkpoint(10, {"value": np.array([value])}, {})
        objective = {"name": "value", "value": round(value, 2), "kind": "rate", "count": 100}
        return run.finish({"objective": objective})

if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
'''
OPERATIONS = """
- model: toy
  sourcecode: {root: ., select: [{exclude: '*'}, {include: 'src/*.py'}]}
  operations:
    train: {main: src/toy.learn, flags-import: all, pip-freeze: no, output-scalars: no}
    more:
      main: src/toy.learn
      flags-import: all
      requires:
        - operation: toy:train
          name: before
          select: checkpoints
          target-type: link
          rename: checkpoints start
      pip-freeze: no
      output-scalars: no
"""


def write_script(root: Path, factor: float) -> None:
    text = SCRIPT.replace("FACTOR", str(factor))
    (root / "src/toy/learn.py").write_text(text.lstrip())


def commit(shell, message: str) -> str:
    shell("git add -A && git -c user.name=a -c user.email=a@b commit -qm " + message)
    return shell("git rev-parse HEAD").strip()


@pytest.fixture(scope="module")
def recorded(shell_in, tmp_path_factory):
    """A shell in a project with a run and one that starts from it, whose code has changed since."""
    shell = shell_in(tmp_path_factory.mktemp("rerun"))
    (shell.root / "experiments/toy/guild.yml").write_text(OPERATIONS)
    (shell.root / "guild.yml").write_text("- include: [experiments/toy/guild.yml]\n")
    (shell.root / "experiments/toy/catalog.md.j2").write_text(
        '## Toy\n\n{{ table(["toy:train", "toy:more"]) }}\n'
    )
    (shell.root / ".gitignore").write_text(".cache/\nmlflow.db*\nmlartifacts/\n__pycache__/\n")
    write_script(shell.root, 2.0)
    shell("git init -q")
    shell.commit = commit(shell, "first")
    shell("guild run toy:train lr=0.05 seed=3 -y")
    shell("guild run toy:more lr=0.01 seed=4 -y")
    shell.inside("sync -q")
    shell.inside("export")
    write_script(shell.root, 0.1)
    commit(shell, "slower")
    return shell


def record_of(shell, operation: str) -> dict:
    (record,) = (
        content
        for path in (shell.root / "experiments/records").glob("*/*.json")
        if (content := json.loads(path.read_text()))["operation"] == operation
    )
    return record


def write_record(shell, content: dict) -> None:
    path = shell.root / "experiments/records" / content["study"] / f"{content['run'][:8]}.json"
    path.write_text(json.dumps(content))


def test_a_run_gives_the_same_bits_at_its_commit(recorded):
    train = record_of(recorded, "toy:train")
    printed = recorded.inside(f"rerun {train['run'][:8]}")
    assert f"at {recorded.commit[:8]}" in printed
    assert f"{train['run'][:8]}  toy:train  same bits" in printed
    (entry,) = record_of(recorded, "toy:train")["reproduced"]
    assert entry["bits"] is True
    assert entry["value"] == train["result"]["objective"]["value"]
    assert recorded("git status --short").split() == [
        "M",
        f"experiments/records/toy/{train['run'][:8]}.json",
    ]
    assert len(recorded("git worktree list").splitlines()) == 1
    recorded.inside("render")
    page = (recorded.root / "catalog/toy_runs.md").read_text()
    assert "## Reproduced" in page
    assert "1 runs were repeated, 1 with equal bits" in page
    recorded("git checkout -q experiments && git clean -fdq")


def test_a_mark_that_was_set_during_a_rerun_stays(recorded, monkeypatch, capsys):
    content = record_of(recorded, "toy:train")

    def repeat(self, record):
        marked = record_of(recorded, "toy:train") | {"retracted": "a bug"}
        write_record(recorded, marked)
        return Outcome(record, 0.5, None, True, "a CPU", "2026-01-01", {})

    monkeypatch.chdir(recorded.root)
    monkeypatch.setattr(Repeater, "check", lambda self, record: None)
    monkeypatch.setattr(Repeater, "repeat", repeat)
    options = argparse.Namespace(runs=[content["run"]], parents=False, check=False, quiet=True)
    assert rerun.rerun(options) == 0
    after = record_of(recorded, "toy:train")
    assert (after["retracted"], len(after["reproduced"])) == ("a bug", 1)
    recorded("git checkout -q experiments")


def test_two_checkouts_of_a_commit_are_separate(recorded, tmp_path):
    root = recorded.root
    with checked_out(root, recorded.commit, tmp_path) as first:
        child = os.fork()
        if not child:
            with checked_out(root, recorded.commit, tmp_path) as second:
                os._exit(0 if second != first and (first / "src").is_dir() else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert (first / "src/toy/learn.py").is_file()
        # The child was killed before it could remove its own
        assert len(list(tmp_path.iterdir())) == 2
    with checked_out(root, recorded.commit, tmp_path):
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_commit_that_git_cannot_check_out_is_an_error_with_its_reason(recorded, tmp_path):
    (tmp_path / "file").touch()
    reason = "git cannot check .* out into .*: fatal: .*Not a directory"
    with (
        pytest.raises(CatalogError, match=reason),
        checked_out(recorded.root, recorded.commit, tmp_path / "file"),
    ):
        pass


def test_a_repository_that_git_does_not_read_is_named(tmp_path, monkeypatch):
    """It was said to lack the commit, which no fetch would have brought."""
    with pytest.raises(CatalogError, match="commit abcdef01: not a git repository"):
        full_id(tmp_path, "abcdef01")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # git's own, for its tests
    with pytest.raises(CatalogError, match="commit abcdef01: detected dubious ownership"):
        full_id(tmp_path, "abcdef01")


def test_a_run_that_starts_from_another_is_repeated_with_that_one(recorded):
    more = record_of(recorded, "toy:more")
    assert more["parents"] == [record_of(recorded, "toy:train")["run"]]
    assert "same bits" in recorded.inside(f"rerun -q {more['run'][:8]}")
    recorded("git checkout -q experiments")


def test_a_parent_whose_weights_are_gone_is_trained_again(recorded, tmp_path):
    more = record_of(recorded, "toy:more")
    recorded.env["GUILD_HOME"], home = str(tmp_path), recorded.env["GUILD_HOME"]
    try:
        refused = recorded.inside(f"rerun {more['run'][:8]}", code=1)
        assert "whose weights are not kept; with --parents it is trained again" in refused
        printed = recorded.inside(f"rerun --parents {more['run'][:8]}")
    finally:
        recorded.env["GUILD_HOME"] = home
    assert printed.count(f"at {recorded.commit[:8]}") == 2
    assert "same bits" in printed
    recorded("git checkout -q experiments")


def test_a_parent_without_weights_is_kept_by_its_result(recorded, tmp_path):
    """A search, for example, whose best flags a run takes; no checkpoint was ever in its directory."""
    more, train = (record_of(recorded, f"toy:{name}") for name in ("more", "train"))
    del train["digest"]["weights"]
    write_record(recorded, train)
    recorded.env["GUILD_HOME"], home = str(tmp_path), recorded.env["GUILD_HOME"]
    kept = Path("runs", train["run"])
    leave_out = shutil.ignore_patterns("checkpoints")
    shutil.copytree(Path(home) / kept, tmp_path / kept, symlinks=True, ignore=leave_out)
    try:
        recorded.inside(f"rerun --check {more['run'][:8]}")
        (tmp_path / kept / "result.json").unlink()
        refused = recorded.inside(f"rerun --check {more['run'][:8]}", code=1)
        assert "whose result is not kept" in refused
        write_record(recorded, train | {"result": {"batch": True, "method": "gp"}})
        refused = recorded.inside(f"rerun --check --parents {more['run'][:8]}", code=1)
        assert "(toy:train): a batch, of which only the trials can be repeated" in refused
    finally:
        recorded.env["GUILD_HOME"] = home
        recorded("git checkout -q experiments")


@pytest.mark.parametrize(
    ("value", "words", "code"),
    [
        (0.55, "other bits, values that are indistinguishable", 0),
        (0.05, "other bits, values that differ", 1),
    ],
)
def test_other_bits_are_compared_by_the_interval(recorded, value, words, code):
    train = record_of(recorded, "toy:train")
    train["digest"]["metrics"] = "0" * 64
    train["result"]["objective"]["value"] = value
    write_record(recorded, train)
    printed = recorded.inside(f"rerun {train['run'][:8]}", code=code)
    assert words in printed
    assert record_of(recorded, "toy:train")["reproduced"][0]["bits"] is False
    recorded("git checkout -q experiments")


@pytest.mark.parametrize("rate", [0.5, 0.9])
def test_of_honest_repeats_one_in_twenty_differs(make, rate):
    """Over all pairs of counts in 100 games, with their binomial probabilities."""
    chance = [math.comb(100, n) * rate**n * (1 - rate) ** (100 - n) for n in range(101)]
    likely = [n for n in range(101) if chance[n] > 1e-6]
    records = {n: replace(make(1, value=n / 100), digest={"metrics": "a"}) for n in likely}
    differing = sum(
        chance[n] * chance[m]
        for n, m in itertools.product(likely, repeat=2)
        if compare(records[n], records[m], {}, {"metrics": "b"}, "2026-01-01").agrees is False
    )
    assert 0.03 < differing < 0.06


def test_a_repeat_that_diverges_differs(make):
    record = replace(make(1, value=0.9), digest={"metrics": "a"})
    repeated = make(1, value=math.nan)
    assert compare(record, repeated, {}, {"metrics": "b"}, "2026-01-01").agrees is False


def test_the_interval_may_be_that_of_a_table(recorded):
    """reported.yml names the cell, as for the tables of the pages."""
    train = record_of(recorded, "toy:train")
    train["digest"]["metrics"] = "0" * 64
    train["result"]["objective"] = {"name": "value", "value": 0.55, "kind": "mean"}
    train["result"]["table"] = {"columns": ["who", "median"], "rows": [["all", "0.55 [0.5, 0.7]"]]}
    write_record(recorded, train)
    path = recorded.root / "experiments/toy/reported.yml"
    path.write_text('interval: {toy:train: "all :: median"}\n')
    printed = recorded.inside(f"rerun {train['run'][:8]}", code=0)
    assert "other bits, values that are indistinguishable" in printed
    assert record_of(recorded, "toy:train")["result"] == train["result"]
    path.unlink()
    recorded("git checkout -q experiments")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"dirty": "0123456789ab"}, "ran with uncommitted changes (0123456789ab)"),
        ({"commit": ""}, "its record names no commit"),
        ({"commit": "ab" * 20}, "commit abababababab is not in this repository"),
        ({"status": "KILLED"}, "has not finished (KILLED)"),
        ({"flags": {"note": "x" * 3000}}, "its record has only the beginning of the flag note"),
        ({"operation": "toy:gone"}, "operation toy:gone is not declared at"),
        ({"parents": ["ab" * 16]}, "starts from abababab, of which there is no record"),
    ],
)
def test_a_run_that_cannot_be_repeated_is_refused(recorded, changed, reason):
    train = record_of(recorded, "toy:train")
    write_record(recorded, train | changed)
    assert reason in recorded.inside(f"rerun {train['run'][:8]}", code=1)
    if "not declared" not in reason:  # to know that, the commit has to be checked out
        assert reason in recorded.inside(f"rerun --check {train['run'][:8]}", code=1)
    assert len(recorded("git worktree list").splitlines()) == 1
    recorded("git checkout -q experiments")


def test_a_run_that_fails_again_is_a_problem(recorded):
    train = record_of(recorded, "toy:train")
    train["flags"]["lr"] = 7
    write_record(recorded, train)
    printed = recorded.inside(f"rerun {train['run'][:8]}", code=1)
    assert "the repeated run did not finish" in printed
    assert "lr" in printed
    recorded("git checkout -q experiments")


def test_of_a_batch_the_trials_that_count_are_repeated(make):
    """A retracted trial was trained again, for a section that does not list it."""
    batch = make(9, run="b" * 32, result={"batch": True})
    trials = [make(n, batch=batch.run, retracted="wrong" * (n == 2)) for n in (1, 2)]
    assert rerun._selected([batch, *trials], [batch.run]) == trials[:1]
    assert rerun._selected([batch, *trials], [trials[1].run]) == trials[1:]
    gone = replace(batch, retracted="wrong")
    assert rerun._selected([gone, *trials], [batch.run]) == trials
