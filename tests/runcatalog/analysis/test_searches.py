"""Clusters of a search's good trials, and the random search that it is compared with."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from runcatalog.analysis import searches
from runcatalog.model import statistics
from runcatalog.model.run_record import RunRecord


@given(st.lists(st.tuples(st.floats(1e-4, 2e-2), st.floats(0, 1)), min_size=2, max_size=30))
def test_a_cluster_is_a_chain_of_good_trials(pairs):
    trials = [
        RunRecord(f"{i:08x}", "o", "s", "FINISHED", flags={"lr": lr},
                  result={"objective": {"name": "r", "value": v}})
        for i, (lr, v) in enumerate(pairs)
    ]  # fmt: skip
    ranked = sorted(trials, key=lambda t: (-t.objective["value"], t.run))
    cluster = searches.best_cluster(ranked, ["lr"])
    assert len(cluster) != 1
    top = ranked[: max(3, -(-len(ranked) // 4))]
    assert all(t in top for t in cluster)
    rows = statistics.normalised([[t.flags["lr"] for t in ranked]])
    where = sorted(rows[ranked.index(t)][0] for t in cluster)
    assert all(b - a <= searches.LINK + 1e-9 for a, b in pairwise(where))


def test_the_random_search_to_compare_with_has_equal_flags_but_for_those_that_change_no_result(
    make,
):
    def trials(first, **flags):
        return [make(first + n, lr=n / 10, seed=1, **flags) for n in range(3)]

    others = {
        "harder": trials(10, task="push", threads=1),
        "alike": trials(20, task="pull", threads=4, video=True),
    }
    assert searches.peer_of(trials(1, task="pull", threads=1, video=False), others) == "alike"
    assert searches.peer_of(trials(1, task="lift", threads=1), others) == ""
