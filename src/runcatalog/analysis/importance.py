"""How much each parameter of a search matters: permutation importance of a Gaussian process.

The process sees the trials' points and objectives. An objective further below the median than REACH times what the
best is above it is cut there, and there the failed trials are: neither an explosion nor a return of −10 million
decides everything. Its prediction for a trial, made without that trial, gets worse when one parameter is replaced by
those of the other trials (permutation importance: Breiman 2001, *Random Forests*, Machine Learning 45, section 10).
Half of the additional squared error, over the objectives' variance, is the share of the variance in which the
parameter has a part (Gregorutti, Michel and Saint-Pierre 2017, *Correlation and variable importance in random
forests*, Statistics and Computing 27, section 2).

What a few trials can't tell is not told: the fit's R² is of predictions for trials that no fit saw, and intervals are
those of the delete-d jackknife (Shao and Wu 1989, *A general theory for jackknife variance estimation*, Annals of
Statistics 17; for importances: Ishwaran and Lu 2019, Statistics in Medicine 38).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from runcatalog.model import statistics

if TYPE_CHECKING:
    import numpy as np

MIN_TRIALS = 8
# Of a longer search so many, evenly from worst to best: the cost grows with the cube.
MAX_TRIALS = 200
FOLDS = 5
SUBSETS = 16  # of the jackknife
REACH = 2.0  # see above
LEFT_OUT = 0.25  # share of the trials that a subset lacks
# Candidates for a length scale, in ranges of the parameter (none: it plays no part), and for the share of noise.
LENGTHS = (float("inf"), 2.0, 1.0, 0.5, 0.25, 0.12)
NOISE = (1.0, 0.5, 0.2, 0.1, 0.03, 0.01)


@dataclass(frozen=True)
class Share:
    """A parameter's importance: the share of the variance in which it has a part, with its 95 % interval."""

    name: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Importance:
    """What a search tells of its parameters.

    Attributes:
        shares: Each parameter's, the largest first.
        r2: Share of the objectives' variance that predictions for unseen trials explain; below 0 where they are
            worse than the mean.
        trials: How many trials were looked at.
        leads: Whether the first parameter's lead over the second is certain (95 %).
    """

    shares: tuple[Share, ...]
    r2: float
    trials: int
    leads: bool

    @property
    def told(self) -> tuple[Share, ...]:
        """The parameters that matter with certainty; none where the fit predicts nothing."""
        return tuple(share for share in self.shares if share.low > 0) if self.r2 > 0 else ()


def importance(
    columns: dict[str, Sequence[object]], objectives: Sequence[float | None]
) -> Importance | None:
    """Returns the importance of each parameter; the order of the trials does not matter.

    Args:
        columns: Values by parameter, one per trial.
        objectives: One per trial, large being good; None for a failed trial.

    Returns:
        None for fewer than MIN_TRIALS trials, without a parameter, or where all trials are equally good.
    """
    from runcatalog.model import values

    rows = sorted(
        zip(objectives, *columns.values(), strict=True),
        key=lambda row: (row[0] is not None, row[0] or 0.0, [values.sort_key(v) for v in row[1:]]),
    )
    if len(rows) > MAX_TRIALS:
        last = len(rows) - 1
        rows = [rows[round(i * last / (MAX_TRIALS - 1))] for i in range(MAX_TRIALS)]
    if len(rows) < MIN_TRIALS or not columns or len({row[0] for row in rows}) < 2:
        return None
    told = tuple(row[0] for row in rows)
    return _importance(tuple(columns), tuple(tuple(row[1:]) for row in rows), told)


@lru_cache(256)
def _importance(names: tuple[str, ...], points: tuple, objectives: tuple) -> Importance:
    import numpy as np

    squares = np.array([_squares([point[i] for point in points]) for i in range(len(names))])
    y = _goodness(objectives)
    whole = _Process.fit(squares, y).importances()
    count, out = len(y), max(1, round(LEFT_OUT * len(y)))
    parts, generator = [], random.Random(0)
    for _ in range(SUBSETS):
        kept = np.array(sorted(generator.sample(range(count), count - out)))
        if np.ptp(y[kept]) > 0:
            parts.append(_Process.fit(squares[:, kept][:, :, kept], y[kept]).importances())
    apart = np.array(parts) - np.mean(parts, axis=0)
    scale = (count - out) / out

    def half(weights: np.ndarray) -> float:
        """Half the width of the interval of a weighted sum of importances."""
        return statistics.Z95 * float(np.sqrt(scale * np.mean((apart @ weights) ** 2)))

    unit = np.eye(len(names))
    order = sorted(range(len(names)), key=lambda i: (-round(float(whole[i]), 6), names[i]))
    shares = []
    for i in order:
        value, width = float(whole[i]), half(unit[i])
        shares.append(
            Share(names[i], *(round(v, 4) for v in (value, value - width, value + width)))
        )
    leads = True
    if len(order) > 1:
        first, second = order[:2]
        leads = float(whole[first] - whole[second]) > half(unit[first] - unit[second])
    return Importance(tuple(shares), round(_r2(squares, y), 4), count, leads)


def _squares(column: Sequence[object]) -> Any:
    """Squared distances [n, n] of a parameter's values, its range or another choice being 1."""
    import numpy as np

    places = np.array(statistics.normalised([column]))
    return ((places[:, None] - places[None]) ** 2).sum(-1)


