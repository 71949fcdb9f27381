"""A discrete-event model of a lab: submitters, scheduler, workers, MLflow's server, PostgreSQL, proposals, the catalog.

Each part is a machine with some cores and a queue; an operation occupies a core for the CPU seconds that were measured
(see _lab_costs.py). A trial is started by its submitter, placed with a list of the workers, started on a worker that
has been checked, looked at until it ends, and delivered to MLflow, which no trial waits for.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import simpy

_LOOKS = 2  # events in which the looks at a trial are combined
_FRESH = 60.0  # s for which a worker's check counts
_POLL_SHARE = 0.2  # of a run's time between two looks, at most `poll`
_HOUR = 3600.0


@dataclass(frozen=True)
class Linear:
    """Seconds that grow with a number: base + slope · number."""

    base: float
    slope: float

    def at(self, number: float) -> float:
        """Return the seconds."""
        return self.base + self.slope * number

    @classmethod
    def through(cls, numbers: Sequence[float], seconds: Sequence[float]) -> Linear:
        """Return the line through two measurements."""
        (low, high), (first, second) = numbers, seconds
        slope = max(0.0, (second - first) / (high - low))
        return cls(max(0.0, float(first - slope * low)), float(slope))


@dataclass(frozen=True)
class Cubic:
    """Seconds that grow with the third power of a number, as a Gaussian process's do: base + factor · number³."""

    base: float
    factor: float

    def at(self, number: float) -> float:
        """Return the seconds."""
        return self.base + self.factor * number**3

    @classmethod
    def through(cls, numbers: Sequence[float], seconds: Sequence[float]) -> Cubic:
        """Return the fit with the least squares of relative errors."""
        measured = np.asarray(seconds, float)
        terms = np.stack([np.ones_like(measured), np.asarray(numbers, float) ** 3], 1)
        base, factor = np.linalg.lstsq(terms / measured[:, None], np.ones_like(measured))[0]
        return cls(max(0.0, float(base)), max(0.0, float(factor)))


@dataclass(frozen=True)
class Costs:
    """What operations cost, in CPU seconds on one core unless said otherwise.

    Attributes:
        submitter_trial, worker_trial: A trial's start and end, on either side.
        submitter_poll, worker_poll: A look at a trial.
        heartbeat: A worker's heartbeat, of the scheduler.
        scheduler_list, submitter_list: A list of the workers, by their number.
        sender, server, database: Delivery of a run by its points: the submitter's sender, MLflow's server, PostgreSQL.
        proposal: A proposal of the Gaussian process, by the number of trials before it.
        catalog: A rendered catalog, its sync included, by the number of runs.
        memory: Of the submitter for a trial that runs [MB].
        check: A worker's check before a trial [s of time].
        poll: Between two looks [s of time].
    """

    submitter_trial: float = 0.0
    worker_trial: float = 0.0
    submitter_poll: float = 0.0
    worker_poll: float = 0.0
    heartbeat: float = 0.0
    scheduler_list: Linear = Linear(0.0, 0.0)
    submitter_list: Linear = Linear(0.0, 0.0)
    sender: Linear = Linear(0.0, 0.0)
    server: Linear = Linear(0.0, 0.0)
    database: Linear = Linear(0.0, 0.0)
    proposal: Cubic = Cubic(0.0, 0.0)
    catalog: Linear = Linear(0.0, 0.0)
    memory: float = 0.0
    check: float = 0.0
    poll: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the costs as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Costs:
        """Return the costs of `to_json`."""
        kinds = {name: type(getattr(cls(), name)) for name in content}
        made = {n: kinds[n](**v) if isinstance(v, dict) else v for n, v in content.items()}
        return cls(**made)


@dataclass(frozen=True)
class Scenario:
    """A lab and what it is given to do.

    Attributes:
        workers: Their number; each has a core for itself and runs one trial at once.
        trials: Their number, in equal shares of the submitters.
        seconds: Median time of a trial's script.
        spread: Standard deviation of the logarithm of that time.
        points: That a trial records; without any it is not delivered to MLflow.
        submitters: Machines that start trials, each with a batch or search of its own.
        cores: Of a submitter.
        server_cores, database_cores: Of MLflow's server and of PostgreSQL.
        searches: Whether submitters search, with a proposal before each trial.
        shared: Cores of the one machine that all parts are on; 0 where each part has its own.
    """

    workers: int
    trials: int
    seconds: float
    spread: float = 0.0
    points: int = 0
    submitters: int = 1
    cores: int = 2
    server_cores: int = 4
    database_cores: int = 4
    searches: bool = False
    shared: int = 0


