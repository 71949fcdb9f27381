"""What to try next: a function of the space, the results so far and the seed, and nothing else.

Nothing is kept between two proposals, so a search that was killed and restarted proposes what it
would have proposed uninterrupted. Guild does not appear here.

The surrogate is a Gaussian process with a Matern 5/2 kernel, one length scale per dimension, and
white noise; the next point maximises expected improvement (Jones, Schonlau and Welch 1998,
"Efficient global optimization of expensive black-box functions", section 4). Fit and acquisition
are scikit-optimize's.
"""

import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runcatalog.search.space import Dimension, Point, SearchError, key, size

METHODS = ("gp", "random")
ACQUISITIONS = ("EI", "LCB", "PI")

# Bounds of the fitted length scales, in units of a dimension's normalised range.
LENGTH_SCALES = (0.01, 100.0)

# Draws before a discrete space is listed in full to find what is left of it.
MAX_DRAWS = 200
# Part of a range within which two values are one: near the best point the process is so sure of
# itself that expected improvement, however small, is largest right beside it, again and again.
RESOLUTION = 1e-3
# Points of a discrete space, or drawn from a continuous one, among which the acquisition function
# chooses when the optimum proposed is a point that has been tried already.
MAX_CANDIDATES = 4096


@dataclass(frozen=True)
class Settings:
    """How to search.

    `random_starts`: initial points before the first fit, from a Sobol sequence. `acq_func`: EI, LCB
    or PI. `xi`: improvement asked for by EI and PI, in standard deviations of the objective's
    values so far; 0 is the expected improvement of the paper. `kappa`: weight of the predicted
    standard deviation in LCB.
    """

    method: str = "gp"
    random_starts: int = 4
    acq_func: str = "EI"
    xi: float = 0.0
    kappa: float = 1.96
    seed: int = 0

    def __post_init__(self) -> None:
        _check("method", self.method in METHODS, f"one of {', '.join(METHODS)}", self.method)
        _check("random-starts", self.random_starts >= 1, "at least 1", self.random_starts)
        acquisitions = ", ".join(ACQUISITIONS)
        _check("acq-func", self.acq_func in ACQUISITIONS, f"one of {acquisitions}", self.acq_func)
        _check("xi", self.xi >= 0, "0 or more", self.xi)
        _check("kappa", self.kappa >= 0, "0 or more", self.kappa)
        _check("seed", self.seed >= 0, "0 or more", self.seed)


@dataclass(frozen=True)
class Observation:
    """A finished trial: its point and the value to minimise, None where the trial failed."""

    point: Point
    value: float | None


@dataclass(frozen=True)
class Proposal:
    """A point to try and why.

    `kind`: "initial", "gp" or "random". `mean` and `std` are the prediction at the point in the
    unit of the value to minimise, `kernel` and `hyperparameters` the fit that made it (length
    scales are in units of the dimension's normalised range, amplitude and noise are variances in
    units of the standardised value's variance); all None unless `kind` is "gp".
    """

    point: Point
    kind: str
    random_state: int
    mean: float | None = None
    std: float | None = None
    kernel: str | None = None
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    acquisition: float | None = None


def propose(
    dimensions: Sequence[Dimension],
    history: Sequence[Observation],
    index: int,
    settings: Settings,
) -> Proposal | None:
    """The point for trial `index` (from 0); None when every point of the space has been tried.

    A failed trial counts as a point as bad as the worst that did not fail. Left out, it would
    leave the process free to come back to the same spot; a fixed large penalty would be
    an outlier that flattens everything else.
    """
    tried = {key(dimensions, seen.point) for seen in history}
    if len(tried) >= size(dimensions):
        return None
    random_state = _random_state(settings.seed, index)
    values = [seen.value for seen in history if seen.value is not None]
    if settings.method == "random":
        return Proposal(_random_point(dimensions, index, settings, tried), "random", random_state)
    if index < settings.random_starts or len(values) < 2:
        return Proposal(_initial_point(dimensions, index, settings, tried), "initial", random_state)
    return _gp_proposal(dimensions, history, settings, random_state, tried)


def _check(name: str, good: bool, wanted: str, got: object) -> None:
    if not good:
        raise SearchError(f"{name} must be {wanted}, got {got}")


