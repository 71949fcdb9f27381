"""How the submitter looks at a run: with pauses, whatever it meets."""

import itertools
import os
import weakref

import pytest

from runcatalog.cluster import engines, files, proxy
from runcatalog.cluster.engine import Look, Place
from runcatalog.cluster.mirror import Mirror
from runcatalog.record.digest import file_digest

ENDED = 0  # exit status


class Machine:
    """An engine with a run in a folder.

    Attributes:
        polls: Number of looks at it.
        code: Exit status of the run.
        output: What it prints.
        hashed: Names of the files that it has read for their digests.
        job: The run as submitted, as long as somebody holds it.
    """

    def __init__(self, folder):
        self.folder, self.polls, self.code, self.output = folder, 0, None, b""
        self.hashed = []

    def submit(self, job):
        self.job = weakref.ref(job)
        return Place("box1", "")

    def release(self, place, run, attempt):
        pass

    def poll(self, place, run, attempt, wanted=(), printed=(0, 0), digests=False):
        self.polls += 1
        now = files.stamps(self.folder)
        sums = {name: file_digest(self.folder / name) for name in now} if digests else {}
        self.hashed += sums
        pieces = list(files.read(self.folder, wanted))
        output = self.output[printed[0] :][:10] if self.code is not None else b""
        return Look(self.code, "", False, now, [], pieces, output, b"", sums)


@pytest.fixture
def machine(tmp_path):
    (tmp_path / "there").mkdir()
    return Machine(tmp_path / "there")


@pytest.fixture
def submitter(machine, tmp_path, monkeypatch):
    """The submitter of the run on that machine."""
    here = tmp_path / "here"
    (here / ".guild").mkdir(parents=True)
    variables = {"RUN_DIR": here, "RUN_ID": "1" * 32, "GUILD_HOME": tmp_path, "CMD_DIR": tmp_path}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(proxy.signal, "signal", lambda *_: None)  # this process is a test
    settings = engines.Settings("lab", "tls://127.0.0.1:1", tmp_path, "anna", tmp_path)
    made = proxy.Proxy(settings, machine, [])
    made._write_state(attempt=0)
    return made


def follow(submitter):
    return submitter._follow(Place("box1", ""), Mirror(submitter._root, submitter._owned))


def test_a_file_that_cannot_be_read_is_asked_for_with_pauses_and_named_once(
    submitter, machine, monkeypatch, capsys
):
    (machine.folder / "weights").write_bytes(b"w")
    secret = machine.folder / os.fsdecode(b"caf\xe9")
    secret.symlink_to("/proc/self/mem")  # begins with a page that nobody can read, root included
    with pytest.raises(OSError, match="Input/output"):
        secret.read_bytes()
    pauses = []

    def pause(seconds):
        pauses.append(machine.polls)
        assert seconds > 0
        with (machine.folder / "log.txt").open("a") as log:  # others go on
            log.write("line\n")
        if len(pauses) == 6:
            secret.unlink()
            machine.code = ENDED

    monkeypatch.setattr(submitter, "_sleep", pause)
    monkeypatch.setattr(machine, "poll", limited(machine.poll, 40))
    assert follow(submitter).code == ENDED
    looks = [now - before for before, now in itertools.pairwise(pauses)]
    assert max(looks) <= 2  # the second fetches what the first has shown
    assert capsys.readouterr().out == "engine: 'caf\\udce9' cannot be read on box1\n"
    for name in ("weights", "log.txt"):
        there, here = machine.folder / name, submitter._root / name
        assert here.read_bytes() == there.read_bytes()


def limited(call, most):
    """Return a function that may be called so often."""
    left = iter(range(most))

    def calls(*arguments, **options):
        assert next(left, None) is not None, "a busy loop"
        return call(*arguments, **options)

    return calls


