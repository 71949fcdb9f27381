"""The engine over Dask.distributed: its scheduler knows the workers, its messages travel over mutual TLS.

Runs are no tasks of Dask: a task would queue behind a busy worker while others are free, and be repeated with old
arguments. A submitter asks the scheduler which workers there are, and one of them for a slot.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from runcatalog.cluster import certificates
from runcatalog.cluster.engine import (
    EngineError,
    Job,
    Look,
    MachineLost,
    Piece,
    Place,
    StaleAttempt,
    Wanted,
)
from runcatalog.cluster.engines import Needs, Settings
from runcatalog.record.errors import UserError

METRIC = "runcatalog"  # name under which the scheduler holds a worker's description
WAIT = "trial_wait"  # name under which the scheduler lets submitters wait for a slot
_ANSWER = 10.0  # s to wait for an answer of the scheduler
_CLAIM = 300.0  # s to wait for the check of a machine
_DIGESTS = 3600.0  # s to wait until a machine has read all files of a run
T = TypeVar("T")


def security(settings: Settings, name: str) -> Any:
    """Return Dask's settings of mutual TLS with the certificate of a name.

    Raises:
        UserError: Dask.distributed is not installed, or a certificate is missing.
    """
    authority, certificate, key = map(str, certificates.files_of(settings.tls, name))
    try:
        from distributed.security import Security
    except ImportError:
        raise UserError(
            "Dask.distributed is not installed: install runcatalog with its extra `cluster` (docs/cluster.md)"
        ) from None
    roles = ("client", "worker", "scheduler")
    own = {f"tls_{role}_cert": certificate for role in roles}
    own |= {f"tls_{role}_key": key for role in roles}
    return Security(
        require_encryption=True,
        tls_ca_file=authority,
        tls_min_version=ssl.TLSVersion.TLSv1_3,
        **own,
    )


class DaskEngine:
    """See `runcatalog.cluster.engine.Engine`.

    Args:
        settings: The entry of `engines.yml`.

    Raises:
        UserError: See `security`.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._connection = security(settings, settings.certificate).get_connection_args("client")
        from distributed.core import rpc

        self._rpc = rpc
        self._remotes: dict[str, Any] = {}
        self._loop = asyncio.new_event_loop()
        self._woken = asyncio.Event()

    def submit(self, job: Job) -> Place | str:
        """See `Engine.submit`."""
        fitting = [worker for worker in self.workers() if fits(worker, self._settings.needs)]
        if not fitting:
            return "no worker has what the run needs"
        free = [w for w in fitting if not w["drained"] and len(w["running"]) < w["slots"]]
        reason = "all workers that fit are busy or drained"
        for worker in sorted(free, key=lambda w: (len(w["running"]) / w["slots"], w["name"])):
            place = Place(worker["name"], worker["address"])
            try:
                if not (refused := self._start(place, job)):
                    return place
            except StaleAttempt:
                raise
            except EngineError as error:  # the next one
                refused = str(error)
            reason = f"{place.machine}: {refused}"
        return reason

    def wait(self, seconds: float) -> None:
        """See `Engine.wait`."""
        self._loop.run_until_complete(self._slot_or_wake(seconds))
        self._woken.clear()

    async def _slot_or_wake(self, seconds: float) -> None:
        waits = [asyncio.ensure_future(wait) for wait in (self._slot(seconds), self._woken.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    async def _slot(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        try:
            longest = {"longest": seconds}
            await self._calling(self._settings.scheduler, WAIT, seconds + _ANSWER, longest)
        except EngineError:  # the next attempt to submit says why
            await asyncio.sleep(max(0.0, until - time.monotonic()))

    def wake(self) -> None:
        """See `Engine.wake`."""
        self._loop.call_soon_threadsafe(self._woken.set)

    def _start(self, place: Place, job: Job) -> str:
        """Start an attempt on a worker; return why it refuses, "" where it does not."""
        settings = self._settings
        demands = asdict(settings.needs) | {"seconds": settings.health, "versions": job.versions}
        name = {"run": job.run, "attempt": job.attempt}
        self._call(place.address, "trial_ping", _ANSWER)  # a check takes longer than an answer
        answer = self._call(
            place.address, "trial_claim", _CLAIM, operation=job.operation, demands=demands,
            clock=time.time(), lease=settings.lease, **name,
        )  # fmt: skip
        if not answer:
            answer = self._call(
                place.address, "trial_start", _CLAIM, archive=job.archive, digest=job.digest,
                command=list(job.command), environment=job.environment, links=job.links, **name,
            )  # fmt: skip
        return _checked(answer).get("refused", "")

    def poll(
        self,
        place: Place,
        run: str,
        attempt: int,
        wanted: Sequence[Wanted] = (),
        printed: tuple[int, int] = (0, 0),
        digests: bool = False,
    ) -> Look:
        """See `Engine.poll`."""
        asked = [[os.fsencode(w.name), w.offset, w.check, w.stamp] for w in wanted]
        answer = _checked(
            self._patiently(
                place, "trial_poll", _DIGESTS if digests else 0.0, run=run, attempt=attempt,
                wanted=asked, printed=list(printed), digests=digests,
            )
        )  # fmt: skip
        found = {os.fsdecode(name): tuple(stamp) for name, stamp in answer.pop("files").items()}
        gone = [os.fsdecode(name) for name in answer.pop("gone")]
        pieces = [
            Piece(**each | {"name": os.fsdecode(each["name"]), "stamp": tuple(each["stamp"])})
            for each in answer.pop("pieces")
        ]
        sums = {os.fsdecode(name): value for name, value in answer.pop("digests").items()}
        return Look(**answer, files=found, gone=gone, pieces=pieces, digests=sums)

    def stop(self, place: Place, run: str, attempt: int, signal_number: int) -> None:
        """See `Engine.stop`."""
        _checked(
            self._patiently(place, "trial_stop", run=run, attempt=attempt, number=signal_number)
        )

    def release(self, place: Place, run: str, attempt: int) -> None:
        """See `Engine.release`."""
        self._call(place.address, "trial_release", _ANSWER, run=run, attempt=attempt)

    def drain(self, place: Place, reason: str) -> None:
        """Let a worker take no more attempts; with reason "" it takes them again.

        Raises:
            EngineError: The worker does not answer.
        """
        self._call(place.address, "trial_drain", _ANSWER, reason=reason)

    def end(self, place: Place) -> None:
        """End a worker; its attempts go on elsewhere.

        Raises:
            EngineError: The worker does not answer.
        """
        self._call(place.address, "trial_end", _ANSWER)

    def workers(self) -> list[dict[str, Any]]:
        """See `Engine.workers`; each is as it was at its last heartbeat, a second ago.

        Raises:
            EngineError: The scheduler does not answer.
        """
        try:
            identity = self._call(self._settings.scheduler, "identity", _ANSWER)
        except MachineLost as error:
            raise EngineError(f"the scheduler {self._settings.scheduler}: {error}") from None
        found = [w["metrics"].get(METRIC) for w in identity["workers"].values()]
        return sorted(filter(None, found), key=lambda worker: worker["name"])

    def end_scheduler(self) -> None:
        """End the scheduler."""
        with contextlib.suppress(MachineLost):
            self._call(self._settings.scheduler, "terminate", _ANSWER)

    def close(self) -> None:
        """Close the connections."""
        for address in list(self._remotes):
            self._loop.run_until_complete(self._forget(address))
        self._loop.close()

    async def _forget(self, address: str) -> None:
        """Close a connection; it needs a running loop for that."""
        self._remotes.pop(address).close_comms()
        await asyncio.sleep(0)

    def _patiently(self, place: Place, call: str, seconds: float = 0.0, **arguments: Any) -> Any:
        """Call a worker until it answers.

        Args:
            place: The worker.
            call: The function.
            seconds: How long its work may take, where that is longer than `lost_after`.
            **arguments: Its arguments.

        Raises:
            MachineLost: It has not answered for `lost_after` seconds.
        """
        until = time.monotonic() + self._settings.lost_after
        longest = max(seconds, self._settings.lost_after)
        while True:
            try:
                return self._call(place.address, call, longest, **arguments)
            except MachineLost:
                if time.monotonic() >= until:
                    raise
                time.sleep(min(0.5, self._settings.lost_after / 10))

    def _call(self, address: str, call: str, seconds: float, **arguments: Any) -> Any:
        """Call a function of a scheduler or worker.

        Raises:
            MachineLost: It does not answer within the time.
            EngineError: The call fails there.
        """
        return self._loop.run_until_complete(self._calling(address, call, seconds, arguments))

    async def _calling(
        self, address: str, call: str, seconds: float, arguments: dict[str, Any]
    ) -> Any:
        """See `_call`."""
        if address not in self._remotes:
            connecting = min(seconds, max(_ANSWER, self._settings.lost_after))
            self._remotes[address] = self._rpc(
                address, timeout=connecting, connection_args=self._connection
            )
        remote: Callable[..., Coroutine[Any, Any, Any]] = getattr(self._remotes[address], call)
        try:
            return await asyncio.wait_for(remote(**arguments), seconds)
        except asyncio.CancelledError:
            await self._forget(address)
            raise
        except (OSError, TimeoutError) as error:
            # A connection whose answer is still outstanding cannot be used again.
            await self._forget(address)
            text = " ".join(str(error).split()) or "no answer"
            if any(word in text for word in ("certificate", "handshake", "SSL")):
                text = f"TLS refused: {text}"
            raise MachineLost(text[:300]) from None
        except Exception as error:  # of the function, sent home
            text = " ".join(f"{type(error).__name__}: {error}".split())
            raise EngineError(f"{address}: {text[:300]}") from None


def fits(worker: dict[str, Any], needs: Needs) -> bool:
    """Return whether a worker of the inventory has what a run needs; what is free is checked by the worker."""
    return (
        (not needs.machine or worker["name"] == needs.machine)
        and len(worker["gpus"]) >= needs.gpu
        and (not needs.gpu_memory or worker["gpu_memory"] >= needs.gpu_memory)
        and worker["memory"] >= needs.memory
    )


def places(settings: Settings, own: Collection[str] | None = None) -> int:
    """Return how many attempts the workers that fit run at once; at least 1.

    Args:
        settings: The entry of `engines.yml`.
        own: Ids of runs; slots that others occupy do not count. None: all slots do.

    Raises:
        EngineError: The scheduler does not answer.
    """
    engine = DaskEngine(settings)
    try:
        fitting = [w for w in engine.workers() if fits(w, settings.needs) and not w["drained"]]
    finally:
        engine.close()
    slots = sum(worker["slots"] for worker in fitting)
    if own is not None:
        running = (each["run"] for worker in fitting for each in worker["running"])
        slots -= sum(run not in own for run in running)
    return max(1, slots)


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    if "stale" in answer:
        raise StaleAttempt(answer["stale"])
    if "lost" in answer:
        raise MachineLost(answer["lost"])
    if "failed" in answer:
        raise EngineError(answer["failed"])
    return answer
