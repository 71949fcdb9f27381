"""Proposal of the next point: a pure function of the space, the results so far and the seed.

Proposals share no state, so a killed and restarted search proposes the same points as an
uninterrupted one. This module does not depend on Guild.

The surrogate is a Gaussian process with a Matern 5/2 kernel, a length scale per dimension, and
white noise; the next point maximises expected improvement (Jones, Schonlau and Welch 1998,
"Efficient global optimization of expensive black-box functions", section 4). Fit and acquisition
are scikit-optimize's.

While other trials are pending, their predicted means stand for their values (the Kriging believer of
Ginsbourger, Le Riche and Carraro 2010, "Kriging is well-suited to parallelize optimization"); the
kernel is fitted to finished trials alone. The acquisition is then maximised by a local search that
starts from random points and from the best trials: scikit-optimize's, from random points alone, misses the
narrow maximum near the best trials in six dimensions.
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

# Beside a loss that exploded, but stayed finite, the differences of all others would vanish.
OUTLIER = 30.0  # median distances from the best value

# Random draws before a discrete space is enumerated for untried points.
MAX_DRAWS = 200
# Fraction of a range within which two values count as equal. Near the best point the predicted
# variance is so small that expected improvement would propose its neighbourhood again and again.
RESOLUTION = 1e-3
# Candidate points, enumerated (discrete space) or drawn (continuous), that are ranked by the
# acquisition function when its optimum has been tried already.
MAX_CANDIDATES = 4096

# Local search for the maximum of the acquisition function while trials are pending.
STARTS = 1500  # random points
BEST_TRIALS = 3  # whose neighbourhoods are starts too
NEIGHBOURS = 40  # points drawn around a centre in a round
START_STEPS = (0.1, 0.02)  # standard deviations, as fractions of a range
STEP = 0.1  # in the first round
SHRINKAGE = 0.6  # of the step in each further round
ROUNDS = 8


@dataclass(frozen=True)
class Settings:
    """Settings of a search.

    `random_starts`: initial points before the first fit, from a Sobol sequence. `acq_func`: EI, LCB
    or PI. `xi`: minimum improvement for EI and PI, in standard deviations of the objective's
    values so far; 0 gives the expected improvement of the paper. `kappa`: weight of the predicted
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
    """A finished trial: its point and the value to minimise; None if the trial failed."""

    point: Point
    value: float | None


@dataclass(frozen=True)
class Proposal:
    """A proposed point and the prediction behind it.

    `kind`: "initial", "gp" or "random". `mean` and `std` are the prediction at the point in the
    unit of the value to minimise, `kernel` and `hyperparameters` the fitted model (length
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
    pending: Sequence[Point] = (),
) -> Proposal | None:
    """Return the point for trial `index` (from 0); None when every point of the space has been tried.

    A space with a real dimension also counts as exhausted if many random points of it have all been tried.

    `pending` are the points of trials with a smaller index that have not ended; none of them is
    proposed again. The first fit waits until `random_starts` trials have ended.

    A failed trial gets the worst value of the successful ones. Without it the search could return to
    the same point, and a large constant penalty would be an outlier that distorts the fit. The same
    holds for a value that is worse than the best one by more than `OUTLIER` median distances.
    """
    points = [*(observation.point for observation in history), *pending]
    tried = {key(dimensions, point) for point in points}
    if len(tried) >= size(dimensions):
        return None
    random_state = _random_state(settings.seed, index)
    values = [observation.value for observation in history if observation.value is not None]
    if settings.method == "random":
        point = _random_point(dimensions, index, settings, tried)
        return None if point is None else Proposal(point, "random", random_state)
    if index - len(pending) < settings.random_starts or len(values) < 2:
        point = _initial_point(dimensions, index, settings, tried)
        return None if point is None else Proposal(point, "initial", random_state)
    return _gp_proposal(dimensions, history, settings, random_state, tried, pending)


def _check(name: str, valid: bool, expected: str, actual: object) -> None:
    if not valid:
        raise SearchError(f"{name} must be {expected}, got {actual}")


def _random_state(seed: int, index: int) -> int:
    """Return scikit-optimize's random_state for a trial, 32 bits."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1)[0])


