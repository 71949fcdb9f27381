"""Proposals of the search, and its predictions against scikit-learn's."""

import hashlib
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from runcatalog.search.core import Observation, Settings, propose
from runcatalog.search.space import Dimension, SearchError, key

SPACE = [
    Dimension("lr", "real", 1e-4, 2e-2, log=True),
    Dimension("clip", "real", 0.2, 0.6),
    Dimension("depth", "integer", 2, 4),
    Dimension("size", "choice", choices=("128 128", "64 64", "64 64 64")),
]


def surface(point):
    """Return a smooth objective with its minimum 0 at lr 10^-2.6, clip 0.4, depth 3, size "64 64"."""
    return (
        (math.log10(point["lr"]) + 2.6) ** 2
        + 10 * (point["clip"] - 0.4) ** 2
        + 0.1 * abs(point["depth"] - 3)
        + 0.3 * (point["size"] != "64 64")
    )


def search(count, options, space=SPACE, function=surface):
    history, proposals = [], []
    for index in range(count):
        proposal = propose(space, history, index, options)
        if proposal is None:
            break
        proposals.append(proposal)
        history.append(Observation(proposal.point, function(proposal.point)))
    return proposals, history


@pytest.mark.parametrize("method", ["gp", "random"])
def test_a_proposal_is_a_function_of_its_arguments(method):
    options = Settings(method=method, seed=7)
    proposals, history = search(8, options)
    # Repeated in another order, as after a restart.
    for index in (7, 2, 5):
        assert propose(SPACE, history[:index], index, options) == proposals[index]
    assert search(6, Settings(method=method, seed=8))[0] != proposals[:6]


@pytest.mark.parametrize(
    ("method", "digest"), [("gp", "99d51a83ece3302c"), ("random", "524375035331ae62")]
)
def test_a_sequential_search_proposes_the_points_of_earlier_versions(method, digest):
    points = [o.point for o in search(9, Settings(method, seed=11))[1]]
    # The last bits of a fit depend on the processor, the rounded points do not.
    assert hashlib.sha256(json.dumps(points).encode()).hexdigest()[:16] == digest


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.integers(0, 12), st.integers(0, 3), st.data())
def test_proposals_are_untried_points_of_the_space(seed, count, running, data):
    rng = np.random.default_rng(seed)
    values = st.one_of(st.none(), st.floats(-1e9, 1e9))
    points = [{d.name: d.at(rng.random()) for d in SPACE} for _ in range(count + running)]
    history = [Observation(point, data.draw(values)) for point in points[:count]]
    proposal = propose(SPACE, history, len(points), Settings(seed=seed), points[count:])
    assert all(d.contains(proposal.point[d.name]) for d in SPACE)
    assert key(SPACE, proposal.point) not in {key(SPACE, point) for point in points}


def pending_proposals(history, count, options, space=SPACE):
    """Propose points one after another while all earlier ones of them are pending."""
    pending = []
    for _ in range(count):
        pending.append(propose(space, history, len(history) + len(pending), options, pending).point)
    return pending


def test_proposals_while_trials_are_pending_spread():
    """Without their predicted means, all would be at the maximum of the same acquisition function."""
    space = [Dimension("x", "real", 0, 1), Dimension("y", "real", 0, 1)]

    def waves(point):
        return math.sin(9 * point["x"]) + math.cos(7 * point["y"])

    for seed in range(2):
        _, history = search(5, Settings(seed=seed), space, waves)
        pending = pending_proposals(history, 4, Settings(seed=seed), space)
        points = np.array([[point["x"], point["y"]] for point in pending])
        apart = np.abs(points[:, None] - points[None]).max(axis=2) + np.eye(4)
        assert apart.min() >= 0.05


def test_a_proposal_while_trials_are_pending_is_a_function_of_its_arguments():
    _, history = search(5, Settings(seed=3))
    first, second = (pending_proposals(history, 2, Settings(seed=3)) for _ in range(2))
    assert first == second


def test_the_first_fit_waits_for_the_initial_trials_to_end():
    _, history = search(5, Settings(seed=1))
    kinds = []
    for ended in range(2, 6):
        pending = [observation.point for observation in history[ended:]]
        kinds.append(propose(SPACE, history[:ended], 5, Settings(seed=1), pending).kind)
    assert kinds == ["initial", "initial", "gp", "gp"]


@pytest.mark.parametrize("method", ["gp", "random"])
def test_a_discrete_space_is_exhausted_by_pending_trials_too(method):
    space = [Dimension("n", "integer", 1, 5), Dimension("c", "choice", choices=("a", "b"))]
    history = search(6, Settings(method), space, lambda p: float(p["n"]))[1]
    pending = pending_proposals(history, 4, Settings(method), space)
    tried = [o.point for o in history] + pending
    assert len({key(space, point) for point in tried}) == 10
    assert propose(space, history, 10, Settings(method), pending) is None


