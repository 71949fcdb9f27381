"""Guild's own batches (`guild run OPERATION lr=[1e-3,5e-3]`), with a line before each trial and a table at the end.

Guild's batch processor runs the trials, one after the other; with $ENGINE they run side by side elsewhere. A batch
that is restarted runs those that have not finished, in their own directories. The objective of the table is that of
the trials' results, else the scalar that the operation declares.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from runcatalog.guild import child_environment, elsewhere
from runcatalog.guild.compat import BATCH
from runcatalog.guild.runs import BATCH_RUN, GuildRun
from runcatalog.guild.side_by_side import Started, run_side_by_side
from runcatalog.record.config import REFUSED, note_refusal
from runcatalog.record.journal.files import read_json, write_json
from runcatalog.record.lifecycle.signals import FAILED, KILLED, die_with_parent
from runcatalog.record.output import messages
from runcatalog.search import report, trials
from runcatalog.search.core import is_value
from runcatalog.search.space import SearchError
from runcatalog.search.trials import Objective, Trial, own_objective
from runcatalog.text import terminal

SHOWN_TRIALS = 20  # in the table at the end
SHOWN_FAILED = 5


class Progress:
    """The trials of a batch, and which of them have been started.

    Args:
        batch: Guild's run of the batch.
        flags: The flags of all its trials.
    """

    def __init__(self, batch: Any, flags: Sequence[Mapping[str, Any]]) -> None:
        self._batch = batch
        self._count = len(flags)
        names = {name for each in flags for name in each}
        varying = {n for n in names if any(each.get(n) != flags[0].get(n) for each in flags)}
        self._points = [{n: v for n, v in each.items() if n in varying} for each in flags]
        # Of the trials that have ended, by number: read once each.
        self._statuses: dict[int, int] = {}
        self._objectives: dict[int, dict[str, Any]] = {}
        self._scalars: dict[int, float | None] = {}
        self._numbers: dict[str, int] = {}  # of all trials, by id
        self._runs: dict[int, Any] = {}  # those that have been started, now or earlier, by number

    def set_up(self, trial_runs: Sequence[Any]) -> None:
        """Note the runs of all trials, of which some may have finished."""
        self._numbers = {run.id: number for number, run in enumerate(trial_runs, 1)}
        self._runs = {self._numbers[run.id]: run for run in trial_runs if _has_finished(run)}

    def start(self, trial_run: Any) -> None:
        """Note the batch in a trial, and print a line."""
        trial_run.write_attr(BATCH_RUN, self._batch.id)
        ended, objective = self._ended()
        number = self._numbers[trial_run.id]
        self._runs[number] = trial_run
        flags = report.flags_text(self._points[number - 1])
        best = report.best_so_far(ended, objective) if objective else ""
        text = f"batch: trial {number} of {self._count}"
        print(f"{text}{', ' if flags else ''}{flags}{best}", flush=True)

    def has_ended(self, trial_run: Any) -> None:
        """Read a trial again, since the exit status of one on another machine may be copied before its result."""
        number = self._numbers[trial_run.id]
        for known in (self._statuses, self._objectives, self._scalars):
            known.pop(number, None)

    def end(self, *, is_stopped: bool = False) -> None:
        """Print the table; nothing if no trial was started, as when trials are staged.

        Args:
            is_stopped: Whether trials remain, since the batch was stopped.
        """
        if not self._runs:
            return
        ended, objective = self._ended()
        finished = sum(map(_has_finished, self._runs.values()))
        print(f"batch: {finished} of {self._count} trials finished")
        for line in report.table(ended, objective, SHOWN_TRIALS) if objective else ():
            print(line)
        failed = [number for number, status in sorted(self._statuses.items()) if status]
        for number in failed[:SHOWN_FAILED]:
            run = self._runs[number]
            again = "" if run.get(REFUSED) else f"; again: {messages.restart(run.id)}"
            print(f"  trial {number} {_end(run)}{again}")
        if len(failed) > SHOWN_FAILED:
            print(f"  {len(failed) - SHOWN_FAILED} more failed")
        if is_stopped or self.have_all_failed:
            # A restarted run has its own copy of the code, in which a mistake is not mended.
            same = " with the same code" if self.have_all_failed else ""
            print(f"  to run the remaining trials{same}: {messages.restart(self._batch.id)}")
        # A trial whose flags were refused has no row, and a single one has none of a batch.
        rows = [run.id for run in self._runs.values() if not run.get(REFUSED)]
        if rows:
            shown = self._batch.id if len(rows) > 1 else rows[0]
            print(f"  to show it: catalog sync && catalog row {shown[:8]}", flush=True)

    @property
    def have_all_failed(self) -> bool:
        """Whether trials were started and none has finished."""
        return bool(self._runs) and not any(map(_has_finished, self._runs.values()))

    def _ended(self) -> tuple[list[Trial], Objective | None]:
        """Return the finished trials, and the objective of their values; None without a value."""
        for number, run in self._runs.items():
            if number not in self._statuses and (status := run.get("exit_status")) is not None:
                self._statuses[number] = status
                self._objectives[number] = own_objective(run)
        numbers = sorted(self._statuses)
        own = [self._objectives[number] for number in numbers]
        stated = next((o for o in own if o.get("name") and is_value(o.get("value"))), None)
        values: Mapping[int, Any]
        if stated is not None:
            name = stated["name"]
            objective = Objective(name, (None, name, None), stated.get("goal") != "min")
            values = {
                number: each.get("value") if each.get("name") == name else None
                for number, each in zip(numbers, own, strict=True)
            }
        elif numbers:
            try:
                objective = trials.objective_of(self._batch)
            except SearchError:  # of several scalars
                return [], None
            values = self._read_scalars(numbers, objective)
        else:
            return [], None
        ended = [
            Trial(self._runs[number], number, self._points[number - 1], "done", values[number])
            for number in numbers
            if self._statuses[number] == 0 and is_value(values[number])
        ]
        return ended, objective if ended else None

    def _read_scalars(
        self, numbers: Sequence[int], objective: Objective
    ) -> dict[int, float | None]:
        """Return the values of the objective that Guild has of ended trials, by number."""
        from runcatalog.guild.compat import batch_util

        new = [number for number in numbers if number not in self._scalars]
        runs = [self._runs[number] for number in new]
        results = batch_util.trial_results_for_runs(runs, [objective.column])
        self._scalars |= {n: scalars[0] for n, (_, scalars) in zip(new, results, strict=True)}
        return self._scalars


def _has_finished(trial_run: Any) -> bool:
    return trial_run.get("exit_status") == 0


def _end(trial_run: Any) -> str:
    """Return "failed: …" or "was stopped: …" with the reason, in one line."""
    if trial_run.get(REFUSED):
        return "failed: its flags were refused"
    status, reason = GuildRun(trial_run.id, trial_run.dir).end()
    result = read_json(Path(trial_run.dir) / "result.json") or {}
    if result.get("reason"):
        status, reason = result.get("status", ""), str(result["reason"])
    return f"{'was stopped' if status == KILLED else 'failed'}: {terminal.clean(reason)}"


@contextlib.contextmanager
def _reporting() -> Iterator[list[Progress]]:
    """Let Guild's batch processor report its trials, and with $ENGINE run them elsewhere.

    Yields a list, which has the progress once the batch has trials.
    """
    from runcatalog.guild.compat import batch_util

    handle, start, run, init = (
        batch_util.handle_trials,
        batch_util.start_trial_run,
        batch_util._run_trials,
        batch_util._init_trial_runs,
    )
    progress: list[Progress] = []
    is_stopped = True

    def handle_trials(batch_run: Any, flags: Sequence[Mapping[str, Any]]) -> None:
        trials.flags_of(batch_run)  # an empty list would be a batch without trials
        progress.append(Progress(batch_run, flags))
        handle(batch_run, flags)

    def init_trial_runs(batch_run: Any, flags: Sequence[Mapping[str, Any]]) -> list[Any]:
        trial_runs = _trial_runs(batch_run, flags)
        progress[0].set_up(trial_runs)
        return trial_runs

    def start_trial_run(trial_run: Any, stage: bool = False) -> None:
        if not stage:
            progress[0].start(trial_run)
        start(trial_run, stage)

    def run_trials(batch_run: Any, flags: Sequence[Mapping[str, Any]]) -> None:
        if os.environ.get(elsewhere.VARIABLE) and not batch_run.get("stage_trials"):
            _run_elsewhere(batch_run, flags, progress[0])
        else:
            run(batch_run, flags)

    batch_util.handle_trials, batch_util.start_trial_run = handle_trials, start_trial_run
    batch_util._run_trials, batch_util._init_trial_runs = run_trials, init_trial_runs
    try:
        yield progress
        is_stopped = False
    finally:
        batch_util.handle_trials, batch_util.start_trial_run = handle, start
        batch_util._run_trials, batch_util._init_trial_runs = run, init
        if progress:
            progress[0].end(is_stopped=is_stopped)


def _trial_runs(batch_run: Any, flags: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the runs of the trials: those that a restarted batch has with the same flags, else new ones."""
    from runcatalog.guild.compat import batch_util, op_util, run

    links = [link for link in sorted(Path(batch_run.dir).iterdir()) if link.is_symlink()]
    runs = [run.for_dir(os.path.realpath(link)) for link in links]
    known = [(each.get("flags"), each) for each in runs]
    trial_runs = []
    for each in flags:
        place = next((i for i, (own, _) in enumerate(known) if own == each), None)
        if place is None:
            trial_run = batch_util.init_trial_run(batch_run, each)
        else:
            _, trial_run = known.pop(place)
            if not _has_finished(trial_run):
                trials.stop_orphan(trial_run)
                trial_run.del_attr("exit_status")  # that of its last session
                op_util.set_run_pending(trial_run)
        trial_runs.append(trial_run)
    return trial_runs