def _initial_point(
    dimensions: Sequence[Dimension], index: int, settings: Settings, tried: set
) -> Point | None:
    """Return point `index` of a scrambled Sobol sequence, which covers the space evenly."""
    from scipy.stats import qmc

    sampler = qmc.Sobol(
        len(dimensions), rng=np.random.default_rng([settings.seed, len(dimensions)])
    )
    # A Sobol sequence is balanced only for powers of two.
    point = _point_at(dimensions, sampler.random_base2(index.bit_length())[index])
    if index == 0:
        point |= {d.name: d.rounded(d.first) for d in dimensions if d.first is not None}
    if key(dimensions, point) not in tried:
        return point
    return _random_point(dimensions, index, settings, tried)


def _random_point(
    dimensions: Sequence[Dimension], index: int, settings: Settings, tried: set
) -> Point | None:
    """Return an untried point, uniform on the (log) scale of every dimension; None if none is found."""
    for point in _random_points(dimensions, settings.seed, index, MAX_DRAWS):
        if key(dimensions, point) not in tried:
            return point
    rng = np.random.default_rng([settings.seed, index, 1])
    untried = [point for point in _all_points(dimensions) if key(dimensions, point) not in tried]
    return untried[rng.integers(len(untried))] if untried else None


def _point_at(dimensions: Sequence[Dimension], fractions: np.ndarray) -> Point:
    return {d.name: d.at(float(f)) for d, f in zip(dimensions, fractions, strict=True)}


def _random_points(
    dimensions: Sequence[Dimension], seed: int, index: int, count: int
) -> Iterator[Point]:
    rng = np.random.default_rng([seed, index])
    for _ in range(count):
        yield _point_at(dimensions, rng.random(len(dimensions)))


def _all_points(dimensions: Sequence[Dimension]) -> Iterator[Point]:
    """Return all points of a discrete space; none if a dimension is real."""
    if any(d.kind == "real" for d in dimensions):
        return iter(())
    values = [
        d.choices if d.kind == "choice" else range(int(d.low), int(d.high) + 1) for d in dimensions
    ]
    names = [d.name for d in dimensions]
    return (dict(zip(names, row, strict=True)) for row in itertools.product(*values))


def _outlier_limit(values: np.ndarray) -> float:
    """Return the value to minimise above which a trial counts as failed; infinity if all values are equal."""
    distances = values - values.min()
    distances = distances[distances > 0]
    if not distances.size:
        return math.inf
    typical = np.quantile(distances, 0.5, method="lower")
    return float(values.min() + OUTLIER * typical)


