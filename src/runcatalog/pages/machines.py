"""Table of the machines: processors and GPUs, with the numbers of their runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from runcatalog.model.project import Project
from runcatalog.model.run_record import RunRecord
from runcatalog.pages.tables.page_data import PageData
from runcatalog.record.provenance.machine import Machine, name_of
from runcatalog.text import markdown

COLUMNS = ("machine", "CPU", "GPU", "runs", "note")


def inventory(project: Project, data: PageData, length: int) -> str:
    """Return the table of the machines, a row for each kind of processor; "" without machines.

    Args:
        project: The project.
        data: All records.
        length: Largest number of rows; those of the machines with most runs are shown.
    """
    listed = project.machines()
    runs: dict[str, list[RunRecord]] = {machine.name: [] for machine in listed}
    for record in data.by_id.values():
        if record.machine and not data.is_batch(record):
            runs.setdefault(_name(listed, record), []).append(record)
    lines = []
    for machine in [*listed, *map(Machine, sorted(runs.keys() - {m.name for m in listed}))]:
        own = runs[machine.name]
        recorded = dict.fromkeys((machine.name, *(r.machine for r in own)))
        known = dict.fromkeys(cpu for name in recorded for cpu in data.cpus.get(name, ()))
        kinds = [cpu for cpu in known if any(r.host_cpu == cpu for r in own)]
        # A record from a CSV has no CPU.
        if not kinds or (len(kinds) > 1 and not all(r.host_cpu for r in own)):
            kinds.append("")
        for nr, cpu in enumerate(kinds):
            with_cpu = [r for r in own if r.host_cpu == cpu] if len(kinds) > 1 else own
            gpus = dict.fromkeys(r.gpu for r in with_cpu if r.gpu)
            number = data.machine(replace(with_cpu[0], machine=machine.name)) if with_cpu else ""
            cells = (
                number or machine.name, cpu or "–", machine.gpu or ", ".join(gpus) or "–", str(len(with_cpu)),
                "" if nr else machine.note,
            )  # fmt: skip
            lines.append([markdown.escape(cell, 120) for cell in cells])
    if not lines:
        return ""
    most = sorted(range(len(lines)), key=lambda row: -int(lines[row][3]))[:length]
    table = markdown.table(list(COLUMNS), [lines[row] for row in sorted(most)])
    return table + markdown.more(len(lines) - length)


def _name(listed: Sequence[Machine], record: RunRecord) -> str:
    """Return the name of a run's machine; runs that were recorded before it was listed have that of its host."""
    if any(machine.name == record.machine for machine in listed):
        return record.machine
    return name_of(listed, record.machine, record.gpu)
