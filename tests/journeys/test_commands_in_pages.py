"""Commands that pages and helps show are accepted as they stand there, and those that only read are run."""

import contextlib
import io
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from guild import guildfile

from runcatalog.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
READING = ("search", "best", "diff", "row")
OF_ANOTHER_PROJECT = ("your-project.md",)  # whose commands a test of its own types
PLACEHOLDER = re.compile(r"\b[A-Z]{2,}\b|…|\.\.\.|<|\$\{|\bRUN\b")
EXAMPLE = "arms:"  # the study that CONTRIBUTING.md adds; test_first_hour.py types its commands


def commands():
    """Yield (page, command) of all pages: in fences, indented blocks, tables and sentences."""
    for page in PAGES:
        if page.name in OF_ANOTHER_PROJECT:
            continue
        text = page.read_text().replace("\\\n", " ")
        shown = re.findall(r"`([^`\n]+)`", text)
        shown += [line for line in text.splitlines() if line.startswith("    ")]
        for block in re.findall(r"```.*?\n(.*?)```", text, re.S):
            shown += block.splitlines()
        for line in shown:
            for part in re.split(r"\s+&&\s+|\s+\|\s+|\s{2,}", line.partition(" #")[0].strip()):
                if re.match(r"(guild run|catalog) \S", part) and not PLACEHOLDER.search(part):
                    yield page.name, part.strip()


def of_helps():
    """Yield ("--help", command) of all examples in the helps of `catalog`."""
    parser = main.parser()
    for each in (parser, *parser._subparsers._group_actions[0].choices.values()):
        for line in each.format_help().splitlines():
            for part in re.split(r"\s+&&\s+|\s+\|\s+|\s{2,}", line.strip()):
                if re.match(r"catalog (?!-)\S", part) and not PLACEHOLDER.search(part):
                    yield "--help", part


COMMANDS = sorted({*commands(), *of_helps()})
# Alone, a name in a sentence
NAMES = ("search", "best", "diff", "row", "forget", "rerun", "import")
CATALOG = [
    c for c in COMMANDS if c[1].startswith("catalog ") and c[1].split(None, 1)[1] not in NAMES
]
GUILD = [c for c in COMMANDS if c[1].startswith("guild run ")]


def words(command):
    return shlex.split(command.partition(" > ")[0])


def test_there_are_commands():
    assert len(CATALOG) > 25
    assert len(GUILD) > 25


@pytest.mark.parametrize(("page", "command"), CATALOG, ids=lambda c: c)
def test_catalog_takes_it(page, command, monkeypatch, capsys):
    try:
        options = main.parser().parse_args(words(command)[1:])
    except SystemExit as end:
        pytest.fail(f"{page}: {command}\n{capsys.readouterr().err}") if end.code else None
        return
    assert options.run


def declared():
    """Return the names of the flags by operation, and of the required runs, as Guild reads them."""
    flags = {}
    for model in guildfile.for_dir(str(ROOT)).models.values():
        for operation in model.operations:
            required = {dep.spec for dep in operation.dependencies if hasattr(dep, "spec")}
            inline = {
                dep.inline_resource.name for dep in operation.dependencies if dep.inline_resource
            }
            names = {flag.name for flag in operation.flags} | required | inline
            flags[f"{model.name}:{operation.name}"] = names
    return flags


def test_guild_knows_operations_and_flags(monkeypatch):
    monkeypatch.chdir(ROOT)
    flags = declared()
    for page, command in GUILD:
        _, _, operation, *rest = words(command)
        if operation.startswith(("-", EXAMPLE)) or operation == "gp":  # an optimizer of the library
            continue
        assert operation in flags, f"{page}: {command}"
        for before, word in pairwise([operation, *rest]):
            name, equals, _ = word.partition("=")
            if before == "--opt-flag":  # of the optimizer
                continue
            if equals and not word.startswith("-"):
                assert name in flags[operation], f"{page}: {command}: no flag {name}"


@pytest.mark.parametrize(
    "command", sorted({c for _, c in CATALOG if words(c)[1] in READING}), ids=lambda c: c
)
def test_a_reading_command_works_without_mlflow(command, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/none.db")
    for name in ("PROJECT_DIR", "RUN_DIR"):
        monkeypatch.delenv(name, raising=False)
    printed = io.StringIO()
    with (
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
        pytest.raises(SystemExit) as end,
    ):
        main.main(words(command)[1:])
    # A query of today's runs may find none in the records; that is grep's 1, not an error.
    assert end.value.code in ((0, 1) if "search" in command else (0,)), printed.getvalue()
    assert not list(tmp_path.iterdir())
