"""Index of the runs in MLflow by the ids that journals, Guild and CSV exports use."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from runcatalog.model.run_record import RUNNING
from runcatalog.store.client import BATCH_KEY, DIGEST, INCOMPLETE, Store
from runcatalog.store.run_rows import StoredRun
from runcatalog.store.sqlite_reader import reader

SHORT = 8  # digits of an id in what `guild compare --csv` writes


class RunIndex:
    """The runs of an MLflow at the time of construction, including deleted ones; a single run per run_id.

    A request that MLflow carried out but could not confirm is sent again, which can create two live runs with the same
    run_id; :meth:`remove_duplicates` deletes the less complete one.

    Args:
        store: The MLflow.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_id: dict[str, StoredRun] = {}
        self._short: dict[str, StoredRun] = {}
        self._by_key: dict[str, StoredRun] = {}
        self._trials: dict[str, set[str]] = {}
        self._duplicates: list[StoredRun] = []
        self._forgotten: set[str] = set()
        self._reader = reader(store.uri)
        for run in self._reader.runs(deleted=True, on_demand=("params", "metrics")):
            self._add(run)
        self._leave_out_imported_before_sent()
        for run_id, run in self._by_id.items():
            known = self._short.get(run_id[:SHORT])
            if known is None or _rank(run) > _rank(known):
                self._short[run_id[:SHORT]] = run
            if key := run.own_tags.get(BATCH_KEY):
                self._by_key[key] = run
            if batch := run.own_tags.get("batch"):
                self._trials.setdefault(batch, set()).add(run_id)

    def __iter__(self) -> Iterator[StoredRun]:
        return iter(self._by_id.values())

    def remove_duplicates(self) -> None:
        """Delete duplicates from MLflow: all live runs of a run_id except the most complete one."""
        for run in self._duplicates:
            self._store.forget(run)
        self._duplicates = []

    def get(self, run_id: str) -> StoredRun | None:
        """Return the run with an id; this id, or the id in MLflow, may consist of only the first 8 digits."""
        run = self._by_id.get(run_id)
        if run is None and len(run_id) > SHORT:
            run = self._by_id.get(run_id[:SHORT])
        if run is None and len(run_id) == SHORT:
            run = self._short.get(run_id)
        return run

    def live(self, run_id: str) -> StoredRun | None:
        """Return the run with an id, unless it was deleted in MLflow."""
        run = self.get(run_id)
        return None if run is None or run.deleted else run

    def lacks_points(self, stored: StoredRun) -> bool:
        """Return whether MLflow has fewer points of a run than were sent, as after a backup was restored."""
        return self._reader.lacks_points(stored)

    def batch(self, key: str) -> StoredRun | None:
        """Return the batch with a key; see :class:`runcatalog.guild.runs.Batch`."""
        return self._by_key.get(key)

    def trials(self, batch: str) -> set[str]:
        """Return the ids of a batch's trials."""
        return self._trials.get(batch, set())

    def forget(self, stored: StoredRun) -> None:
        """Delete a run from MLflow that is about to be replaced; it is no longer in the index."""
        self._store.forget(stored)
        self.leave_out(stored)

    def leave_out(self, stored: StoredRun) -> None:
        """Take a run that has been replaced in MLflow out of the index."""
        self.note_replaced(stored)
        for known in (self._by_id, self._short):
            for run_id in (stored.run, stored.run[:SHORT]):
                if known.get(run_id) is stored:
                    del known[run_id]

    def note_replaced(self, stored: StoredRun) -> None:
        """Note that a run has been replaced in MLflow; see :meth:`tidy`."""
        self._forgotten.add(stored.run)

    @property
    def has_replaced(self) -> bool:
        """Whether runs have been replaced in MLflow."""
        return bool(self._forgotten)

    def tidy(self, kept: Collection[str] = ()) -> None:
        """Delete batches that were imported from a CSV and whose trials have all been replaced since.

        Args:
            kept: Ids of batches that have got trials since this index was made.
        """
        self._store.finish_forgetting()
        for run in list(self):
            if run.deleted or not run.own_tags.get("reported_by") or run.run in self._forgotten:
                continue
            is_batch = bool((run.record.result or {}).get("batch")) and run.run not in kept
            if is_batch and self.trials(run.run) <= self._forgotten:
                self.forget(run)

    def _leave_out_imported_before_sent(self) -> None:
        """Note runs from a CSV as duplicates that MLflow has by their whole id too, sent after the import."""
        whole = {i[:SHORT] for i, run in self._by_id.items() if len(i) > SHORT and not run.deleted}
        for run_id in [run_id for run_id in self._by_id if run_id in whole]:
            run = self._by_id[run_id]
            if not run.deleted and run.own_tags.get("reported_by"):
                self._duplicates.append(run)
                del self._by_id[run_id]
                self.note_replaced(run)
                self._trials.setdefault(run.own_tags.get("batch", ""), set()).add(run_id)

    def _add(self, run: StoredRun) -> None:
        known = self._by_id.get(run.run)
        if known is None:
            self._by_id[run.run] = run
            return
        better, worse = sorted((known, run), key=_rank, reverse=True)
        self._by_id[run.run] = better
        if not worse.deleted:
            self._duplicates.append(worse)


def _rank(stored: StoredRun) -> tuple[bool, bool, bool, bool, int, str]:
    """Sort key of duplicates: the most complete is largest (live, fully written, from a journal, ended, most tags)."""
    tags = stored.own_tags
    begun = "study" not in tags or tags.get(DIGEST) == INCOMPLETE
    ended = stored.status != RUNNING
    return (not stored.deleted, not begun, DIGEST not in tags, ended, len(tags), stored.id)
