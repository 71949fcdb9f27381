"""Loop of a search: propose a point, run it as a trial of the Guild batch, read the result.

The batch is the current Guild run, created by `guild run OPERATION --optimizer gp …` or by `runcatalog.search.opt`.
"""

import contextlib
import fcntl
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from runcatalog.guild import elsewhere
from runcatalog.guild.side_by_side import Started, run_side_by_side
from runcatalog.guild.side_by_side import stop as stop_processes
from runcatalog.record.config import note_refusal
from runcatalog.record.journal.files import write_json
from runcatalog.record.lifecycle.signals import die_with_parent
from runcatalog.record.output import messages
from runcatalog.record.output.outcome import write_guild_result
from runcatalog.search import report, trials
from runcatalog.search.core import Observation, Proposal, Settings, is_value, propose
from runcatalog.search.space import Dimension, SearchError, from_flags
from runcatalog.search.trials import Objective, Trial

DEFAULT_TRIALS = 20
SHOWN_TRIALS = 5  # in the table at the end
PRIOR_MODES = ("batch", "operation", "sourcecode")


class Stopped(Exception):
    """The search was asked to stop; carries the number of the signal."""


def main(run_search: Callable[[], None]) -> None:
    """Call `run_search`; print a SearchError as one line and exit with 1."""
    try:
        run_search()
    except SearchError as e:
        directory = Path(os.environ.get("RUN_DIR", ""))
        if os.environ.get("RUN_DIR") and not any(path.is_symlink() for path in directory.iterdir()):
            note_refusal(directory)  # no trial has begun
        print(f"search: {e}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        _end_by_signal(signal.SIGINT)
    except Stopped as e:
        _end_by_signal(e.args[0])


def _end_by_signal(signal_number: int) -> None:
    """End this process by the signal, so that Guild records the batch as terminated."""
    with contextlib.suppress(OSError):  # the reader of the output may have ended
        command = messages.restart(os.environ.get("RUN_ID", "RUN"))
        print(f"search: stopped; to run the remaining trials: {command}", flush=True)
    signal.signal(signal_number, signal.SIG_DFL)
    os.kill(os.getpid(), signal_number)


def current_batch() -> Any:
    """Return the batch of this process; raise SearchError without one."""
    from runcatalog.guild.compat import batch_util

    batch_util.init_logging()
    try:
        return batch_util.batch_run()
    except batch_util.CurrentRunNotBatchError as e:
        raise SearchError(
            "this is an optimizer: name it in `guild run OPERATION --optimizer NAME FLAG=[LOW:HIGH]`"
        ) from e


def seed_of(batch: Any, seed: int | None) -> int:
    """Return the given seed, else the random seed that Guild chose for the batch."""
    return int(batch.get("random_seed") or 0) if seed is None else seed


def run(
    batch: Any, settings: Settings, prior_mode: str = "batch", parallel: int | None = None
) -> dict[str, Any]:
    """Run the remaining trials of a batch, up to `parallel` at once; return its result.

    None in `parallel` means one here, and with $ENGINE as many as its free places take.

    Raises SearchError if the batch's flags, objective or settings are invalid, if another process is running the
    batch, and at the end if no trial succeeded.
    """
    # `mlflow run` creates an MLflow run for the job; it belongs to the search, not to its first trial.
    os.environ.pop("MLFLOW_RUN_ID", None)
    if any(os.getenv(name) for name in ("PRINT_TRIALS", "PRINT_TRIALS_CMD", "SAVE_TRIALS")):
        raise SearchError(
            "a search cannot list its trials: every trial depends on the results before it"
        )
    if parallel is not None and parallel < 1:
        raise SearchError(f"parallel must be at least 1, got {parallel}")
    dimensions = from_flags(trials.flags_of(batch))
    objective = trials.objective_of(batch)
    count = int(batch.get("max_trials") or DEFAULT_TRIALS)
    is_elsewhere = parallel is None and bool(os.environ.get(elsewhere.VARIABLE))
    side_by_side = is_elsewhere or (parallel or 1) > 1
    with _locked(batch), _stopping(side_by_side) as stop:
        prior = trials.prior_observations(batch, dimensions, objective, prior_mode)
        search = _Search(batch, dimensions, objective, count, settings, prior)
        if side_by_side:
            places = elsewhere.Places(free=True) if is_elsewhere else lambda _: parallel or 1
            _run_parallel(search, places, stop)
        else:
            while (trial_run := search.next_run()) is not None:
                _run_trial(trial_run, stop)
        done = trials.read(batch, objective, dimensions)
    result = {"method": settings.method} | _result(done, objective, count)
    if importance := _importance(done, dimensions, objective):
        result["importance"] = importance
    reason = "no trial succeeded"
    if failures := [t.reason for t in done if t.reason]:
        reason += f"; the last one: {failures[-1]}"
    if not done:
        reason = "no trial was run: earlier ones tried every point (use prev-trials=batch)"
        result["summary"] = reason
    _write_result(batch, result, reason)
    print(_report(batch, result["summary"], done, objective), flush=True)
    if result["objective"] is None:
        raise SearchError(reason)
    return result


@contextlib.contextmanager
def _locked(batch: Any) -> Iterator[None]:
    """Lock the batch, so that restarting a running search does not run trials twice."""
    with open(batch.guild_path("search.lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SearchError(f"{batch.id[:8]} is already being run by another process") from None
        yield


@contextlib.contextmanager
def _stopping(side_by_side: bool) -> Iterator[threading.Event]:
    """Yield an event that SIGTERM sets; the signal also ends the trial of a search that runs one at a time.

    The death of the parent process, `guild run`, counts as SIGTERM.
    """
    import psutil

    stop = threading.Event()

    def end_trials() -> None:
        while True:  # until this process ends, since another trial may be starting
            stop_processes(psutil.Process().children())
            time.sleep(0.1)

    def handler(_signal: int, _frame: object) -> None:
        if not stop.is_set():
            stop.set()
            if not side_by_side:
                threading.Thread(target=end_trials, daemon=True).start()

    before = signal.signal(signal.SIGTERM, handler)
    die_with_parent()
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before)


class _Search:
    """The trials of a batch that are still to be run."""

    def __init__(
        self,
        batch: Any,
        dimensions: Sequence[Dimension],
        objective: Objective,
        count: int,
        settings: Settings,
        prior: Sequence[Observation],
    ) -> None:
        self._batch, self._dimensions, self._objective = batch, dimensions, objective
        self._count, self._settings, self._prior = count, settings, prior
        known = trials.read(batch, objective, dimensions)
        self._interrupted = [t for t in known if t.state == "pending"]
        self._exhausted = False

    def next_run(self) -> Any:
        """Return the Guild run of an interrupted trial, else of a new one; None without any.

        Raises SearchError if the results so far say that there shall be none.
        """
        from runcatalog.guild.compat import batch_util

        if self._interrupted:
            trial = self._interrupted.pop(0)
            print(f"search: trial {trial.number} was interrupted, continuing it", flush=True)
            trials.stop_orphan(trial.run)
            trials.rewrite_attributes(self._batch, trial)
            return trial.run
        known = trials.read(self._batch, self._objective, self._dimensions)
        failed = [t for t in known if t.state == "failed"]
        if failed and batch_util.fail_on_trial_error(self._batch):
            raise SearchError(f"trial {failed[0].number} failed: {failed[0].reason}")
        if hint := trials.missing_objective_hint(self._batch, known, self._objective):
            raise SearchError(hint)
        if len(known) >= self._count or self._exhausted:
            return None
        return self._new_run(known)

    def _new_run(self, known: Sequence[Trial]) -> Any:
        """Create the Guild run of the next trial and print what it tries; None if every point has been tried."""
        objective = self._objective
        history = [*self._prior, *trials.observations(known, objective)]
        number = known[-1].number + 1 if known else 1
        pending = [t.point for t in known if t.state == "pending"]
        proposal = propose(self._dimensions, history, number - 1, self._settings, pending)
        if proposal is None:
            self._exhausted = True
            print("search: every point of the space has been tried", flush=True)
            return None
        # Printed before the trial, whose own output follows.
        best = report.best_so_far(known, objective)
        print(
            f"search: trial {number} of {self._count + _deleted(known)}, "
            f"{_describe(proposal, objective)}{best}",
            flush=True,
        )
        return _new_trial(
            self._batch, self._dimensions, proposal, number, known, objective, self._settings
        )


def _run_parallel(
    search: _Search, places: Callable[[Collection[str]], int], stop: threading.Event
) -> None:
    """Run the trials of a search, several at once; a new one starts as soon as another one ends.

    Its proposal takes the points of those that run.
    """
    from runcatalog.guild import child_environment

    runs: dict[Path, Any] = {}

    def start_next() -> Started | None:
        trial_run = search.next_run()
        if trial_run is None:
            return None
        directory = Path(trial_run.dir)
        runs[directory] = trial_run
        _forget_end(trial_run)
        return directory, child_environment.start_again(directory.name, preexec_fn=die_with_parent)

    def has_ended(run: Path, code: int) -> None:
        _note_end(runs[run], code)

    def check() -> None:
        if stop.is_set():
            raise Stopped(signal.SIGTERM)

    run_side_by_side(start_next, has_ended, places, check)


def _forget_end(trial_run: Any) -> None:
    """Remove the exit status of the last session, which Guild keeps until the next one ends: it would hide a kill."""
    for attr in ("exit_status", "stopped"):
        Path(trial_run.guild_path("attrs", attr)).unlink(missing_ok=True)


def _note_end(trial_run: Any, code: int | None) -> None:
    """Note the exit status of a trial that failed before its script was started, as without a dependency."""
    if trial_run.get("exit_status") is None:
        trial_run.write_attr("exit_status", code or 1)


def _new_trial(
    batch: Any,
    dimensions: Sequence[Dimension],
    proposal: Proposal,
    number: int,
    ended: Sequence[Trial],
    objective: Objective,
    settings: Settings,
) -> Any:
    """Create the Guild run of a proposal, with the note `search.json` that identifies it as a trial."""
    from runcatalog.guild.compat import batch_util

    flags = trials.flags_of(batch)
    trial_run = batch_util.init_trial_run(batch, {**flags, **proposal.point})
    predicted = None
    if proposal.mean is not None:
        mean = objective.to_minimize(proposal.mean)
        predicted = {"mean": mean, "std": proposal.std, "acquisition": proposal.acquisition}
    note = {
        "batch": batch.id,
        "trial": number,
        "kind": proposal.kind,
        "method": settings.method,
        "point": proposal.point,
        "space": {d.name: d.to_json() for d in dimensions},
        "objective": {"name": objective.name, "goal": objective.goal},
        "predicted": predicted,
        "kernel": proposal.kernel,
        "hyperparameters": proposal.hyperparameters,
        "acq_func": settings.acq_func if proposal.kind == "gp" else None,
        "seed": settings.seed,
        "random_state": proposal.random_state,
        "told": [t.number for t in ended if t.state == "done"],
        "told_failed": [t.number for t in ended if t.state == "failed"],
        "pending": [t.number for t in ended if t.state == "pending"],
    }
    trial_run.write_attr("search", {"kind": proposal.kind, "predicted": predicted})
    # Last, since a trial without its note counts as not completely set up.
    write_json(Path(trial_run.dir) / "search.json", note)
    return trial_run


def _run_trial(trial_run: Any, stop: threading.Event) -> None:
    """Run a trial to its end; its result is read from the run afterwards."""
    from runcatalog.guild.compat import batch_util, exit_code
    from runcatalog.guild.compat import main as guild_main

    if stop.is_set():
        raise Stopped(signal.SIGTERM)
    _forget_end(trial_run)
    try:
        batch_util.start_trial_run(trial_run)
    except SystemExit as e:
        message, code = guild_main.system_exit_params(e)
        if code == exit_code.KEYBOARD_INTERRUPT:
            raise KeyboardInterrupt from None
        if not stop.is_set():
            text = f": {message}" if message else ""
            print(f"search: trial ended with status {code}{text}", file=sys.stderr, flush=True)
        _note_end(trial_run, code)
    if stop.is_set():
        raise Stopped(signal.SIGTERM)


def _deleted(known: Sequence[Trial]) -> int:
    """Return how many trials of a search were deleted; their numbers are not used again."""
    return known[-1].number - len(known) if known else 0


def _describe(proposal: Proposal, objective: Objective) -> str:
    text = f"{report.flags_text(proposal.point)} ({proposal.kind}"
    if proposal.mean is None:
        return text + ")"
    mean = objective.to_minimize(proposal.mean)
    return f"{text}, {objective.name} {mean:.4g} ± {proposal.std:.2g} predicted)"


def _report(batch: Any, summary: str, done: Sequence[Trial], objective: Objective) -> str:
    """Return the lines at the end of a search: its result, the best trials, and the command that shows it."""
    lines = [f"search: {summary}"]
    if len(done) > 1:
        lines += report.table(done, objective, SHOWN_TRIALS)
    lines.append(f"  to show it: catalog sync && catalog row {batch.id[:8]}")
    return "\n".join(lines)


def _result(done: Sequence[Trial], objective: Objective, count: int) -> dict[str, Any]:
    """Return the batch's result, in the format of other results."""
    good = report.ranked(done, objective)
    failed = sum(t.state == "failed" for t in done)
    metrics: dict[str, Any] = {"trials": len(done), "failed": failed}
    failures = f"; {failed} of {len(done)} trials failed" if failed else ""
    if not good:
        return {"objective": None, "summary": f"no best point{failures}", "metrics": metrics}
    best = good[0]
    name, value = _exact_value(best, objective)
    return {
        "objective": {
            "name": name,
            "value": value,
            "kind": "mean",
            "count": len(good),
            "goal": objective.goal,
            "at": best.number,
            "axis": "trial",
        },
        "summary": f"best {name} {value:.4g} at {report.flags_text(best.point)} "
        f"(trial {best.number} of {count + _deleted(done)}){failures}",
        "metrics": metrics | {"best": value, "best_trial": best.number},
        "best": {"point": best.point, "run": best.run.id},
    }


def _importance(
    done: Sequence[Trial], dimensions: Sequence[Dimension], objective: Objective
) -> dict[str, Any] | None:
    """Return the importance of the searched flags; None if it is undefined or cannot be computed."""
    from runcatalog.search.importance import importance

    ended = [t for t in done if t.state != "pending"]
    values = [None if t.value is None else -objective.to_minimize(t.value) for t in ended]
    try:
        return importance(
            [t.point for t in ended], values, {d.name: d.to_json() for d in dimensions}
        )
    except Exception as e:  # an error of the fit must not fail the search
        print(f"search: no importance of the parameters: {e}", file=sys.stderr, flush=True)
        return None


def _exact_value(trial: Trial, objective: Objective) -> tuple[str, float]:
    """Return name and value of the objective in the trial's result if it has one, else of Guild's scalar.

    Guild's scalar may have a generic name, and its events are rounded to 32 bits.
    """
    assert trial.value is not None
    own = trials.own_objective(trial.run)
    value: Any = own.get("value")  # may be text or missing
    if is_value(value) and math.isclose(value, trial.value, rel_tol=1e-6, abs_tol=1e-30):
        return own["name"], value
    return objective.name, trial.value


def _write_result(batch: Any, result: dict[str, Any], reason: str) -> None:
    """Write the batch's result; `reason` is the reason of a failure, if it failed."""
    failed = result["objective"] is None
    content = {
        "status": "FAILED" if failed else "FINISHED",
        "reason": reason if failed else None,
        "result": result,
    }
    write_json(Path(batch.dir) / "result.json", content)
    write_guild_result(Path(batch.dir), result["summary"])
