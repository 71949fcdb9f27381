"""The searches that this project declares."""

from pathlib import Path

import pytest

from runcatalog.model import declarations

ROOT = Path(__file__).parents[3]
SEARCHES = {
    operation.name: operation.body
    for operation in declarations.operations(ROOT / declarations.GUILD_FILE)
    if "runcatalog.search.opt " in str(operation.body.get("main"))
}


def test_searches_are_declared():
    assert {"ppo:opt@gp", "pg:opt@gp", "a2c:opt@gp"} <= SEARCHES.keys()


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_takes_the_number_of_trials_at_once_and_leaves_it_to_the_search_by_default(name):
    flag = SEARCHES[name]["flags"]["parallel"]
    assert flag["type"] == "int"
    assert flag.get("default") is None
