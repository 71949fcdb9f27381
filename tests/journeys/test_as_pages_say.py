"""What pages tell a newcomer to type works: the table of `guild compare`, and the flags of an operation."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

from journeys.shell import Project


def _in_a_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored where the tests run in the background


class Terminal:
    """A command in a pseudo-terminal of its own.

    The commands are the real ones: prepared ones have no terminal.

    Attributes:
        shown: All that it has written, without control sequences.
    """

    def __init__(self, project: Project, line: str) -> None:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
        self._ours, self.shown = ours, ""
        self.process = subprocess.Popen(
            line, shell=True, cwd=project.root,
            env=project.env | {"TERM": "xterm", "PATH": project.env["PATH"].partition(os.pathsep)[2]},
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            preexec_fn=_in_a_terminal,
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


def test_guild_compare_is_a_table_to_walk_through(project: Project) -> None:
    for rate in ("0.01", "0.02"):
        line = f"guild run pg:train algo=value updates=2 lr={rate} -y"
        project.good(line, RECORD_MLFLOW="off")
    run = project.finished("train").name[:8]
    terminal = Terminal(project, "guild compare --operation pg:train")
    try:
        terminal.wait_for(run)
        terminal.wait_for("0.02")
        terminal.press("q")
        assert terminal.process.wait(60) == 0
    finally:
        terminal.process.kill()
    assert "no data to display" not in terminal.shown


def test_a_run_shows_its_progress_and_after_ctrl_c_how_to_go_on(project: Project) -> None:
    project.env["RECORD_MLFLOW"] = "off"
    terminal = Terminal(project, "guild run pg:train updates=500 save-interval=20 -y")
    try:
        terminal.wait_for("to follow it: catalog watch")
        terminal.wait_for("updates/s, ")
        terminal.wait_for("update 50, episode 500: ")
        terminal.press("\x03")
        terminal.wait_for("-y")
    finally:
        terminal.process.wait(60)
    assert "stopped (Ctrl-C) after update" in terminal.shown
    begin, line = re.search(
        r"from the checkpoint at (\d+): (guild run .* -y)", terminal.shown
    ).groups()
    output = project.good(line)
    assert int(begin) >= 40
    result = json.loads((project.finished("train") / "result.json").read_text())
    assert (result["session"], result["resume_mismatch"]) == (2, 0)
    assert re.search(r"run \w{8} finished after .*\(500 updates\)", output)
    # What was drawn on the terminal is not in the output that Guild keeps.
    kept = (project.finished("train") / ".guild" / "output").read_text()
    assert "updates/s" not in kept
    assert "\r" not in kept


def test_no_page_tells_to_type_what_fails(project: Project) -> None:
    """`guild help` knows packages alone; an operation's flags are told by `guild run OPERATION --help-op`."""
    kinds = {".md", ".yml", ".j2", ".py", ".toml", ".html", ""}
    paths = [path for path in project.root.rglob("*") if path.suffix in kinds and path.is_file()]
    own = [
        path
        for path in paths
        if not {"tests", ".guild"} & set(path.relative_to(project.root).parts)
    ]
    assert {"README.md", "guild.yml", "demo", "plugin.py"} <= {path.name for path in own}
    asked = set()
    for name in own:
        text = name.read_text(encoding="utf-8", errors="replace")
        assert not re.search(r"guild help[ \n]+[\w.-]+:", text), name
        asked |= set(re.findall(r"guild run (\S+:\S+) --help-op", text))
    assert asked
    for operation in sorted(asked - {"MODEL:OPERATION", "MODEL:OP"}):
        told = project.good(f"guild run {operation} --help-op")
        assert f"Usage: guild run [OPTIONS] {operation}" in told
        assert "Flags:" in told
