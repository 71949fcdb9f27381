"""Permutation importance of a search's parameters, computed once when the search ends.

A Gaussian process (Matern 5/2, a length scale per column, white noise) is fitted to the trials of all folds except the
held-out fold. In the held-out fold, every parameter in turn is permuted between trials (scikit-learn's
`permutation_importance`; Breiman 2001, *Random Forests*, section 10). Half of the increase in squared error, as a share
of the objective's variance, is the share of the variance that involves the parameter (Gregorutti, Michel and
Saint-Pierre 2017, *Correlation and variable importance in random forests*, section 2).

Intervals (95 %) are over trials: of the ratio of the mean increase to the variance, linearised (Cochran 1977, *Sampling
Techniques*, section 6.3), with the increase per trial averaged over the repeats of the cross-validation.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from runcatalog.model.statistics import t_quantile

MIN_TRIALS = 8
FOLDS = 5  # fewer if a fold would contain a single trial, which cannot be permuted
REPEATS = 6  # of the cross-validation, with different partitions
PERMUTATIONS = 5  # per parameter and fold
# The cost of a fit grows with the cube of the trials; a longer search is sampled evenly from worst to best.
MAX_TRIALS = 150
# Objectives further below the median than REACH times the distance from the median to the best are clipped, and failed
# trials count as the worst. Otherwise a single explosion with a return of −10 million would dominate the variance.
REACH = 2.0
LENGTH_SCALES = (0.05, 50.0)
METHOD = "permutation importance, Gaussian process, {}-fold cross-validation"


def importance(
    points: Sequence[Mapping[str, Any]],
    objectives: Sequence[float | None],
    space: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any] | None:
    """Return the parameters' shares of the objective's variance, and the model's R².

    Args:
        points: Parameter values by name, a mapping per trial.
        objectives: Objective per trial, larger is better; None for a failed trial.
        space: Per parameter `low`, `high` and `log`, or `choices`, as a search records it.

    Returns:
        `parameters` (by name `share`, `low`, `high`), `r2` (cross-validated; 0 or less: the model predicts nothing),
        `trials` and `method`. None for fewer than MIN_TRIALS trials or two parameters, or for equal objectives.
    """
    if len(points) < MIN_TRIALS or len(space) < 2 or all(o is None for o in objectives):
        return None
    import numpy as np

    names = sorted(space)
    x = np.array([[_place(space[n], point[n]) for n in names] for point in points])
    y = _goodness(objectives)
    # Ties are broken by the point, so that the order of the trials does not matter.
    order = np.lexsort((*x.T, y))
    if len(order) > MAX_TRIALS:
        order = order[np.linspace(0, len(order) - 1, MAX_TRIALS).round().astype(int)]
    x, y = x[order], y[order]
    if np.ptp(y) == 0:
        return None
    y = (y - y.mean()) / y.std()
    choices = [len(space[n].get("choices", ())) for n in names]
    increases, errors = _cross_validated(x, y, choices)
    share = increases.mean(0) / 2
    deviations = increases / 2 - share * y[:, None] ** 2
    half = t_quantile(len(y) - 1) * deviations.std(0, ddof=1) / np.sqrt(len(y))
    shares = {
        name: {
            key: round(float(v), 4) for key, v in zip(("share", "low", "high"), row, strict=True)
        }
        for name, row in zip(names, np.transpose([share, share - half, share + half]), strict=True)
    }
    r2 = round(float(1 - errors.mean()), 4)
    return {
        "parameters": shares,
        "r2": r2,
        "trials": len(points),
        "method": METHOD.format(_folds(len(y))),
    }


def _folds(trials: int) -> int:
    return min(FOLDS, trials // 2)


def _cross_validated(x: Any, y: Any, choices: Sequence[int]) -> tuple[Any, Any]:
    """Return the increase of the squared errors by permuting a parameter [n, parameters], and the errors [n]."""
    import numpy as np
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.inspection import permutation_importance
    from sklearn.model_selection import RepeatedKFold
    from threadpoolctl import threadpool_limits

    def scores(model: Any, x: Any, y: Any) -> dict[str, float]:
        return {str(i): -error for i, error in enumerate((y - model.predict(x)) ** 2)}

    increases, errors = np.zeros(x.shape), np.zeros(len(y))
    folds = RepeatedKFold(n_splits=_folds(len(y)), n_repeats=REPEATS, random_state=0)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # length scales at their bounds
        for train, test in folds.split(x):
            model = _model(choices).fit(x[train], y[train])
            errors[test] += (y[test] - model.predict(x[test])) ** 2
            permuted = permutation_importance(
                model, x[test], y[test], scoring=scores, n_repeats=PERMUTATIONS, random_state=0
            )
            # A permutation leaves a trial its own value with probability 1 / len(test).
            scale = len(test) / (len(test) - 1)
            increases[test] += scale * np.array(
                [permuted[str(i)].importances_mean for i in range(len(test))]
            )
    return increases / REPEATS, errors / REPEATS


def _model(choices: Sequence[int]) -> Any:
    """Return a Gaussian process over numbers and one-hot choices."""
    import numpy as np
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    def encoded(x: Any) -> Any:
        return np.hstack(
            [
                np.eye(count)[column.astype(int)] if count else column[:, None]
                for column, count in zip(x.T, choices, strict=True)
            ]
        )

    width = sum(count or 1 for count in choices)
    kernel = ConstantKernel(1.0, (0.05, 20.0)) * Matern([1.0] * width, LENGTH_SCALES, nu=2.5)
    process = GaussianProcessRegressor(kernel + WhiteKernel(0.1, (1e-3, 2.0)))
    return make_pipeline(FunctionTransformer(encoded), process)


def _place(dimension: Mapping[str, Any], value: Any) -> float:
    """Return the position of a value in its range, 0 to 1; the index of a choice."""
    if "choices" in dimension:
        return float([str(choice) for choice in dimension["choices"]].index(str(value)))
    low, high = dimension["low"], dimension["high"]
    if dimension.get("log"):
        return math.log(value / low) / math.log(high / low)
    return (value - low) / (high - low)


def _goodness(objectives: Sequence[float | None]) -> Any:
    """Return the objectives with low ones clipped and failed trials at the lowest value; see REACH."""
    import numpy as np

    finite = np.array([o for o in objectives if o is not None], float)
    middle = np.median(finite)
    worst = max(finite.min(), middle - REACH * (finite.max() - middle))
    y = np.array([worst if o is None else max(o, worst) for o in objectives])
    if np.ptp(y) > 0:
        return y
    # If half of the trials are as good as the best, use ranks, with failed trials last.
    ranks = np.array([-np.inf if o is None else o for o in objectives])
    return np.array([(ranks < v).sum() for v in ranks], float)
