"""Markdown cells: text renders literally, numbers have fixed formats."""

import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from runcatalog import numbers
from runcatalog.pages.tables import setting_table
from runcatalog.text import markdown

READER = MarkdownIt("commonmark").enable("table")


def parsed_table(text: str) -> tuple[list[list[str]], set[str]]:
    """Return (rows of the first table, types of all tokens)."""
    rows, kinds = [], set()
    for token in READER.parse(text):
        kinds.add(token.type)
        if token.type == "tr_open":
            rows.append([])
        if token.type == "inline":
            # escape() puts these elements around dollar signs and into long words.
            children = [
                c for c in token.children if c.content not in ("<span>", "</span>", "<wbr>")
            ]
            kinds.update(child.type for child in children)
            if rows:
                rows[-1].append("".join(child.content for child in children))
    return rows, kinds


@given(st.text(max_size=200).filter(lambda text: "**" not in text))
@example("costs $5, a|b _c_ <b> @me https://x.y")
def test_a_cell_reads_back_as_its_text(value):
    shown = markdown.unescaped(markdown.escape(value))
    assert shown == markdown.literal(value).replace("**", "")


def plain(value: str) -> str:
    """Return the text that a cell should show."""
    line = re.sub(r"\s+", " ", value).strip()
    line = "".join(c for c in line if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co"))
    return line.replace("\u200b", "")


@given(st.text(max_size=80))
@example("a|b\nc<script>alert(1)</script>")
@example("**bold** _it_ `code` [link](javascript:x) ![i](y) ~~no~~ \\| &amp; <http://a.b>")
@example("# heading")
@example("- item | 1. x\\")
@example("0" * 80)
def test_a_cell_renders_its_text_literally(value):
    page = setting_table.as_markdown(
        [setting_table.Row({"setting": markdown.escape(value, 200), "outcome": "end"})]
    )
    rows, kinds = parsed_table(page)
    assert [len(row) for row in rows] == [2, 2]
    assert rows[1][0].replace("\u200b", "").split() == plain(value).split()
    assert rows[1][1] == "end"
    harmless = {"table_open", "table_close", "thead_open", "thead_close", "tbody_open", "tbody_close",
                "tr_open", "tr_close", "th_open", "th_close", "td_open", "td_close", "inline",
                "text", "text_special"}  # fmt: skip
    assert kinds <= harmless


@given(st.text(max_size=1000), st.integers(2, 400))
@example("0" * 41, 41)
def test_a_cell_is_truncated(value, limit):
    rows, _ = parsed_table(
        setting_table.as_markdown(
            [setting_table.Row({"setting": markdown.escape(value, limit), "outcome": "x"})]
        )
    )
    assert len(rows[1][0].replace("\u200b", "")) <= limit


@given(st.text(max_size=40))
def test_code_is_code_or_escaped(value):
    rows, kinds = parsed_table(
        setting_table.as_markdown(
            [setting_table.Row({"setting": markdown.code(value), "outcome": "end"})]
        )
    )
    assert rows[1][1] == "end"
    assert "html_inline" not in kinds
    assert rows[1][0].replace("\u200b", "").split() == plain(value).split()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5e-3, "5e-3"), (1e-2, "1e-2"), (1e-4, "1e-4"), (0.33, "0.33"), (0.0027, "2.7e-3"),
        (64, "64"), ("64 64", "64 64"), (True, "yes"), (None, "none"), (-0.5, "−0.5"), ("", "''"),
        (2.0, "2"), (0.0, "0"), (1e20, "1e20"), (0.9995, "0.9995"), (1024.5, "1024.5"),
        (0.00251, "2.51e-3"), (0.02512, "2.512e-2"), (1 / 3, "0.333"), (0.0027182818, "2.72e-3"),
    ],
)  # fmt: skip
def test_flag_values(value, expected):
    assert markdown.flag_value(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (7696, "7696"), (7890.53, "7891"), (-9841083.0, "−9.841e6"), (0.12345, "0.1235"),
        (float("nan"), "NaN"), (float("-inf"), "−∞"), (123456.7, "123457"), (0.0, "0"),
        (9999.6, "10000"), (999999.7, "1e6"),
    ],
)  # fmt: skip
def test_numbers(value, expected):
    assert markdown.number(value) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.2, "under 1 s"), (42.182, "42 s"), (60, "1 min"), (530.834, "8 min 51 s"), (3600, "1 h"),
        (11_105, "3 h 5 min"), (3_599.6, "1 h"), (187_200, "2 d 4 h"), (86_401, "1 d"),
    ],
)  # fmt: skip
def test_durations(seconds, expected):
    assert markdown.duration(seconds) == expected


def test_a_number_that_is_rounded_to_0_has_no_minus():
    texts = ("-0", "-0.000", "-0.001", "-10", "-inf", "0.0", "1")
    assert list(map(markdown.minus, texts)) == ["0", "0.000", "−0.001", "−10", "−inf", "0.0", "1"]
    assert [numbers.share(rate) for rate in (-0.0004, -0.004)] == ["0", "−0.4"]


def test_only_a_rate_of_one_is_100_per_cent():
    assert [markdown.percent(r) for r in (0, 0.004, 0.93, 0.9951, 1)] == [
        "0",
        "<1",
        "93",
        "99.5",
        "100",
    ]


def test_counts():
    texts = [
        markdown.count(n, unit)
        for n, unit in ((1, "update"), (360, "update"), (4e5, "env_step"), (2e8, "env_step"))
    ]
    assert texts == ["1 update", "360 updates", "0.4 M env steps", "200 M env steps"]


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("1748 [1604, 2470]", "1,748 \\[1,604, 2,470\\]"), ("2960 [2412, never]", "2,960 \\[2,412, never\\]"),
        ("-0 %", "0 %"), ("-0.06", "−0.06"), ("-1.06", "−1.06"), ("1-3", "1–3"), ("0.00", "0.00"),
        ("1234.5", "1,234.5"),
        ("0.12345", "0.12345"), ("200,000, 10,000", "200,000, 10,000"), ("02410825", "02410825"),
        ("92450312", "92450312"),
        ("run 1748", "run 1748"), ("a-1", "a-1"), ("2026-11-22", "2026-11-22"),
    ],
)  # fmt: skip
def test_numbers_that_a_script_wrote(written, shown):
    assert markdown.computed(written) == shown


def test_a_summary_is_text():
    shown = markdown.fold("solved [%], <b>", "x")
    assert shown.startswith("<details><summary>solved [%], &lt;b&gt;</summary>")
