"""`catalog init`: what a project of one's own needs, written once."""

from __future__ import annotations

import argparse
from pathlib import Path

from runcatalog.cli.common import Commands
from runcatalog.model.declarations import GUILD_FILE
from runcatalog.model.errors import CatalogError
from runcatalog.model.project import CATALOG_FILE, Operation, Project

_SETTINGS = """\
# What `catalog` knows of this project beside guild.yml.

# The project's name: MLflow's experiment, the folder of its records, the heading of its page. It stays the same in
# every clone; without this line it is the folder's name.
name: {name}

# The scalar that tells how good a run is, where an operation in guild.yml has no `objective:` of its own:
# {{maximize: SCALAR}} or {{minimize: SCALAR}}: printed by the script as `SCALAR: 0.9`, or written for TensorBoard.
{objective}
"""
_NO_OBJECTIVE = "# objective: {maximize: accuracy}"
_TEMPLATE = """\
## {title}

{{# One paragraph of yours: what is asked, and how it is measured. Below it, a row for each run or batch of runs.
   Other calls: figure("accuracy", ["train"], "accuracy"), landscape("search", "train"), value("train", lr=0.1). #}}
{{{{ table([{names}]) }}}}
"""
_IGNORED = (
    *(".guild/", "runs/", "mlflow.db*", "mlartifacts/", "mlruns/", ".cache/"),
    *("/runs_local.md", "/runs_local/"),
)
_IGNORE_HEAD = "# Kept by Guild, MLflow and `catalog` on this machine; what is shared is in experiments/records."


def init(options: argparse.Namespace) -> int:
    """catalog init"""
    folder = Path.cwd()
    if not (folder / GUILD_FILE).is_file():
        raise CatalogError(
            f"no {GUILD_FILE} in {folder}: write one that declares an operation, "
            "`train: {main: train, flags-import: all}` for train.py, and call `catalog init` again"
        )
    project = Project(folder)
    operations = list(
        project.operations().values()
    )  # a wrong guild.yml is told before anything is written
    wanted = {
        project.settings_file: _settings(project, operations),
        project.root / ".gitignore": _ignored(project.root / ".gitignore"),
        # Guild copies a project's text files into each run; records are none of its code.
        project.records / ".guild-nocopy": "",
    }
    if not project.templates():
        path = project.experiments / project.name / "catalog.md.j2"
        wanted[path] = _template(project, operations)
    for path, content in wanted.items():
        shown = path.relative_to(project.root)
        if content is None or (path.is_file() and path.name != ".gitignore"):
            print(f"kept   {shown}")
            continue
        there = path.is_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        print(f"{'added' if there else 'wrote':6} {shown}")
    print(_next(operations))
    return 0


def _settings(project: Project, operations: list[Operation]) -> str:
    declared = any(each.objective is not None for each in operations)
    objective = _NO_OBJECTIVE if not declared else f"{_NO_OBJECTIVE}    (guild.yml names one)"
    return _SETTINGS.format(name=project.name, objective=objective)


def _template(project: Project, operations: list[Operation]) -> str:
    names = ", ".join(f'"{each.name}"' for each in operations)
    title = project.name.replace("-", " ").replace("_", " ")
    return _TEMPLATE.format(title=f"{title[:1].upper()}{title[1:]}", names=names)


def _ignored(path: Path) -> str | None:
    """The content of .gitignore with the lines that it lacks; None if it lacks none."""
    before = path.read_text(encoding="utf-8") if path.is_file() else ""
    there = {line.strip().strip("/") for line in before.splitlines()}
    missing = [line for line in _IGNORED if line.strip("/") not in there]
    if not missing:
        return None
    gap = "" if not before else "\n" if before.endswith("\n") else "\n\n"
    return before + gap + "\n".join([_IGNORE_HEAD, *missing]) + "\n"


def _next(operations: list[Operation]) -> str:
    steps = {
        f"guild run {operations[0].name if operations else 'OPERATION'} -y": "run something",
        "catalog sync": "its row into MLflow",
        "catalog export": "records to commit: experiments/records/",
        "catalog render": CATALOG_FILE,
    }
    width = max(map(len, steps))
    return "\n".join(["next:", *(f"  {line:{width}}    {what}" for line, what in steps.items())])


def add(commands: Commands) -> None:
    """Declares the command."""
    commands.add(
        "init",
        init,
        "set a project with a guild.yml up for the catalog",
        "Writes catalog.yml (two settings, explained in it), a template of the page, and lines of .gitignore. "
        "What is there stays as it is; calling it again changes nothing.",
        "cd my-project && catalog init",
    )
