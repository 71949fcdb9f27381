"""What a run can do without."""

import pytest

from runcatalog import record
from runcatalog.record.config import Config


def test_what_fails_is_a_remark_and_what_is_no_failure_is_not_swallowed(capsys, monkeypatch):
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
