"""A run's files are copied complete and unchanged between machines."""

import io
import os
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runcatalog.cluster import files
from runcatalog.cluster.engine import Look
from runcatalog.cluster.mirror import Mirror, is_mirrored
from runcatalog.record.digest import file_digest

NAMES = ("journal/metrics.jsonl", "a.log", "checkpoints/2/weights", "artifacts/plot.svg")
CHANGES = st.one_of(
    st.tuples(st.just("append"), st.sampled_from(NAMES), st.binary(min_size=1, max_size=9)),
    st.tuples(st.just("write"), st.sampled_from(NAMES), st.binary(max_size=9)),
    st.tuples(st.just("replace"), st.sampled_from(NAMES), st.binary(max_size=9)),
    st.tuples(st.just("remove"), st.sampled_from(NAMES), st.just(b"")),
    st.tuples(st.just("look"), st.just(""), st.just(b"")),
)


class Pair:
    """A directory on a machine, and its mirror."""

    def __init__(self, root):
        from contextlib import nullcontext

        self.there, self.here = root / "there", root / "here"
        self.there.mkdir()
        self.here.mkdir()
        self.mirror = Mirror(self.here, nullcontext)

    def look(self, requested=()):
        now = files.stamps(self.there)
        pieces = list(files.read(self.there, requested))
        return Look(None, "", False, now, [], pieces, b"", b"", {})

    def follow(self):
        look, requested = self.look(), []
        while requested := self.mirror.wanted(look):
            look = self.look(requested)
            self.mirror.take(look.pieces)
        self.mirror.remove(look)

    def change(self, kind, name, data):
        path = self.there / name
        if kind == "look":
            self.follow()
        elif kind == "remove":
            path.unlink(missing_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            target = path.with_name("new") if kind == "replace" else path
            with target.open("ab" if kind == "append" else "wb") as file:
                file.write(data)
            os.replace(target, path)


def contents(root):
    return {p.relative_to(root): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@given(changes=st.lists(CHANGES, max_size=25), piece=st.sampled_from([1, 3, 1000]))
def test_a_mirror_is_equal_after_any_changes(tmp_path_factory, changes, piece):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "PIECE_BYTES", piece)
        patch.setattr(files, "ANSWER_BYTES", 2 * piece)
        pair = Pair(tmp_path_factory.mktemp("pair"))
        for change in changes:
            pair.change(*change)
        pair.follow()
        digests = {n: file_digest(pair.there / n) for n in files.stamps(pair.there)}
        if pair.mirror.forget_different(digests):  # a growing file that was rewritten in place
            pair.follow()
        assert contents(pair.here) == contents(pair.there)


def test_a_growing_file_is_sent_as_its_tail(tmp_path):
    pair = Pair(tmp_path)
    pair.change("write", NAMES[0], b"x" * 1000)
    pair.follow()
    pair.change("append", NAMES[0], b"tail")
    (piece,) = pair.look(pair.mirror.wanted(pair.look())).pieces
    assert (piece.offset, piece.data) == (1000, b"tail")


def test_points_are_sent_before_the_checkpoint_that_needs_them(tmp_path):
    pair = Pair(tmp_path)
    for name in (NAMES[2], NAMES[0]):
        pair.change("write", name, b"x")
    assert [request.name for request in pair.mirror.wanted(pair.look())] == [NAMES[0], NAMES[2]]


@pytest.mark.parametrize("name", ["../out", "/etc/passwd", "a/../../out", "", "link/file"])
def test_no_file_is_written_outside_of_the_run(tmp_path, name):
    pair = Pair(tmp_path)
    (pair.here / "link").symlink_to(tmp_path)
    piece = files.Piece(name, 0, b"x", (1, 1, 1), True)
    with pytest.raises(ValueError, match="refused"):
        pair.mirror.take([piece])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["here", "there"]


def test_files_of_the_submitter_are_not_overwritten():
    own = [
        "./.guild/attrs/flags",
        ".guild//attrs/flags",
        ".guild/attrs/exit_status",
        ".guild/LOCK",
        ".guild/output",
        "journal/mlflow.json",
    ]
    assert not any(is_mirrored(name) for name in [*own, "journal/start.lock", "a/.writing-b/c"])
    assert all(is_mirrored(name) for name in [".guild/attrs/result", "result.json"])


def test_files_of_a_script_come_home_whatever_their_names(tmp_path):
    pair = Pair(tmp_path)
    names = ["poetry.lock", "out/best.tmp", "out/mlflow.json", "out/reserve", "out/ENV/a.txt"]
    local = ["journal/reserve", "journal/start.lock", ".guild/LOCK", ".guild/attrs/env"]
    for name in [*names, *local, "src/__pycache__/a.pyc", "checkpoints/.writing-2-7/weights"]:
        pair.change("write", name, b"x")
    pair.follow()
    assert sorted(map(str, contents(pair.here))) == sorted(names)


def test_links_to_folders_above_them_are_not_followed(tmp_path):
    pair = Pair(tmp_path)
    pair.change("write", "ck/weights", b"x")
    for link, target in {
        "a": ".",
        "b": ".",
        "ck/latest": ".",
        "ck/all": "..",
        "best": "ck",
    }.items():
        (pair.there / link).symlink_to(target)
    pair.follow()
    assert sorted(map(str, contents(pair.here))) == ["best/weights", "ck/weights"]


def test_an_archive_is_unpacked_completely_or_not_at_all(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/file").write_text("content")
    (tmp_path / "a/link").symlink_to("file")
    (tmp_path / "a" / os.fsdecode(b"caf\xe9.txt")).touch()
    names = ["file", "link", "gone", os.fsdecode(b"caf\xe9.txt")]
    data, digest = files.pack([("run", tmp_path / "a", names)])
    files.unpack(data, digest, tmp_path / "b")
    assert contents(tmp_path / "b/run") == contents(tmp_path / "a")
    assert not (tmp_path / "b/run/link").is_symlink()
    with pytest.raises(ValueError, match="another digest"):
        files.unpack(data[:-1] + b"x", digest, tmp_path / "c")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../out", tarfile.REGTYPE),
        ("a", tarfile.SYMTYPE),
        ("a", tarfile.LNKTYPE),
        ("a", tarfile.CHRTYPE),
    ],
)
def test_an_archive_with_other_things_is_refused(tmp_path, name, kind):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member)
    data = buffer.getvalue()
    import hashlib

    with pytest.raises(ValueError, match="refused"):
        files.unpack(data, hashlib.sha256(data).hexdigest(), tmp_path / "there")
    assert not (tmp_path / "out").exists()
