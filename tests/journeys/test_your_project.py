"""docs/your-project.md, typed into an empty folder with the wheel in a fresh environment."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

import prepared
from journeys.shell import ROOT, Project
from rendered import committed

PAGE = ROOT / "docs/your-project.md"


class Environment:
    """A virtual environment with the wheel; what it depends on is the development environment's.

    Attributes:
        bin: Folder of its commands.
        commands: Folder of the same commands, prepared.
    """

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "venv/bin"
        copy, wheels = folder / "source", folder / "wheels"
        # A wheel is built from a copy: setuptools leaves a folder beside the sources.
        shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            if (ROOT / name).is_file():
                shutil.copy(ROOT / name, copy)
        build = f"from setuptools import build_meta; build_meta.build_wheel({str(wheels)!r})"
        wheels.mkdir()
        _run([sys.executable, "-c", build], cwd=copy)
        _run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"])
        (wheel,) = wheels.glob("runcatalog-*.whl")
        pip = [sys.executable, "-m", "pip", "--python", self.bin / "python"]
        _run([*pip, "install", "-q", "--no-deps", "--no-index", wheel])
        # A path in a .pth file: of the folder's own .pth files, such as that of the checkout, none is read.
        (self.site / "development.pth").write_text(sysconfig.get_path("purelib") + "\n")
        guild = self.bin / "guild"
        guild.write_text(
            f"#!{self.bin / 'python'}\nfrom guild.main_bootstrap import main\nmain()\n"
        )
        guild.chmod(0o755)
        self.server, prepared_folder = prepared.serve(self.bin / "python", "library")
        self.commands = prepared_folder / "bin"

    @property
    def site(self) -> Path:
        (found,) = self.bin.parent.glob("lib/python*/site-packages")
        return found


def _run(command: list[object], **more: object) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Own(Project):
    """A folder that is nobody's yet."""

    def __init__(self, root: Path, environment: Environment, home: Path) -> None:
        self.root = root
        root.mkdir(parents=True)
        home.mkdir(exist_ok=True)
        kept = ("GUILD_", "MLFLOW_", "RUN_", "PROJECT_", "RECORD", "PYTHON", "VIRTUAL_ENV")
        inherited = {n: v for n, v in os.environ.items() if not n.startswith(kept)}
        self.env = inherited | {
            "GUILD_HOME": str(home),
            "PYTHONWARNINGS": "ignore:pkg_resources is deprecated",
            "PATH": os.pathsep.join(
                map(str, (environment.commands, environment.bin, os.environ["PATH"]))
            ),
        }
        self.home = home

    @property
    def page(self) -> str:
        return committed(self.root)

    def records(self) -> list[dict]:
        return [json.loads(p.read_text()) for p in self.root.glob("experiments/records/*/*.json")]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    environment = Environment(tmp_path_factory.mktemp("wheel"))
    yield environment
    prepared.stop(environment.server)


