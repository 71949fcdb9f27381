"""The model of a lab against queues whose throughput and waiting times are known."""

import importlib.util
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

simpy = pytest.importorskip("simpy")

PATH = Path(__file__).parents[2] / "benchmarks/_lab_simulation.py"
SPEC = importlib.util.spec_from_file_location("lab_simulation", PATH)
model = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = model  # dataclasses look there
SPEC.loader.exec_module(model)

FREE = model.Costs()


def erlang_c(servers, load):
    """The probability that a customer of M/M/c waits; `load` is arrival rate over service rate."""
    last = load**servers / math.factorial(servers) * servers / (servers - load)
    return last / (sum(load**k / math.factorial(k) for k in range(servers)) + last)


@pytest.mark.parametrize(("servers", "load"), [(1, 0.7), (3, 2.4)])
def test_the_wait_for_a_machine_is_that_of_m_m_c(servers, load):
    environment, rng, customers = simpy.Environment(), np.random.default_rng(1), 60_000
    machine = model.Machine(environment, servers)
    times = []

    def customer(seconds):
        begin = environment.now
        yield from machine.work(seconds)
        times.append(environment.now - begin - seconds)

    def arrive():
        for gap, seconds in rng.exponential((1 / load, 1.0), (customers, 2)):
            yield environment.timeout(gap)
            environment.process(customer(seconds))

    environment.process(arrive())
    environment.run()
    expected = erlang_c(servers, load) / (servers - load)  # service takes 1 s in the mean
    assert np.mean(times) == pytest.approx(expected, rel=0.06)
    assert machine.busy / environment.now / servers == pytest.approx(load / servers, rel=0.02)


def test_short_turns_share_a_core_equally():
    environment, ends = simpy.Environment(), []
    machine = model.Machine(environment, 1, quantum=0.01)

    def job(seconds):
        yield from machine.work(seconds)
        ends.append(environment.now)

    for seconds in (1.0, 2.0, 3.0):
        environment.process(job(seconds))
    environment.run()
    # Each gets a third until the first has had its second, and so on.
    assert ends == pytest.approx([3.0, 5.0, 6.0], abs=0.03)


def test_without_costs_trials_take_their_time_alone():
    outcome = model.simulate(model.Scenario(workers=4, trials=18, seconds=10.0), FREE)
    assert outcome.seconds == pytest.approx(50.0)  # five rounds of at most four
    assert outcome.busy["workers"] == pytest.approx(18 * 10 / (4 * 50))


@pytest.mark.parametrize(
    ("part", "costs", "expected"),
    [
        ("submitters", {"submitter_trial": 2.0}, 1.0),  # two cores
        ("scheduler", {"scheduler_list": model.Linear(0.5, 0.01)}, 1 / (0.5 + 0.01 * 100)),
    ],
)
def test_a_part_that_is_too_slow_sets_the_rate(part, costs, expected):
    scenario = model.Scenario(workers=100, trials=2000, seconds=10.0)
    outcome = model.simulate(scenario, replace(FREE, **costs))
    assert outcome.rate == pytest.approx(expected, rel=0.02)
    assert outcome.capacities()[part] == pytest.approx(expected, rel=0.02)
    assert outcome.busy[part] > 0.97


def test_no_trial_waits_for_mlflow_whose_backlog_grows():
    scenario = model.Scenario(workers=10, trials=1000, seconds=10.0, points=100, server_cores=1)
    outcome = model.simulate(scenario, replace(FREE, server=model.Linear(1.0, 0.01)))
    assert outcome.seconds == pytest.approx(1000.0)
    assert outcome.delivered == pytest.approx(10 + 2 * 1000, rel=0.01)  # 2 s a run on one core
    assert outcome.capacities()["MLflow"] == pytest.approx(0.5, rel=0.01)


def test_a_search_waits_for_its_proposals():
    costs = replace(FREE, proposal=model.Cubic(0.1, 0.001))
    outcome = model.simulate(
        model.Scenario(workers=4, trials=40, seconds=0.1, searches=True), costs
    )
    assert outcome.seconds == pytest.approx(
        sum(0.1 + 0.001 * n**3 for n in range(40)) + 0.1, rel=0.01
    )


def test_heartbeats_leave_less_of_the_scheduler():
    costs = replace(FREE, heartbeat=0.005, scheduler_list=model.Linear(1.0, 0.0))
    scenario = model.Scenario(workers=50, trials=500, seconds=10.0)
    outcome = model.simulate(scenario, costs, heartbeats=100)
    assert outcome.rate == pytest.approx(0.5, rel=0.05)
    assert outcome.capacities()["scheduler"] == pytest.approx(0.5, rel=0.05)
    with pytest.raises(ValueError, match="heartbeats"):
        model.simulate(scenario, costs, heartbeats=200)


def test_a_check_runs_while_the_next_trial_is_prepared():
    costs = replace(FREE, check=2.0, submitter_trial=1.5)
    outcome = model.simulate(model.Scenario(workers=1, trials=10, seconds=5.0), costs)
    assert outcome.seconds == pytest.approx(1.5 + 10 * (2.0 + 5.0))  # longer than the 1.5 s


def test_a_proposals_cost_is_fitted():
    numbers = [50, 100, 200, 400]
    fitted = model.Cubic.through(numbers, [2.0 + 1e-7 * n**3 for n in numbers])
    assert (fitted.base, fitted.factor) == pytest.approx((2.0, 1e-7))


def test_costs_are_restored_from_json():
    costs = model.Costs(heartbeat=0.1, server=model.Linear(1, 2), proposal=model.Cubic(3, 4))
    assert model.Costs.from_json(costs.to_json()) == costs
