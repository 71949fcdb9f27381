"""The command of a row does the same again."""

import re
import shlex
import subprocess
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runcatalog.model.project import Operation
from runcatalog.pages import rerun_command

SCRIPTS = {
    "src/a/train.py": """
from runcatalog import record
from a.options import Shared, own_option
from runcatalog.record import option

class Config(Shared):
    lr: float = option(5e-3, "step size [1]")
    rate: float = own_option(-0.5, "a rate [1/s]; source: 2")
    size: str = option("64 64", "widths")
    plain: int = 3
    where: str = option(SOMEWHERE, "not a literal")
""",
    "src/a/options.py": """
from runcatalog import record
from runcatalog.record.config import Config as Base

class Shared(Base):
    task: str = option("pull", "kind of door")
    lr: float = option(1.0, "another default [m]")
    video: bool = record.option(True, "a video")
""",
    "src/runcatalog/record/config.py": """
class Config:
    seed: int = option(1, "seed")
""",
}
FLAGS = {
    "lr": 0.005, "rate": -0.5, "size": "64 64", "plain": 3, "task": "pull", "video": True, "seed": 1,
}  # fmt: skip


@pytest.fixture
def root(tmp_path):
    for name, content in SCRIPTS.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return tmp_path


def command(root, operation: Operation, head, trials=()) -> list[str]:
    """The words of the command, as a shell reads them."""
    return shlex.split(rerun_command.rerun(root, {operation.name: operation}, head, trials).command)


def test_defaults_are_read_from_the_source_and_its_bases(root):
    options = rerun_command.options_of(root, "src/a.train --more")
    assert options.defaults == FLAGS
    assert options.units == {"rate": "1/s", "lr": "m"}  # of a base, where a class says none
    assert not options.complete  # SOMEWHERE is not known
    assert rerun_command.options_of(root, "src/a.nothing") == rerun_command.Options()
    assert rerun_command.options_of(root, "") == rerun_command.Options()


def test_flags_that_differ_from_what_is_declared(root, make):
    operation = Operation(
        "toy:train", "toy", main="src/a.train", flags={"lr": "1e-2", "task": "lever"}
    )
    changed = {**FLAGS, "seed": 7, "video": False, "size": "8 4", "where": "there"}
    assert command(root, operation, make(1, flags=changed)) == (
        ["guild", "run", "toy:train", "lr=0.005", "size=8 4", "task=pull", "video=no", "where=there", "seed=7", "-y"]
    )  # fmt: skip
    same = {**FLAGS, "lr": 0.01, "task": "lever"}
    assert command(root, operation, make(1, flags=same)) == ["guild", "run", "toy:train", "-y"]


def test_a_batch_has_lists(root, make):
    operation = Operation("toy:train", "toy", main="src/a.train", flags={"lr": [1e-3, "5e-3"]})
    points = [(lr, seed) for lr in (0.005, 0.001) for seed in (2, 10)]
    batch = make(9, result={"batch": True, "method": "grid"})
    trials = [
        make(i, flags={**FLAGS, "lr": lr, "seed": seed}, batch=batch.run)
        for i, (lr, seed) in enumerate(points)
    ]
    expected = ["guild", "run", "toy:train", "seed=[2,10]", "-y"]
    assert command(root, operation, batch, trials) == expected
    assert command(root, operation, trials[0], trials) == expected  # no record of the batch
    told = rerun_command.rerun(root, {"toy:train": operation}, batch, trials[:3])
    assert (told.command, told.note.split(";")[0]) == ("", "trials that are no grid")


def test_a_search_has_its_own_flags_and_a_required_run_its_name(root, make):
    search = Operation("toy:opt@gp", "toy", main="src/b.opt", flags={"trials": 20, "task": "pull"})
    batch = make(9, operation="toy:opt@gp", flags={"trials": 12, "task": "pull"})
    trials = [make(i, flags=FLAGS, batch=batch.run) for i in (1, 2)]
    assert command(root, search, batch, trials) == ["guild", "run", "toy:opt@gp", "trials=12", "-y"]

    needs = Operation("toy:train", "toy", main="src/a.train", requires=("expert",))
    head = make(1, flags=FLAGS, parents=("abcd1234" * 4,))
    assert command(root, needs, head) == ["guild", "run", "toy:train", "expert=abcd1234", "-y"]
    both = replace(needs, requires=("series", "reference"))
    two = replace(head, parents=("abcd1234" * 4, "1234abcd" * 4))
    assert command(root, both, two)[3:5] == ["series=abcd1234", "reference=1234abcd"]
    assert command(root, both, head) == [
        "guild",
        "run",
        "toy:train",
        "-y",
    ]  # which of them is not known


