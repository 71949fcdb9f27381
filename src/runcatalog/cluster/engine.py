"""What a run needs of an engine: to be submitted, looked at and stopped. `dask_engine` fills it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Stamp = tuple[int, int, int]  # size [bytes], time of the last change [ns], inode


class EngineError(Exception):
    """The engine cannot be reached, or does not do what it is asked."""


class MachineLost(EngineError):
    """The machine of a run does not answer, or no longer knows the run."""


class StaleAttempt(EngineError):
    """A newer attempt of the same run exists: nothing of this one counts any more."""


@dataclass(frozen=True)
class Job:
    """An attempt of a run.

    Attributes:
        run: Id of the run, 32 hex digits.
        attempt: Its number, from 1; a machine refuses numbers that are not above those that it has seen.
        operation: Name of the operation, to be shown.
        archive: The run's directory and what belongs to it, see `runcatalog.cluster.files.pack`.
        digest: Of the archive.
        command: Command in the run's directory; paths begin with the placeholders of `runcatalog.cluster.paths`.
        environment: Environment variables, with the same placeholders.
        versions: Versions of packages by name, which the machine must have too.
        links: Links of the run's directory into other runs: RUN/PATH by name.
    """

    run: str
    attempt: int
    operation: str
    archive: bytes
    digest: str
    command: Sequence[str]
    environment: dict[str, str]
    versions: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Where an attempt runs: the machine's name and the address of its worker."""

    machine: str
    address: str


@dataclass(frozen=True)
class Wanted:
    """A part of a file that is asked for.

    Attributes:
        name: Path in the run's directory.
        offset: Bytes that are known.
        check: CRC-32 of the last known bytes, see `runcatalog.cluster.files`; 0 for offset 0.
        stamp: The file from which the known bytes are; None for offset 0 or a file that grows.
    """

    name: str
    offset: int = 0
    check: int = 0
    stamp: Stamp | None = None


@dataclass(frozen=True)
class Piece:
    """Bytes of a file.

    Attributes:
        name, offset: See `Wanted`; the offset is 0 where the known bytes are no longer those of the file.
        data: The bytes.
        stamp: The file's.
        complete: Whether the file ends with them.
    """

    name: str
    offset: int
    data: bytes
    stamp: Stamp
    complete: bool


@dataclass(frozen=True)
class Look:
    """What a look at a run shows.

    Attributes:
        code: Exit status; negative for a signal; None while it runs.
        reason: Why the machine ended it; "" where it ended by itself.
        planned: Whether that is because the machine is to be left, which is no loss.
        files: Files that differ from those that were shipped.
        gone: Shipped files that were removed.
        pieces: The parts that were asked for.
        output, errors: What it has printed since the given positions.
        digests: SHA-256 of the files, if asked for.
        paths: The machine's paths that may be in what it prints: {path: placeholder}.
    """

    code: int | None
    reason: str
    planned: bool
    files: dict[str, Stamp]
    gone: list[str]
    pieces: list[Piece]
    output: bytes
    errors: bytes
    digests: dict[str, str]
    paths: dict[str, str] = field(default_factory=dict)


class Engine(Protocol):
    """Machines that run jobs. Every method but `wait` and `wake` raises EngineError where it cannot do what it says."""

    def submit(self, job: Job) -> Place | str:
        """Start an attempt on a free machine; return where, or why no machine takes it now."""
        ...

    def wait(self, seconds: float) -> None:
        """Return when it is worth while to submit again: a machine has become free, or some seconds are over."""
        ...

    def wake(self) -> None:
        """Let `wait` return at once, or the next one; for a signal's handler."""
        ...

    def poll(
        self,
        place: Place,
        run: str,
        attempt: int,
        wanted: Sequence[Wanted] = (),
        printed: tuple[int, int] = (0, 0),
        digests: bool = False,
    ) -> Look:
        """Look at a run, which also renews its lease.

        Raises:
            MachineLost: No answer for `lost_after` seconds, or the machine does not know the attempt.
            StaleAttempt: The machine has a newer attempt.
            EngineError: The machine cannot read what the run has printed, or a file of it.
        """
        ...

    def stop(self, place: Place, run: str, attempt: int, signal_number: int) -> None:
        """Send a signal to a run."""
        ...

    def release(self, place: Place, run: str, attempt: int) -> None:
        """Let the machine remove an attempt that has ended and whose files are known."""
        ...

    def workers(self) -> list[dict[str, Any]]:
        """Return the inventory: a description of each worker, see `runcatalog.cluster.node.Node.describe`."""
        ...