def test_believed_values_narrow_the_deviation_and_keep_the_mean():
    """Compare with scikit-learn's process with the recorded kernel, fitted to believed values too."""
    space = [Dimension("x", "real", 0, 1), Dimension("y", "real", 0, 1)]
    _, history = search(9, Settings(seed=5), space, lambda p: math.sin(5 * p["x"]) + p["y"] ** 2)
    pending = pending_proposals(history, 2, Settings(seed=5), space)
    proposal = propose(space, history, 11, Settings(seed=5), pending)
    values = np.array([o.value for o in history])
    standardised = (values - values.mean()) / values.std()
    fitted = proposal.hyperparameters
    kernel = ConstantKernel(fitted["amplitude"]) * Matern(
        list(fitted["length_scale"].values()), nu=2.5
    )

    def process(points, targets):
        rows = [list(point.values()) for point in points]
        return GaussianProcessRegressor(kernel, alpha=fitted["noise"], optimizer=None).fit(
            rows, targets
        )

    ended = [o.point for o in history]
    believed = process(ended, standardised).predict([list(p.values()) for p in pending])
    with_pending = process([*ended, *pending], [*standardised, *believed])
    mean, std = with_pending.predict([list(proposal.point.values())], return_std=True)
    assert proposal.mean == pytest.approx(mean[0] * values.std() + values.mean(), rel=1e-4)
    gain = min([*standardised, *believed]) - mean[0]
    expected = gain * norm.cdf(gain / std[0]) + std[0] * norm.pdf(gain / std[0])
    assert proposal.acquisition == pytest.approx(expected, rel=1e-2, abs=1e-9)


def test_the_gp_improves_on_its_initial_points():
    for seed in range(2):
        proposals, history = search(12, Settings(seed=seed))
        assert [p.kind for p in proposals] == ["initial"] * 4 + ["gp"] * 8
        values = [observation.value for observation in history]
        assert min(values[4:]) < min(values[:4])


def test_first_values_of_dimensions_are_used_for_the_first_trial():
    space = [Dimension("x", "real", 0, 1, first=0.25), Dimension("y", "real", 0, 1)]
    first, second = search(2, Settings(), space, lambda p: p["x"])[0]
    assert first.point["x"] == 0.25
    assert second.point["x"] != 0.25


def test_initial_points_cover_all_dimensions():
    """Four points of a Sobol sequence lie in four different quarters of every dimension."""
    space = [Dimension(name, "real", 0, 1) for name in "abc"]
    for seed in range(5):
        points = [p.point for p in search(4, Settings(seed=seed), space, lambda _: 0.0)[0]]
        for name in "abc":
            assert {int(4 * point[name]) for point in points} == {0, 1, 2, 3}


def test_random_search_is_uniform_on_the_scale_of_the_dimension():
    space = [Dimension("lr", "real", 1e-4, 1.0, log=True)]
    drawn = [propose(space, [], i, Settings("random", seed=1)).point["lr"] for i in range(2000)]
    decades = np.histogram(np.log10(drawn), bins=4, range=(-4, 0))[0]
    assert decades == pytest.approx(500, abs=4 * math.sqrt(2000 * 0.25 * 0.75))


@pytest.mark.parametrize("method", ["gp", "random"])
def test_a_discrete_space_is_exhausted_without_repeats(method):
    space = [Dimension("n", "integer", 1, 5), Dimension("c", "choice", choices=("a", "b"))]
    proposals, history = search(20, Settings(method=method), space, lambda p: float(p["n"]))
    assert len(proposals) == 10
    assert len({key(space, observation.point) for observation in history}) == 10


@pytest.mark.parametrize("method", ["gp", "random"])
@pytest.mark.parametrize("parallel", [0, 1])
@pytest.mark.parametrize(("low", "high"), [(0.999999, 0.9999995), (0.1, 0.1000001), (2.0, 2.00004)])
def test_a_narrow_real_range_is_exhausted_without_repeats(method, parallel, low, high):
    """Trials get six significant digits, so such a range has few different values."""
    space = [Dimension("x", "real", low, high), Dimension("c", "choice", choices=("a", "b"))]
    options = Settings(method, random_starts=2)
    history = search(20, options, space, lambda p: p["x"] + (p["c"] == "a"))[1]
    points = [observation.point for observation in history]
    assert 2 <= len(points) < 20
    assert len({key(space, point) for point in points}) == len(points)
    assert all(low <= point["x"] <= high for point in points)
    count = len(points) - parallel
    assert propose(space, history[:count], len(points), options, points[count:]) is None


