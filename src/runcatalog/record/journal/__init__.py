"""The journal: files in the run's directory, from which MLflow and TensorBoard data are derived.

Layout of ``RUN_DIR/journal``: ``run.json`` (constant facts), ``sessions.jsonl`` (starts and ends),
``metrics.jsonl`` (points, float64), ``events.jsonl`` (messages), ``progress.json`` (heartbeat), ``mlflow.json``
(delivery state by server). Readers ignore a last line that a crash cut off.

A line of a ``.jsonl`` file ends with ``,"n":NUMBER,"crc":"XXXXXXXX"}``: its number in the file, from 1, and the CRC-32
(zlib) of the bytes of the line before ``,"crc"``. So a changed, lost or repeated line is seen. Lines of earlier
versions have neither; after the first line that has them, all lines need them.
"""

HIDDEN = "[hidden]"  # replaces a secret
METRICS, SESSIONS, EVENTS = "metrics.jsonl", "sessions.jsonl", "events.jsonl"
SENDER_LOG = "sender.log"  # of the process that sends a run to MLflow, which has it locked
