"""`catalog diff`: runs, batches, commits."""

import json
import math
import subprocess

import pytest

from runcatalog.analysis.commits import between
from runcatalog.analysis.diff import Side, as_json, diff
from runcatalog.model import statistics
from runcatalog.model.errors import CatalogError


def section(lines, name):
    """The lines of a section, without their indent."""
    if name not in lines:
        return []
    rest = lines[lines.index(name) + 1 :]
    return [line[2:] for line in rest[: rest.index("") if "" in rest else None]]


def cells(lines, name):
    """The cells of the line of a table that begins so."""
    return next(line.split() for line in lines if line.split()[:1] == [name])


def test_the_output_lists_the_differences_of_two_runs_alone(make, tmp_path):
    a = make(1, lr=1e-3, task="pull", machine="box1", versions={"numpy": "2.4", "torch": "2.13"})
    b = make(
        2,
        lr=5e-3,
        clip=0.2,
        task="pull",
        machine="box2",
        versions={"numpy": "2.5", "torch": "2.13"},
    )
    a = a.with_points(
        {"rate": [(0, 0.1), (1, 0.9), (2, 0.5)], "same": [(0, math.nan)], "loss": [(0, 3.0)]}
    )
    b = b.with_points(
        {"rate": [(0, 0.1), (1, 0.8), (2, 0.7)], "same": [(0, math.nan)], "other": [(0, 1.0)]}
    )
    lines = diff(Side(a), Side(b), tmp_path)
    assert section(lines, "flags")[1:] == ["clip  –      0.2", "lr    0.001  0.005"]
    metrics = section(lines, "metrics")
    assert cells(metrics, "rate") == ["rate", "0.5", "0.7", "+0.2", "0.9", "0.8", "-0.1"]
    assert cells(metrics, "loss") == ["loss", "3", "–", "3", "–"]
    assert "1 more are equal at every step" in metrics
    assert not any("task" in line or "torch" in line for line in lines)
    assert section(lines, "versions")[1:] == ["numpy  2.4  2.5"]
    assert section(lines, "machine")[1:] == ["machine  box1  box2"]
    assert "code" not in lines
    only = diff(Side(a), Side(b), tmp_path, metrics=["loss"])
    assert not any(line.split()[:1] == ["rate"] for line in only)
    with pytest.raises(CatalogError, match="--metric ratte: neither has it, did you mean rate"):
        diff(Side(a), Side(b), tmp_path, metrics=["ratte"])


def test_nothing_differs(make, tmp_path):
    curves = {"rate": [(0, 0.1), (1, math.nan)]}
    a = make(1, value=0.5, lr=1e-3, seed=1, wall_seconds=3.0)
    b = make(2, value=0.5, lr=1e-3, seed=1, wall_seconds=200.0)
    a = a.with_points(curves | {"time/steps_per_second": [(0, 10.0)]})
    b = b.with_points(curves | {"time/steps_per_second": [(0, 20.0)]})
    lines = diff(Side(a), Side(b), tmp_path)
    assert "no difference in flags, metrics, code, versions or machine" in lines
    assert section(lines, "time")[1:] == [
        "steps_per_second  10   20",
        "wall time         3 s  3 min 20 s",
    ]
    trials = [
        make(n, value=0.5, seed=n % 2, batch="a" * 8 if n < 3 else "b" * 8) for n in (1, 2, 3, 4)
    ]
    both = [
        Side(make(9, run=f"{c}" * 8), tuple(trials[i : i + 2])) for c, i in (("a", 0), ("b", 2))
    ]
    assert "no difference in flags, metrics, code, versions or machine" in diff(*both, tmp_path)


def test_flags_that_look_alike_with_few_digits_are_not_equal(make, tmp_path):
    one, other = (
        make(n, seed=s, lr=lr, size=z)
        for n, s, lr, z in ((1, 12345671, 0.00212346, 1), (2, 12345674, 0.00212349, 1.0))
    )
    flags = section(diff(Side(one), Side(other), tmp_path), "flags")[1:]
    assert [line.split() for line in flags] == [["lr", "0.00212346", "0.00212349"]]
    heads = [make(10, run="a" * 8), make(20, run="b" * 8)]
    near = (0.00212346, 0.00212349, 0.01)
    sides = [
        Side(
            h, tuple(make(h.started + i, value=i / 10 + k / 50, lr=lr) for i, lr in enumerate(near))
        )
        for k, h in enumerate(heads)
    ]
    rows = [line.split()[:2] for line in section(diff(*sides, tmp_path), "metrics")[1:-1]]
    assert rows == [[lr, "opening_rate"] for lr in ("0.00212346", "0.00212349", "0.01")]


