"""Descriptions, names and saved views in MLflow's UI: for every study and every batch.

Changes made by users persist: a text is overwritten only if it is still the one written by this module.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runcatalog.analysis import groups
from runcatalog.mlflow_ui import views
from runcatalog.mlflow_ui.views import PageContents, View
from runcatalog.model import guild_columns
from runcatalog.model.guild_columns import Column
from runcatalog.model.project import Operation, Project
from runcatalog.model.run_record import RunRecord
from runcatalog.pages.rerun_command import rerun
from runcatalog.pages.tables import batch_summary
from runcatalog.record.delivery.mlflow_client import one_line_errors
from runcatalog.store import compat
from runcatalog.store.client import Store, run_name
from runcatalog.store.run_rows import StoredRun
from runcatalog.store.sqlite_reader import reader
from runcatalog.sync.ownership import own
from runcatalog.text import markdown, sentences

NOTE = "mlflow.note.content"
WRITTEN = "catalog.written"  # tag: digest of the last written value, by tag
BATCHES = 30  # newest batches of a study with a view; MLflow's page lists at most 40 views
_KIND = {compat.EXPERIMENT_KIND: "custom_model_development"}  # without it the page asks the user
_NOTE_LENGTH = 7900  # characters; MLflow truncates tags at 8000
_COMMAND = (
    80  # characters; a longer line would push the run's other facts off a screen of 1280 pixels
)
FIGURES = "catalog.figures"  # tag: digest of the figures among a run's artifacts, by file name
# Functions of the template.
_FIGURES = ("figure", "landscape", "importances", "heatmap", "seed_points", "image")
_LOCAL = "http://127.0.0.1:5000"


@dataclass(frozen=True)
class Page:
    """A page of MLflow's UI.

    Attributes:
        name: Name in the list of views.
        path: Address relative to the server's.
        batch: Id of the batch; "" for a study's page.
    """

    name: str
    path: str
    batch: str = ""


@dataclass
class _Batch:
    """A batch in MLflow.

    Attributes:
        id: Its run_id.
        own: Its run in MLflow; None without one.
        trials: Its trials.
    """

    id: str
    own: StoredRun | None = None
    trials: list[StoredRun] = field(default_factory=list)

    @property
    def head(self) -> RunRecord:
        """Record that gives the batch its name: its own, else its first trial's."""
        return self.own.record if self.own is not None else self.trials[0].record

    @property
    def name(self) -> str:
        """Name and batch id, as on the generated page."""
        if self.own is not None:
            return run_name(self.own.record)
        return f"{self.head.operation.rpartition(':')[2]} {self.id[:8]}"


def address(uri: str) -> str:
    """Return the UI's address: the tracking server, or for a database the one that `make ui` starts."""
    return uri.rstrip("/") if uri.startswith(("http://", "https://")) else _LOCAL


def arrange(project: Project, store: Store) -> list[Page]:
    """Write descriptions and views of all studies; return the pages, a study's before its batches'.

    Args:
        project: The project.
        store: The project's MLflow.

    Raises:
        MlflowError: MLflow does not answer.
    """
    by_experiment: dict[str, list[StoredRun]] = {}
    for run in own(project, store.uri, reader(store.uri).runs()):
        by_experiment.setdefault(run.experiment, []).append(run)
    pages: list[Page] = []
    operations = project.operations()
    for name in sorted(by_experiment):
        pages += _Study(project, operations, store, name, by_experiment[name]).arrange()
    return pages


