"""Where things are in the project, and what people wrote down: operations, machines, reports."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from runcatalog.model import values
from runcatalog.model.errors import CatalogError

CATALOG_FILE = "runs_catalog.md"
LOCAL_FILE = "runs_local.md"  # ignored by git: runs that are not exported stand in it too


@dataclass(frozen=True)
class Operation:
    """An operation that a study's guild.yml declares.

    Attributes:
        name: As typed after `guild run`, for example "hnppo:train".
        study: Folder in experiments/ that declares it.
        description: First line of its description.
        main: Its script, as declared; "" if it inherits one.
        flags: Its own defaults by flag; a list is a batch.
        requires: Names of the runs that it takes something from, as typed (`expert=RUN`).
        compare: Columns of `guild compare`, as declared.
    """

    name: str
    study: str
    description: str = ""
    main: str = ""
    flags: dict[str, Any] = field(default_factory=dict)
    requires: tuple[str, ...] = ()
    compare: tuple[str, ...] = ()

    @cached_property
    def canonical_flags(self) -> dict[str, Any]:
        """Its own defaults in the type that a record has them in."""
        return {
            name: [values.parse_flag(each) for each in value]
            if isinstance(value, list)
            else values.parse_flag(value)
            for name, value in self.flags.items()
        }


@dataclass(frozen=True)
class Machine:
    """A line of the inventory."""

    name: str
    host: str = ""
    gpu: str = ""
    note: str = ""


@dataclass(frozen=True)
class Reported:
    """What the source reported for an operation.

    Attributes:
        text: One line.
        source: Where it says so.
        numbers: The figures in it, by name.
    """

    text: str
    source: str = ""
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Project:
    """The project's folder."""

    root: Path

    @classmethod
    def find(cls, start: Path | None = None) -> Project:
        """Returns the project: $PROJECT_DIR, else the nearest folder upwards with a guild.yml.

        Raises:
            CatalogError: There is none.
        """
        given = os.environ.get("PROJECT_DIR")
        if given:
            if not Path(given).is_dir():
                raise CatalogError(f"PROJECT_DIR={given} is no directory")
            return cls(Path(given).resolve())
        here = (start or Path.cwd()).resolve()
        for directory in (here, *here.parents):
            if (directory / "guild.yml").is_file():
                return cls(directory)
        raise CatalogError(
            f"no guild.yml in {here} or above it: call catalog in the project's directory"
        )

    @property
    def experiments(self) -> Path:
        return self.root / "experiments"

    @property
    def records(self) -> Path:
        return self.experiments / "records"

    @property
    def weights(self) -> Path:
        return self.experiments / "weights"

    @property
    def catalog(self) -> Path:
        return self.root / CATALOG_FILE

    @property
    def local_catalog(self) -> Path:
        return self.root / LOCAL_FILE

    @property
    def local_figures(self) -> Path:
        return self.root / LOCAL_FILE.removesuffix(".md")

    def studies(self) -> list[str]:
        """Names of the studies, sorted: folders of experiments/ with a guild.yml or a template."""
        found = [
            path.parent.name
            for name in ("guild.yml", "catalog.md.j2")
            for path in self.experiments.glob(f"*/{name}")
        ]
        return sorted(set(found))

    def templates(self) -> list[Path]:
        """The studies' templates, in the order of guild.yml's includes, then by name."""
        found = sorted(self.experiments.glob("*/catalog.md.j2"))
        order = _included_studies(self.root / "guild.yml")
        return sorted(found, key=lambda p: (_index(order, p.parent.name), p.parent.name))

    def operations(self) -> dict[str, Operation]:
        """Operations declared in experiments/*/guild.yml and …/*.guild.yml, by name.

        Raises:
            CatalogError: A file is not YAML.
        """
        found: dict[str, Operation] = {}
        for path in sorted(self.experiments.glob("*/*guild.yml")):
            for name, body in _declared(load_yaml(path)):
                told = body if isinstance(body, dict) else {"main": body}
                line = str(told.get("description") or "").strip().splitlines()
                main = str(told.get("main") or "")
                about = line[0] if line else ""
                flags, needs = _flags(told.get("flags")), _resources(told.get("requires"))
                shown = tuple(each for each in told.get("compare") or () if isinstance(each, str))
                found[name] = Operation(name, path.parent.name, about, main, flags, needs, shown)
        return found

    def operation_of_script(self, script: str, study: str) -> str:
        """The first operation that a study declares for a script, else the script's name.

        A run that was started without Guild knows its script alone.
        """
        for operation in self.operations().values():
            main = operation.main.split(" ")[0]
            if operation.study == study and script in re.split(r"[./]", main)[-1:]:
                return operation.name
        return script

    def machines(self) -> list[Machine]:
        """The inventory of experiments/machines.yml; empty without the file."""
        path = self.experiments / "machines.yml"
        content = load_yaml(path) if path.is_file() else None
        entries = content.get("machines") if isinstance(content, dict) else content
        found = []
        for entry in entries or []:
            if not isinstance(entry, dict) or not (entry.get("name") or entry.get("host")):
                raise CatalogError(f"{path}: each machine needs a name or a host, got {entry!r}")
            text = {k: str(v) for k, v in entry.items() if v is not None}
            name, host = text.get("name", text.get("host", "")), text.get("host", "")
            found.append(Machine(name, host, text.get("gpu", ""), text.get("note", "")))
        return found

    def reported(self) -> dict[str, Reported]:
        """What the sources reported (experiments/*/reported.yml), by operation."""
        found: dict[str, Reported] = {}
        for path in sorted(self.experiments.glob("*/reported.yml")):
            content = load_yaml(path) or {}
            if not isinstance(content, dict):
                raise CatalogError(f"{path}: a mapping of operations is expected")
            for name, entry in content.items():
                body = entry if isinstance(entry, dict) else {"text": entry}
                numbers = body.get("numbers")
                found[str(name)] = Reported(
                    str(body.get("text") or ""),
                    str(body.get("source") or ""),
                    dict(numbers) if isinstance(numbers, dict) else {},
                )
        return found

    def pending(self) -> dict[str, str]:
        """Why operations were not run yet (experiments/*/pending.yml), by operation.

        Raises:
            CatalogError: A file is no mapping of declared operations to reasons.
        """
        declared, found = self.operations(), {}
        for path in sorted(self.experiments.glob("*/pending.yml")):
            content = load_yaml(path) or {}
            if not isinstance(content, dict):
                raise CatalogError(f"{path}: a mapping of operations to reasons is expected")
            for name, why in content.items():
                if name not in declared:
                    raise CatalogError(f"{path}: no operation {name} is declared")
                found[str(name)] = str(why)
        return found

    def study_of(self, operation: str) -> str:
        """The study of an operation: declared there, named in its template, or the only one.

        Returns "" when that leaves it open.
        """
        declared = self.operations()
        if operation in declared:
            return declared[operation].study
        bare = [op.study for op in declared.values() if op.name.partition(":")[2] == operation]
        if bare:
            return bare[0]
        named = re.compile(rf"['\"]{re.escape(operation)}['\"]")
        for path in self.templates():
            if named.search(path.read_text(encoding="utf-8")):
                return path.parent.name
        studies = self.studies()
        return studies[0] if len(studies) == 1 else ""