def test_two_sweeps_of_many_values_that_differ_in_between_differ(make, tmp_path):
    """Both are shown as "1 … 12 (11 values)"."""
    sides = []
    for head, left_out in ((100, 5), (200, 6)):
        kept = [n for n in range(1, 13) if n != left_out]
        sides.append(Side(make(head), tuple(make(head + n, x=n, value=0.5) for n in kept)))
    (flags,) = section(diff(*sides, tmp_path), "flags")[1:]
    assert "1 … 12 (11 values), only here: 6" in flags
    assert "1 … 12 (11 values), only here: 5" in flags


def test_a_curve_that_differs_on_the_way_or_by_its_digest_is_a_difference(make, tmp_path):
    a = make(1).with_points({"rate": [(0, 0.2), (1, 0.9)]})
    b = make(2).with_points({"rate": [(0, 0.3), (1, 0.9)]})
    lines = diff(Side(a), Side(b), tmp_path)
    assert section(lines, "metrics") == [
        "1 differs at some step, but not in its last and best value: rate"
    ]
    several = [
        make(number).with_points({f"m{n}": [(0, value), (1, 0.9)] for n in range(6)})
        for number, value in ((1, 0.2), (2, 0.3))
    ]
    assert section(diff(*map(Side, several), tmp_path), "metrics") == [
        "6 differ at some step, but not in their last and best value: m0, m1, m2, m3, m4, …"
    ]
    a, b = (
        make(1, digest={"weights": "1", "metrics": "1"}),
        make(2, digest={"weights": "2", "metrics": "1"}),
    )
    assert section(diff(Side(a), Side(b), tmp_path), "metrics") == ["the digests of weights differ"]


def sweep(make, first, values, **flags):
    """A batch: values by learning rate, one per seed; None is a failed run."""
    head = make(first, result={"batch": True})
    trials = [
        make(
            first + 1 + 10 * i + seed,
            batch=head.run,
            lr=lr,
            seed=seed,
            **({"status": "FAILED"} if value is None else {"value": value}),
            **flags,
        )
        for i, (lr, column) in enumerate(values.items())
        for seed, value in enumerate(column)
    ]
    for trial in trials:
        if trial.result:
            trial.result["objective"] |= {"kind": "mean", "name": "score"}
    return Side(head, tuple(trials))


def test_batches_are_matched_by_their_flags_and_compared_over_seeds(make, tmp_path):
    one = {1e-3: [0.1, 0.2, 0.3], 5e-3: [0.5, 0.6, 0.7], 1e-2: [0.9, 0.9]}
    other = {5e-3: [0.7, 0.9, 0.8], 1e-3: [0.4, None, 0.3], 1e-1: [0.2, 0.1], 1e-2: [0.9, 0.9]}
    a, b = sweep(make, 100, one, clip=0.2), sweep(make, 200, other, clip=0.3)
    lines = diff(a, b, tmp_path)
    assert section(lines, "flags")[1:] == [
        "clip  0.2                 0.3",
        "lr    0.001, 0.005, 0.01  0.001, 0.005, 0.01, 0.1",
    ]
    metrics = section(lines, "metrics")
    low, high = statistics.interval([0.7 - 0.5, 0.9 - 0.6, 0.8 - 0.7])  # the same seeds: paired
    row = next(line for line in metrics if line.startswith("0.005"))
    assert f"+0.2 [{low:.4g}, {high:.4g}]" in row
    assert "0.6 [0.3516, 0.8484] (3)" in row  # 0.6 ± 4.303 × 0.1 / √3
    lost = next(line for line in metrics if line.startswith("0.001"))
    # And no interval of the difference: fewer than three seeds
    assert "0.35 [-0.2853, 0.9853] (2)" in lost
    assert "+0.15  " in lost
    assert lost.split()[-1] == "1"  # failed
    assert next(line for line in metrics if line.startswith("0.1")).split()[2] == "–"
    assert "1 more are equal" in metrics
    assert [line.split()[0] for line in metrics[1:4]] == ["0.001", "0.005", "0.1"]  # by value


