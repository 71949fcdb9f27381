"""Tables of hyperparameter searches: the best setting, its value on fresh seeds, what mattered, random search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runcatalog.analysis import groups, searches
from runcatalog.model import values
from runcatalog.model.run_record import FAILED, KILLED, RUNNING, RunRecord
from runcatalog.pages.tables import batch_summary, cells, setting_table, settings
from runcatalog.pages.tables.page_data import PageData
from runcatalog.text import markdown, sentences

SEARCH, POINT, BEST, FRESH = "search", "best setting", "its value in the search", "on fresh seeds"
MATTERS, RANDOM, TRIALS = (
    "what matters",
    "best value against random search's (one pair each: undetermined)",
    "trials",
)


def search_table(
    data: PageData, operations: Sequence[str], fresh: Mapping[str, str] | None = None
) -> str:
    """Return the table of the searches of operations as Markdown, a row each; "" without searches.

    Args:
        data: All records.
        operations: Names, in order.
        fresh: By operation, the one that trains with the best setting and other seeds.
    """
    columns: tuple[str, ...] = (SEARCH, POINT, BEST, FRESH, MATTERS, RANDOM, TRIALS)
    columns += (
        setting_table.OUTCOME,
        setting_table.REPORTED,
        setting_table.SAME,
        setting_table.STARTED,
        setting_table.ID,
    )
    lines = []
    for operation in operations:
        heads = settings.search_heads(data, operation)
        for head in heads:
            line = _row(
                data,
                head,
                setting_table.short_name(operation, operations),
                (fresh or {}).get(operation, ""),
            )
            report = data.reported.get(operation)
            if report is not None and head is heads[-1]:
                line[setting_table.REPORTED] = cells.report(report)
                line[setting_table.SAME] = markdown.escape(report.same_setting, cells.WIDEST)
            lines.append(line)
    if not lines:
        return ""
    short, reason = setting_table.same_settings(
        [line.get(setting_table.SAME, "") for line in lines]
    )
    for line, text in zip(lines, short, strict=True):
        line[setting_table.SAME] = text
    kept = [c for c in columns if any(line.get(c) for line in lines)]
    table = markdown.table(kept, [[line.get(c, "") for c in kept] for line in lines])
    return f"{table}\n\n{reason}".strip()


def _row(data: PageData, head: RunRecord, name: str, fresh: str) -> dict[str, str]:
    batch = settings.batch_of(head)
    members = data.members(head)
    trials = [searches.as_searched(batch, trial) for trial in members]
    ranked = searches.ranked(trials)
    lost = sum(map(searches.has_failed, trials))
    method = method_of(batch)
    row = {
        SEARCH: f"{name} ({method})" if method else name,
        MATTERS: importance(batch),
        RANDOM: against_random(data, batch, members),
        TRIALS: f"{len(trials)}, {lost} failed" if lost else str(len(trials)),
        setting_table.STARTED: cells.day(
            max((t.started for t in trials if t.started), default=None)
        ),
        setting_table.ID: data.id_cell(head.batch or head.run),
    }
    running = sum(t.status == RUNNING for t in trials)
    parts = [f"{running} of {len(trials)} still running"] if running else []
    if batch is not None and batch.status == KILLED:
        parts.append(f"the batch was {sentences.killed(batch)}")
    elif batch is not None and batch.status == FAILED:
        parts.append(f"the batch {sentences.failure(batch)}")
    if not ranked:
        parts.insert(0, "no trial finished with a result")
    row[setting_table.OUTCOME] = cells.joined([*parts, *cells.provenance(data, members)])
    if ranked:
        best = ranked[0]
        objective = best.objective or {}
        row[POINT] = _point(batch, best, groups.varying(trials))
        further = sentences.further(objective).values()
        row[BEST] = cells.joined(
            [
                sentences.objective_text(objective, searches.value(best))
                + sentences.own_interval(objective),
                *(sentences.objective_text(entry, entry["value"]) for entry in further),
            ]
        )
        row[FRESH] = on_fresh_seeds(data, fresh, best, groups.varying(trials))
    return row


def _point(batch: RunRecord | None, best: RunRecord, names: Sequence[str]) -> str:
    """Return the flags of the best trial; those at an edge of the searched space are marked."""
    edges = {edge.name: edge.bound for edge in searches.edges(batch, best)}
    parts = []
    for name in names:
        value = markdown.flag_value(values.parse_flag(best.flags.get(name)))
        edge = f" ({edges[name]} edge)" if name in edges else ""
        parts.append(f"{markdown.escape(name)} {value}{edge}")
    return cells.joined(parts, separator=", ")


def on_fresh_seeds(data: PageData, operation: str, best: RunRecord, names: Sequence[str]) -> str:
    """Return mean, interval and number of seeds of an operation's runs with the flags of a search's best trial."""
    point = {name: best.flags.get(name) for name in names}
    shown = []
    for setting in settings.settings(data, operation) if operation else ():
        fits = all(setting.flags.get(name) == value for name, value in point.items())
        tuned = best.batch in {parent for m in setting.members for parent in m.parents}
        if (fits or tuned) and setting.objectives:
            seeds = len(setting.finished)
            text = f"{cells.mean_text(setting.objectives)} {cells.interval(setting.objectives)}".strip()
            shown.append(f"{text}, {seeds} seed{'s' * (seeds != 1)}")
    return "; ".join(shown) or ("not run" if operation else "")


def importance(batch: RunRecord | None) -> str:
    """Return the parameters whose effect is determined, with R²; "undetermined" where there are none."""
    stored = searches.importance_of(batch)
    if stored is None:
        return ""
    r2 = markdown.number(stored.r2, 2)
    if stored.r2 <= 0:
        return f"undetermined: the model predicts nothing (R² {r2})"
    if stored.r2 < searches.MIN_R2:
        return f"undetermined: R² {r2} is below {searches.MIN_R2}"
    if not stored.determined:
        return f"undetermined (R² {r2})"
    shares = ", ".join(map(batch_summary.share_text, stored.determined[:2]))
    return f"{shares} of the variance (R² {r2})"


def against_random(data: PageData, batch: RunRecord | None, members: Sequence[RunRecord]) -> str:
    """Return the best values of a search and of the random search of the same name; "" without one."""
    comparison, _ = compared(data, batch, members)
    if comparison is None:
        return ""
    best, random = (
        sentences.value_text(comparison.objective, value)
        for value in (comparison.best, comparison.random)
    )
    return f"{best} against {random}, {comparison.trials} trials"


def compared(
    data: PageData, batch: RunRecord | None, members: Sequence[RunRecord]
) -> tuple[searches.Comparison | None, str]:
    """Return the comparison of a search with the random search of the same name, and the id of that."""
    if batch is None or not members or (batch.result or {}).get("method") != "gp":
        return None, ""
    heads = data.heads(batch.operation.partition("@")[0] + searches.RANDOM)
    others = {head.run: data.members(head) for head in heads if data.members(head)}
    peer = searches.peer_of(members, others)
    if not peer:
        return None, ""
    own, other = (
        [searches.as_searched(batch, t) for t in trials] for trials in (members, others[peer])
    )
    return searches.against_random(own, other), peer


def is_better(comparison: searches.Comparison) -> bool:
    """Return whether the search found a better setting than the random one."""
    if comparison.objective.get("goal", "max") == "min":
        return comparison.best < comparison.random
    return comparison.best > comparison.random


def method_of(batch: RunRecord | None) -> str:
    """Return the optimizer, unless the operation's name contains it."""
    method = ((batch.result if batch else None) or {}).get("method")
    own = batch is None or "@" in batch.operation or method in (None, "", "grid", "imported")
    return "" if own else markdown.escape(method)