class _Surrogate:
    """scikit-optimize's optimizer, fitted to standardised values; failures count as the worst value."""

    def __init__(
        self,
        dimensions: Sequence[Dimension],
        history: Sequence[Observation],
        settings: Settings,
        random_state: int,
        acq_optimizer: str = "lbfgs",
    ) -> None:
        import skopt

        self.dimensions = dimensions
        self.settings = settings
        successes = np.array(
            [observation.value for observation in history if observation.value is not None]
        )
        successes = successes[successes <= _outlier_limit(successes)]
        self.shift = float(successes.mean())
        self.scale = float(successes.std()) or 1.0
        worst = float(successes.max())
        values = [
            worst if observation.value is None else min(observation.value, worst)
            for observation in history
        ]
        self.values = [(value - self.shift) / self.scale for value in values]
        space = [_skopt_dimension(dimension) for dimension in dimensions]
        self.optimizer = skopt.Optimizer(
            space,
            base_estimator=_estimator(space, random_state),
            n_initial_points=0,
            acq_func=settings.acq_func,
            acq_func_kwargs={"xi": settings.xi, "kappa": settings.kappa},
            acq_optimizer=acq_optimizer,
            acq_optimizer_kwargs={"n_points": 1} if acq_optimizer == "sampling" else None,
            random_state=random_state,
        )
        self.optimizer.tell(
            [self.encode(observation.point) for observation in history], self.values
        )
        self.model = self.optimizer.models[-1]
        self.conditioned: Any = None

    def believe(self, points: Sequence[Point]) -> None:
        """Take the predicted means at `points` as values there; the kernel stays.

        The predicted mean is the same with them as without; the deviation is smaller near them.
        """
        from sklearn.gaussian_process import GaussianProcessRegressor

        rows = np.vstack([self.model.X_train_, self._rows(points)])
        self.conditioned = GaussianProcessRegressor(
            self.model.kernel_, alpha=max(self.model.noise_, 1e-10), optimizer=None
        ).fit(rows, np.zeros(len(rows)))
        # The model standardises its values once more, which matters if trials have failed.
        self.deviation = float(np.std(self.values)) or 1.0
        self.values = [*self.values, *self.predict(points)[0].tolist()]

    def encode(self, point: Point) -> list[Any]:
        """Encode a point for scikit-optimize, choices by index."""
        return [
            d.choices.index(point[d.name]) if d.kind == "choice" else d.rounded(point[d.name])
            for d in self.dimensions
        ]

    def ask(self) -> Point:
        """Return the point that maximises the acquisition function."""
        encoded = self.optimizer.ask()
        return {
            d.name: d.choices[int(x)] if d.kind == "choice" else d.rounded(x)
            for d, x in zip(self.dimensions, encoded, strict=True)
        }

    def predict(self, points: Sequence[Point]) -> tuple[np.ndarray, np.ndarray]:
        """Return means and standard deviations, standardised, arrays of shape (points,)."""
        return self.model.predict(self._rows(points), return_std=True)

    def _rows(self, points: Sequence[Point]) -> np.ndarray:
        """Return points as the model's inputs, an array of shape (points, features)."""
        return self.optimizer.space.transform([self.encode(point) for point in points])

    def acquisition(self, points: Sequence[Point]) -> np.ndarray:
        """Return the acquisition function, larger is better, an array of shape (points,)."""
        from scipy.stats import norm

        if self.conditioned is None:
            mean, std = self.predict(points)
        else:
            rows = self._rows(points)
            mean = self.model.predict(rows)
            std = self.conditioned.predict(rows, return_std=True)[1] * self.deviation
        if self.settings.acq_func == "LCB":
            return self.settings.kappa * std - mean
        gain = min(self.values) - mean - self.settings.xi
        z = gain / np.maximum(std, 1e-12)
        if self.settings.acq_func == "PI":
            return norm.cdf(z)
        return gain * norm.cdf(z) + std * norm.pdf(z)

    def hyperparameters(self) -> tuple[str, dict[str, Any]]:
        """Return the fitted kernel as text, and its hyperparameters by name."""
        from sklearn.base import clone

        kernel = clone(self.model.kernel_)
        # scikit-optimize sets the noise to 0 after the fit, so that predictions are of the mean.
        kernel.set_params(k2__noise_level=self.model.noise_)
        scales = iter(np.atleast_1d(kernel.k1.k2.length_scale).tolist())
        length_scales: dict[str, Any] = {}
        for dimension, skopt_dimension in zip(
            self.dimensions, self.optimizer.space.dimensions, strict=True
        ):
            dimension_scales = list(itertools.islice(scales, skopt_dimension.transformed_size))
            length_scales[dimension.name] = (
                dimension_scales if len(dimension_scales) > 1 else dimension_scales[0]
            )
        numbers = {
            "amplitude": float(kernel.k1.k1.constant_value),
            "length_scale": length_scales,
            "noise": float(self.model.noise_),
        }
        return str(kernel), numbers


def _gp_proposal(
    dimensions: Sequence[Dimension],
    history: Sequence[Observation],
    settings: Settings,
    random_state: int,
    tried: set,
    pending: Sequence[Point],
) -> Proposal | None:
    import skopt  # noqa: F401  (threadpool_limits affects only libraries that are loaded already)
    from threadpoolctl import threadpool_limits

    # One thread: the order of sums affects the last bits, and small matrices gain nothing from more.
    with warnings.catch_warnings(), threadpool_limits(1):
        # Hyperparameters at their bounds are normal with few points
        warnings.simplefilter("ignore")
        if pending:
            # A single sample: the maximum without the pending trials is not needed.
            surrogate = _Surrogate(dimensions, history, settings, random_state, "sampling")
            surrogate.believe(pending)
            point = _believers_point(surrogate, history, pending, random_state, tried)
        else:
            surrogate = _Surrogate(dimensions, history, settings, random_state)
            point = surrogate.ask()
        if point and any(_close(dimensions, point, o.point) for o in history):
            point = _best_untried(surrogate, random_state, tried)
        if point is None:
            return None
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


