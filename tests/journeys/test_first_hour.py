"""The first hour of a newcomer in a fresh clone, from `make demo` to a study of one's own, at a small size.

The steps share one clone and follow one another. Each names the fault of a first contact that it guards against;
those of other projects (a shared Guild home, the library alone) are in test_your_project.py, a stopped run as a
dependency in runcatalog/guild/test_dependencies.py, an MLflow that cannot be reached in
runcatalog/record/test_messages.py.
"""

import contextlib
import fcntl
import importlib.util
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import termios
import time
import urllib.request
import uuid

import pytest

from browser import BROWSER, TOOL
from journeys.shell import Project
from mlflow_server import free_port

REDRAWN = ("cartpole/bc", "door/series", "darkroom/ad")
SMALL = "env-steps=2048 num-envs=8 num-steps=64 eval-interval=4 video=no"
TOKEN, KEY = (f"{name}-{uuid.uuid4().hex}" for name in ("token", "key"))


@pytest.fixture(scope="module")
def clone(project: Project) -> Project:
    """The project as it is, committed."""
    name = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a"}
    project.env |= name | {"GIT_COMMITTER_EMAIL": "a@b", "GIT_CONFIG_GLOBAL": os.devnull}
    project.good("git init -q . && git add -A && git commit -q -m all")
    return project


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
        self._ours, self._read, self.shown = ours, b"", ""
        self.process = subprocess.Popen(
            line, shell=True, cwd=project.root,
            env=project.env | {"TERM": "xterm", "PATH": project.env["PATH"].partition(os.pathsep)[2]},
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            preexec_fn=_in_a_terminal,
        )  # fmt: skip
        os.close(theirs)

    def wait_for(self, text: str, seconds: float = 300) -> None:
        """Reads until it shows a text."""
        until = time.monotonic() + seconds
        while text not in self.shown:
            assert time.monotonic() < until, self.shown
            if select.select([self._ours], [], [], 0.2)[0]:
                try:
                    self._read += os.read(self._ours, 1 << 16)
                except OSError:  # it has ended
                    assert text in self.shown, self.shown
            self.shown = re.sub(
                r"\x1b(\[[0-?]*[ -/]*[@-~]|[()].|[=>])", "", self._read.decode("utf-8", "replace")
            )

    def press(self, keys: str) -> None:
        """Types keys."""
        os.write(self._ours, keys.encode())


def test_records_can_be_read_before_any_run(clone: Project) -> None:
    """Sample queries failed in a fresh clone; `catalog best` was over 200 characters wide."""
    best = clone.good("catalog best ppo:train", COLUMNS="100")
    assert "opening_rate" in best
    assert max(map(len, best.splitlines())) <= 100
    assert "clip-coef" in clone.good("catalog search 'lr>1e-3 and task=lever' --json")
    assert not (clone.root / "mlflow.db").exists()


def test_demo_changes_no_committed_file_and_shows_its_run(clone: Project) -> None:
    """The first command rewrote the committed page and figure; a run ended without its result."""
    printed = clone.type(f"tools/demo {SMALL}")
    assert printed.returncode == 1, printed.stdout  # so short a training does not open the door
    assert "at least 0.95 is required" in printed.stdout
    assert clone.good("git status --porcelain") == ""
    run = clone.finished("train")
    lines = printed.stdout.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("run "))
    assert lines[begin].startswith(f"run {run.name[:8]} of hnppo:train, sent to MLflow at ")
    assert lines[begin + 1] == "  to follow it: catalog watch"
    assert re.search(
        rf"^run {run.name[:8]} finished after .*: \d+ % opening rate", printed.stdout, re.M
    )
    assert f"  to show it: catalog row {run.name[:8]}" in lines
    assert f"| {run.name[:8]} |" in printed.stdout
    page = clone.root / "runs_local.md"
    assert str(page) in printed.stdout
    # A study with very many runs has a page for each operation.
    link = rf"door_runs(/hnppo-train)?\.md#{run.name[:8]}\)"
    assert re.search(rf"\[{run.name[:8]}\]\(runs_local/{link}", page.read_text())
    # The figure in which it stands beside the committed runs is another one than theirs.
    figures = [path.name for path in (clone.root / "runs_local").rglob("*.svg")]
    assert figures == ["train_hnppo.svg"]
    shown = (clone.root / "runs_local/door.md").read_text()
    assert "(door/figures/train_hnppo.svg)" in shown
    assert re.search(rf"\[{run.name[:8]}\]\({link} \*local\*", shown)
    assert "(../experiments/door/figures/train_ppo.svg)" in shown


def test_redrawing_changes_no_committed_file(clone: Project) -> None:
    for name in REDRAWN:
        clone.good(f"python src/{name}_redraw.py")
    clone.good("python src/skills/redraw.py")
    assert clone.good("git status --porcelain") == ""