class _Study:
    """Pages of a study and its batches.

    Args:
        project: The project.
        operations: The project's operations by name.
        store: The project's MLflow.
        name: Name of the experiment.
        runs: All runs of the experiment.
    """

    def __init__(
        self,
        project: Project,
        operations: Mapping[str, Operation],
        store: Store,
        name: str,
        runs: Sequence[StoredRun],
    ) -> None:
        self.project, self.store, self.name = project, store, name
        self.operations = {n: o for n, o in operations.items() if o.study == name}
        self.heads, self.batches = _group_batches(runs)
        self.experiment = store.experiment(name)
        self.notes: dict[str, dict[str, str]] = {}  # tags by the MLflow id of a run

    def arrange(self) -> list[Page]:
        """Write what has changed; return the pages."""
        named = dict(self._views())
        tags = {f"{views.TAG}{key}": view.value for key, (view, _) in named.items()}
        tags[NOTE] = self._note([(view, batch) for view, batch in named.values()])
        self._write(tags)
        for batch in self.batches:
            self._write_batch(batch, named[batch.id[:8]][0])
        batch_ids = {batch.id for batch in self.batches}
        for run in self.heads:
            if run.run not in batch_ids:
                self._write_run(run)
        self._write_figures()
        self.store.tag_all(self.notes)
        return [
            Page(view.name, view.path(self.experiment, charts=bool(batch)), batch)
            for view, batch in named.values()
        ]

    def _views(self) -> Iterator[tuple[str, tuple[View, str]]]:
        """Yield (key, (view, batch id)) of the study, then of its batches, newest first."""
        newest = max((run.record.started or 0 for run in self.heads), default=0)
        ran = {_operation(head) for head in self.heads}
        used = [operation for name, operation in self.operations.items() if name in ran]
        declared = _columns(used or list(self.operations.values()))
        records = [head.record for head in self.heads]
        names = {name for head in self.heads for name in head.last}
        view = views.study_view(self.name, records, declared, names, newest + 1)
        yield view.key, (view, "")
        lengths = self._lengths()
        for batch in self.batches:
            trials = [trial.record for trial in batch.trials]
            ran = {_operation(trial) for trial in batch.trials}
            declared = _columns([o for name, o in self.operations.items() if name in ran])
            record = batch.own.record if batch.own is not None else None
            contents = PageContents.from_trials(record, trials, declared, lengths[batch.id])
            started = batch.head.started or 0
            view = views.batch_view(batch.id, batch.name, started, trials, contents)
            yield view.key, (view, batch.id)

    def _lengths(self) -> dict[str, dict[str, int]]:
        """Return {batch id: {metric: number of points}}, from a single trial of every batch."""
        chosen = {}
        for batch in self.batches:
            counts = [len(trial.last) for trial in batch.trials]
            records = [trial.record for trial in batch.trials]
            chosen[batch.id] = batch.trials[views.most_complete(records, counts)].id
        points = reader(self.store.uri).points(list(chosen.values()))
        return {
            batch: {name: len(curve) for name, curve in points.get(run, {}).items()}
            for batch, run in chosen.items()
        }

    def _note(self, view_batches: Sequence[tuple[View, str]]) -> str:
        """Return the experiment's description: the study's question and links to its batches."""
        lines = [_introduction(self.project, self.name)]
        batch_views = [(view, batch) for view, batch in view_batches if batch]
        if batch_views:
            lines += ["", "Batches, newest first; they are also listed under *Views*:", ""]
            lines += [
                f"- [{markdown.escape(view.name)}]({view.path(self.experiment)})"
                for view, _ in batch_views
            ]
        return "\n".join(lines).strip()[: views.MAX_TAG]

    def _write(self, new: Mapping[str, str]) -> None:
        """Write tags of the experiment, unless a user changed or deleted them."""
        client = self.store.client
        with one_line_errors(self.store.uri):
            tags = dict(client.get_experiment(self.experiment).tags)
            written = _digests(tags.get(WRITTEN))
            due = _tags_to_write(new, tags, written)
            written |= {key: _digest(value) for key, value in due.items()}
            for key in _tags_to_delete(new, tags, written):
                client.delete_experiment_tag(self.experiment, key)
                del written[key]
            due |= {key: value for key, value in _KIND.items() if key not in tags}
            digests = json.dumps(written, sort_keys=True)
            if digests != tags.get(WRITTEN):
                due[WRITTEN] = digests
        self.store.tag_experiment(self.experiment, due)

    def _write_run(self, run: StoredRun) -> None:
        """Write a single run's note: its result, its catalog id, and the command that repeats it."""
        record = run.record
        lines = [markdown.unescaped(sentences.sentence(record)), "", f"Catalog id {record.id8}"]
        if meaning := self._meaning([run]):
            lines[-1] += f"; {meaning}"
        if command := rerun(self.operations, record, ()).command:
            at = f" At commit {record.commit[:12]}:" if record.commit else ""
            lines[-1] += f".{at}"
            lines += ["", *(f"    {line}" for line in _on_lines(command))]
        self._write_note(run, "\n".join(lines)[:_NOTE_LENGTH])

    def _write_figures(self) -> None:
        """Add the catalog's figures to the artifacts of the newest run of each operation that they show."""
        ordered = sorted(self.heads, key=lambda run: run.record.started or 0)
        newest = {_operation(run): run for run in ordered}
        wanted: dict[str, list[Path]] = {}
        for path, operations in figures_of(self.project, self.name):
            for operation in operations:
                if operation in newest:
                    wanted.setdefault(operation, []).append(path)
        for operation, paths in wanted.items():
            run = newest[operation]
            known = _digests(run.tags.get(FIGURES))
            digests = {path.name: _digest(path.read_text(encoding="utf-8")) for path in paths}
            for path in paths:
                if known.get(path.name) != digests[path.name]:
                    self.store.add_file(run.id, path, "figures")
            if known != digests:
                tags = self.notes.setdefault(run.id, {})
                tags[FIGURES] = json.dumps(digests, sort_keys=True)

    def _write_note(self, run: StoredRun, note: str) -> None:
        written = _digests(run.tags.get(WRITTEN))
        if due := _tags_to_write({NOTE: note}, run.tags, written):
            written[NOTE] = _digest(due[NOTE])
            self.notes[run.id] = {**due, WRITTEN: json.dumps(written)}

    def _write_batch(self, batch: _Batch, view: View) -> None:
        """Write a batch's note and name, and the names of imported trials."""
        batch_run = batch.own
        if batch_run is not None:
            self._write_note(batch_run, self._summary(batch, view))
            self._rename(batch_run, batch.name)
        unnamed = [t for t in batch.trials if t.record.reported_by and not t.record.label]
        flags = groups.varying([trial.record for trial in unnamed])
        for trial in unnamed:
            flags_shown = {n: v for n, v in trial.record.flags.items() if n in flags or n == "seed"}
            self._rename(trial, " ".join(f"{n}={_short(v)}" for n, v in flags_shown.items()))

    def _summary(self, batch: _Batch, view: View) -> str:
        record = batch.own.record if batch.own is not None else None
        trials = [trial.record for trial in batch.trials]
        if record is not None and (record.result or {}).get("optimised"):
            # The objective of a search is the last value of a metric.
            trials = [
                trial.record.with_points({name: [(0, value)] for name, value in trial.last.items()})
                for trial in batch.trials
            ]
        ends = Counter(trial.status.lower() for trial in trials)
        counts = ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
        page = view.path(self.experiment)
        summary = markdown.unescaped(batch_summary.summary(record, trials))
        meaning = self._meaning(batch.trials)
        about = "; ".join(filter(None, (f"Catalog id {batch.id[:8]}", meaning)))
        return f"{summary}\n\n{counts}; [charts]({page})\n\n{about}"[:_NOTE_LENGTH]

    def _meaning(self, runs: Sequence[StoredRun]) -> str:
        """Return unit and direction of the objective of runs of one operation, and the units of their metrics."""
        objective = next((run.record.objective for run in runs if run.record.objective), None)
        declared = self.operations.get(_operation(runs[0]))
        if declared is None:
            return _meaning(objective)
        names = sorted({name for run in runs for name in run.last})
        units = {name: unit for name in names if (unit := declared.unit(name))}
        unit = declared.unit(objective["name"]) if objective else ""
        listed = ", ".join(f"{name} [{unit}]" for name, unit in units.items())
        shown = markdown.literal(f"units: {listed}" if listed else "", 300)
        return "; ".join(filter(None, (_meaning(objective, unit), shown)))

    def _rename(self, stored: StoredRun, name: str) -> None:
        """Rename a run, unless a user has named it."""
        record, now = stored.record, stored.tags.get("mlflow.runName", "")
        if name and now != name and now in (record.label, record.operation, record.id8):
            with one_line_errors(self.store.uri):
                self.store.client.update_run(stored.id, name=markdown.literal(name, 250))


