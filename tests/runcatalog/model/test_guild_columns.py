"""The parser of `guild compare` columns, against Guild's own."""

import warnings
from pathlib import Path

import pytest

from runcatalog.model import declarations, guild_columns

ROOT = Path(__file__).parents[3]


def parsed_by_guild(specification: str):
    """Return (header, kind, name, is_step, statistic) from Guild's parser."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from guild import query
    (column,) = query.parse_colspec(specification).cols
    kind = {query.Flag: "flag", query.Attr: "attribute", query.Scalar: "scalar"}[type(column)]
    if kind != "scalar":
        return column.header, kind, column.name, False, "last"
    return column.header, kind, column.split_key()[1], column.step, column.qualifier or "last"


def declared() -> list[tuple[str, list[str]]]:
    operations = declarations.operations(ROOT / "guild.yml")
    return [(operation.name, operation.body.get("compare")) for operation in operations]


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
def test_columns_are_parsed_as_by_guild(specification):
    column = guild_columns.parse_column(specification)
    parsed = (column.header, column.kind, column.name, column.is_step, column.statistic)
    assert parsed == parsed_by_guild(specification)


@pytest.mark.parametrize(("operation", "specifications"), declared())
def test_every_operation_declares_a_few_columns(operation, specifications):
    assert specifications, f"{operation} declares no compare: all flags and scalars would appear"
    assert len(specifications) <= 10
    columns = guild_columns.parse_columns(specifications)
    for specification, column in zip(specifications, columns, strict=True):
        parsed = (column.header, column.kind, column.name, column.is_step, column.statistic)
        assert parsed == parsed_by_guild(specification)
    kinds = [column.kind for column in columns]
    assert kinds.count("flag") >= 2
    assert [c.name for c in columns if c.kind == "attribute"] == ["result", "host"]
    assert len({column.header for column in columns}) == len(columns)
