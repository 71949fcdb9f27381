"""Clusters of a search's good trials."""

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
