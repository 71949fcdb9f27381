"""Gaussian-process search against random search, equal numbers of trials, on two known surfaces.

Branin (2 dimensions) and Hartmann 6 are standard test functions (Dixon and Szego 1978, "The global
optimization problem: an introduction"); their minima are known, so the regret (best value minus
the minimum) is exact. Both methods are the project's own, called as in a Guild batch; seeds are
paired, and the interval is a bootstrap over seeds.
"""

import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

# Replaces this folder, whose file search.py would hide the package of that name.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import _report  # noqa: E402

from runcatalog.search.core import Observation, Settings, propose  # noqa: E402
from runcatalog.search.space import Dimension, Point  # noqa: E402

# Hartmann 6: its weights, widths and centres.
ALPHA = np.array([1.0, 1.2, 3.0, 3.2])
WIDTHS = np.array(
    [
        [10, 3, 17, 3.5, 1.7, 8],
        [0.05, 10, 17, 0.1, 8, 14],
        [3, 3.5, 1.7, 10, 17, 8],
        [17, 8, 0.05, 10, 0.1, 14],
    ]
)
CENTRES = 1e-4 * np.array(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
)


def branin(point: Point) -> float:
    """Branin's function; three equal minima."""
    x, y = point["x"], point["y"]
    parabola = y - 5.1 / (4 * np.pi**2) * x**2 + 5 / np.pi * x - 6
    return float(parabola**2 + 10 * (1 - 1 / (8 * np.pi)) * np.cos(x) + 10)


def hartmann6(point: Point) -> float:
    """Hartmann's function in six dimensions; one minimum among six valleys."""
    x = np.array([point[f"x{i}"] for i in range(6)])
    return float(-ALPHA @ np.exp(-np.sum(WIDTHS * (x - CENTRES) ** 2, axis=1)))


def levy4(point: Point) -> float:
    """Levy's function in four dimensions; many local minima, one minimum."""
    w = 1 + (np.array([point[f"x{i}"] for i in range(4)]) - 1) / 4
    inner = (w[:-1] - 1) ** 2 * (1 + 10 * np.sin(np.pi * w[:-1] + 1) ** 2)
    last = (w[-1] - 1) ** 2 * (1 + np.sin(2 * np.pi * w[-1]) ** 2)
    return float(np.sin(np.pi * w[0]) ** 2 + inner.sum() + last)


def ackley4(point: Point) -> float:
    """Ackley's function in four dimensions; a funnel with many local minima."""
    x = np.array([point[f"x{i}"] for i in range(4)])
    funnel = -20 * np.exp(-0.2 * np.sqrt(np.mean(x**2)))
    return float(funnel - np.exp(np.mean(np.cos(2 * np.pi * x))) + 20 + np.e)


@dataclass(frozen=True)
class Surface:
    """A function to minimise, its space, its minimum and the number of trials.

    `noise` is the standard deviation of a normal error in the values that a search gets.
    """

    name: str
    function: Callable[[Point], float]
    dimensions: list[Dimension]
    minimum: float
    trials: int
    noise: float = 0.0

    def measured(self, point: Point, seed: int, index: int) -> float:
        """Return the value of trial `index`, with its error."""
        error = np.random.default_rng([seed, index]).normal() if self.noise else 0.0
        return self.function(point) + self.noise * error


SURFACES = (
    Surface(
        "Branin",
        branin,
        [Dimension("x", "real", -5, 10), Dimension("y", "real", 0, 15)],
        0.397887,
        30,
    ),
    Surface(
        "Hartmann 6",
        hartmann6,
        [Dimension(f"x{i}", "real", 0, 1) for i in range(6)],
        -3.32237,
        40,
    ),
    Surface(
        "Levy 4",
        levy4,
        [Dimension(f"x{i}", "real", -10, 10) for i in range(4)],
        0.0,
        40,
    ),
    Surface(
        "Ackley 4 with noise",
        ackley4,
        [Dimension(f"x{i}", "real", -15, 30) for i in range(4)],
        0.0,
        40,
        noise=0.5,
    ),
)


def regret(surface: Surface, method: str, seed: int) -> float:
    """Return the best value minus the minimum."""
    history: list[Observation] = []
    for index in range(surface.trials):
        settings = Settings(method=method, seed=seed)
        point = propose(surface.dimensions, history, index, settings).point
        history.append(Observation(point, surface.function(point)))
    # The minima are printed with six digits.
    return max(min(observation.value for observation in history) - surface.minimum, 1e-6)


def compare(surface: Surface, seeds: int) -> dict:
    """One row of the result: medians over seeds and the ratio with its interval."""
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:  # regrets, not times
        regrets = [
            list(pool.map(partial(regret, surface, method), range(seeds)))
            for method in ("gp", "random")
        ]
    pairs = np.array(regrets).T
    ours, peer = np.median(pairs, axis=0)
    picks = np.random.default_rng(0).integers(seeds, size=(10_000, seeds))
    medians = np.median(pairs[picks], axis=1)
    low, high = np.quantile(medians[:, 0] / medians[:, 1], [0.025, 0.975])
    return {
        "what": f"{surface.name}: median regret after {surface.trials} trials, {seeds} seeds",
        "ours": float(ours),
        "peer": float(peer),
        "peer_name": "random search",
        "unit": "objective",
        "ratio": float(ours / peer),
        "interval": [float(low), float(high)],
        "wins": int((pairs[:, 0] < pairs[:, 1]).sum()),
        "target": 1.0,
        "target_is": "at most",
        "met": bool(ours <= peer),
        "repeats": seeds,
        **_report.where(),
    }


def main() -> None:
    """Measure, print the rows and write results/search.json."""
    parser = _report.parser(__doc__, repeats=None)
    parser.add_argument("--seeds", type=int, default=20, help="searches per method and surface")
    options = parser.parse_args()
    rows = [compare(surface, options.seeds) for surface in SURFACES]
    _report.report("search", rows, dry_run=options.dry_run)


if __name__ == "__main__":
    main()