def blocks() -> list[tuple[str, str, str]]:
    found = re.findall(r"^```\w+ (\w+)=?(\S*)\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert {kind for kind, _, _ in found} == {"file", "append", "run"}
    return found


def typed(own: Own, until: str = "") -> None:
    """Types the page, up to the block that has `until` in it."""
    for kind, name, body in blocks():
        if until and until in body:
            return
        path = own.root / name
        if kind == "file":
            path.write_text(body)
        elif kind == "append":
            path.write_text(path.read_text() + body)
        else:
            for line in body.splitlines():
                own.good(line)


def test_the_page_as_typed(environment: Environment, tmp_path: Path) -> None:
    own = Own(tmp_path / "clouds", environment, tmp_path / "home")
    where = own.good("python -c 'import runcatalog, torch; print(runcatalog.__file__)'")
    assert Path(where.strip()).is_relative_to(environment.site)
    typed(own)

    records = own.records()
    plain = [r for r in records if r["operation"] == "train" and r["metrics"]]
    assert len(plain) == 7
    assert all(set(r["metrics"]) == {"accuracy", "loss"} for r in plain)
    two = {r["flags"]["lr"]: r for r in plain if r["flags"]["lr"] in (0.1, 0.01)}
    for record in two.values():
        assert [step for step, _ in record["metrics"]["loss"]["curve"]] == [10, 20, 30, 40, 50]
        output = (own.home / "runs" / record["run"] / ".guild/output").read_text()
        printed = [float(each) for each in re.findall(r"accuracy: (\S+)", output)]
        assert record["metrics"]["accuracy"]["last"] == printed[-1]
        assert record["metrics"]["accuracy"]["curve"][0][1] == printed[0]
        assert record["result"]["objective"]["value"] == printed[-1]
        assert record["result"]["objective"]["goal"] == "max"
        assert record["flags"] == {"lr": record["flags"]["lr"], "seed": 1, "steps": 50}
        assert record["seed"] == 1
        assert record["wall_seconds"] > 0
    assert {r["study"] for r in records} == {"clouds"}
    searched = [r for r in plain if (r["result"] or {}).get("search")]
    assert {r["result"]["search"]["method"] for r in searched} == {"gp"}
    assert len(searched) == 5

    page = own.page
    assert "## Clouds" in page
    assert "guild run train lr='[0.01,0.1]' steps=50 seed=1 -y" in page
    assert "train (gp)" in page
    assert re.search(r"\| setting \| accuracy \|", page)
    assert re.search(r"\| recorded \| 9\d(\.\d)? % \|", page)
    assert re.search(r"\| recorded \| 3 runs, mean 9\d % accuracy \|", page)
    assert "not declared" not in page
    assert "with no result" not in page
    assert "agrees with" in own.good("catalog check")
    assert "accuracy" in own.good("catalog best train")
    before = {
        p: p.read_bytes() for p in own.root.rglob("*") if p.is_file() and p.parts[-2] != ".cache"
    }
    assert "wrote" not in own.good("catalog init")
    assert "0 sent" in own.good("catalog sync")
    again = own.good("catalog export")
    assert "0 written" in again
    assert "`catalog sync` sends them" in again
    assert "up to date" in own.good("catalog render")
    after = {p: p.read_bytes() for p in before}
    assert {p for p in before if before[p] != after[p] and "mlflow.db" not in p.name} == set()


def test_ends_and_a_run_that_goes_on(environment: Environment, tmp_path: Path) -> None:
    """Without `catalog init`: the project is named like its folder."""
    own = Own(tmp_path / "my clouds", environment, tmp_path / "home")
    typed(own, until="catalog init")
    own.bad("guild run train lr=-1 -y", "lr is -1")
    # Guild writes what a script prints to its event file every few seconds.
    own.kill_when(
        "guild run train steps=100000000 -y",
        lambda: any(b"accuracy" in p.read_bytes() for p in own.home.glob("runs/*/.guild/*tfevents*")
                    if "steps: 100000000" in (p.parent / "attrs/flags").read_text()),
    )  # fmt: skip
    for kind, name, body in blocks():
        if name == "recorded.py":
            (own.root / name).write_text(body)
        elif kind == "append":
            (own.root / name).write_text((own.root / name).read_text() + body)
    own.kill_when(
        "guild run recorded steps=4000 -y",
        lambda: any(int(p.name) >= 20 for p in own.home.glob("runs/*/checkpoints/0*")),
    )
    own.good("catalog sync && catalog export && catalog render")
    told = {(r["operation"], r["status"]): r for r in own.records()}
    assert told["train", "FAILED"]["reason"].startswith("exit status 1: lr is -1")
    assert told["train", "KILLED"]["metrics"]["accuracy"]["curve"]
    killed = told["recorded", "KILLED"]
    assert {r["study"] for r in told.values()} == {"my-clouds"}
    assert "failed: exit status 1" in own.page
    assert "killed" in own.page
    own.good(f"guild run --restart {killed['run']} -y")
    own.good("catalog sync")
    assert "FINISHED" in own.good(f"catalog search run~{killed['run'][:8]}")


def test_two_projects_and_one_guild_home(environment: Environment, tmp_path: Path) -> None:
    home = tmp_path / "home"
    first = Own(tmp_path / "one/clouds", environment, home)
    second = Own(tmp_path / "two", environment, home)
    for own in (first, second):
        typed(own, until="guild run")
        own.good("guild run train steps=10 -y")
        own.good("guild run train 'lr=loguniform[0.01:1]' -o gp --max-trials 2 steps=10 -y")
    for own, other in ((first, second), (second, first)):
        told = own.good("catalog sync")
        assert "4 runs" in told
        assert "4 of other projects" in told
        own.good("catalog export && catalog render")
        assert len(own.records()) == 4
        lines = own.page.splitlines()
        told = own.good("catalog sync --all")
        assert "4 sent" in told
        assert "4 of other projects" in own.good("catalog export")
        assert len(own.records()) == 4
        own.good("catalog render")
        assert own.page.splitlines() == lines
        assert "3 runs" in own.good("catalog best train")
        assert not {r["run"] for r in own.records()} & {r["run"] for r in other.records()}

    # A project that was moved keeps what it had; its runs tell a folder that is gone.
    shared = {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'shared.db'}"}
    second.env |= shared
    first.env |= shared
    for own in (first, second):
        own.good("git init -q . && git add . && git -c user.name=a -c user.email=a@b commit -qm a")
        own.good("guild run train steps=20 -y")
    moved = tmp_path / "elsewhere"
    second.root.rename(moved)
    second.root = moved
    assert "1 run in" in second.good("catalog sync")
    first.good("catalog sync -q")
    second.good("catalog export")
    third = {r["run"] for r in second.records()}
    assert len(third) == 5
    assert not third & {r["run"] for r in first.records()}
