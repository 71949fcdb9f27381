"""Optional outputs whose errors do not end a run."""

import pytest

from runcatalog import record
from runcatalog.record.config import Config


def test_exceptions_become_events_and_interrupts_propagate(capsys, monkeypatch):
    monkeypatch.setenv("RECORD", "off")
    with record.start(Config(), study="toy") as run:
        with record.optional(run, "figure"):
            raise OSError("no ink")
        assert capsys.readouterr().out == "no figure: OSError: no ink\n"
        with record.optional(run, "figure"):
            pass
        assert not capsys.readouterr().out
        with pytest.raises(KeyboardInterrupt), record.optional(run, "figure"):
            raise KeyboardInterrupt