def load_yaml(path: Path) -> Any:
    """Returns the content of a YAML file.

    Raises:
        CatalogError: It cannot be read.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return yaml.load(path.read_text(encoding="utf-8"), loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise CatalogError(f"{path}: {where}{problem}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CatalogError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def _declared(content: Any) -> list[tuple[str, Any]]:
    """(name, body) of every operation in a Guild file; whatever else is in it is passed over."""
    documents = content if isinstance(content, list) else [content]
    found = []
    for document in documents:
        if not isinstance(document, dict):
            continue
        model = document.get("model")
        operations = document.get("operations") if "model" in document else None
        if operations is None and len(documents) == 1 and "model" not in document:
            # The short form: a file that is one mapping of operations, without a model.
            operations, model = document, None
        if isinstance(operations, dict):
            prefix = f"{model}:" if model else ""
            found += [
                (f"{prefix}{name}", body)
                for name, body in operations.items()
                if str(name) != "$include"
            ]
    return found


def _flags(content: Any) -> dict[str, Any]:
    """Defaults by flag; a flag that is declared with other attributes has its default among them."""
    if not isinstance(content, dict):
        return {}
    told = {
        str(name): body.get("default") if isinstance(body, dict) else body
        for name, body in content.items()
        if not str(name).startswith("$")
    }
    return {name: value for name, value in told.items() if value is not None}


def _resources(content: Any) -> tuple[str, ...]:
    """Names of the resources that come from another run."""
    each = content if isinstance(content, list) else [content]
    found = [e for e in each if isinstance(e, dict) and e.get("operation")]
    return tuple(str(e.get("name") or e["operation"]) for e in found)


def _included_studies(path: Path) -> list[str]:
    try:
        content = load_yaml(path)
    except CatalogError:
        return []
    names = []
    for document in content if isinstance(content, list) else [content]:
        included = document.get("include", []) if isinstance(document, dict) else []
        for each in [included] if isinstance(included, str) else included or []:
            parts = Path(str(each)).parts
            if len(parts) >= 2 and parts[0] == "experiments":
                names.append(parts[1])
    return names


def _index(order: list[str], name: str) -> int:
    return order.index(name) if name in order else len(order)
