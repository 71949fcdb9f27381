"""The command of a row repeats it."""

import re
import shlex
import subprocess
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runcatalog.model.project import Operation
from runcatalog.model.run_record import RunRecord
from runcatalog.pages import rerun_command


def record(flags, number=1) -> RunRecord:
    """A finished run of `toy:train`."""
    return RunRecord(f"{number:08x}" * 4, "toy:train", "toy", "FINISHED", flags=flags)


FLAGS = {
    "lr": 0.005, "rate": -0.5, "size": "64 64", "plain": 3, "task": "pull", "video": True, "seed": 1,
}  # fmt: skip


def command(operation: Operation, head, trials=()) -> list[str]:
    """The words of the command, as a shell reads them."""
    return shlex.split(rerun_command.rerun({operation.name: operation}, head, trials).command)


def words(operation="toy:train", **changed):
    """The words of the command of FLAGS with some of them changed."""
    flags = {
        "lr": "0.005", "plain": "3", "rate": "-0.5", "size": "64 64", "task": "pull", "video": "yes",
    }  # fmt: skip
    seed = changed.pop("seed", "1")
    named = [f"{name}={value}" for name, value in sorted((flags | changed).items())]
    return ["guild", "run", operation, *named, f"seed={seed}", "-y"]


def test_a_command_has_every_flag_of_the_record_the_seed_last():
    operation = Operation("toy:train", "toy", main="src/a.train", flags={"lr": 0.005, "gone": 1})
    assert command(operation, record(FLAGS)) == words()
    changed = {**FLAGS, "seed": 7, "video": False, "size": "8 4", "note": "", "none": None}
    assert command(operation, record(changed)) == words(
        seed="7", video="no", size="8 4", note="", none="null"
    )


@pytest.mark.parametrize(
    "text",
    ["off", "yes", "007", "1.10", "2026-11-22", "~", "nan", "1_0", "a: b", "[1, 2]", "'quoted'", "64 64", "", "C:/x"],
)  # fmt: skip
def test_a_text_is_typed_as_guild_reads_it(text):
    from guild import flag_util

    assert flag_util.decode_flag_val(rerun_command.typed(text)) == text
    assert flag_util.decode_flag_val(rerun_command.typed(text), "string") == text


@pytest.mark.parametrize(
    "texts", [("128,128", "64,64"), ("*", "lever"), ("[a]", "a]"), ("off", "=", "007")]
)
def test_texts_in_a_list_are_typed_as_guild_reads_them(make, texts):
    from guild import flag_util

    trials = [make(i, flags={"size": text}, batch="9" * 32) for i, text in enumerate(texts)]
    word = command(Operation("toy:train", "toy"), trials[0], trials)[3]
    assert sorted(flag_util.decode_flag_val(word.removeprefix("size="))) == sorted(texts)


def test_a_batch_has_lists(make):
    operation = Operation("toy:train", "toy", main="src/a.train", flags={"lr": [1e-3, "5e-3"]})
    points = [(lr, seed) for lr in (0.005, 0.001) for seed in (2, 10)]
    batch = make(9, result={"batch": True, "method": "grid"})
    trials = [
        make(i, flags={**FLAGS, "lr": lr, "seed": seed}, batch=batch.run)
        for i, (lr, seed) in enumerate(points)
    ]
    expected = words(lr="[0.001,0.005]", seed="[2,10]")
    assert command(operation, batch, trials) == expected
    assert command(operation, trials[0], trials) == expected  # no record of the batch
    rerun = rerun_command.rerun({"toy:train": operation}, batch, trials[:3])
    assert (rerun.command, rerun.note.split(";")[0]) == ("", "trials do not form a grid")


def test_a_search_has_its_own_flags_and_a_required_run_its_name(make):
    search = Operation("toy:opt@gp", "toy", main="src/b.opt", flags={"trials": 20, "task": "pull"})
    batch = make(9, operation="toy:opt@gp", flags={"trials": 12, "task": "pull"})
    trials = [make(i, flags=FLAGS, batch=batch.run) for i in (1, 2)]
    expected = ["guild", "run", "toy:opt@gp", "task=pull", "trials=12", "-y"]
    assert command(search, batch, trials) == expected

    needs = Operation("toy:train", "toy", main="src/a.train", requires=("expert",))
    head = make(1, flags=FLAGS, parents=("abcd1234" * 4,))
    assert command(needs, head) == [*words()[:-1], "expert=abcd1234", "-y"]
    both = replace(needs, requires=("series", "reference"))
    two = replace(head, parents=("abcd1234" * 4, "1234abcd" * 4))
    assert command(both, two)[-3:-1] == ["series=abcd1234", "reference=1234abcd"]
    assert command(both, head)[-3:-1] == ["series=abcd1234", "reference=abcd1234"]
    three = replace(needs, requires=("a", "b", "c"))
    assert command(three, two) == words()  # which of them is not known


