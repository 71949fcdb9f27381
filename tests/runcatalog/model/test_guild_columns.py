"""What a column of `guild compare` stands for: the same as Guild's own parser says."""

import warnings
from pathlib import Path

import pytest
import yaml

from runcatalog.model import guild_columns

ROOT = Path(__file__).parents[3]


def guilds(specification: str):
    """(header, kind, name, is_step, of) by Guild."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from guild import query
    (found,) = query.parse_colspec(specification).cols
    kind = {query.Flag: "flag", query.Attr: "attribute", query.Scalar: "scalar"}[type(found)]
    if kind != "scalar":
        return found.header, kind, found.name, False, "last"
    return found.header, kind, found.split_key()[1], found.step, found.qualifier or "last"


def declared() -> list[tuple[str, list[str]]]:
    found = []
    for path in sorted(ROOT.glob("experiments/*/*guild.yml")):
        for document in yaml.safe_load(path.read_text()):
            for name, body in document.get("operations", {}).items():
                found.append((f"{document['model']}:{name}", body.get("compare")))
    return found


@pytest.mark.parametrize(
    "specification",
    [
        "=lr",
        "flag:clip-coef",
        "=network-size as size",
        ".host",
        "attr:result as outcome",
        "loss",
        "loss step",
        "opening_rate step as updates",
        "avg survival/position as position",
        "max reward step",
        "scalar:loss",
        "train#loss",
        "train#loss as 'training loss'",
        "'odd name'",
    ],
)
def test_it_says_what_guild_says(specification):
    found = guild_columns.parse_column(specification)
    told = (found.header, found.kind, found.name, found.is_step, found.of)
    assert told == guilds(specification)


@pytest.mark.parametrize(("operation", "specifications"), declared())
def test_every_operation_compares_a_few_columns(operation, specifications):
    assert specifications, f"{operation} declares no compare: all flags and scalars would be shown"
    assert len(specifications) <= 10
    found = guild_columns.parse_columns(specifications)
    for specification, column in zip(specifications, found, strict=True):
        told = (column.header, column.kind, column.name, column.is_step, column.of)
        assert told == guilds(specification)
    kinds = [column.kind for column in found]
    assert kinds.count("flag") >= 2
    assert [c.name for c in found if c.kind == "attribute"] == ["result", "host"]
    assert len({column.header for column in found}) == len(found)
