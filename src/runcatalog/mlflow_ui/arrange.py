"""MLflow's UI arranged: a note and named views for each study, a summary and a name for each batch.

What a person changed or deleted there stays so: only a text that is still as it was written here is written again.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runcatalog.analysis import groups
from runcatalog.mlflow_ui import views
from runcatalog.mlflow_ui.views import Shown, View
from runcatalog.model import guild_columns
from runcatalog.model.guild_columns import Column
from runcatalog.model.project import Operation, Project
from runcatalog.model.run_record import RunRecord
from runcatalog.record.delivery.mlflow_client import one_line_errors
from runcatalog.store import compat
from runcatalog.store.client import Store, run_name
from runcatalog.store.run_rows import StoredRun
from runcatalog.store.sqlite_reader import reader
from runcatalog.text import markdown

NOTE = "mlflow.note.content"
WRITTEN = "catalog.written"  # tag: digests of what was written here, by tag
BATCHES = 30  # newest batches of a study that get a view; MLflow's page takes 40 views in all
_KIND = {compat.EXPERIMENT_KIND: "custom_model_development"}  # the page asks for it otherwise
_LOCAL = "http://127.0.0.1:5000"


@dataclass(frozen=True)
class Page:
    """A page of MLflow's UI.

    Attributes:
        study: Whose it is.
        name: As the list of views names it.
        path: Address after the server's.
        batch: Id of the batch that it shows; "" for a study's page.
    """

    study: str
    name: str
    path: str
    batch: str = ""


@dataclass
class _Batch:
    """A batch in MLflow.

    Attributes:
        id: Its run_id.
        own: Its own run there; None without one.
        trials: Its trials.
    """

    id: str
    own: StoredRun | None = None
    trials: list[StoredRun] = field(default_factory=list)

    @property
    def head(self) -> RunRecord:
        """What it is named after."""
        return self.own.record if self.own is not None else self.trials[0].record

    @property
    def name(self) -> str:
        """Name and batch id, as the catalog's row has them."""
        if self.own is not None:
            return run_name(self.own.record)
        return f"{self.head.operation.rpartition(':')[2]} {self.id[:8]}"


def address(uri: str) -> str:
    """Returns where the UI is: the tracking server, or what `make ui` starts beside a database."""
    return uri.rstrip("/") if uri.startswith(("http://", "https://")) else _LOCAL


def arrange(project: Project, store: Store) -> list[Page]:
    """Arranges the pages of all studies; returns them, each study's own before its batches'.

    Args:
        project: The project.
        store: Its MLflow.

    Raises:
        MlflowError: MLflow does not answer.
    """
    by_experiment: dict[str, list[StoredRun]] = {}
    for each in reader(store.uri).runs():
        by_experiment.setdefault(each.experiment, []).append(each)
    pages: list[Page] = []
    for name in sorted(by_experiment):
        pages += _Study(project, store, name, by_experiment[name]).arrange()
    return pages