def _believers_point(
    surrogate: _Surrogate,
    history: Sequence[Observation],
    pending: Sequence[Point],
    random_state: int,
    tried: set,
) -> Point | None:
    """Return the point with the best acquisition that a local search finds away from all trials."""
    dimensions = surrogate.dimensions
    if size(dimensions) <= MAX_CANDIDATES:
        return _best_untried(surrogate, random_state, tried)
    rng = np.random.default_rng([random_state, len(tried)])
    order = np.argsort(surrogate.values[: len(history)], kind="stable")[:BEST_TRIALS]
    best = [_fractions(dimensions, history[i].point) for i in order]
    pool = [rng.random((STARTS, len(dimensions)))]
    pool += [_neighbours(dimensions, centre, step, rng) for centre in best for step in START_STEPS]
    fractions, points = _ranked(surrogate, np.vstack(pool))
    for round_ in range(ROUNDS):
        centres = fractions[:BEST_TRIALS]
        step = STEP * SHRINKAGE**round_
        pool = [centres, *(_neighbours(dimensions, centre, step, rng) for centre in centres)]
        fractions, points = _ranked(surrogate, np.vstack(pool))
    others = [*(observation.point for observation in history), *pending]
    for point in points:
        if not any(_close(dimensions, point, other) for other in others):
            return point
    return _best_untried(surrogate, random_state, tried)


def _ranked(surrogate: _Surrogate, fractions: np.ndarray) -> tuple[np.ndarray, list[Point]]:
    """Return fractions, shape (points, dimensions), and their points, by falling acquisition."""
    points = [_point_at(surrogate.dimensions, row) for row in fractions]
    order = np.argsort(-surrogate.acquisition(points), kind="stable")
    return fractions[order], [points[i] for i in order]


def _fractions(dimensions: Sequence[Dimension], point: Point) -> np.ndarray:
    return np.array([d.fraction(point[d.name]) for d in dimensions])


def _neighbours(
    dimensions: Sequence[Dimension], centre: np.ndarray, step: float, rng: np.random.Generator
) -> np.ndarray:
    """Return NEIGHBOURS rows of fractions, each with about half of the coordinates of `centre` moved.

    A number moves by a normal step; a choice, which has no order, is drawn anew.
    """
    shape = (NEIGHBOURS, len(dimensions))
    moved = centre + step * rng.standard_normal(shape)
    is_choice = np.array([d.kind == "choice" for d in dimensions])
    moved = np.where(is_choice, rng.random(shape), moved)
    moves = rng.random(shape) < max(0.5, 2 / len(dimensions))
    return np.clip(np.where(moves, moved, centre), 0.0, 1.0)


def _close(dimensions: Sequence[Dimension], a: Point, b: Point) -> bool:
    return all(d.distance(a[d.name], b[d.name]) < RESOLUTION for d in dimensions)


def _best_untried(surrogate: _Surrogate, random_state: int, tried: set) -> Point | None:
    """Return the untried point with the best acquisition, if its optimum has been tried already; None without any.

    Candidates from a continuous space are too few to fall close to a tried point.
    """
    dimensions = surrogate.dimensions
    if size(dimensions) <= MAX_CANDIDATES:
        pool: Iterator[Point] = _all_points(dimensions)
    else:
        pool = _random_points(dimensions, random_state, len(tried), MAX_CANDIDATES)
    candidates = [point for point in pool if key(dimensions, point) not in tried]
    if not candidates:  # a large discrete space, nearly exhausted
        candidates = list(
            itertools.islice(
                (point for point in _all_points(dimensions) if key(dimensions, point) not in tried),
                MAX_CANDIDATES,
            )
        )
    if not candidates:
        return None
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
