"""A project: its folders and settings, declared operations, machines, and results reported by sources."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runcatalog.model import declarations, values
from runcatalog.model.declarations import GUILD_FILE, load_yaml
from runcatalog.model.errors import CatalogError
from runcatalog.record.provenance.machine import Machine, inventory

if TYPE_CHECKING:
    from runcatalog.model.run_record import RunRecord

CATALOG_FILE = "runs_catalog.md"
LOCAL_FILE = "runs_local.md"  # ignored by git; includes the runs that are not exported
SETTINGS_FILE = (
    "catalog.yml"  # defined again in `record`, whose import would take longer than most commands
)
# Entries of reported.yml that are no operations.
HEADLINE, FINDING, SAME_SETTING = "headline", "finding", "same_setting"
INTERVAL = "interval"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")


@dataclass(frozen=True)
class Objective:
    """A scalar to optimise.

    Attributes:
        scalar: Its name.
        goal: "max" or "min".
        value: Which value of a run counts: last, first, max or min.
    """

    scalar: str
    goal: str = "min"
    value: str = "last"


@dataclass(frozen=True)
class Operation:
    """An operation that a study's guild.yml declares.

    Attributes:
        name: Name as typed after `guild run`, for example "hnppo:train".
        study: Folder in experiments/ that declares it; the project's name if it is declared elsewhere.
        description: First line of its description.
        main: Its script, as declared; "" if the script is inherited.
        flags: Its own defaults by flag; a list starts a batch.
        requires: Names of the required runs, as typed (`expert=RUN`).
        compare: Columns of `guild compare`, as declared.
        objective: Declared objective; None without one.
        units: Unit by name of a metric, or by a pattern such as `length/*`: the attribute `units`, which Guild ignores.
        added_flags: What runs from before a flag did, as its value, by flag: the attribute `added-flags`, which Guild
            ignores. Runs without the flag are compared as runs with this value.
    """

    name: str
    study: str
    description: str = ""
    main: str = ""
    flags: dict[str, Any] = field(default_factory=dict)
    requires: tuple[str, ...] = ()
    compare: tuple[str, ...] = ()
    objective: Objective | None = None
    units: dict[str, str] = field(default_factory=dict)
    added_flags: dict[str, values.Scalar] = field(default_factory=dict)

    def required(self, parents: Sequence[str]) -> dict[str, str]:
        """Return the run of each required name; none where a record does not say which is which.

        Args:
            parents: The runs that a run started from, as in its record: each once, in the order of `requires`.
        """
        chosen = list(parents) * len(self.requires) if len(parents) == 1 else parents
        if len(chosen) != len(self.requires):
            return {}
        return dict(zip(self.requires, chosen, strict=True))

    def unit(self, metric: str) -> str:
        """Return the unit of a metric: of its name, else of the first pattern that matches; "" without one."""
        patterns = (p for p in self.units if fnmatchcase(metric, p))
        return self.units.get(metric) or self.units.get(next(patterns, ""), "")


@dataclass(frozen=True)
class Reported:
    """Result that a source, such as a paper, reports for an operation.

    Attributes:
        text: The result in a line.
        source: Where it is reported.
        numbers: Numbers of the result by name.
        same_setting: Whether the project measures in the source's setting: "yes", or "no" with the reason.
    """

    text: str
    source: str = ""
    numbers: dict[str, Any] = field(default_factory=dict)
    same_setting: str = ""


@dataclass(frozen=True)
class Project:
    """The project's folder."""

    root: Path

    @classmethod
    def find(cls, start: Path | None = None) -> Project:
        """Return the project: $PROJECT_DIR, else the nearest enclosing folder with a guild.yml.

        Raises:
            CatalogError: There is no project.
        """
        given = os.environ.get("PROJECT_DIR")
        if given:
            if not Path(given).is_dir():
                raise CatalogError(f"PROJECT_DIR={given} is not a directory")
            return cls(Path(given).resolve())
        here = (start or Path.cwd()).resolve()
        for directory in (here, *here.parents):
            if (directory / GUILD_FILE).is_file():
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

    @property
    def settings_file(self) -> Path:
        return self.root / SETTINGS_FILE

    @cached_property
    def name(self) -> str:
        """Name of the project: `name:` of catalog.yml, else its folder's name."""
        from runcatalog.record.provenance.environment import project_name

        self._settings  # noqa: B018  raises if the name is invalid
        return project_name(self.root)

    @cached_property
    def objective(self) -> Objective | None:
        """The objective of operations that declare none: `objective:` of catalog.yml."""
        return _objective(self._settings.get("objective"))

    @cached_property
    def _settings(self) -> dict[str, Any]:
        """The content of catalog.yml.

        Raises:
            CatalogError: A line is invalid.
        """
        path = self.settings_file
        content = load_yaml(path) if path.is_file() else None
        if content is None:
            return {}
        if not isinstance(content, dict):
            raise CatalogError(f"{path}: a mapping is expected: name, objective")
        for key, value in content.items():
            where = f"{path}: line {_line_of(path, str(key))}: {key}"
            if key not in ("name", "objective"):
                raise CatalogError(f"{where}: no such setting; the settings are name, objective")
            if key == "name" and not (isinstance(value, str) and _NAME.fullmatch(value)):
                raise CatalogError(f"{where}: letters, digits, - and _ are expected, got {value!r}")
            if key == "objective" and value is not None and _objective(value) is None:
                raise CatalogError(f"{where}: {_EXPECTED}, got {value!r}")
        return content

    def studies(self) -> list[str]:
        """Return the names of the studies, sorted.

        These are the folders of experiments/ with a guild.yml or a template, and the project's name if operations are
        declared elsewhere.
        """
        names = [
            path.parent.name
            for name in (GUILD_FILE, "catalog.md.j2")
            for path in self.experiments.glob(f"*/{name}")
        ]
        names += [operation.study for operation in self.operations().values()]
        return sorted(set(names))

    def templates(self) -> list[Path]:
        """Return the studies' templates, in the order of guild.yml's includes, then by name.

        Raises:
            CatalogError: A study has a name that no record can have.
        """
        templates = sorted(self.experiments.glob("*/catalog.md.j2"))
        for path in templates:
            _check_study(path.parent)
        files = [path.resolve().parent for path in declarations.included(self.root / GUILD_FILE)]
        return sorted(templates, key=lambda p: (_index(files, p.resolve().parent), p.parent.name))

    def ordered_studies(self, names: Iterable[str]) -> list[str]:
        """Return the studies with a template in the order of their pages, then the others of these names, sorted."""
        ordered = [path.parent.name for path in self.templates()]
        return list(dict.fromkeys([*ordered, *sorted(names)]))

    def operations(self) -> dict[str, Operation]:
        """Return the operations that the root's guild.yml and its included files declare, by name.

        Raises:
            CatalogError: A file is not a Guild file, an objective is neither a scalar nor {maximize: SCALAR}, or no
                record can have the name of a study.
        """
        path = self.root / GUILD_FILE
        by_name: dict[str, Operation] = {}
        for declared in declarations.operations(path) if path.is_file() else ():
            body = declared.body
            lines = str(body.get("description") or "").strip().splitlines()
            by_name[declared.name] = Operation(
                declared.name,
                self._study_of_file(declared.file),
                lines[0] if lines else "",
                str(body.get("main") or ""),
                _flags(body.get("flags")),
                _resources(body.get("requires")),
                tuple(_columns(declared)),
                _declared_objective(declared) or self.objective,
                _units(body.get("units")),
                _added_flags(declared),
            )
        return by_name

    def _study_of_file(self, path: Path) -> str:
        folder = path.parent
        if folder.parent != self.experiments.resolve():
            return self.name
        _check_study(folder)
        return folder.name

    def operation_of_script(self, script: str, study: str) -> str:
        """Return the first operation that a study declares for a script, else the script's name.

        A run that was started without Guild records only its script.
        """
        for operation in self.operations().values():
            main = operation.main.split(" ")[0]
            if operation.study == study and script in re.split(r"[./]", main)[-1:]:
                return operation.name
        return script

    def machines(self) -> list[Machine]:
        """Return the inventory of experiments/machines.yml; empty without the file.

        Raises:
            CatalogError: The file is invalid.
        """
        path = self.experiments / "machines.yml"
        try:
            return inventory(load_yaml(path)) if path.is_file() else []
        except ValueError as error:
            raise CatalogError(f"{path}: {error}") from None

    def reported(self) -> dict[str, Reported]:
        """Return the results reported by sources (experiments/*/reported.yml), by operation."""
        results: dict[str, Reported] = {}
        for path in sorted(self.experiments.glob("*/reported.yml")):
            content = load_yaml(path) or {}
            if not isinstance(content, dict):
                raise CatalogError(f"{path}: a mapping of operations is expected")
            for name, entry in content.items():
                if name in (HEADLINE, FINDING, SAME_SETTING, INTERVAL):
                    continue
                body = entry if isinstance(entry, dict) else {"text": entry}
                numbers = body.get("numbers")
                results[str(name)] = Reported(
                    str(body.get("text") or ""),
                    str(body.get("source") or ""),
                    dict(numbers) if isinstance(numbers, dict) else {},
                    _yes_or_no(body.get(SAME_SETTING, content.get(SAME_SETTING))),
                )
        return results

    def intervals(self) -> dict[str, str]:
        """Return the cell that states the interval of a run's objective, by operation (experiments/*/reported.yml).

        Raises:
            CatalogError: `interval` is not a mapping of operations to cells.
        """
        found: dict[str, str] = {}
        for path in sorted(self.experiments.glob("*/reported.yml")):
            content = load_yaml(path)
            entries = content.get(INTERVAL) if isinstance(content, dict) else None
            if not isinstance(entries, dict | None):
                raise CatalogError(
                    f"{path}: {INTERVAL}: a mapping of operations to cells is expected"
                )
            found |= {str(name): str(cell) for name, cell in (entries or {}).items()}
        return found

    def pending(self, declared: Mapping[str, Operation]) -> dict[str, str]:
        """Return the reasons why operations have not been run yet (experiments/*/pending.yml), by operation.

        Args:
            declared: Result of :meth:`operations`.

        Raises:
            CatalogError: A file is not a mapping of declared operations to reasons.
        """
        reasons: dict[str, str] = {}
        for path in sorted(self.experiments.glob("*/pending.yml")):
            content = load_yaml(path) or {}
            if not isinstance(content, dict):
                raise CatalogError(f"{path}: a mapping of operations to reasons is expected")
            for name, reason in content.items():
                if name not in declared:
                    raise CatalogError(f"{path}: no operation {name} is declared")
                reasons[str(name)] = str(reason)
        return reasons

    def study_of(self, operation: str) -> str:
        """Return the study that declares an operation or names it in its template, else the only study.

        Returns "" if none of these applies.
        """
        declared = self.operations()
        if operation in declared:
            return declared[operation].study
        bare = [op.study for op in declared.values() if op.name.partition(":")[2] == operation]
        if bare:
            return bare[0]
        named = re.compile(rf"['\"]{re.escape(operation)}['\"]")
        for path in self.templates():
            if named.search(path.read_text(encoding="utf-8", errors="replace")):
                return path.parent.name
        studies = self.studies()
        return studies[0] if len(studies) == 1 else ""


