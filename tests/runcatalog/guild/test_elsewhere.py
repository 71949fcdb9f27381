"""How many runs an engine takes at once, as asked while they run."""

import pytest

from runcatalog.cluster import dask_engine
from runcatalog.guild import elsewhere

SETTINGS = "lab: {scheduler: 'tls://127.0.0.1:1', tls: tls}\n"


def test_a_settings_file_that_is_being_edited_changes_nothing_for_a_sweep_that_runs(
    project, monkeypatch
):
    monkeypatch.setenv("ENGINE", "lab")
    free = iter([2, 3])
    monkeypatch.setattr(dask_engine, "places", lambda settings, own: next(free))
    file = project.experiments / "engines.yml"
    file.write_text(f"{SETTINGS}gpu: {{scheduler: tls://\n")
    with pytest.raises(SystemExit, match="not YAML"):
        elsewhere.Places()
    file.write_text(SETTINGS)
    places = elsewhere.Places()
    file.write_text(f"{SETTINGS}gpu: {{scheduler: tls://\n")
    assert places() == 2
    file.unlink()
    assert places() == 2
    file.write_text(SETTINGS)
    assert places() == 3
