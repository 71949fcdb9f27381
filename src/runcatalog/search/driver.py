"""Runs a search: proposes a point, runs it as a trial of the Guild batch, looks at the result.

The batch is the run that this process is: `guild run OPERATION --optimizer gp …` makes one, and so
does `runcatalog.search.opt`.
"""

import contextlib
import fcntl
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from runcatalog.record.delivery.outcome import write_guild_result
from runcatalog.record.lifecycle.signals import die_with_parent
from runcatalog.search import trials
from runcatalog.search.core import Observation, Proposal, Settings, is_value, propose
from runcatalog.search.space import Dimension, Point, SearchError, from_flags
from runcatalog.search.trials import Objective, Trial

DEFAULT_TRIALS = 20
PRIOR_MODES = ("batch", "operation", "sourcecode")


class Stopped(Exception):
    """The search was asked to stop; carries the exit status."""


def main(run_search: Callable[[], None]) -> None:
    """Calls `run_search`; an error of the user's is one line and exit 1."""
    try:
        run_search()
    except SearchError as e:
        print(f"search: {e}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        _stopped(signal.SIGINT)
    except Stopped as e:
        _stopped(e.args[0])


def _stopped(signal_number: int) -> None:
    """Ends this process by the signal, so that Guild records the batch as terminated."""
    with contextlib.suppress(OSError):  # whoever read the output may be gone
        print("search: stopped; `guild run --restart` goes on with what is missing", flush=True)
    signal.signal(signal_number, signal.SIG_DFL)
    os.kill(os.getpid(), signal_number)


def current_batch() -> Any:
    """The batch that this process runs; raises SearchError when it runs none."""
    from runcatalog.guild.compat import batch_util

    batch_util.init_logging()
    try:
        return batch_util.batch_run()
    except batch_util.CurrentRunNotBatchError as e:
        raise SearchError(
            "this is an optimizer: name it in `guild run OPERATION --optimizer NAME FLAG=[LOW:HIGH]`"
        ) from e


def seed_of(batch: Any, seed: int | None) -> int:
    """The seed asked for, else the one that Guild gave to the batch."""
    return int(batch.get("random_seed") or 0) if seed is None else seed


def run(batch: Any, settings: Settings, prior_mode: str = "batch") -> dict[str, Any]:
    """Runs what is missing of a batch's trials and returns its result.

    Raises SearchError when the batch's flags, objective or settings are wrong, when another process
    is running the batch, and at the end when no trial succeeded.
    """
    started = time.time()
    # `mlflow run` names one MLflow run for the job: it is the search's, not its first trial's.
    os.environ.pop("MLFLOW_RUN_ID", None)
    if any(os.getenv(name) for name in ("PRINT_TRIALS", "PRINT_TRIALS_CMD", "SAVE_TRIALS")):
        raise SearchError("a search has no list of trials beforehand: each follows from the last")
    dimensions = from_flags(batch.batch_proto.get("flags") or {})
    objective = trials.objective_of(batch)
    count = int(batch.get("max_trials") or DEFAULT_TRIALS)
    with _alone(batch), _stopping() as stop:
        prior = trials.prior_observations(batch, dimensions, objective, prior_mode)
        _run_missing(batch, dimensions, objective, count, settings, prior, stop)
        done = trials.read(batch, objective)
    result = {"method": settings.method} | _result(done, objective, count)
    if importance := _importance(done, dimensions, objective):
        result["importance"] = importance
    why = "no trial succeeded"
    if not done:
        why = "no trial was run: earlier ones tried every point (prev-trials=batch leaves them out)"
        result["summary"] = why
    _write_result(batch, result, started, why)
    print(f"search: {result['summary']}", flush=True)
    if result["objective"] is None:
        reasons = [t.reason for t in done if t.reason]
        raise SearchError(why + (f"; the last one: {reasons[-1]}" if reasons else ""))
    return result


@contextlib.contextmanager
def _alone(batch: Any) -> Iterator[None]:
    """Holds the batch, so that a restart of a search that still runs does not run trials twice."""
    with open(batch.guild_path("search.lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SearchError(f"{batch.id[:8]} is being run by another process already") from None
        yield


@contextlib.contextmanager
def _stopping() -> Iterator[threading.Event]:
    """An event that SIGTERM sets; the signal also ends the trial that is running.

    The death of `guild run`, to which this process is a child, counts as SIGTERM.
    """
    import psutil

    stop = threading.Event()

    def end_trials() -> None:
        while True:  # until this process ends: a trial may be just about to start
            trials.stop(psutil.Process().children())
            time.sleep(0.1)

    def handler(_signal: int, _frame: object) -> None:
        if not stop.is_set():
            stop.set()
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
    """Runs interrupted trials on, then new ones until there are `count`."""
    from runcatalog.guild.compat import batch_util

    for trial in trials.read(batch, objective):
        if trial.state == "pending":
            print(f"search: trial {trial.number} was interrupted, running it on", flush=True)
            trials.stop_orphan(trial.run)
            trials.rewrite_attributes(batch, trial)
            _run_trial(trial.run, stop)
    while True:
        seen = trials.read(batch, objective)
        if seen and seen[-1].state == "failed" and batch_util.fail_on_trial_error(batch):
            raise SearchError(f"trial {seen[-1].number} failed: {seen[-1].reason}")
        told = trials.missing_objective_hint(batch, seen, objective)
        if told is not None:
            raise SearchError(told)
        if len(seen) >= count:
            return
        history = [*prior, *trials.observations(seen, objective)]
        number = seen[-1].number + 1 if seen else 1  # a trial may have been deleted
        proposal = propose(dimensions, history, number - 1, settings)
        if proposal is None:
            print("search: every point of the space has been tried", flush=True)
            return
        # Told before the trial, whose own output follows.
        print(f"search: trial {number} of {count}, {_why(proposal, objective)}", flush=True)
        trial_run = _new_trial(batch, dimensions, proposal, number, seen, objective, settings)
        _run_trial(trial_run, stop)


def _new_trial(
    batch: Any,
    dimensions: Sequence[Dimension],
    proposal: Proposal,
    number: int,
    seen: Sequence[Trial],
    objective: Objective,
    settings: Settings,
) -> Any:
    """A Guild run for the proposal, with the note that makes it a trial."""
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
        "told": [t.number for t in seen if t.state == "done"],
        "told_failed": [t.number for t in seen if t.state == "failed"],
    }
    trial_run.write_attr("search", {"kind": proposal.kind, "predicted": predicted})
    # Last: a trial without its note is one that was not completely set up.
    trials.save(Path(trial_run.dir) / "search.json", note)
    return trial_run


def _run_trial(trial_run: Any, stop: threading.Event) -> None:
    """Runs a trial to its end; whether it failed is read from the run afterwards."""
    from runcatalog.guild.compat import batch_util, exit_code
    from runcatalog.guild.compat import main as guild_main

    if stop.is_set():
        raise Stopped(signal.SIGTERM)
    # Guild leaves the last session's exit status in place until the next one ends. Without it, a
    # kill during this session is seen for what it is.
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
            # It did not get as far as a process (an unmet dependency): it failed all the same.
            trial_run.write_attr("exit_status", code or 1)
    if stop.is_set():
        raise Stopped(signal.SIGTERM)


def _why(proposal: Proposal, objective: Objective) -> str:
    text = f"{_text(proposal.point)} ({proposal.kind}"
    if proposal.mean is None:
        return text + ")"
    mean = objective.to_minimize(proposal.mean)
    return f"{text}, {objective.name} {mean:.4g} ± {proposal.std:.2g} predicted)"


def _text(point: Point) -> str:
    return ", ".join(f"{name} {value}" for name, value in point.items())


def _result(done: Sequence[Trial], objective: Objective, count: int) -> dict[str, Any]:
    """The batch's result, in the form that every result of the project has."""
    good = [t for t in done if t.value is not None]
    failed = sum(t.state == "failed" for t in done)
    metrics: dict[str, Any] = {"trials": len(done), "failed": failed}
    failures = f"; {failed} of {len(done)} trials failed" if failed else ""
    if not good:
        return {"objective": None, "summary": f"no best point{failures}", "metrics": metrics}
    best = min(good, key=lambda t: objective.to_minimize(t.value))
    name, value = _told(best, objective)
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
        "summary": f"best {name} {value:.4g} at {_text(best.point)} "
        f"(trial {best.number} of {count}){failures}",
        "metrics": metrics | {"best": value, "best_trial": best.number},
        "best": {"point": best.point, "run": best.run.id},
    }


def _importance(
    done: Sequence[Trial], dimensions: Sequence[Dimension], objective: Objective
) -> dict[str, Any] | None:
    """Importance of the searched flags; None where there is none, or it cannot be computed."""
    from runcatalog.search.importance import importance

    ended = [t for t in done if t.state != "pending"]
    values = [None if t.value is None else -objective.to_minimize(t.value) for t in ended]
    try:
        return importance(
            [t.point for t in ended], values, {d.name: d.to_json() for d in dimensions}
        )
    except Exception as e:  # the search itself has succeeded, whatever the fit meets
        print(f"search: no importance of the parameters: {e}", file=sys.stderr, flush=True)
        return None


def _told(trial: Trial, objective: Objective) -> tuple[str, float]:
    """The objective's name and value as the trial itself tells them, if it does.

    The scalar that Guild reads may have a general name, and events round it to 32 bits.
    """
    told = (trials.load(Path(trial.run.dir) / "result.json") or {}).get("result") or {}
    own = told.get("objective") or {}
    value = own.get("value")  # a text or nothing where the trial's own objective is no number
    if is_value(value) and math.isclose(value, trial.value, rel_tol=1e-6, abs_tol=1e-30):
        return own["name"], value
    return objective.name, trial.value


def _write_result(batch: Any, result: dict[str, Any], started: float, why: str) -> None:
    """Writes the batch's result; `why` says why it failed, if it did."""
    path = Path(batch.dir) / "result.json"
    before = trials.load(path) or {}
    ended = time.time()
    failed = result["objective"] is None
    content = {
        "status": "FAILED" if failed else "FINISHED",
        "reason": why if failed else None,
        "result": result,
        "started": batch.get("initialized", started * 1e6) / 1e6,  # Guild counts microseconds
        "ended": ended,
        "wall_seconds": before.get("wall_seconds", 0.0) + ended - started,
    }
    trials.save(path, content)
    write_guild_result(Path(batch.dir), result["summary"])