def test_a_row_without_a_command_has_a_reason(make):
    known = {"toy:train": Operation("toy:train", "toy", main="src/a.train")}
    for head, trials, note in (
        (make(1, reported_by="a list"), (), "imported"),
        (make(1, operation="old"), (), "not declared here"),
        (make(1, note="x" * 3000), (), "a flag is too long for the record"),
        (make(1, result={"batch": True, "method": "gp"}), (make(2, batch="0" * 31 + "1"),), "a search with"),
    ):  # fmt: skip
        rerun = rerun_command.rerun(known, head, trials)
        assert rerun.command == ""
        assert rerun.note.startswith(note)


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["lr", "size", "seed"]),
            st.sampled_from([1, 2.5, "8 4", "it's", "a|b", "`x`", "$HOME", "", True]),
        ),
        max_size=6,
    )
)
@settings(max_examples=25)
def test_a_short_command_with_its_array_equals_the_full_command(flags):
    known = {"toy:train": Operation("toy:train", "toy")}
    heads = [record(entry, number=n) for n, entry in enumerate(flags)]
    reruns = [rerun_command.rerun(known, head, ()) for head in heads]
    short, arrays = rerun_command.shortened(reruns)
    typed = as_typed(arrays, [*short, *(entry.command for entry in reruns)])
    for line, whole in zip(typed[: len(short)], typed[len(short) :], strict=True):
        values = dict(word.split("=", 1) for word in line[2:-1])  # the last value of a flag counts
        assert values == dict(word.split("=", 1) for word in whole[2:-1])
        assert [line[:2], line[-1]] == [whole[:2], whole[-1]]


def as_typed(arrays, commands) -> list[list[str]]:
    """The arguments that bash gives to `guild`, by command."""
    script = [*arrays, "guild() { printf '%s\\0' \"$@\"; printf '\\n\\0'; }", *commands]
    done = subprocess.run(["bash", "-c", "\n".join(script)], capture_output=True, check=True)
    return [line.split("\0")[:-1] for line in done.stdout.decode().split("\n\0")[:-1]]


def test_a_short_command_stops_without_its_array():
    known = {"toy:train": Operation("toy:train", "toy")}
    heads = [record({**FLAGS, "seed": n}, number=n) for n in (1, 2)]
    short, arrays = rerun_command.shortened([rerun_command.rerun(known, h, ()) for h in heads])
    assert len(arrays) == 1
    done = subprocess.run(
        ["bash", "-c", f"guild() {{ echo ran; }}\n{short[0]}"], capture_output=True
    )
    assert done.returncode != 0
    assert done.stdout == b""


TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=20)


ODD = ("|", "a\\|b", "`x`", "'", "$HOME", "a\nb", "é\u202e", "\\", "")


@given(st.lists(TEXT | st.sampled_from(ODD), min_size=40, max_size=40))
@settings(max_examples=15)
def test_a_shell_parses_the_command_into_the_same_words(words):
    line = "printf '%s\\0' " + " ".join(map(rerun_command.quoted, words))
    assert line.isprintable()
    printed = subprocess.run(
        ["bash", "-c", line], capture_output=True, env={"LC_ALL": "C"}, check=True
    )
    assert printed.stdout.decode().split("\0")[:-1] == words


def test_the_command_repeats_a_run_to_the_bit(shell):
    shell("guild run toy:train updates=20 lr=3e-3 seed=5 -y", RECORD_MLFLOW="off")
    shell.catalog("sync -q")
    line = shell.inside("row latest").strip().splitlines()[-1]
    assert line.startswith("guild run toy:train ")
    assert {"lr=0.003", "updates=20", "seed=5"} < set(shlex.split(line))
    shell(line, RECORD_MLFLOW="off")
    shell.inside("sync -q")
    shell.inside("export")
    texts = [p.read_text() for p in (shell.root / "experiments/records/toy").glob("*.json")]
    digests = {re.search(r'"digest": (\{.*?\})', text)[1] for text in texts}
    assert len(texts) == 2
    assert len(digests) == 1