def _group_batches(runs: Sequence[StoredRun]) -> tuple[list[StoredRun], list[_Batch]]:
    """Return (single runs and batch runs, the newest batches with trials), without superseded and retracted ones."""
    marked = {run.run for run in runs if not run.is_current}
    runs = [run for run in runs if not {run.run, run.record.batch} & marked]
    by_id = {run.run: run for run in runs}
    batches: dict[str, _Batch] = {}
    single_runs = []
    for run in runs:
        if batch := run.record.batch:
            batches.setdefault(batch, _Batch(batch, by_id.get(batch))).trials.append(run)
        else:
            single_runs.append(run)
    newest = sorted(batches.values(), key=lambda b: (-(b.head.started or 0), b.id))
    return single_runs, newest[:BATCHES]


def _columns(operations: Sequence[Operation]) -> list[Column]:
    return [column for op in operations for column in guild_columns.parse_columns(op.compare)]


def _operation(stored: StoredRun) -> str:
    return stored.tags.get("operation", "")


def _tags_to_write(
    new: Mapping[str, str], tags: Mapping[str, str], written: Mapping[str, str]
) -> dict[str, str]:
    """Return the tags to write: new ones, and changed ones that no user has edited."""
    return {
        key: value
        for key, value in new.items()
        if value
        and tags.get(key) != value
        and (_digest(tags[key]) == written.get(key) if key in tags else key not in written)
    }


