"""Whatever names runs have, GitHub's own Markdown parser shows them literally, and tables keep their shape."""

import re
import unicodedata
from html.parser import HTMLParser

import cmarkgfm
import pytest
from cmarkgfm.cmark import Options
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rendered import joined
from runcatalog.model.project import Reported
from runcatalog.pages import render
from runcatalog.pages.tables import cells
from runcatalog.text import markdown

# HTML that the catalog itself writes.
OWN = {
    "h1", "h2", "p", "table", "thead", "tbody", "tr", "th", "td", "code", "span", "strong",
    "details", "summary", "a", "br", "wbr", "h3", "pre", "em", "ul", "li",
}  # fmt: skip
ODD = (
    "|", "\\", "\\|", "`", "``", "<b>", "</td>", "</table>", "<script>alert(1)</script>", "<!--", "-->",
    "<details>", "\n", "\r\n", "\n\n| a | b |\n|---|---|\n", "\u2028", "\x00", "\x1b[31m", "$x$", "$$y$$", "$`z`$",
    "[a](javascript:x)", "![i](http://x.example/i.png)", "[^1]", "[a]: http://x.example", "@octocat", "a@b.example",
    "#12", ":smile:", ":+1:", "https://x.example/", "www.x.example", "_www.x.example", "xmpp:a@b.example",
    "\u202e", "\u200f", "\u2066", "\ufeff", "🎉", "👩\u200d👩\u200d👧", "é", "العربية", "**b**", "_i_", "~~s~~", "&lt;",
    "&#x7c;", "---", "- ", "1. ", "> ", "# ", "x" * 300, " ", "'", '"', "{{ 7 }}", "%", "\t", "    ",
)  # fmt: skip
FIELDS = ("label", "flag", "value", "reason", "machine", "cpu", "summary", "cell", "report")
NAME = st.lists(st.sampled_from(ODD) | st.text(max_size=6), max_size=6).map("".join)


class Page(HTMLParser):
    """A rendered page: tables of cells, texts with the elements around them, links."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.kinds: set[str] = set()
        self.links: list[str] = []
        self.texts: list[tuple[str, tuple[str, ...]]] = []
        self._open: list[str] = []
        # GitHub's sanitizer is not applied here; nothing is hidden
        options = Options.CMARK_OPT_UNSAFE
        self.feed(cmarkgfm.github_flavored_markdown_to_html(text, options))

    def handle_starttag(self, tag, attributes):
        self.kinds.add(tag)
        if tag not in ("br", "img", "input", "wbr"):
            self._open.append(tag)
        self.links += [value for name, value in attributes if name in ("href", "src")]
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.texts.append((data, tuple(self._open)))
        if {"td", "th"} & set(self._open):
            self.tables[-1][-1][-1] += data


def visible(value: str) -> str:
    """A text without spaces and characters of no width, for comparisons."""
    return "".join(value.replace("\u200b", "").split())


def expected_text(value: str, limit: int = markdown.MAX_NAME) -> str:
    """The expected visible form of a name."""
    line = re.sub(r"\s+", " ", value).strip()
    line = "".join(c for c in line if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co"))
    return visible(line if len(line) <= limit else line[: limit - 1].rstrip() + "…")


def records(make, names):
    result = {
        "summary": names["summary"],
        "table": {"columns": ["what", names["cell"]], "rows": [[names["cell"], "end"]] * 2},
    }
    return [
        make(1, result=result, label=names["label"], seed=3, machine="m", host_cpu=names["cpu"],
             flags={"a": 1, names["flag"]: 2}),
        make(2, status="FAILED", reason=names["reason"], machine=names["machine"], commit="c" * 40,
             dirty=names["label"], flags={"a": names["value"]}, digest={names["flag"]: "d" * 64}),
    ]  # fmt: skip


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.fixed_dictionaries(dict.fromkeys(FIELDS, NAME)))
@example(dict.fromkeys(FIELDS, "".join(ODD)))
@example(dict.fromkeys(FIELDS, "@_www.x.example"))
def test_tables_keep_their_shape(make, project, names):
    source = '{{ table(["toy:train"], flags=[]) }}\n\n{{ details(["toy:train"]) }}\n'
    (project.experiments / "toy" / "catalog.md.j2").write_text(source)
    catalog = render.Catalog(project, records(make, names))
    catalog.data.reported = {"toy:train": Reported(names["report"], "a list")}
    text = joined(catalog)
    page = Page(text)

    assert page.kinds <= OWN
    by_columns = {tuple(table[0][:2]): table for table in page.tables}
    main = next(t for t in page.tables if t[0][0] == "setting" and "runs" in t[0])
    details = next(t for t in page.tables if t[0][:3] == ["setting", "id", "what"])
    entries = by_columns["run", "started (UTC)"]
    assert [len(table) for table in (main, details, entries)] == [3, 3, 3]
    for table in page.tables:
        assert {len(row) for row in table} == {len(table[0])}
    column = main[0].index
    assert [row[-1] for row in main[1:]] == ["00000001", "00000002"]
    summary = expected_text(names["summary"], markdown.MAX_RESULT)
    assert visible(entries[1][entries[0].index("result")]) == (summary or "finished,withnoresult")
    assert expected_text(names["machine"]) in visible(entries[2][-1])
    label = expected_text(names["label"])
    assert visible(entries[1][-1]).startswith(f"“{label}”" if label else "seed3")
    assert len(main[1][column("reported")]) <= cells.WIDEST + 10
    assert visible(details[1][2]) == expected_text(names["cell"])
    assert [row[3] for row in details[1:]] == ["end", "end"]
    no_command_of_a_reader(page)


def no_command_of_a_reader(page: Page) -> None:
    """Nothing in it that GitHub acts on after the Markdown is read."""
    for shown, around in page.texts:
        assert not re.search("[\u202a-\u202e\u2066-\u2069\u200e\u200f\ufeff\x00-\x08\x1b]", shown)
        if "code" in around:
            continue
        assert "$" not in shown or (shown == "$" and around[-1] == "span")
        assert not re.search(r"(?<!\w)@\w", shown, re.ASCII)
        assert not re.search(r":[a-z0-9_+-]*[a-z][a-z0-9_+-]*:", shown)
        assert not re.search(r"#\d", shown)
        assert not re.search(r"\S{121}", shown.replace("\u200b", " "))


@pytest.mark.parametrize("summary", ["a | b", "<b>b</b>", "@octocat", "$x$", "<https://x.example>"])
def test_unescaped_text_is_detected(make, project, monkeypatch, summary):
    """That the test above can fail."""
    monkeypatch.setattr(markdown, "escape", lambda value, limit=0: str(value))
    names = {**dict.fromkeys(FIELDS, "x"), "summary": summary}
    page = Page(joined(render.Catalog(project, records(make, names))))
    table = next(t for t in page.tables if t[0][0] == "run" and "result" in t[0])
    whole = table[1][table[0].index("result")] == summary
    if whole and page.kinds <= OWN and not any("x.example" in link for link in page.links):
        with pytest.raises(AssertionError):
            no_command_of_a_reader(page)
