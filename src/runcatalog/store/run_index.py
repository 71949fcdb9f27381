"""What MLflow holds, one run for each run_id, found by the ids that journals, Guild and CSV exports use."""

from __future__ import annotations

from collections.abc import Iterator

from runcatalog.model.run_record import RUNNING
from runcatalog.store.client import BATCH_KEY, DIGEST, INCOMPLETE, Store
from runcatalog.store.run_rows import Stored
from runcatalog.store.sqlite_reader import reader

SHORT = 8  # digits of an id in what `guild compare --csv` writes


class Held:
    """The runs of an MLflow at one moment, deleted ones too.

    Two live runs of one run_id come from a request that MLflow carried out and could not confirm, so that
    it was sent again. One of them is kept; the other is removed from MLflow.

    Args:
        store: The MLflow.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_id: dict[str, Stored] = {}
        self._short: dict[str, Stored] = {}
        self._by_key: dict[str, Stored] = {}
        self._trials: dict[str, set[str]] = {}
        self._forgotten: set[str] = set()
        for each in reader(store.uri).runs(deleted=True, rarely=("params", "metrics")):
            self._add(each)
        for run_id, each in self._by_id.items():
            known = self._short.get(run_id[:SHORT])
            if known is None or _rank(each) > _rank(known):
                self._short[run_id[:SHORT]] = each
            if key := each.own_tags.get(BATCH_KEY):
                self._by_key[key] = each
            if batch := each.own_tags.get("batch"):
                self._trials.setdefault(batch, set()).add(run_id)

    def __iter__(self) -> Iterator[Stored]:
        return iter(self._by_id.values())

    def get(self, run_id: str) -> Stored | None:
        """Returns the run of an id; one side of the comparison may know its first 8 digits alone."""
        found = self._by_id.get(run_id)
        if found is None and len(run_id) > SHORT:
            found = self._by_id.get(run_id[:SHORT])
        if found is None and len(run_id) == SHORT:
            found = self._short.get(run_id)
        return found

    def live(self, run_id: str) -> Stored | None:
        """Returns the run of an id, unless someone deleted it in MLflow."""
        found = self.get(run_id)
        return None if found is None or found.deleted else found

    def batch(self, key: str) -> Stored | None:
        """Returns the batch whose trials share a key; see :class:`runcatalog.guild.runs.Batch`."""
        return self._by_key.get(key)

    def trials(self, batch: str) -> set[str]:
        """Returns the ids of a batch's trials."""
        return self._trials.get(batch, set())

    def forget(self, stored: Stored) -> None:
        """Removes a run from MLflow that is about to be replaced."""
        self._store.forget(stored)
        self._forgotten.add(stored.run)

    def tidy(self) -> None:
        """Removes batches that a CSV told of, and of whose trials all are known better by now."""
        self._store.finish_forgetting()
        for row in self:
            if row.deleted or not row.own_tags.get("reported_by") or row.run in self._forgotten:
                continue
            is_batch = bool((row.record.result or {}).get("batch"))
            if is_batch and self.trials(row.run) <= self._forgotten:
                self.forget(row)

    def _add(self, each: Stored) -> None:
        known = self._by_id.get(each.run)
        if known is None:
            self._by_id[each.run] = each
            return
        better, worse = sorted((known, each), key=_rank, reverse=True)
        self._by_id[each.run] = better
        if not worse.deleted:
            self._store.forget(worse)


def _rank(stored: Stored) -> tuple[bool, bool, bool, bool, int, str]:
    """Larger for the one to keep: alive, not only begun, from a journal, ended, with the most tags."""
    tags = stored.own_tags
    begun = "study" not in tags or tags.get(DIGEST) == INCOMPLETE
    ended = stored.status != RUNNING
    return (not stored.deleted, not begun, DIGEST not in tags, ended, len(tags), stored.id)
