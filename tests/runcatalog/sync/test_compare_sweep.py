"""`guild compare` of a sweep as it is typed, and its CSV brought back: the row is the one of the sync."""

import csv
import io
import re

COMPARE = "[=lr, =seed, opening_rate, opening_rate step as updates, .result, .host]"


def cells(printed: str) -> dict[str, str]:
    """The cells of a table of one row, by column."""
    table = [line for line in printed.splitlines() if line.startswith("|")]
    header, row = (re.split(r"(?<!\\)\|", table[i])[1:-1] for i in (0, 2))
    return {name.strip(): cell.strip() for name, cell in zip(header, row, strict=True)}


def test_a_sweep_there_and_back(shell, tmp_path):
    declared = shell.root / "experiments/toy/guild.yml"
    text = declared.read_text()
    assert "    sweep: {main: src/toy.train," in text
    declared.write_text(text.replace("    sweep: {", f"    sweep: {{compare: {COMPARE}, "))
    # Half of the trials explode, by a flag that is none of the declared columns.
    shell("guild run toy:sweep lr=5e-3 explode=[0,7] -y", RECORD_MLFLOW="off")
    shell.catalog("sync -q")
    synced = cells(shell.inside("row latest"))
    assert "7 failed 2 of 2: gradient explosion" in synced["result"]

    shown = shell("guild compare --operation toy:sweep --table")
    assert "gradient explosion at update 7" in shown
    path = tmp_path / "sweep.csv"
    shell(f"guild compare --operation toy:sweep --csv {path} --cols =explode")
    columns, *rows = csv.reader(io.StringIO(path.read_text()))
    assert columns[6:] == ["lr", "seed", "opening_rate", "updates", "result", "host", "explode"]
    assert len(rows) == 4

    # MLflow knows these runs: nothing is told twice.
    shell.inside(f"import {path} -q")
    assert cells(shell.inside("row latest")) == synced
    shell.inside("render")
    assert (shell.root / "runs_local.md").read_text().count("gradient explosion") == 1

    # Another one does not, and gets the same row; only the batch's id is not in the file.
    shell.new_mlflow(tmp_path / "other.db")
    shell.inside(f"import {path} -q --batch {synced['batch id']}")
    imported = cells(shell.inside(f"row {synced['batch id']}"))
    assert (
        imported["result"].removesuffix("; imported: guild compare, sweep.csv")
        in (synced["result"])
    )
    for name in ("Name", "batch id", "machine", "seed", "task id"):
        assert imported[name] == synced[name], name