def _random_state(seed: int, index: int) -> int:
    """scikit-optimize's random_state for a trial; it takes 32 bits."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1)[0])


def _initial_point(
    dimensions: Sequence[Dimension], index: int, settings: Settings, tried: set
) -> Point:
    """Point `index` of a scrambled Sobol sequence, which covers the space better than chance."""
    from scipy.stats import qmc

    sampler = qmc.Sobol(
        len(dimensions), rng=np.random.default_rng([settings.seed, len(dimensions)])
    )
    # Whole powers of two: a Sobol sequence is balanced only then.
    point = _at(dimensions, sampler.random_base2(index.bit_length())[index])
    if index == 0:
        point |= {d.name: d.rounded(d.first) for d in dimensions if d.first is not None}
    if key(dimensions, point) not in tried:
        return point
    return _random_point(dimensions, index, settings, tried)


def _random_point(
    dimensions: Sequence[Dimension], index: int, settings: Settings, tried: set
) -> Point:
    """An untried point, uniform on each dimension's own scale."""
    for point in _draws(dimensions, settings.seed, index, MAX_DRAWS):
        if key(dimensions, point) not in tried:
            return point
    rng = np.random.default_rng([settings.seed, index, 1])
    left = [point for point in _all(dimensions) if key(dimensions, point) not in tried]
    return left[rng.integers(len(left))]


def _at(dimensions: Sequence[Dimension], fractions: np.ndarray) -> Point:
    return {d.name: d.at(float(f)) for d, f in zip(dimensions, fractions, strict=True)}


def _draws(dimensions: Sequence[Dimension], seed: int, index: int, count: int) -> Iterator[Point]:
    rng = np.random.default_rng([seed, index])
    for _ in range(count):
        yield _at(dimensions, rng.random(len(dimensions)))


def _all(dimensions: Sequence[Dimension]) -> Iterator[Point]:
    """Every point of a discrete space."""
    values = [
        d.choices if d.kind == "choice" else range(int(d.low), int(d.high) + 1) for d in dimensions
    ]
    names = [d.name for d in dimensions]
    return (dict(zip(names, row, strict=True)) for row in itertools.product(*values))


