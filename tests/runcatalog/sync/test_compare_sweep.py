"""`guild compare` of a sweep as it is typed, and its CSV brought back: the row is the one of the sync."""

import csv
import io
import re

COMPARE = "[=lr, =seed, opening_rate, opening_rate step as updates, .result, .host]"


def settings(printed: str) -> dict[str, dict[str, str]]:
    """The cells of a table by setting and column."""
    table = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in printed.splitlines()
        if line.startswith("|")
    ]
    return {row[0]: dict(zip(table[0], row, strict=True)) for row in table[2:]}


def test_a_sweep_there_and_back(shell, tmp_path):
    declared = shell.root / "experiments/toy/guild.yml"
    text = declared.read_text()
    assert "    sweep: {main: src/toy.train," in text
    declared.write_text(text.replace("    sweep: {", f"    sweep: {{compare: {COMPARE}, "))
    # Half of the trials explode, by a flag that is not a declared column.
    shell("guild run toy:sweep lr=5e-3 explode=[0,7] -y", RECORD_MLFLOW="off")
    shell.catalog("sync -q")
    synced = settings(shell.inside("row latest"))
    assert set(synced) == {"sweep explode 0", "sweep explode 7"}
    assert "gradient explosion" in synced["sweep explode 7"]["outcome"]
    batch = synced["sweep explode 0"]["id"]

    shown = shell("guild compare --operation toy:sweep --table")
    assert "gradient explosion at update 7" in shown
    path = tmp_path / "sweep.csv"
    shell(f"guild compare --operation toy:sweep --csv {path} --cols =explode")
    columns, *rows = csv.reader(io.StringIO(path.read_text()))
    assert columns[6:] == ["lr", "seed", "opening_rate", "updates", "result", "host", "explode"]
    assert len(rows) == 4

    # MLflow knows these runs: none is imported twice.
    shell.inside(f"import {path} -q")
    assert settings(shell.inside("row latest")) == synced
    shell.inside("render")
    assert (shell.root / "runs_local/toy.md").read_text().count("gradient explosion") == 1

    # Another one does not, and gets the same row; only the batch's id is not in the file.
    shell.new_mlflow(tmp_path / "other.db")
    shell.inside(f"import {path} -q --batch {batch}")
    imported = settings(shell.inside(f"row {batch}"))
    for setting, row in synced.items():
        for name in ("opening rate", "95 %", "runs", "after"):
            assert imported[setting][name] == row[name], name