def test_what_has_no_command_says_why(root, make):
    known = {"toy:train": Operation("toy:train", "toy", main="src/a.train")}
    for head, trials, note in (
        (make(1, reported_by="a list"), (), "imported"),
        (make(1, operation="old"), (), "not declared here"),
        (make(1, result={"batch": True, "method": "gp"}), (make(2, batch="0" * 31 + "1"),), "a search with"),
    ):  # fmt: skip
        told = rerun_command.rerun(root, known, head, trials)
        assert told.command == ""
        assert told.note.startswith(note)


def test_a_flag_that_is_gone_is_named_and_not_passed(root, make):
    (root / "src/a/train.py").write_text(SCRIPTS["src/a/train.py"].replace("SOMEWHERE", "''"))
    known = {"toy:train": Operation("toy:train", "toy", main="src/a.train")}
    told = rerun_command.rerun(root, known, make(1, flags={**FLAGS, "asked": 1}), ())
    assert told.command == "guild run toy:train -y"
    assert told.note == "no flag any more: asked=1"


def test_a_value_that_is_no_choice_any_more_is_named_and_not_passed(root, make):
    (root / "src/a/train.py").write_text(
        SCRIPTS["src/a/train.py"].replace("SOMEWHERE", "''")
        + """
    start: str = option("near", "where", choices=("near", "far"))
    video: str = option("own", "of what", choices=VIDEOS)
    kind: str = option("x", "found nowhere", choices=tuple(KINDS))

VIDEOS = ("own", "yes", "no")
"""
    )
    known = {"toy:train": Operation("toy:train", "toy", main="src/a.train")}
    flags = {
        **FLAGS,
        "start": "far",
        "video": True,
        "kind": "y",
    }  # YAML reads "yes" as a truth value
    told = rerun_command.rerun(root, known, make(1, flags=flags), ())
    assert told.command == "guild run toy:train kind=y start=far video=yes -y"
    assert told.note == ""
    told = rerun_command.rerun(
        root, known, make(1, flags={**flags, "start": "gone", "asked": 1}), ()
    )
    assert told.command == "guild run toy:train kind=y video=yes -y"
    assert told.note == "no flag any more: asked=1; no choice any more: start=gone"


TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=20)


ODD = ("|", "a\\|b", "`x`", "'", "$HOME", "a\nb", "é\u202e", "\\", "")


@given(st.lists(TEXT | st.sampled_from(ODD), min_size=40, max_size=40))
@settings(max_examples=15)
def test_a_shell_reads_the_words_that_were_meant(words):
    line = "printf '%s\\0' " + " ".join(map(rerun_command.quoted, words))
    assert line.isprintable()
    told = subprocess.run(
        ["bash", "-c", line], capture_output=True, env={"LC_ALL": "C"}, check=True
    )
    assert told.stdout.decode().split("\0")[:-1] == words


def test_the_command_repeats_a_run_to_the_bit(shell):
    shell("guild run toy:train updates=20 lr=3e-3 seed=5 -y", RECORD_MLFLOW="off")
    shell.catalog("sync -q")
    line = shell.inside("row latest").strip().splitlines()[-1]
    assert line == "guild run toy:train lr=0.003 updates=20 seed=5 -y"
    shell(line, RECORD_MLFLOW="off")
    shell.inside("sync -q")
    shell.inside("export")
    texts = [p.read_text() for p in (shell.root / "experiments/records/toy").glob("*.json")]
    digests = {re.search(r'"digest": (\{.*?\})', text)[1] for text in texts}
    assert len(texts) == 2
    assert len(digests) == 1