def _check_study(folder: Path) -> None:
    """Raise a CatalogError if a study's records, whose names have letters, digits, - and _, would be of another."""
    if not _NAME.fullmatch(folder.name):
        raise CatalogError(f"{folder}: the name of a study is of letters, digits, - and _")


def _yes_or_no(content: Any) -> str:
    """Return "yes", "no", or a text such as "no: other doors"; "" for None."""
    if content is None or isinstance(content, bool):
        return {None: "", True: "yes", False: "no"}[content]
    return str(content)


def _flags(content: Any) -> dict[str, Any]:
    """Return the defaults by flag; a flag declared as a mapping has its default in `default`."""
    if not isinstance(content, dict):
        return {}
    defaults = {
        str(name): body.get("default") if isinstance(body, dict) else body
        for name, body in content.items()
        if not str(name).startswith("$")
    }
    return {name: value for name, value in defaults.items() if value is not None}


def _columns(declared: declarations.Declared) -> list[str]:
    """Return the columns of `guild compare` that an operation declares."""
    content = declared.body.get("compare") or []
    if not isinstance(content, list):
        raise CatalogError(
            f"{declared.file}: {declared.name}: compare: a list of columns is expected, got {str(content)[:40]!r}"
        )
    return [column for column in content if isinstance(column, str)]


