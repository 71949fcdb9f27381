"""Loop of a search: propose a point, run it as a trial of the Guild batch, read the result.

The batch is the current Guild run, created by `guild run OPERATION --optimizer gp …` or by `runcatalog.search.opt`.
"""

import contextlib
import fcntl
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from runcatalog.record.lifecycle.signals import die_with_parent
from runcatalog.record.output.outcome import write_guild_result
from runcatalog.search import report, trials
from runcatalog.search.core import Observation, Proposal, Settings, is_value, propose
from runcatalog.search.space import Dimension, SearchError, from_flags
from runcatalog.search.trials import Objective, Trial

DEFAULT_TRIALS = 20
SHOWN_TRIALS = 5  # in the table at the end
POLL_SECONDS = 0.1  # between checks of parallel trials
PRIOR_MODES = ("batch", "operation", "sourcecode")


class Stopped(Exception):
    """The search was asked to stop; carries the exit status."""


def main(run_search: Callable[[], None]) -> None:
    """Call `run_search`; print a SearchError as one line and exit with 1."""
    try:
        run_search()
    except SearchError as e:
        print(f"search: {e}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        _end_by_signal(signal.SIGINT)
    except Stopped as e:
        _end_by_signal(e.args[0])


def _end_by_signal(signal_number: int) -> None:
    """End this process by the signal, so that Guild records the batch as terminated."""
    with contextlib.suppress(OSError):  # the reader of the output may have ended
        run = os.environ.get("RUN_ID", "RUN")[:8]
        print(
            f"search: stopped; to run the remaining trials: guild run --restart {run} -y",
            flush=True,
        )
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
    batch: Any, settings: Settings, prior_mode: str = "batch", parallel: int = 1
) -> dict[str, Any]:
    """Run the remaining trials of a batch, up to `parallel` at once; return its result.

    Raises SearchError if the batch's flags, objective or settings are invalid, if another process is running the
    batch, and at the end if no trial succeeded.
    """
    started = time.time()
    # `mlflow run` creates an MLflow run for the job; it belongs to the search, not to its first trial.
    os.environ.pop("MLFLOW_RUN_ID", None)
    if any(os.getenv(name) for name in ("PRINT_TRIALS", "PRINT_TRIALS_CMD", "SAVE_TRIALS")):
        raise SearchError(
            "a search cannot list its trials: every trial depends on the results before it"
        )
    if parallel < 1:
        raise SearchError(f"parallel must be at least 1, got {parallel}")
    dimensions = from_flags(batch.batch_proto.get("flags") or {})
    objective = trials.objective_of(batch)
    count = int(batch.get("max_trials") or DEFAULT_TRIALS)
    with _locked(batch), _stopping(parallel) as stop:
        prior = trials.prior_observations(batch, dimensions, objective, prior_mode)
        if parallel == 1:
            _run_missing(batch, dimensions, objective, count, settings, prior, stop)
        else:
            _run_parallel(batch, dimensions, objective, count, settings, prior, stop, parallel)
        done = trials.read(batch, objective)
    result = {"method": settings.method} | _result(done, objective, count)
    if importance := _importance(done, dimensions, objective):
        result["importance"] = importance
    reason = "no trial succeeded"
    if not done:
        reason = "no trial was run: earlier ones tried every point (use prev-trials=batch)"
        result["summary"] = reason
    _write_result(batch, result, started, reason)
    print(_report(batch, result["summary"], done, objective), flush=True)
    if result["objective"] is None:
        reasons = [t.reason for t in done if t.reason]
        raise SearchError(reason + (f"; the last one: {reasons[-1]}" if reasons else ""))
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
def _stopping(parallel: int) -> Iterator[threading.Event]:
    """Yield an event that SIGTERM sets; the signal also ends the running trial of a sequential search.

    The death of the parent process, `guild run`, counts as SIGTERM.
    """
    import psutil

    stop = threading.Event()

    def end_trials() -> None:
        while True:  # until this process ends, since another trial may be starting
            trials.stop(psutil.Process().children())
            time.sleep(0.1)

    def handler(_signal: int, _frame: object) -> None:
        if not stop.is_set():
            stop.set()
            if parallel == 1:
                threading.Thread(target=end_trials, daemon=True).start()

    before = signal.signal(signal.SIGTERM, handler)
    die_with_parent()
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before)


