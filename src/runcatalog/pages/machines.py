"""Table of the machines: processors and GPUs, with the numbers of their runs."""

from __future__ import annotations

from dataclasses import replace

from runcatalog.model.project import Machine, Project
from runcatalog.pages.tables.page_data import PageData
from runcatalog.text import markdown

COLUMNS = ("machine", "CPU", "GPU", "runs", "note")


def inventory(project: Project, data: PageData, length: int) -> str:
    """Return the table of the machines, a row for each kind of processor; "" without machines.

    Args:
        project: The project.
        data: All records.
        length: Largest number of rows; those of the machines with most runs are shown.
    """
    runs = [r for r in data.by_id.values() if not data.is_batch(r)]
    listed = project.machines()
    names = {m.name for m in listed}
    hosts = {m.host: m.name for m in listed if m.host and m.host not in names}
    found = sorted({hosts.get(r.machine, r.machine) for r in runs if r.machine} - names)
    lines = []
    for machine in [*listed, *map(Machine, found)]:
        own = [r for r in runs if hosts.get(r.machine, r.machine) == machine.name]
        # A record from a CSV has no CPU.
        kinds = data.cpus.get(machine.name, [])
        kinds = [cpu for cpu in kinds if any(r.host_cpu == cpu for r in own)] or [""]
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