def _run_elsewhere(batch_run: Any, flags: Sequence[Mapping[str, Any]], progress: Progress) -> None:
    """Run the trials of a batch on other machines, and say of each end what Guild says.

    Raises:
        SystemExit: A trial failed, and the batch ends with the first one that does.
    """
    from runcatalog.guild.compat import batch_util

    runs = {Path(run.dir): run for run in batch_util._init_trial_runs(batch_run, flags)}
    ends: list[SystemExit] = []

    def before_start(directory: Path) -> bool:
        if not ends:
            progress.start(runs[directory])
        return not ends

    def has_ended(directory: Path, code: int) -> None:
        progress.has_ended(runs[directory])
        status = runs[directory].get("exit_status")
        try:
            batch_util.handle_trial_system_exit(
                SystemExit(code if status is None else status), batch_run, runs[directory]
            )
        except SystemExit as end:  # those that run go on to their end
            ends.append(end)

    waiting = [directory for directory, run in runs.items() if not _has_finished(run)]
    _restart_elsewhere(waiting, before_start, has_ended)
    if ends:
        raise ends[0]


def _restart_elsewhere(
    trials: Sequence[Path],
    before_start: Callable[[Path], bool],
    has_ended: Callable[[Path, int], None],
) -> None:
    """Restart trials with Guild, as many at once as the engine has places; SIGTERM stops all.

    Args:
        trials: Their directories.
        before_start: Called with the next one; if it returns False, none is started any more.
        has_ended: Called with one that has ended, and its exit status.
    """
    waiting, stopped = list(trials), list[int]()

    def start_next() -> Started | None:
        if not waiting or not before_start(waiting[0]):
            return None
        run = waiting.pop(0)
        return run, child_environment.start_again(run.name, preexec_fn=die_with_parent)

    def check() -> None:
        if stopped:
            raise _Terminated

    before = signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    die_with_parent()
    try:
        run_side_by_side(start_next, has_ended, elsewhere.Places(), check)
    except _Terminated:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


class _Terminated(Exception):
    """The batch was sent SIGTERM."""


def main() -> None:
    """Run the current batch."""
    from runcatalog.guild.compat import batch_util

    try:
        with _reporting() as progress:
            import_module(BATCH).main()
        if progress and progress[0].have_all_failed:
            failed = {"status": FAILED, "reason": "no trial finished", "result": None}
            write_json(Path(os.environ["RUN_DIR"]) / "result.json", failed)
            sys.exit(1)  # and Guild keeps the batch, which can be restarted
    except SearchError as error:
        note_refusal(Path(os.environ["RUN_DIR"]))
        sys.exit(f"batch: {error}")
    except SystemExit as end:
        batch_util.handle_system_exit(end)


if __name__ == "__main__":
    main()
