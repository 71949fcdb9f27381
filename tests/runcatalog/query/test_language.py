"""The query language: equality with a filter in plain Python, syntax errors, arbitrary input."""

import math
import operator

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from memory_reader import MemoryReader
from runcatalog.analysis.find_runs import find_runs
from runcatalog.model.run_record import RunRecord
from runcatalog.query.language import (
    MAX_DEPTH,
    BooleanTerm,
    Comparison,
    Not,
    QueryError,
    evaluate,
    parse,
)

ORDER = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
NUMBERS = (1, -3, 5e-3)
TEXTS = ("lever", "64 64", 'it\'s "so"', "yes", "and", "ünïcode 🙂", "")
FLAGS = ("lr", "with space", "not", "seed")
METRICS = ("rate", "loss", "time/steps per second")

FIELDS = ("operation", "status", "label", "seed")

numbers = st.sampled_from(NUMBERS)
metric_values = st.one_of(numbers.map(float), st.sampled_from([math.nan, math.inf, -math.inf]))
flag_values = st.one_of(numbers, st.sampled_from(TEXTS), st.booleans(), st.none())


@st.composite
def records(draw):
    drawn = []
    for number in range(draw(st.integers(1, 4))):
        flags = draw(st.dictionaries(st.sampled_from(FLAGS), flag_values, min_size=2))
        curves = draw(
            st.dictionaries(
                st.sampled_from(METRICS),
                st.lists(metric_values, min_size=1, max_size=4).map(lambda v: list(enumerate(v))),
                max_size=3,
            )
        )
        goal = draw(st.sampled_from(["max", "min"]))
        record = RunRecord(
            run=f"{number:08x}",
            operation=draw(st.sampled_from(["toy:train", "toy:sweep"])),
            study="toy",
            status=draw(st.sampled_from(["FINISHED", "FAILED", "RUNNING"])),
            label=draw(st.sampled_from(["", "my label", "Rate 3"])),
            seed=draw(st.sampled_from([None, 1, 2])),
            flags=flags,
            result={"objective": {"name": "rate", "value": 1.0, "goal": goal}},
            started=number,
        )
        drawn.append(record.with_points(curves))
    # A record with all flags and metrics, so that no name is unknown.
    everything = RunRecord(
        "f" * 8, "all", "toy", "KILLED", flags=dict.fromkeys(FLAGS, "x"), started=99
    ).with_points({name: [(0, 1.0)] for name in METRICS})
    return [*drawn, everything]


@st.composite
def comparisons(draw):
    """Draw (predicate on a record, the same comparison as query text)."""
    kind = draw(st.sampled_from(["flag", "flag", "flag", "last", "best", *FIELDS]))
    quoting = draw(st.sampled_from(["bare", "single", "double"]))
    if kind == "flag":
        key = draw(st.sampled_from(FLAGS))
        value = draw(flag_values.filter(lambda v: not isinstance(v, bool) and v is not None))
        name = f"flag:{quoted(key, quoting)}" if key == "seed" else quoted(key, quoting)

        def get(record):
            return record.flags.get(key, ...)
    elif kind in ("last", "best"):
        key, value = draw(st.sampled_from(METRICS)), draw(metric_values)
        name = ("best:" if kind == "best" else "") + quoted(key, quoting)

        def get(record):
            return getattr(record.metrics.get(key), kind, ...)
    else:
        name = kind
        choices = {"operation": ["toy:train", "train"], "label": ["my label", "rate", "x"]}
        value = draw(
            st.sampled_from(choices.get(kind, [1, 2, 3] if kind == "seed" else ["FAILED"]))
        )

        def get(record):
            actual = getattr(record, kind)
            return ... if actual in ("", None) else actual

    numeric = isinstance(value, int | float)
    operators = ["", "=", "!="]
    operators += [*ORDER] * (numeric and kind != "status")
    operators += ["~"] * (kind in ("flag", "operation", "label"))
    symbol = draw(st.sampled_from(operators))
    if not symbol:
        return (lambda record: get(record) is not ...), name

    def reference(record):
        actual = get(record)
        if actual is ...:
            return False
        if symbol == "~":
            return (
                str(value).lower()
                in (repr(actual) if isinstance(actual, float) else str(actual)).lower()
            )
        if symbol in ORDER:
            return (
                isinstance(actual, int | float)
                and actual is not True
                and actual is not False
                and ORDER[symbol](actual, value)
            )
        if isinstance(actual, bool):
            equal = str(value).lower() in (("yes", "true") if actual else ("no", "false"))
        elif actual is None:
            equal = value in ("none", "null")
        else:
            equal = actual == value or (actual != actual and value != value)
        return equal if symbol == "=" else not equal

    return reference, f"{name}{draw(st.sampled_from(['', ' ']))}{symbol}{quoted(value, quoting)}"