def _tags_to_delete(
    new: Mapping[str, str], tags: Mapping[str, str], written: Mapping[str, str]
) -> list[str]:
    """Return the tags of views whose batch no longer exists and that no user has edited."""
    return [
        key
        for key, digest in written.items()
        if key not in new and key in tags and _digest(tags[key]) == digest
    ]


def _digest(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()[:16]


def _digests(text: str | None) -> dict[str, str]:
    try:
        digests: Any = json.loads(text or "{}")
    except ValueError:
        return {}
    return {str(k): str(v) for k, v in digests.items()} if isinstance(digests, dict) else {}


def _introduction(project: Project, study: str) -> str:
    """Return the title and first paragraph of the study's section, without template calls."""
    try:
        source = (project.experiments / study / "catalog.md.j2").read_text(encoding="utf-8")
    except OSError:
        return ""
    parts = [part.strip() for part in re.split(r"\n\s*\n", source) if part.strip()]
    prose = [part for part in parts[:2] if "{{" not in part and "{%" not in part]
    return "\n\n".join(prose)


def figures_of(project: Project, study: str) -> list[tuple[Path, list[str]]]:
    """Return the files of a study's figures, each with the operations that its call in the template names."""
    import jinja2

    class Ignored(jinja2.ChainableUndefined):
        """What the template names besides figures."""

        def __call__(self, *_: object, **__: object) -> Ignored:  # type: ignore[override]
            return self

    folder = project.experiments / study
    figures: list[tuple[Path, list[str]]] = []

    def note(
        name: str,
        operations: Sequence[str] | str = (),
        *_: object,
        operation: str = "",  # as `landscape` names it
        **__: object,
    ) -> str:
        operations = operations or operation
        path = folder / "figures" / f"{name}.svg"
        if path.is_file():
            figures.append((path, [operations] if isinstance(operations, str) else [*operations]))
        return ""

    environment = jinja2.Environment(undefined=Ignored)
    environment.globals.update(dict.fromkeys(_FIGURES, note))
    environment.globals["folded"] = lambda _title, caller: caller()
    # A mistake is named by `catalog render`; a filter, though, may refuse what has no value only here.
    with contextlib.suppress(
        OSError, jinja2.TemplateError, TypeError, ValueError, ArithmeticError, AttributeError, LookupError
    ):  # fmt: skip
        environment.from_string((folder / "catalog.md.j2").read_text(encoding="utf-8")).render()
    return figures


def _meaning(objective: Mapping[str, Any] | None, unit: str = "") -> str:
    """Return unit and direction of an objective: "opening_rate is a share from 0 to 1, best: highest, by update"."""
    if not objective:
        return ""
    shown = f" [{unit}]" * bool(unit)
    if objective.get("kind") == "rate":
        shown = " is a share from 0 to 1"
    best = "lowest" if objective.get("goal") == "min" else "highest"
    axis = str(objective.get("axis") or "").replace("_", " ")
    parts = [
        f"objective {objective['name']}{shown}",
        f"best: {best}",
        f"steps: {axis}s" * bool(axis),
    ]
    return markdown.literal(", ".join(filter(None, parts)), 200)


def _on_lines(command: str) -> list[str]:
    """Return a command on lines of at most _COMMAND characters where that is possible; the shell joins them."""
    lines = [""]
    for word in re.findall(r"(?:[^\s'\"\\]|\\.|'[^']*'|\"(?:[^\"\\]|\\.)*\")+|\n", command):
        if word == "\n":
            lines.append("")
        elif not lines[-1]:
            lines[-1] = word
        elif len(lines[-1]) + len(word) + 3 > _COMMAND:
            lines[-1] += " \\"
            lines.append(f"  {word}")
        else:
            lines[-1] += f" {word}"
    return lines


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
