"""Records in memory behind the interface of an MLflow reader."""

from runcatalog.model import values
from runcatalog.record.delivery.names import encode
from runcatalog.store.run_rows import Reader, StoredRun, tags_of


class MemoryReader(Reader):
    """Runs in memory.

    Args:
        records: The runs.

    Attributes:
        read: Number of runs whose curves were read.
    """

    uri = "memory"

    def __init__(self, records):
        self.records_ = list(records)
        self.read = 0

    def runs(self, *, deleted=False, on_demand=()):
        return [self._stored(record) for record in self.records_]

    def _stored(self, record):
        kept = {
            "tags": tags_of(record),
            "params": {encode(n): values.flag_text(value) for n, value in record.flags.items()},
            "metrics": {encode(name): metric.last for name, metric in record.metrics.items()},
        }
        row = (f"id-{record.run}", record.study, record.status, "active")
        return StoredRun.from_mlflow(row, record.run, kept.__getitem__)

    def points(self, run_ids):
        self.read += len(run_ids)
        return {
            f"id-{record.run}": {name: list(m.curve) for name, m in record.metrics.items()}
            for record in self.records_
            if f"id-{record.run}" in run_ids
        }