class _Study:
    """The page of a study.

    Args:
        project: The project.
        store: Its MLflow.
        name: Name of the experiment.
        runs: All runs in it.
    """

    def __init__(
        self, project: Project, store: Store, name: str, runs: Sequence[StoredRun]
    ) -> None:
        self.project, self.store, self.name = project, store, name
        self.operations = {n: o for n, o in project.operations().items() if o.study == name}
        self.heads, self.batches = _sorted_out(runs)
        self.experiment = store.experiment(name)

    def arrange(self) -> list[Page]:
        """Writes what is new; returns the pages."""
        named = dict(self._views())
        wanted = {f"{views.TAG}{key}": view.value for key, (view, _) in named.items()}
        wanted[NOTE] = self._note([(view, batch) for view, batch in named.values()])
        self._write(wanted)
        for batch in self.batches:
            self._write_batch(batch, named[batch.id[:8]][0])
        return [
            Page(self.name, view.name, view.path(self.experiment, charts=bool(batch)), batch)
            for view, batch in named.values()
        ]

    def _views(self) -> Iterator[tuple[str, tuple[View, str]]]:
        """(key, (view, batch id)) of the study, then of its batches, the newest first."""
        newest = max((run.record.started or 0 for run in self.heads), default=0)
        used = [o for o in self.operations.values() if any(o.name == _of(h) for h in self.heads)]
        declared = _columns(used or list(self.operations.values()))
        records = [head.record for head in self.heads]
        view = views.overview(self.name, records, declared, newest + 1)
        yield view.key, (view, "")
        lengths = self._lengths()
        for batch in self.batches:
            trials = [trial.record for trial in batch.trials]
            declared = _columns(
                [self.operations[o] for o in {_of(t) for t in batch.trials} if o in self.operations]
            )
            own = batch.own.record if batch.own is not None else None
            shown = Shown.of(own, trials, declared, lengths[batch.id])
            started = batch.head.started or 0
            view = views.of_batch(batch.id, batch.name, started, trials, shown)
            yield view.key, (view, batch.id)

    def _lengths(self) -> dict[str, dict[str, int]]:
        """Number of points by metric, of one trial of each batch, by the batch's id."""
        chosen = {}
        for batch in self.batches:
            counts = [len(trial.last) for trial in batch.trials]
            records = [trial.record for trial in batch.trials]
            chosen[batch.id] = batch.trials[views.typical(records, counts)].id
        points = reader(self.store.uri).points(list(chosen.values()))
        return {
            batch: {name: len(curve) for name, curve in points.get(run, {}).items()}
            for batch, run in chosen.items()
        }

    def _note(self, of_views: Sequence[tuple[View, str]]) -> str:
        """The experiment's description: the study's question, and links to its batches."""
        lines = [_introduction(self.project, self.name)]
        named = [(view, batch) for view, batch in of_views if batch]
        if named:
            lines += ["", "Batches, the newest first; all of them are under *Views* too:", ""]
            lines += [
                f"- [{markdown.escape(view.name)}]({view.path(self.experiment)})"
                for view, _ in named
            ]
        return "\n".join(lines).strip()[: views.MAX_TAG]

    def _write(self, wanted: Mapping[str, str]) -> None:
        """Writes tags of the experiment, unless a person changed or deleted them."""
        client = self.store.client
        with one_line_errors(self.store.uri):
            held = dict(client.get_experiment(self.experiment).tags)
            written = _digests(held.get(WRITTEN))
            for key, value in _due(wanted, held, written).items():
                client.set_experiment_tag(self.experiment, key, value)
                written[key] = _digest(value)
            for key in _stale(wanted, held, written):
                client.delete_experiment_tag(self.experiment, key)
                del written[key]
            for key, value in _KIND.items():
                if key not in held:
                    client.set_experiment_tag(self.experiment, key, value)
            told = json.dumps(written, sort_keys=True)
            if told != held.get(WRITTEN):
                client.set_experiment_tag(self.experiment, WRITTEN, told)

    def _write_batch(self, batch: _Batch, view: View) -> None:
        """Writes the note and the names of a batch and of imported trials."""
        own = batch.own
        if own is not None:
            note = {NOTE: self._summary(batch, view)}
            written = _digests(own.tags.get(WRITTEN))
            if due := _due(note, own.tags, written):
                written[NOTE] = _digest(due[NOTE])
                self.store.tag(own.id, {**due, WRITTEN: json.dumps(written)})
            self._rename(own, batch.name)
        unnamed = [t for t in batch.trials if t.record.reported_by and not t.record.label]
        flags = groups.varying([trial.record for trial in unnamed])
        for trial in unnamed:
            told = {n: v for n, v in trial.record.flags.items() if n in flags or n == "seed"}
            self._rename(trial, " ".join(f"{n}={_short(v)}" for n, v in told.items()))

    def _summary(self, batch: _Batch, view: View) -> str:
        own = batch.own.record if batch.own is not None else None
        trials = [trial.record for trial in batch.trials]
        if own is not None and (own.result or {}).get("optimised"):
            trials = reader(self.store.uri).with_points(
                batch.trials
            )  # what a search optimised is a metric
        ends = Counter(trial.status.lower() for trial in trials)
        counted = ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
        page = view.path(self.experiment)
        return f"{plain(groups.summary(own, trials))}\n\n{counted}; [charts]({page})"[:7900]

    def _rename(self, stored: StoredRun, name: str) -> None:
        """Names a run, unless a person has named it."""
        record, now = stored.record, stored.tags.get("mlflow.runName", "")
        if name and now != name and now in (record.label, record.operation, record.id8):
            with one_line_errors(self.store.uri):
                self.store.client.update_run(stored.id, name=markdown.literal(name, 250))


def _sorted_out(runs: Sequence[StoredRun]) -> tuple[list[StoredRun], list[_Batch]]:
    """Returns batches and single runs, and the newest batches that have trials."""
    by_id = {run.run: run for run in runs}
    found: dict[str, _Batch] = {}
    heads = []
    for run in runs:
        if batch := run.record.batch:
            found.setdefault(batch, _Batch(batch, by_id.get(batch))).trials.append(run)
        else:
            heads.append(run)
    newest = sorted(found.values(), key=lambda b: (-(b.head.started or 0), b.id))
    return heads, newest[:BATCHES]


def _columns(operations: Sequence[Operation]) -> list[Column]:
    return [column for each in operations for column in guild_columns.columns(each.compare)]


def _of(stored: StoredRun) -> str:
    return stored.tags.get("operation", "")


def _due(
    wanted: Mapping[str, str], held: Mapping[str, str], written: Mapping[str, str]
) -> dict[str, str]:
    """Tags to write: new ones, and those that are as they were written here but should be another."""
    return {
        key: value
        for key, value in wanted.items()
        if value
        and held.get(key) != value
        and (_digest(held[key]) == written.get(key) if key in held else key not in written)
    }


def _stale(
    wanted: Mapping[str, str], held: Mapping[str, str], written: Mapping[str, str]
) -> list[str]:
    """Views that were written here and are of no batch any more."""
    return [
        key
        for key, digest in written.items()
        if key not in wanted and key in held and _digest(held[key]) == digest
    ]


def _digest(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()[:16]


def _digests(told: str | None) -> dict[str, str]:
    try:
        found: Any = json.loads(told or "{}")
    except ValueError:
        return {}
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


def _introduction(project: Project, study: str) -> str:
    """The title and the first paragraph of the study's section, up to the first call."""
    try:
        source = (project.experiments / study / "catalog.md.j2").read_text(encoding="utf-8")
    except OSError:
        return ""
    parts = [part.strip() for part in re.split(r"\n\s*\n", source) if part.strip()]
    prose = [part for part in parts[:2] if "{{" not in part and "{%" not in part]
    return "\n\n".join(prose)


def plain(marked_up: str) -> str:
    """Returns a cell of the catalog as text: a list of runs in MLflow shows its description as it is."""
    shown = marked_up.replace("<span>$</span>", "$").replace("&#8203;", "").replace("**", "")
    return html.unescape(re.sub(r"\\([\\`*\[\]|~_])", r"\1", shown))


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