def test_proposals_keep_a_distance_from_the_best_point():
    """With the minimum in a corner, expected improvement alone would repeat that corner."""
    space = [Dimension("x", "real", 0, 1), Dimension("y", "real", 0, 1)]
    _, history = search(14, Settings(seed=1), space, lambda p: p["x"] + p["y"])
    points = np.array([[observation.point["x"], observation.point["y"]] for observation in history])
    apart = np.abs(points[:, None] - points[None]).max(axis=2) + np.eye(len(points))
    assert apart.min() >= 1e-3


def test_failed_trials_count_as_the_worst_value():
    """All points above lr 5e-3 fail, so that the best point lies at the boundary."""

    def fragile(point):
        return None if point["lr"] > 5e-3 else -point["lr"]

    space = [Dimension("lr", "real", 1e-4, 2e-2, log=True)]
    for seed in range(2):
        _, history = search(16, Settings(seed=seed), space, fragile)
        failed = [observation for observation in history if observation.value is None]
        assert 0 < len(failed) < 10
        assert (
            min(observation.value for observation in history if observation.value is not None)
            < -4e-3
        )


def test_a_loss_that_exploded_but_stayed_finite_counts_as_a_failure():
    """Where clip is above 0.5; the differences of all other values vanished beside it."""

    def points(huge):
        def exploding(point):
            return huge if point["clip"] > 0.5 else surface(point)

        return [o.point for o in search(9, Settings(seed=1), SPACE, exploding)[1]]

    assert points(1e6) == points(1e200) == points(None)


def test_initial_points_continue_while_all_trials_fail():
    proposals, history = search(10, Settings(), SPACE, lambda _: None)
    assert {p.kind for p in proposals} == {"initial"}
    assert len({key(SPACE, observation.point) for observation in history}) == 10


def test_a_constant_objective():
    assert len(search(7, Settings(), SPACE, lambda _: 1.0)[0]) == 7


def test_predictions_equal_scikit_learns():
    """Compare with scikit-learn's process, given the recorded kernel and the same data."""
    proposals, history = search(10, Settings(seed=2))
    last, earlier = proposals[-1], history[:-1]
    assert last.kind == "gp"

    def unit(point):
        one_hot = [float(point["size"] == choice) for choice in SPACE[3].choices]
        return [
            (math.log10(point["lr"]) + 4) / (math.log10(2e-2) + 4),
            (point["clip"] - 0.2) / 0.4,
            (point["depth"] - 2) / 2,
            *one_hot,
        ]

    fitted = last.hyperparameters
    scales = [s for d in SPACE for s in np.atleast_1d(fitted["length_scale"][d.name])]
    kernel = ConstantKernel(fitted["amplitude"]) * Matern(scales, nu=2.5)
    process = GaussianProcessRegressor(
        kernel + WhiteKernel(fitted["noise"]), optimizer=None, normalize_y=True
    )
    process.fit([unit(o.point) for o in earlier], [o.value for o in earlier])
    mean, std = process.predict([unit(last.point)], return_std=True)
    # scikit-learn's deviation is that of an observation, the recorded one that of the mean.
    deviation = np.std([o.value for o in earlier])
    without_noise = math.sqrt(max(std[0] ** 2 - fitted["noise"] * deviation**2, 0))
    assert last.mean == pytest.approx(mean[0], rel=1e-5, abs=1e-7)
    assert last.std == pytest.approx(without_noise, rel=1e-3)


def test_predictions_do_not_depend_on_the_unit_of_the_objective():
    ours = search(8, Settings(seed=4))[0]
    scaled = search(8, Settings(seed=4), SPACE, lambda p: 1e4 * surface(p) - 7e3)[0]
    for a, b in zip(ours, scaled, strict=True):
        assert b.point["lr"] == pytest.approx(a.point["lr"], rel=0.05)
        if a.kind == "gp":
            assert b.mean == pytest.approx(1e4 * a.mean - 7e3, rel=0.05, abs=50)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"random_starts": 0}, "random-starts"),
        ({"acq_func": "gp_hedge"}, "EI, LCB, PI"),
        ({"xi": -1.0}, "xi"),
        ({"kappa": float("nan")}, "kappa"),
        ({"seed": -1}, "seed"),
        ({"method": "grid"}, "gp, random"),
    ],
)
def test_wrong_settings_are_named(wrong, message):
    with pytest.raises(SearchError, match=message):
        Settings(**wrong)


@pytest.mark.parametrize("acq_func", ["LCB", "PI"])
def test_lcb_and_pi(acq_func):
    _, history = search(12, Settings(acq_func=acq_func, seed=1))
    values = [observation.value for observation in history]
    assert min(values[4:]) < min(values[:4])