def test_what_is_published_is_what_was_asked_for(clone: Project) -> None:
    run = clone.finished("train")
    clone.good("catalog export && catalog render")
    changed = clone.good("git status --porcelain").split()[1::2]
    assert set(changed) - {"catalog/door_runs/hnppo-train.md"} == {
        "runs_catalog.md",
        "catalog/door.md",
        "catalog/door_runs.md",
        "experiments/door/figures/train_hnppo.svg",
        f"experiments/records/door/{run.name[:8]}.json",
    }
    clone.good("git diff --exit-code --diff-filter=D")
    assert "agrees with" in clone.good("git add -A && git commit -q -m run && catalog check")


def test_mistakes_get_a_line_and_leave_nothing(clone: Project) -> None:
    """A typo became a row for ever; a missing run was recorded as a killed one; MLflow's folders were created."""
    clone.bad("guild run hnppo:train lr=-1 -y", "--lr", "-1", "(0, 1]")
    day = time.strftime("%Y-%m-%d", time.gmtime())  # not "today", which may end before the search
    printed = clone.bad("guild run ad:train -y", "needs a run of a2c:histories_return")
    assert "guild run a2c:histories_return" in printed
    nowhere = clone.root.parent / "no" / "such"
    clone.bad(f"catalog sync --tracking-uri sqlite:///{nowhere}/x.db", "no/such")
    assert not nowhere.parent.exists()
    clone.good("catalog sync")
    ended_badly = f"started>={day} and (status=FAILED or status=KILLED)"
    committed = {path.stem for path in (clone.root / "experiments/records").rglob("*.json")}
    found = clone.good(f"catalog search '{ended_badly}'", COLUMNS="200").splitlines()
    rows = [row for row in found if not committed & set(row.split())]  # those may be of today too
    assert not [row for row in rows if " hnppo:train " in row]
    (own,) = (row for row in rows if " ad:train " in row)
    assert "never started: needs a run of a2c:histories_return" in own


def test_no_page_tells_to_type_what_fails(clone: Project) -> None:
    """`guild help` knows packages alone; an operation's flags are listed by `guild run OPERATION --help-op`."""
    kinds = {".md", ".yml", ".j2", ".py", ".toml", ".html", ""}
    paths = [path for path in clone.root.rglob("*") if path.suffix in kinds and path.is_file()]
    own = [
        path for path in paths if not {"tests", ".guild"} & set(path.relative_to(clone.root).parts)
    ]
    assert {"README.md", "guild.yml", "demo", "plugin.py"} <= {path.name for path in own}
    asked = set()
    for name in own:
        text = name.read_text(encoding="utf-8", errors="replace")
        assert not re.search(r"guild help[ \n]+[\w.-]+:", text), name
        asked |= set(re.findall(r"guild run (\S+:\S+) --help-op", text))
    assert asked
    for operation in sorted(asked - {"MODEL:OPERATION", "MODEL:OP"}):
        printed = clone.good(f"guild run {operation} --help-op")
        assert f"Usage: guild run [OPTIONS] {operation}" in printed
        assert "Flags:" in printed


def test_a_sweep_tells_its_trials_and_their_table(clone: Project) -> None:
    """Batches ended mute as well."""
    line = "guild run pg:train algo=value updates=2 lr=[0.01,0.02] -y"
    printed = clone.good(line, RECORD_MLFLOW="off").splitlines()
    said = [text for text in printed if text.startswith("batch:")]
    assert said[0] == "batch: trial 1 of 2, lr 0.01"
    assert said[1].startswith("batch: trial 2 of 2, lr 0.02; best so far ")
    assert said[2] == "batch: 2 of 2 trials finished"
    assert re.fullmatch(r"  trial  length_mean100  lr", printed[printed.index(said[2]) + 1])
    key = printed[-1].split()[-1]
    assert printed[-1] == f"  to show it: catalog sync && catalog row {key}"
    row = clone.good(printed[-1].partition(": ")[2])
    assert "length mean100" in row


def test_guild_compare_is_a_table_to_walk_through(clone: Project) -> None:
    """The interactive table stayed empty."""
    run = clone.finished("train").name[:8]
    terminal = Terminal(clone, "guild compare --operation pg:train")
    try:
        terminal.wait_for(run)
        terminal.wait_for("0.02")
        terminal.press("q")
        assert terminal.process.wait(240) == 0
    finally:
        terminal.process.kill()
    assert "no data to display" not in terminal.shown
    assert "pkg_resources" not in terminal.shown  # of which newer setuptools warn