def quoted(value, quoting):
    text = repr(value) if isinstance(value, float) else str(value)
    plain = text and not set(text) & set(" ()'\"=!<>~") and text.lower() not in ("not", "and", "or")
    if quoting == "bare" and plain:
        return text
    mark = "'" if quoting == "single" else '"'
    return mark + text.replace("\\", "\\\\").replace(mark, f"\\{mark}") + mark


queries = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        inner.map(lambda q: (lambda r: not q[0](r), f"not {group(q[1])}")),
        st.tuples(inner, inner).map(
            lambda p: (
                lambda r: p[0][0](r) and p[1][0](r),
                f"{group(p[0][1])} and {group(p[1][1])}",
            )
        ),
        st.tuples(inner, inner).map(
            lambda p: (lambda r: p[0][0](r) or p[1][0](r), f"{group(p[0][1])} OR {group(p[1][1])}")
        ),
    ),
    max_leaves=6,
)


def group(text):
    return f"({text} )"


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(records(), queries)
def test_search_equals_a_filter_in_python(runs, query):
    reference, text = query
    result = find_runs(MemoryReader(runs), text)
    assert [run.run for run in result.stored] == [r.run for r in runs if reference(r)]


@example("'\n' 1")
@given(st.text(alphabet="ab1 ()'\"=!<>~\\:.-eE+\n\tandortß", max_size=30))
def test_every_text_is_a_query_or_a_one_line_error(text):
    try:
        term, message = parse(text), ""
    except QueryError as error:
        term, message = None, str(error)
    assert isinstance(term, Comparison | Not | BooleanTerm) is not message.startswith(
        "query, character "
    )
    assert "\n" not in message


def test_and_binds_tighter_than_or_and_not_tightest():
    def shape(term):
        if isinstance(term, Comparison):
            return term.name.text
        if isinstance(term, Not):
            return ("not", shape(term.term))
        return (term.word, *map(shape, term.terms))

    assert shape(parse("a or not b and c")) == ("or", "a", ("and", ("not", "b"), "c"))
    assert shape(parse("(a or not b) and c")) == ("and", ("or", "a", ("not", "b")), "c")
    assert shape(parse("not not a")) == ("not", ("not", "a"))


@pytest.mark.parametrize("left", [True, False, None])
@pytest.mark.parametrize("right", [True, False, None])
def test_unknown_values_follow_strong_kleene_logic(left, right):
    """Strong Kleene logic, by its definition: the outcome is known if all completions agree."""
    known = {"a": left, "b": right}
    for text, function in (
        ("a and b", all),
        ("a or b", any),
        ("not a and b", lambda v: not v[0] and v[1]),
    ):
        completions = [
            bool(function([x, y]))
            for x in ([left] if left is not None else [True, False])
            for y in ([right] if right is not None else [True, False])
        ]
        expected = completions[0] if len(set(completions)) == 1 else None
        assert evaluate(parse(text), lambda comparison: known[comparison.name.text]) is expected


@pytest.mark.parametrize(
    ("query", "place", "words"),
    [
        ("", 1, "a condition is expected"),
        ("   ", 1, "a condition is expected"),
        ("lr 1e-3 and task=lever", 4, "one of = != < <= > >= ~ is expected after lr"),
        ("lr>", 4, "a value is expected after >"),
        ("lr>1 task=lever", 6, "`and` or `or` is expected"),
        ("lr>1 and", 9, "a name is expected"),
        ("and lr>1", 1, "a name is expected"),
        ("lr>1 and > 3", 10, "a name is expected"),
        ("(lr>1", 6, "`)`, `and` or `or` is expected"),
        ("lr>1)", 5, "this parenthesis closes none"),
        ("lr == 1", 5, "a value is expected after =, not ="),
        ("lr ! 1", 4, "`!` is only allowed in !="),
        ("label='my", 7, "this quote is not closed"),
        ("lr>1 or (task='x' and )", 23, "a name is expected"),
    ],
)
def test_a_syntax_error_shows_its_position(query, place, words):
    with pytest.raises(QueryError) as caught:
        parse(query)
    text = str(caught.value)
    assert text.startswith(f"query, character {place}: ")
    assert words in text
    if query.strip():
        assert text.endswith((query[: place - 1] + "^" + query[place - 1 :]).strip())


def test_depth_is_limited_and_length_is_not():
    deep = "(" * MAX_DEPTH + "a" + ")" * MAX_DEPTH
    with pytest.raises(QueryError, match="levels"):
        parse(deep)
    with pytest.raises(QueryError, match="levels"):
        parse("not " * 5_000 + "a")
    long = parse(" or ".join(["a=1"] * 2_000))
    assert len(long.terms) == 2_000
    assert evaluate(long, lambda comparison: None) is None