def _resources(content: Any) -> tuple[str, ...]:
    """Return the names of the required resources that are files of another run."""
    required = content if isinstance(content, list) else [content]
    runs = [r for r in required if isinstance(r, dict) and r.get("operation")]
    return tuple(str(r.get("name") or r["operation"]) for r in runs)


_GOALS = {"maximize": "max", "minimize": "min"}
_VALUES = ("first", "last", "min", "max")
_EXPECTED = "{maximize: SCALAR} or {minimize: SCALAR} is expected"


def _units(content: Any) -> dict[str, str]:
    """Return the units of metrics by name or pattern; empty for anything but a mapping."""
    entries = content.items() if isinstance(content, dict) else ()
    return {str(name): str(unit) for name, unit in entries}


def _added_flags(declared: declarations.Declared) -> dict[str, values.Scalar]:
    """Return the values that later flags of an operation had before they were added.

    Raises:
        CatalogError: They are no mapping of flags to single values.
    """
    content = declared.body.get("added-flags")
    entries = content if isinstance(content, dict) else {"": content}
    if content is not None and any(
        not name or isinstance(value, dict | list | None) for name, value in entries.items()
    ):
        raise CatalogError(
            f"{declared.file}: {declared.name}: added-flags: {{FLAG: VALUE}} is expected, got {content!r}"
        )
    return {str(n): values.parse_flag(v) for n, v in entries.items()} if content else {}