class _Surrogate:
    """scikit-optimize's optimizer, told the history; values standardised, failures as the worst."""

    def __init__(
        self,
        dimensions: Sequence[Dimension],
        history: Sequence[Observation],
        settings: Settings,
        random_state: int,
    ) -> None:
        import skopt

        self.dimensions = dimensions
        self.settings = settings
        good = np.array([seen.value for seen in history if seen.value is not None])
        self.shift = float(good.mean())
        self.scale = float(good.std()) or 1.0
        worst = float(good.max())
        values = [worst if seen.value is None else seen.value for seen in history]
        self.values = [(value - self.shift) / self.scale for value in values]
        space = [_skopt_dimension(dimension) for dimension in dimensions]
        self.optimizer = skopt.Optimizer(
            space,
            base_estimator=_estimator(space, random_state),
            n_initial_points=0,
            acq_func=settings.acq_func,
            acq_func_kwargs={"xi": settings.xi, "kappa": settings.kappa},
            acq_optimizer="lbfgs",
            random_state=random_state,
        )
        self.optimizer.tell([self.encode(seen.point) for seen in history], self.values)
        self.model = self.optimizer.models[-1]

    def encode(self, point: Point) -> list[Any]:
        """The point for scikit-optimize, choices by their number."""
        return [
            d.choices.index(point[d.name]) if d.kind == "choice" else d.rounded(point[d.name])
            for d in self.dimensions
        ]

    def ask(self) -> Point:
        """The point that maximises the acquisition function."""
        encoded = self.optimizer.ask()
        return {
            d.name: d.choices[int(x)] if d.kind == "choice" else d.rounded(x)
            for d, x in zip(self.dimensions, encoded, strict=True)
        }

    def predict(self, points: Sequence[Point]) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation at each point, in standardised units."""
        rows = self.optimizer.space.transform([self.encode(point) for point in points])
        return self.model.predict(rows, return_std=True)

    def acquisition(self, points: Sequence[Point]) -> np.ndarray:
        """The acquisition function at each point; larger is better."""
        from scipy.stats import norm

        mean, std = self.predict(points)
        if self.settings.acq_func == "LCB":
            return self.settings.kappa * std - mean
        gain = min(self.values) - mean - self.settings.xi
        z = gain / np.maximum(std, 1e-12)
        if self.settings.acq_func == "PI":
            return norm.cdf(z)
        return gain * norm.cdf(z) + std * norm.pdf(z)

    def hyperparameters(self) -> tuple[str, dict[str, Any]]:
        """The fitted kernel as text, and its numbers by name."""
        from sklearn.base import clone

        kernel = clone(self.model.kernel_)
        # scikit-optimize zeroes the noise after the fit, so that predictions are of the mean.
        kernel.set_params(k2__noise_level=self.model.noise_)
        scales = iter(np.atleast_1d(kernel.k1.k2.length_scale).tolist())
        by_name: dict[str, Any] = {}
        for dimension, skopt_dimension in zip(
            self.dimensions, self.optimizer.space.dimensions, strict=True
        ):
            own = list(itertools.islice(scales, skopt_dimension.transformed_size))
            by_name[dimension.name] = own if len(own) > 1 else own[0]
        numbers = {
            "amplitude": float(kernel.k1.k1.constant_value),
            "length_scale": by_name,
            "noise": float(self.model.noise_),
        }
        return str(kernel), numbers


def _gp_proposal(
    dimensions: Sequence[Dimension],
    history: Sequence[Observation],
    settings: Settings,
    random_state: int,
    tried: set,
) -> Proposal:
    import skopt  # noqa: F401  (loads the libraries that are limited: later ones would not be)
    from threadpoolctl import threadpool_limits

    # One thread: sums in another order would be other bits, and such matrices gain nothing by two.
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter(
            "ignore"
        )  # hyperparameters at their bounds are normal with few points
        surrogate = _Surrogate(dimensions, history, settings, random_state)
        point = surrogate.ask()
        if any(_close(dimensions, point, seen.point) for seen in history):
            point = _best_untried(surrogate, random_state, tried)
        mean, std = surrogate.predict([point])
        kernel, hyperparameters = surrogate.hyperparameters()
        return Proposal(
            point,
            "gp",
            random_state,
            mean=float(mean[0]) * surrogate.scale + surrogate.shift,
            std=float(std[0]) * surrogate.scale,
            kernel=kernel,
            hyperparameters=hyperparameters,
            acquisition=float(surrogate.acquisition([point])[0]),
        )


def _close(dimensions: Sequence[Dimension], a: Point, b: Point) -> bool:
    return all(d.distance(a[d.name], b[d.name]) < RESOLUTION for d in dimensions)


def _best_untried(surrogate: _Surrogate, random_state: int, tried: set) -> Point:
    """The untried point with the best acquisition, for an optimum that has been tried already.

    Of a continuous space a few thousand points are drawn, too few to fall close to a tried one.
    """
    dimensions = surrogate.dimensions
    if size(dimensions) <= MAX_CANDIDATES:
        pool: Iterator[Point] = _all(dimensions)
    else:
        pool = _draws(dimensions, random_state, len(tried), MAX_CANDIDATES)
    candidates = [point for point in pool if key(dimensions, point) not in tried]
    if not candidates:  # a large discrete space, nearly used up
        candidates = list(
            itertools.islice(
                (point for point in _all(dimensions) if key(dimensions, point) not in tried),
                MAX_CANDIDATES,
            )
        )
    return candidates[int(np.argmax(surrogate.acquisition(candidates)))]


def _skopt_dimension(dimension: Dimension) -> Any:
    from skopt.space import Categorical, Integer, Real

    if dimension.kind == "choice":
        return Categorical(list(range(len(dimension.choices))), name=dimension.name)
    prior = "log-uniform" if dimension.log else "uniform"
    if dimension.kind == "integer":
        return Integer(int(dimension.low), int(dimension.high), prior=prior, name=dimension.name)
    return Real(dimension.low, dimension.high, prior=prior, name=dimension.name)


def _estimator(space: Sequence[Any], random_state: int) -> Any:
    from skopt.learning import GaussianProcessRegressor
    from skopt.learning.gaussian_process.kernels import ConstantKernel, Matern
    from skopt.utils import normalize_dimensions

    width = normalize_dimensions(list(space)).transformed_n_dims
    bounds = [LENGTH_SCALES] * width
    matern = Matern(length_scale=[1.0] * width, length_scale_bounds=bounds, nu=2.5)
    return GaussianProcessRegressor(
        kernel=ConstantKernel(1.0, (0.01, 1000.0)) * matern,
        normalize_y=True,
        noise="gaussian",
        n_restarts_optimizer=2,
        random_state=random_state,
    )


def is_value(value: object) -> bool:
    """Return whether a trial's objective is a number that a search can use."""
    return isinstance(value, int | float) and math.isfinite(value)
