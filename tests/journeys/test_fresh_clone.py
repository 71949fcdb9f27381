"""What a newcomer types in a fresh clone changes no committed file, and works as the pages say."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time

import pytest

from journeys.shell import Project

REDRAWN = ("cartpole/bc", "door/series", "darkroom/ad")
SMALL = "env-steps=8192 num-envs=8 num-steps=64 eval-interval=4 video=no"


@pytest.fixture(scope="module")
def clone(project: Project) -> Project:
    """The project as it is, committed; one run that `make demo` has made, of a smaller size."""
    name = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a"}
    project.env |= name | {"GIT_COMMITTER_EMAIL": "a@b", "GIT_CONFIG_GLOBAL": os.devnull}
    project.good("git init -q . && git add -A && git commit -q -m all")
    told = project.type(f"tools/demo {SMALL}")
    assert told.returncode == 1, told.stdout  # so short a training does not open the door
    assert "required is at least 0.95" in told.stdout
    project.told = told.stdout
    return project


def test_demo_changes_no_committed_file_and_shows_its_run(clone: Project) -> None:
    assert clone.good("git status --porcelain") == ""
    run = clone.finished("train")
    assert f"| {run.name[:8]} |" in clone.told
    page = clone.root / "runs_local.md"
    assert str(page) in clone.told
    assert f"{run.name[:8]} *local*" in page.read_text()
    # The figure in which it stands beside the committed runs is another one than theirs.
    figures = [path.name for path in (clone.root / "runs_local").rglob("*.svg")]
    assert figures == ["train_hnppo.svg"]
    assert "(runs_local/door/figures/train_hnppo.svg)" in page.read_text()
    assert "(experiments/door/figures/train_ppo.svg)" in page.read_text()


def test_neither_sync_and_render_nor_redrawing_changes_a_committed_file(clone: Project) -> None:
    clone.good("catalog sync && catalog render")
    for name in REDRAWN:
        clone.good(f"python src/{name}_redraw.py")
    clone.good("python src/skills/redraw.py")
    assert clone.good("git status --porcelain") == ""
    assert "is what" in clone.good("catalog check")
    # What is published is what was asked for.
    run = clone.finished("train")
    clone.good("catalog export && catalog render")
    changed = clone.good("git status --porcelain").split()[1::2]
    assert set(changed) == {
        "runs_catalog.md",
        "experiments/door/figures/train_hnppo.svg",
        f"experiments/records/door/{run.name[:8]}.json",
    }
    clone.good("git diff --exit-code --diff-filter=D")
    clone.good("git add -A && git commit -q -m run && catalog check")


class Terminal:
    """A command in a pseudo-terminal.

    Attributes:
        shown: All that it has written, without control sequences.
    """

    def __init__(self, project: Project, line: str) -> None:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
        self._ours, self.shown = ours, ""
        self.process = subprocess.Popen(
            line, shell=True, cwd=project.root, env=project.env | {"TERM": "xterm"},
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)

    def wait_for(self, text: str, seconds: float = 120) -> None:
        """Reads until it shows a text."""
        until = time.monotonic() + seconds
        raw = b""
        while text not in self.shown:
            assert time.monotonic() < until, self.shown
            if select.select([self._ours], [], [], 0.2)[0]:
                try:
                    raw += os.read(self._ours, 1 << 16)
                except OSError:  # it has ended
                    assert text in self.shown, self.shown
            self.shown = re.sub(
                r"\x1b(\[[0-?]*[ -/]*[@-~]|[()].|[=>])", "", raw.decode("utf-8", "replace")
            )

    def press(self, keys: str) -> None:
        """Types keys."""
        os.write(self._ours, keys.encode())


def test_guild_compare_is_a_table_to_walk_through(clone: Project) -> None:
    for rate in ("0.01", "0.02"):
        line = f"guild run pg:train algo=value updates=2 lr={rate} -y"
        clone.good(line, RECORD_MLFLOW="off")
    run = clone.finished("train").name[:8]
    terminal = Terminal(clone, "guild compare --operation pg:train")
    try:
        terminal.wait_for(run)
        terminal.wait_for("0.02")
        terminal.press("q")
        assert terminal.process.wait(60) == 0
    finally:
        terminal.process.kill()
    assert "no data to display" not in terminal.shown


def test_no_page_tells_to_type_what_fails(clone: Project) -> None:
    """`guild help` knows packages alone; an operation's flags are told by `guild run OPERATION --help-op`."""
    texts = clone.good("git ls-files '*.md' '*.yml' '*.j2' src tools Makefile MLproject").split()
    asked = set()
    for name in texts:
        text = (clone.root / name).read_text(encoding="utf-8", errors="replace")
        assert not re.search(r"guild help[ \n]+[\w.-]+:", text), name
        asked |= set(re.findall(r"guild run (\S+:\S+) --help-op", text))
    assert asked
    for operation in sorted(asked - {"MODEL:OPERATION", "MODEL:OP"}):
        told = clone.good(f"guild run {operation} --help-op")
        assert f"Usage: guild run [OPTIONS] {operation}" in told
        assert "Flags:" in told