def with_added_flags(
    records: Iterable[RunRecord], operations: Mapping[str, Operation]
) -> list[RunRecord]:
    """Return records that are compared with the values that their operations declare for later flags.

    A declared value has the type that the flag has in other runs: 1 is the 1.0 of a float.

    Args:
        records: The records.
        operations: Declared operations by name.
    """
    records = list(records)
    found: dict[str, dict[str, values.Scalar]] = {}
    for record in records:
        operation = operations.get(record.operation)
        for name in operation.added_flags.keys() & record.flags.keys() if operation else ():
            found.setdefault(record.operation, {})[name] = record.flags[name]
    added = {
        name: {
            flag: _as(value, operations[name].added_flags[flag]) for flag, value in flags.items()
        }
        for name, flags in found.items()
    }
    return [record.with_added_flags(added.get(record.operation, {})) for record in records]


def _as(example: values.Scalar, value: values.Scalar) -> values.Scalar:
    """Return a number as a float if the example is one; any other value as it is."""
    is_float = isinstance(example, float) and type(value) is int
    return float(value) if is_float else value  # type: ignore[arg-type]


def _objective(content: Any) -> Objective | None:
    """Parse an objective as Guild does: a scalar to minimise, or {maximize: SCALAR}; None for anything else.

    A scalar after a minus sign is maximised. It may be preceded by the value that counts: `max accuracy`.
    """
    if isinstance(content, dict) and len(content) == 1:
        ((verb, scalar),) = content.items()
    elif isinstance(content, str) and content.startswith("-"):
        verb, scalar = "maximize", content[1:]
    else:
        verb, scalar = "minimize", content
    if verb not in _GOALS or not isinstance(scalar, str) or not scalar.strip():
        return None
    value, _, rest = scalar.strip().partition(" ")
    if value in _VALUES and rest.strip():
        return Objective(rest.strip(), _GOALS[verb], value)
    return Objective(scalar.strip(), _GOALS[verb])


def _declared_objective(declared: declarations.Declared) -> Objective | None:
    """Return an operation's own objective; None without one.

    Raises:
        CatalogError: It is not an objective.
    """
    content = declared.body.get("objective")
    objective = _objective(content)
    if content is not None and objective is None:
        raise CatalogError(
            f"{declared.file}: {declared.name}: objective: {_EXPECTED}, got {content!r}"
        )
    return objective


def _line_of(path: Path, key: str) -> int:
    """Return the line of a top-level key, from 1."""
    lines = path.read_text(encoding="utf-8").splitlines()
    start = re.compile(rf"['\"]?{re.escape(key)}['\"]?\s*:")
    return next((number for number, line in enumerate(lines, 1) if start.match(line)), 1)


def _index(order: list[Path], folder: Path) -> int:
    return order.index(folder) if folder in order else len(order)