@dataclass
class Outcome:
    """What a simulated lab did.

    Attributes:
        seconds: Until the last trial ended.
        delivered: Until the last run was in MLflow.
        busy: Share of its cores that each part used until then; `workers` is the share of time with a script.
        heartbeats: What heartbeats take of the scheduler's share.
        memory: Largest memory of a submitter [MB].
    """

    trials: int
    seconds: float
    delivered: float
    busy: dict[str, float]
    heartbeats: float
    memory: float

    @property
    def rate(self) -> float:
        """Trials a second."""
        return self.trials / self.seconds

    def capacities(self) -> dict[str, float]:
        """Return the trials a second at which each part but the workers would be busy all the time."""
        parts = {name: busy for name, busy in self.busy.items() if name != "workers"}
        # Heartbeats do not grow with the rate; what they leave, a list of workers takes for longer.
        parts["scheduler"] -= self.heartbeats
        rate = self.trials / self.delivered
        return {name: rate / busy for name, busy in parts.items() if busy > 0}


@dataclass
class Machine:
    """Cores with a queue: first come, first served, in turns of `quantum` seconds.

    Attributes:
        busy: Core seconds used.
        work_until: When the last work ended.
    """

    environment: simpy.Environment
    cores: int
    quantum: float = math.inf
    busy: float = 0.0
    work_until: float = 0.0
    _queue: simpy.Resource = field(init=False)

    def __post_init__(self) -> None:
        self._queue = simpy.Resource(self.environment, self.cores)

    def work(self, seconds: float) -> Generator[Any, Any, None]:
        """Occupy a core for so many seconds, after those that came before."""
        while seconds > 0:
            turn = min(seconds, self.quantum)
            with self._queue.request() as request:
                yield request
                yield self.environment.timeout(turn)
            self.busy += turn
            self.work_until = self.environment.now
            seconds -= turn


@dataclass
class _Worker:
    machine: Machine
    check: simpy.Event | None = None
    check_began: float = -math.inf


def simulate(scenario: Scenario, costs: Costs, seed: int = 0, heartbeats: float = 0.0) -> Outcome:
    """Return what a lab does.

    Args:
        scenario: The lab and its trials.
        costs: What operations cost.
        seed: Of the trials' times.
        heartbeats: That the scheduler gets from all workers in a second.

    Raises:
        ValueError: The heartbeats alone are more than the scheduler can take.
    """
    return _Lab(scenario, costs, seed, heartbeats).run()