def test_of_objectives_that_are_as_frequent_the_first_is_compared(make, tmp_path):
    """It was another one in each process."""
    names = [f"score {i}" for i in range(9)]
    sides = [sweep(make, first, {lr: [0.1] for lr in range(9)}) for first in (100, 200)]
    for side in sides:
        for name, trial in zip(names, side.trials, strict=True):
            trial.result["objective"]["name"] = name
    sides[1].trials[0].result["objective"]["value"] = 0.2
    (row,) = section(diff(*sides, tmp_path), "metrics")[1:2]
    assert row.split()[:3] == ["0", "score", "0"]


def test_a_run_and_a_batch_are_not_compared(make, tmp_path):
    side = sweep(make, 100, {1: [0.1, 0.2]})
    with pytest.raises(CatalogError, match="is a batch of 2 runs, 00000001 a run"):
        diff(Side(make(1)), side, tmp_path)


@pytest.fixture
def repository(tmp_path):
    def git(*arguments):
        command = ["git", "-c", "user.name=x", "-c", "user.email=x@x", *arguments]
        return subprocess.run(
            command, cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q", "-b", "main")
    commits = []
    for name, text in (("a.py", "1"), ("b.py", "2\n3"), ("notes.md", "prose")):
        (tmp_path / name).write_text(text + "\n")
        git("add", "-A")
        git("commit", "-q", "-m", f"Add {name}")
        commits.append(git("rev-parse", "HEAD"))
    return tmp_path, commits


def test_commits_are_described_by_git_where_it_has_them(repository, make):
    root, (first, second, third) = repository
    lines = between(root, first, third)
    assert lines[0] == "2 commits to B:"
    assert [line.split(" ", 3)[-1] for line in lines[1:3]] == ["Add notes.md", "Add b.py"]
    assert lines[3].startswith("1 file changed, 2 insertions(+)")
    assert "b.py" in lines[4]
    assert between(root, third, first)[0] == "2 commits only in A:"
    assert between(root, second, third)[-1].startswith("the same code")
    assert between(root, first, "0" * 40) == [
        "000000000000 is not in this repository; `git fetch` may bring it"
    ]
    for hostile in ("--output=/tmp/x", "HEAD", "a; rm"):
        assert between(root, first, hostile) == [f"{hostile} is not a commit"]
    a, b = make(1, commit=first), make(2, commit=third, dirty="77ffee")
    code = section(diff(Side(a), Side(b), root), "code")
    assert code[:2] == [f"A: {first[:12]}", f"B: {third[:12]} with changes 77ffee"]
    assert code[2] == "2 commits to B:"
    both = diff(Side(make(1, commit=first)), Side(make(2, commit=first, dirty="1a")), root)
    assert section(both, "code") == [f"A: {first[:12]}", f"B: {first[:12]} with changes 1a"]


def test_differences_as_json_are_pairs(make):
    a = make(1, lr=1e-3, task="pull").with_points({"rate": [(0, 0.1)], "same": [(0, 1.0)]})
    b = make(2, lr=5e-3, task="pull", clip=0.2).with_points(
        {"rate": [(0, 0.3)], "same": [(0, 1.0)]}
    )
    content = json.loads(as_json(Side(a), Side(b)))
    assert content["flags"] == {"clip": [None, 0.2], "lr": [0.001, 0.005]}
    assert content["metrics"] == {"rate": [0.1, 0.3]}
    assert content["A"]["run"] == a.run
    batches = Side(make(3), (a, b)), Side(make(4), (a,))
    assert json.loads(as_json(*batches))["flags"]["lr"] == [[0.001, 0.005], [0.001]]
    with pytest.raises(CatalogError, match="neither has it"):
        as_json(Side(a), Side(b), ["nothing"])
