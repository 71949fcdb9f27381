"""`catalog init`: settings, page template and ignored files of a new project."""

from __future__ import annotations

import argparse
from pathlib import Path

from runcatalog.cli.common import Commands
from runcatalog.model.declarations import GUILD_FILE
from runcatalog.model.errors import CatalogError
from runcatalog.model.project import CATALOG_FILE, Operation, Project

_SETTINGS = """\
# Settings of `catalog` for this project; all others are in guild.yml.

# The project's name: MLflow's experiment, the folder of its records, the heading of its page. With this line it is the
# same in every clone; without it, it is the folder's name.
name: "{name}"

# The objective of operations that declare no `objective:` in guild.yml: {{maximize: SCALAR}} or {{minimize: SCALAR}}.
# The script prints the scalar as `SCALAR: 0.9`, or writes it for TensorBoard.
{objective}
"""
_NO_OBJECTIVE = "# objective: {maximize: accuracy}"
_TEMPLATE = """\
## {title}

{{# Your paragraph: the question, and how it is measured. Below it, one row per run or batch of runs.
   Other calls: figure("accuracy", ["train"], "accuracy"), landscape("search", "train"), value("train", lr=0.1). #}}
{{{{ table([{names}]) }}}}
"""
_IGNORED = (
    # An environment that git sees would make the code of every run count as uncommitted.
    *(".venv/", ".guild/", "runs/", "mlflow.db*", "mlartifacts/", "mlruns/", ".cache/"),
    *("/runs_local.md", "/runs_local/", "/site/", "/site.html"),
)
_IGNORE_HEAD = "# Files of Python, Guild, MLflow and `catalog` on this machine; records are in experiments/records."


def init(options: argparse.Namespace) -> int:
    """catalog init"""
    folder = Path.cwd()
    if not (folder / GUILD_FILE).is_file():
        raise CatalogError(
            f"no {GUILD_FILE} in {folder}: write it with an operation, for example "
            "`train: {main: train, flags-import: all}` for train.py, and call `catalog init` again"
        )
    project = Project(folder)
    operations = list(project.operations().values())  # raises before anything is written
    contents = {
        project.settings_file: _settings(project, operations),
        project.root / ".gitignore": _ignored(project.root / ".gitignore"),
        # Guild copies a project's text files into every run; records are not code.
        project.records / ".guild-nocopy": "",
    }
    if not project.templates():
        studies = dict.fromkeys(operation.study for operation in operations) or [project.name]
        for study in studies:
            path = project.experiments / study / "catalog.md.j2"
            contents[path] = _template(study, [o for o in operations if o.study == study])
    for path, content in contents.items():
        shown = path.relative_to(project.root)
        if content is None or (path.is_file() and path.name != ".gitignore"):
            print(f"kept   {shown}")
            continue
        exists = path.is_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(content)
        print(f"{'added' if exists else 'wrote':6} {shown}")
    print(_next(operations))
    return 0


def _settings(project: Project, operations: list[Operation]) -> str:
    declared = any(operation.objective is not None for operation in operations)
    objective = (
        _NO_OBJECTIVE if not declared else f"{_NO_OBJECTIVE}    (guild.yml declares an objective)"
    )
    return _SETTINGS.format(name=project.name, objective=objective)


def _template(study: str, operations: list[Operation]) -> str:
    names = ", ".join(f'"{operation.name}"' for operation in operations)
    title = study.replace("-", " ").replace("_", " ")
    return _TEMPLATE.format(title=f"{title[:1].upper()}{title[1:]}", names=names)


def _ignored(path: Path) -> str | None:
    """Return what to append to .gitignore, the missing lines; None if no line is missing."""
    before = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    present = {line.strip().strip("/") for line in before.splitlines()}
    missing = [line for line in _IGNORED if line.strip("/") not in present]
    if not missing:
        return None
    gap = "" if not before else "\n" if before.endswith("\n") else "\n\n"
    return gap + "\n".join([_IGNORE_HEAD, *missing]) + "\n"


def _next(operations: list[Operation]) -> str:
    steps = {
        f"guild run {operations[0].name if operations else 'OPERATION'} -y": "run an operation",
        "catalog sync": "the run into MLflow",
        "catalog export": "records to commit: experiments/records/",
        "catalog render": CATALOG_FILE,
    }
    width = max(map(len, steps))
    return "\n".join(
        ["next:", *(f"  {line:{width}}    {effect}" for line, effect in steps.items())]
    )


def add(commands: Commands) -> None:
    """Declare the command."""
    commands.add(
        "init",
        init,
        "set up a project that has a guild.yml",
        "Writes catalog.yml (two settings, with comments), a template of the page, and lines of .gitignore. "
        "Existing files are not changed, so the command can be repeated.",
        "cd my-project && catalog init",
    )