class _Lab:
    def __init__(self, scenario: Scenario, costs: Costs, seed: int, heartbeats: float) -> None:
        self.scenario, self.costs = scenario, costs
        self.environment = environment = simpy.Environment()
        self.rng = np.random.default_rng(seed)
        # What the scheduler has left for lists of workers.
        self.heartbeat_load = heartbeats * costs.heartbeat
        if self.heartbeat_load >= 1:
            raise ValueError(f"heartbeats take {self.heartbeat_load:.2f} of the scheduler's core")
        whole = Machine(environment, scenario.shared, quantum=0.05) if scenario.shared else None

        def machine(cores: int) -> Machine:
            return whole or Machine(environment, cores)

        self.submitters = [machine(scenario.cores) for _ in range(scenario.submitters)]
        self.scheduler, self.server = machine(1), machine(scenario.server_cores)
        self.database = machine(scenario.database_cores)
        self.workers = simpy.Store(environment)
        self.workers.items = [_Worker(machine(1)) for _ in range(scenario.workers)]
        self.script_seconds, self.ended, self.running, self.most = 0.0, 0, 0, 0
        self.last_end = 0.0

    def run(self) -> Outcome:
        scenario = self.scenario
        for index, machine in enumerate(self.submitters):
            share = scenario.trials // scenario.submitters
            share += index < scenario.trials % scenario.submitters
            self.environment.process(self._submit(machine, share))
        if self.costs.catalog.slope:
            self.environment.process(self._render(self.submitters[0]))
        self.environment.run()
        parts = {
            "submitters": self.submitters,
            "scheduler": [self.scheduler],
            "MLflow": [self.server],
            "PostgreSQL": [self.database],
        }
        delivered = max([self.last_end, self.server.work_until, self.database.work_until])
        if scenario.points:  # a sender that waits for its turn is part of the delivery
            delivered = max([delivered, *(machine.work_until for machine in self.submitters)])
        busy = {
            name: sum(m.busy for m in machines) / (delivered * sum(m.cores for m in machines))
            for name, machines in parts.items()
        }
        busy["scheduler"] += self.heartbeat_load
        busy["workers"] = self.script_seconds / (scenario.workers * self.last_end)
        memory = self.costs.memory * self.most / scenario.submitters
        return Outcome(scenario.trials, self.last_end, delivered, busy, self.heartbeat_load, memory)

    def _submit(self, machine: Machine, trials: int) -> Generator[Any, Any, None]:
        """A batch or search: as many trials at once as the submitter's share of the workers."""
        places = max(1, self.scenario.workers // self.scenario.submitters)
        slots = simpy.Resource(self.environment, places)
        for index in range(trials):
            slot = slots.request()
            yield slot
            if self.scenario.searches:
                yield from machine.work(self.costs.proposal.at(index))
            self.environment.process(self._trial(machine, slots, slot))

    def _trial(
        self, machine: Machine, slots: simpy.Resource, slot: Any
    ) -> Generator[Any, Any, None]:
        costs, environment, count = self.costs, self.environment, self.scenario.workers
        self.running += 1
        self.most = max(self.most, self.running)
        yield from machine.work(costs.submitter_trial)
        yield from self.scheduler.work(costs.scheduler_list.at(count) / (1 - self.heartbeat_load))
        yield from machine.work(costs.submitter_list.at(count))
        worker = yield self.workers.get()
        if worker.check is None or environment.now - worker.check_began > _FRESH:
            self._begin_check(worker)
        yield worker.check
        yield from worker.machine.work(costs.worker_trial)
        seconds = self.scenario.seconds * float(
            np.exp(self.scenario.spread * self.rng.standard_normal())
        )
        pause = min(costs.poll, max(_POLL_SHARE * seconds, 1e-3))
        looks = seconds / pause / _LOOKS if pause else 0.0
        for _ in range(_LOOKS):
            yield environment.timeout(seconds / _LOOKS)
            environment.process(machine.work(looks * costs.submitter_poll))
            if self.scenario.shared:  # a core of its own is free for it
                environment.process(worker.machine.work(looks * costs.worker_poll))
        self.script_seconds += seconds
        self._begin_check(worker)
        yield environment.timeout(pause * float(self.rng.random()))  # until the submitter looks
        self.workers.put(worker)
        slots.release(slot)
        self.running -= 1
        self.ended += 1
        self.last_end = environment.now
        if points := self.scenario.points:
            environment.process(self._deliver(machine, points))

    def _begin_check(self, worker: _Worker) -> None:
        worker.check_began = self.environment.now
        worker.check = self.environment.process(self._check(worker.machine))

    def _check(self, machine: Machine) -> Generator[Any, Any, None]:
        """Matrix products for some seconds, however many those are."""
        end = self.environment.now + self.costs.check
        while (left := end - self.environment.now) > 0:
            yield from machine.work(min(left, machine.quantum))

    def _deliver(self, machine: Machine, points: int) -> Generator[Any, Any, None]:
        yield from machine.work(self.costs.sender.at(points))
        yield from self.server.work(self.costs.server.at(points))
        yield from self.database.work(self.costs.database.at(points))

    def _render(self, machine: Machine) -> Generator[Any, Any, None]:
        """The catalog, rendered once an hour."""
        while self.ended < self.scenario.trials:
            yield self.environment.timeout(_HOUR)
            yield from machine.work(self.costs.catalog.at(self.ended))