def test_a_file_longer_than_an_answer_is_fetched_without_a_pause(submitter, machine, monkeypatch):
    monkeypatch.setattr(files, "PIECE_BYTES", 10)
    monkeypatch.setattr(files, "ANSWER_BYTES", 25)
    for name in ("a", "b", "c"):
        (machine.folder / name).write_bytes(name.encode() * 35)
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        machine.code = ENDED

    monkeypatch.setattr(submitter, "_sleep", pause)
    follow(submitter)
    assert len(pauses) == 1
    assert all((submitter._root / name).read_bytes() == name.encode() * 35 for name in "abc")


def test_a_long_journal_is_fetched_while_the_run_goes_on_and_before_the_checkpoint(
    submitter, machine, monkeypatch
):
    monkeypatch.setattr(files, "PIECE_BYTES", 10)
    monkeypatch.setattr(files, "ANSWER_BYTES", 25)
    journal = machine.folder / "journal" / "metrics.jsonl"
    journal.parent.mkdir()
    journal.write_bytes(b"x" * 100)
    mirrored, poll = submitter._root / "journal" / "metrics.jsonl", machine.poll

    def poll_while_logging(*arguments, **options):
        if machine.code is None:
            with journal.open("ab") as file:
                file.write(b"y")
            if machine.polls == 3:
                (machine.folder / "weights").write_bytes(b"of 103 points")
        if (submitter._root / "weights").exists():
            assert mirrored.stat().st_size >= 103
        return poll(*arguments, **options)

    monkeypatch.setattr(machine, "poll", limited(poll_while_logging, 30))
    monkeypatch.setattr(submitter, "_sleep", lambda seconds: setattr(machine, "code", ENDED))
    assert follow(submitter).code == ENDED
    for name in ("weights", "journal/metrics.jsonl"):
        assert (submitter._root / name).read_bytes() == (machine.folder / name).read_bytes()


def test_a_long_file_that_is_written_all_the_time_is_asked_for_with_pauses(
    submitter, machine, monkeypatch
):
    monkeypatch.setattr(files, "PIECE_BYTES", 10)
    monkeypatch.setattr(files, "ANSWER_BYTES", 25)
    poll, pauses = machine.poll, []

    def poll_while_writing(*arguments, **options):
        if machine.code is None:
            (machine.folder / "memory").write_bytes(b"%100d" % machine.polls)
        return poll(*arguments, **options)

    def pause(seconds):
        pauses.append(machine.polls)
        machine.code = ENDED if len(pauses) == 3 else None

    monkeypatch.setattr(machine, "poll", limited(poll_while_writing, 30))
    monkeypatch.setattr(submitter, "_sleep", pause)
    assert follow(submitter).code == ENDED
    assert (submitter._root / "memory").read_bytes() == (machine.folder / "memory").read_bytes()


def test_a_machine_reads_the_files_of_a_run_once_after_its_end(
    submitter, machine, monkeypatch, capfdbinary
):
    monkeypatch.setattr(files, "PIECE_BYTES", 10)
    monkeypatch.setattr(files, "ANSWER_BYTES", 25)
    (machine.folder / "weights").write_bytes(b"w" * 200)
    machine.code, machine.output = ENDED, b"a long output\n" * 5
    assert follow(submitter).code == ENDED
    assert machine.hashed == ["weights"]
    assert (submitter._root / "weights").read_bytes() == b"w" * 200
    assert capfdbinary.readouterr().out == machine.output


def test_what_was_shipped_is_not_kept_while_the_run_lasts(submitter, machine, monkeypatch):
    kept = []

    def poll(*arguments):
        kept.append(machine.job())
        machine.code = ENDED
        return look(*arguments)

    look = machine.poll
    monkeypatch.setattr(machine, "poll", poll)
    assert submitter.run() == ENDED
    assert kept
    assert not any(kept)


@pytest.mark.parametrize("names", [[], ["experiments/machines.yml"], ["guild.yml", "catalog.yml"]])
def test_a_projects_files_are_shipped_with_and_without_a_guild_file(submitter, tmp_path, names):
    project = tmp_path / "door"
    for name in names:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("{}")
    submitter._project = project
    job = submitter._job()
    files.unpack(job.archive, job.digest, tmp_path / "shipped")
    shipped = files.stamps(tmp_path / "shipped/project/door")
    assert shipped.keys() == {"guild.yml", *names}