def _run_missing(
    batch: Any,
    dimensions: Sequence[Dimension],
    objective: Objective,
    count: int,
    settings: Settings,
    prior: Sequence[Observation],
    stop: threading.Event,
) -> None:
    """Continue interrupted trials, then run new ones until there are `count`."""
    from runcatalog.guild.compat import batch_util

    for trial in trials.read(batch, objective):
        if trial.state == "pending":
            _prepare_restart(batch, trial)
            _run_trial(trial.run, stop)
    while True:
        ended = trials.read(batch, objective)
        if ended and ended[-1].state == "failed" and batch_util.fail_on_trial_error(batch):
            raise SearchError(f"trial {ended[-1].number} failed: {ended[-1].reason}")
        hint = trials.missing_objective_hint(batch, ended, objective)
        if hint is not None:
            raise SearchError(hint)
        if len(ended) >= count:
            return
        trial_run = _next_trial(batch, dimensions, objective, count, settings, prior, ended)
        if trial_run is None:
            return
        _run_trial(trial_run, stop)


def _prepare_restart(batch: Any, trial: Trial) -> None:
    print(f"search: trial {trial.number} was interrupted, continuing it", flush=True)
    trials.stop_orphan(trial.run)
    trials.rewrite_attributes(batch, trial)


def _run_parallel(
    batch: Any,
    dimensions: Sequence[Dimension],
    objective: Objective,
    count: int,
    settings: Settings,
    prior: Sequence[Observation],
    stop: threading.Event,
    parallel: int,
) -> None:
    """Continue interrupted trials and run new ones, up to `parallel` at once, until there are `count`.

    A new trial starts as soon as another one ends; its proposal takes the points of those that run.
    """
    from runcatalog.guild.compat import batch_util

    waiting = [t for t in trials.read(batch, objective) if t.state == "pending"]
    running: dict[str, tuple[Any, subprocess.Popen[bytes]]] = {}
    exhausted = False
    try:
        while True:
            while waiting and len(running) < parallel:
                trial = waiting.pop(0)
                _prepare_restart(batch, trial)
                running[trial.run.id] = trial.run, _start_trial(trial.run)
            known = trials.read(batch, objective)
            failed = [t for t in known if t.state == "failed"]
            if failed and batch_util.fail_on_trial_error(batch):
                raise SearchError(f"trial {failed[0].number} failed: {failed[0].reason}")
            if hint := trials.missing_objective_hint(batch, known, objective):
                raise SearchError(hint)
            if len(known) < count and len(running) < parallel and not exhausted:
                trial_run = _next_trial(batch, dimensions, objective, count, settings, prior, known)
                if trial_run is not None:
                    running[trial_run.id] = trial_run, _start_trial(trial_run)
                    continue
                exhausted = True
            if not running:
                return
            _wait_for_any(running, stop)
    finally:
        _stop_all(running)


def _next_trial(
    batch: Any,
    dimensions: Sequence[Dimension],
    objective: Objective,
    count: int,
    settings: Settings,
    prior: Sequence[Observation],
    known: Sequence[Trial],
) -> Any:
    """Create the Guild run of the next trial and print what it tries; None if every point has been tried."""
    history = [*prior, *trials.observations(known, objective)]
    number = known[-1].number + 1 if known else 1  # not the count: a trial may have been deleted
    pending = [t.point for t in known if t.state == "pending"]
    proposal = propose(dimensions, history, number - 1, settings, pending)
    if proposal is None:
        print("search: every point of the space has been tried", flush=True)
        return None
    # Printed before the trial, whose own output follows.
    best = report.best_so_far(known, objective)
    print(f"search: trial {number} of {count}, {_describe(proposal, objective)}{best}", flush=True)
    return _new_trial(batch, dimensions, proposal, number, known, objective, settings)