def _goodness(objectives: Sequence[float | None]) -> Any:
    """Objectives [n] with mean 0 and variance 1, those far below the median cut; failed trials are at the cut."""
    import numpy as np

    finite = np.array([o for o in objectives if o is not None], float)
    middle = np.median(finite)
    cut = max(finite.min(), middle - REACH * (finite.max() - middle))
    told = np.array([cut if o is None else max(o, cut) for o in objectives])
    if np.ptp(told) == 0:  # half of the trials are as good as the best
        told = np.array([finite.min() - 1 if o is None else o for o in objectives])
        told = np.array([(told < v).sum() for v in told], float)
    return (told - told.mean()) / told.std()


@dataclass(frozen=True)
class _Process:
    """A Gaussian process: a Matern 5/2 kernel for each parameter, multiplied, and noise.

    Attributes:
        kernels: [parameters, n, n].
        y: Values less their mean, [n].
        inverse: Of the covariance, [n, n].
    """

    kernels: Any
    y: Any
    inverse: Any
    lengths: tuple[float, ...] = ()
    mean: float = 0.0

    @classmethod
    def fit(cls, squares: Any, y: Any) -> _Process:
        """Takes the length scales and the noise of the largest likelihood, one after the other, till none changes."""
        import numpy as np

        mean = float(y.mean())
        centred = y - mean
        table = np.array([[_matern(each, length) for length in LENGTHS] for each in squares])
        chosen, noise = [LENGTHS.index(1.0)] * len(squares), NOISE.index(0.1)

        def loss(lengths: Sequence[int], noise: int) -> float:
            return _loss(_product(table, lengths), NOISE[noise], centred)

        best = loss(chosen, noise)
        for _ in range(6):
            before = best
            for i in range(len(squares) + 1):
                for option in range(len(LENGTHS if i < len(squares) else NOISE)):
                    if i < len(squares):
                        lengths, share = [*chosen[:i], option, *chosen[i + 1 :]], noise
                    else:
                        lengths, share = chosen, option
                    told = loss(lengths, share)
                    if told < best - 1e-9:
                        best, chosen, noise = told, lengths, share
            if best == before:
                break
        kernels = np.array([table[i, option] for i, option in enumerate(chosen)])
        covariance = kernels.prod(0) + NOISE[noise] * np.eye(len(y))
        lengths = tuple(LENGTHS[option] for option in chosen)
        return cls(kernels, centred, np.linalg.inv(covariance), lengths, mean)

    def importances(self) -> Any:
        """Half of the additional squared error of each parameter, over the variance, [parameters].

        Entry [m, i] of `weights` is trial m's weight in the prediction that is made without trial i (Rasmussen
        and Williams 2006, *Gaussian Processes for Machine Learning*, section 5.4.2).
        """
        import numpy as np

        alpha, count = self.inverse @ self.y, len(self.y)
        diagonal = np.diag(self.inverse)
        weights = alpha[:, None] - self.inverse * (alpha / diagonal)
        error = (alpha / diagonal) ** 2
        others = 1 - np.eye(count)
        found = []
        for i, kernel in enumerate(self.kernels):
            rest = np.delete(self.kernels, i, 0).prod(0)
            replaced = (rest * weights.T) @ kernel  # [trial, whose value it gets]
            worse = ((self.y[:, None] - replaced) ** 2 * others).sum(1) / (count - 1) - error
            found.append(worse.mean() / (2 * self.y.var()))
        return np.array(found)


def _r2(squares: Any, y: Any) -> float:
    """R² of predictions for trials that the fit has not seen, FOLDS times a part of them."""
    import numpy as np

    order = list(range(len(y)))
    random.Random(1).shuffle(order)
    predicted = np.zeros(len(y))
    for start in range(FOLDS):
        unseen = order[start::FOLDS]
        if not unseen:
            continue
        kept = np.array([i for i in range(len(y)) if i not in set(unseen)])
        process = _Process.fit(squares[:, kept][:, :, kept], y[kept])
        across = [
            _matern(each[unseen][:, kept], n)
            for each, n in zip(squares, process.lengths, strict=True)
        ]
        told = np.prod(across, axis=0) @ process.inverse @ process.y
        predicted[unseen] = process.mean + told
    return float(1 - ((y - predicted) ** 2).sum() / ((y - y.mean()) ** 2).sum())


def _matern(squares: Any, length: float) -> Any:
    """The Matern 5/2 kernel of squared distances."""
    import numpy as np

    r = np.sqrt(5 * squares) / length
    return (1 + r + r**2 / 3) * np.exp(-r)


def _product(table: Any, options: Sequence[int]) -> Any:
    kernel = table[0, options[0]]
    for i, option in enumerate(options[1:], 1):
        kernel = kernel * table[i, option]
    return kernel


def _loss(kernel: Any, noise: float, y: Any) -> float:
    """Negative log marginal likelihood, the amplitude at its best, up to a constant."""
    import numpy as np

    factor = np.linalg.cholesky(kernel + noise * np.eye(len(y)))
    whitened = np.linalg.solve(factor, y)
    square = max(whitened @ whitened, 1e-300)  # 0 where all are equal
    return float(0.5 * len(y) * np.log(square) + np.log(np.diag(factor)).sum())