def test_a_run_shows_its_progress_and_after_ctrl_c_how_to_go_on(clone: Project) -> None:
    """Ctrl-C printed ^C alone, and the first time left was twenty times too long."""
    terminal = Terminal(
        clone, "RECORD_MLFLOW=off guild run pg:train updates=500 save-interval=20 -y"
    )
    try:
        terminal.wait_for("to follow it: catalog watch")
        terminal.wait_for("updates/s, ")
        terminal.wait_for("update 50, episode 500: ")
        terminal.press("\x03")
        terminal.wait_for("-y")
    finally:
        terminal.process.wait(240)
    assert "stopped (Ctrl-C) after update" in terminal.shown
    begin, line = re.search(
        r"from the checkpoint at (\d+): (guild run .* -y)", terminal.shown
    ).groups()
    output = clone.good(line, RECORD_MLFLOW="off")
    assert int(begin) >= 40
    result = json.loads((clone.finished("train") / "result.json").read_text())
    assert (result["session"], result["resume_mismatch"]) == (2, 0)
    assert re.search(r"run \w{8} finished after .*\(500 updates\)", output)
    # What was drawn on the terminal is not in the output that Guild keeps.
    kept = (clone.finished("train") / ".guild" / "output").read_text()
    assert "updates/s" not in kept
    assert "\r" not in kept


@pytest.mark.timeout(1800)  # MLflow's pages are megabytes of script; half a minute on an idle core
def test_make_ui_opens_the_studies_with_their_objective(clone: Project) -> None:
    """A busy port was found after 92 s with status 0; 75 lines came before the address, which was MLflow's home."""
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        printed = clone.bad(f"catalog ui --serve {port}", f"port {port}", "make ui PORT=")
        assert len(printed.splitlines()) == 1
    assert "catalog ui --serve $(PORT)" in (clone.root / "Makefile").read_text()
    server = subprocess.Popen(
        ["catalog", "ui", "--serve", str(port)], cwd=clone.root,
        env=clone.env | {"PATH": clone.env["PATH"].partition(os.pathsep)[2]},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        lines = [server.stdout.readline()]
        lines += [server.stdout.readline() for _ in range(int(re.search(r"\d+", lines[0])[0]))]
        assert re.fullmatch(r"MLflow's pages of \d+ studies? .*\n", lines[0]), lines
        door = next(line.split()[-1] for line in lines if line.split()[0] == "door:")
        address = f"http://127.0.0.1:{port}"
        _wait_for_answer(address, server)
        if BROWSER is None or importlib.util.find_spec("playwright") is None:
            pytest.skip("no Chromium on the path (tools/setup-browser) or no playwright")
        with TOOL.browser_page(BROWSER, address, height=900) as page:
            TOOL.open_view(page, address, door.removeprefix(f"{address}/"))
            heads = page.locator(".ag-header-cell[col-id*='metrics']").all_inner_texts()
        assert [head.strip() for head in heads] == ["opening_rate"]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _wait_for_answer(address: str, server: subprocess.Popen) -> None:
    until = time.monotonic() + 600
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/health", timeout=20):
            return
        assert server.poll() is None, server.stdout.read()
        assert time.monotonic() < until, "no answer"
        time.sleep(0.1)


def test_a_sixth_study_by_the_steps_of_contributing(clone: Project) -> None:
    text = (clone.root / "CONTRIBUTING.md").read_text()
    blocks = re.findall(r"^```\w+ (\w+)=?(\S*)\n(.*?)^```$", text, re.M | re.S)
    assert {kind for kind, _, _ in blocks} == {"file", "append", "run"}
    for kind, name, body in blocks:
        path = clone.root / name
        if kind == "file":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(body)
        elif kind == "append":
            path.write_text(path.read_text() + body)
    clone.env |= {"HUB_TOKEN": TOKEN, "HUB_API_KEY": KEY}  # Guild keeps the second one
    # The shell of these runs holds a token, and one of them prints it and dies of it.
    (clone.root / "src/arms/leak.py").write_text(
        "import os\nraise SystemExit(f\"401 for {os.environ['HUB_TOKEN']} {os.environ['HUB_API_KEY']}\")\n"
    )
    with (clone.root / "experiments/arms/guild.yml").open("a") as file:
        file.write("    leak:\n      main: src/arms.leak\n")
    clone.bad("guild run arms:leak -y", "401 for", TOKEN, KEY)
    commands = [body for kind, _, body in blocks if kind == "run"]
    for line in "".join(commands).splitlines():
        clone.good(line)

    page = (clone.root / "catalog/arms.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| train")]
    row = "".join(sorted(rows, key=lambda line: "epsilon 0.1" not in line))
    # Sutton & Barto, figure 2.2: after 1,000 pulls epsilon 0.1 chooses the best arm about 80 % of the time, 0.01 fewer.
    best, other = (float(value) for value in re.findall(r"(\d+(?:\.\d+)?) %", row)[:2])
    assert 65 < best < 90
    assert other < best

    kept = [run / ".guild/attrs/env" for run in clone.runs]
    assert any(KEY in path.read_text() for path in kept if path.exists())
    private = (clone.root / ".guild", clone.root / ".git")
    for path in clone.root.rglob("*"):
        if path.is_file() and not any(path.is_relative_to(each) for each in private):
            content = path.read_bytes()
            assert TOKEN.encode() not in content, path
            assert KEY.encode() not in content, path
    records = (path.read_text() for path in clone.root.glob("experiments/records/arms/*.json"))
    assert any('"reason": "exit status 1: 401 for [hidden] [hidden]"' in text for text in records)