def _start_trial(trial_run: Any) -> subprocess.Popen[bytes]:
    """Start a trial in a Guild process of its own: Guild runs one trial at a time in a process."""
    from runcatalog.guild import child_environment

    for attr in ("exit_status", "stopped"):
        Path(trial_run.guild_path("attrs", attr)).unlink(missing_ok=True)
    return subprocess.Popen(
        child_environment.restart(trial_run.id),
        cwd=os.environ.get("PROJECT_DIR", "."),
        env=child_environment.environment(),
        preexec_fn=die_with_parent,
    )


def _wait_for_any(
    running: dict[str, tuple[Any, subprocess.Popen[bytes]]], stop: threading.Event
) -> None:
    """Wait until a trial ends and remove it; raise Stopped if the search is stopped."""
    while True:
        if stop.is_set():
            raise Stopped(signal.SIGTERM)
        ended = [name for name, (_, process) in running.items() if process.poll() is not None]
        for name in ended:
            trial_run, process = running.pop(name)
            if trial_run.get("exit_status") is None:
                # A failure before the script was started, such as a missing dependency.
                trial_run.write_attr("exit_status", process.returncode or 1)
        if ended:
            return
        time.sleep(POLL_SECONDS)


def _stop_all(running: dict[str, tuple[Any, subprocess.Popen[bytes]]]) -> None:
    """Stop the scripts of trials and wait for their Guild processes, which record the end."""
    while alive := [r for r, process in running.values() if process.poll() is None]:
        # Repeated, since a script may not have been started yet.
        trials.stop([p for p in map(trials.process_of, alive) if p is not None])
        time.sleep(POLL_SECONDS)


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

    flags = batch.batch_proto.get("flags") or {}
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
    trials.save(Path(trial_run.dir) / "search.json", note)
    return trial_run


def _run_trial(trial_run: Any, stop: threading.Event) -> None:
    """Run a trial to its end; its result is read from the run afterwards."""
    from runcatalog.guild.compat import batch_util, exit_code
    from runcatalog.guild.compat import main as guild_main

    if stop.is_set():
        raise Stopped(signal.SIGTERM)
    # Guild keeps the exit status of the last session until the next session ends; it would hide a kill in between.
    for attr in ("exit_status", "stopped"):
        Path(trial_run.guild_path("attrs", attr)).unlink(missing_ok=True)
    try:
        batch_util.start_trial_run(trial_run)
    except SystemExit as e:
        message, code = guild_main.system_exit_params(e)
        if code == exit_code.KEYBOARD_INTERRUPT:
            raise KeyboardInterrupt from None
        if not stop.is_set():
            text = f": {message}" if message else ""
            print(f"search: trial ended with status {code}{text}", file=sys.stderr, flush=True)
        if trial_run.get("exit_status") is None:
            # A failure before the process was started, such as a missing dependency.
            trial_run.write_attr("exit_status", code or 1)
    if stop.is_set():
        raise Stopped(signal.SIGTERM)


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
    lines.append(f"  to show it: catalog row {batch.id[:8]}")
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
        f"(trial {best.number} of {count}){failures}",
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
    result = (trials.load(Path(trial.run.dir) / "result.json") or {}).get("result") or {}
    own = result.get("objective") or {}
    value = own.get("value")  # may be text or missing
    if is_value(value) and math.isclose(value, trial.value, rel_tol=1e-6, abs_tol=1e-30):
        return own["name"], value
    return objective.name, trial.value


def _write_result(batch: Any, result: dict[str, Any], started: float, reason: str) -> None:
    """Write the batch's result; `reason` is the reason of a failure, if it failed."""
    path = Path(batch.dir) / "result.json"
    before = trials.load(path) or {}
    ended = time.time()
    failed = result["objective"] is None
    content = {
        "status": "FAILED" if failed else "FINISHED",
        "reason": reason if failed else None,
        "result": result,
        "started": batch.get("initialized", started * 1e6) / 1e6,  # Guild counts microseconds
        "ended": ended,
        "wall_seconds": before.get("wall_seconds", 0.0) + ended - started,
    }
    trials.save(path, content)
    write_guild_result(Path(batch.dir), result["summary"])
