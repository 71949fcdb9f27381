"""The front page: headlines, findings, lists of runs, and its size."""

import math
import re

import pytest

from runcatalog.analysis.headline_numbers import Number
from runcatalog.analysis.headlines import Headline
from runcatalog.model.errors import CatalogError
from runcatalog.pages import front_page, render

HEADLINES = """\
headline:
  own: {question: How often?, operation: "toy:train", unit: "%", reported: 0.9, same_setting: "no: other | doors"}
  later: {question: And then?, operation: "toy:never", reported: "15 steps"}
  best: {question: Which lr?, operation: "toy:sweep", statistic: best lr}
finding: {text: "It opens {own}.", if: [own > 0.5]}
"""


def front(project, records) -> str:
    return render.Catalog(project, records).pages["runs_catalog.md"]


def cells(page: str, first: str) -> list[str]:
    """Cells of the one row with a cell that begins so."""
    rows = [re.split(r"(?<!\\) ?\| ?", line)[1:-1] for line in page.splitlines() if line[:1] == "|"]
    (row,) = [row for row in rows if any(cell.startswith(first) for cell in row)]
    return row


def section(page: str, title: str) -> str:
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@pytest.fixture
def declared(project):
    (project.experiments / "toy/reported.yml").write_text(HEADLINES)
    return project


def test_every_headline_has_a_row(declared, make):
    records = [make(n, value=0.97 + n / 100, seed=n) for n in (1, 2, 3)]
    page = front(declared, records)
    own = cells(page, "How often?")
    assert own[1:5] == ["**99 %** [96.5, 100]", "90 %", "3", "no: other \\| doors"]
    first = "[00000001](catalog/toy_runs.md#00000001)"
    assert own[5] == f"{first} [+2](catalog/toy_runs.md#toytrain)"
    assert cells(page, "And then?")[1:] == ["not run yet", "15 steps", "–", "–", "–"]
    assert cells(page, "Which lr?")[1] == "not run yet"
    assert "- **[toy](catalog/toy.md)**: It opens 99 % [96.5, 100]." in page
    assert "## Failures" not in page


def test_a_finding_that_the_records_do_not_support(declared, make):
    page = front(declared, [make(1, value=0.4)])
    assert "No finding: the records do not support `own > 0.5`." in page
    assert "It opens" not in page


def test_a_best_value_is_named_only_where_the_interval_allows_it(declared, make):
    def sweep(worse):
        batch = make(1, operation="toy:sweep", result={"batch": True})
        numbers = [(5e-3, 0.9), (5e-3, 0.91), (5e-3, 0.92), *((1e-3, value) for value in worse)]
        return [
            batch,
            *(
                make(10 + n, value=value, seed=n % 3, lr=lr, batch=batch.run)
                for n, (lr, value) in enumerate(numbers)
            ),
        ]

    clear, open_ = (
        cells(front(declared, sweep(worse)), "Which lr?")
        for worse in ((0.1, 0.2, 0.3), (0.1, 1.0, 1.0))
    )
    assert clear[1].startswith("**best** lr 5e-3 (0.910 [")
    assert "1e-3" not in clear[1]
    assert open_[1].startswith("undetermined: lr 5e-3 (0.910 [")
    assert "lr 1e-3 (0.700 [0.000, 1.000])" in open_[1]
    assert clear[5] == "[00000001](catalog/toy_runs.md#00000001)"


@pytest.mark.parametrize("other", [None, math.nan])
def test_a_value_with_which_no_other_can_be_compared_is_not_the_best(declared, make, other):
    """A single value of the flag, or one beside another that ended in NaN, was the best."""
    runs = [make(1, value=0.9, seed=1, lr=0.1, operation="toy:sweep")]
    if other is not None:
        runs.append(make(2, value=other, seed=1, lr=0.2, operation="toy:sweep"))
    assert cells(front(declared, runs), "Which lr?")[1].startswith("only lr 0.1 (0.900 [")


def test_failures(declared, make):
    records = [
        make(1, value=0.0, seed=1),
        make(2, status="FAILED", reason="exit status 1: a | b", label="x"),
        make(3, status="KILLED", reason="SIGTERM"),
        make(4, status="KILLED", reason="lost: no heartbeat", retracted="a bug"),
    ]
    shown = section(front(declared, records), "Failures")
    assert cells(shown, "How often?")[1:4] == ["**0 %** [0, 3.7]", "90 %", "no: other \\| doors"]
    assert cells(shown, "toy:train “x”")[3] == "failed: exit status 1: a \\| b"
    assert shown.index("00000003") < shown.index("00000002")  # the newest first
    assert "00000004" not in shown
    assert "1970-01-01 00:00" in shown


def test_operations_that_fall_short_of_their_reported_number(project, make):
    """An operation is listed where every setting falls short, on the page as in its section and in its row."""
    numbers = "{text: x, numbers: {opening_rate: [1.0, 0.8]}}"
    (project.experiments / "toy/reported.yml").write_text(
        f"toy:train: {numbers}\ntoy:sweep: {numbers}\ntoy:never: {{text: x, numbers: {{updates: 3}}}}\n"
    )
    records = [
        make(1, value=0.1, lr=1),
        make(2, value=0.2, lr=2),
        make(3, value=0.0, operation="toy:sweep", lr=1),
        make(4, value=0.86, operation="toy:sweep", lr=2),
        make(5, value=0.0, operation="toy:never"),
    ]
    catalog = render.Catalog(project, records)
    failures = section(catalog.pages["runs_catalog.md"], "Failures")
    # The best setting stands for the operation; 86 of 100 have an interval that reaches 90 %.
    assert cells(failures, "toy:train")[1:3] == ["**20 %** [13.3, 28.9]", "90 %"]
    assert "toy:sweep" not in failures
    assert "toy:never" not in failures
    assert "train (1 of 2 reported numbers)" in catalog.finding(["toy:train", "toy:sweep"])
    assert catalog.table("toy:train").count("**not replicated**: reported 90 %") == 2
    assert catalog.table("toy:sweep").count("**not replicated**") == 1


@pytest.mark.parametrize(("value", "missed"), [(0.8949, True), (0.8951, False)])
def test_every_page_allows_for_the_rounding_of_a_reported_number(project, make, value, missed):
    (project.experiments / "toy/reported.yml").write_text(
        "headline:\n  own: {question: How often?, operation: 'toy:train', unit: '%', reported: 0.9}\n"
        "toy:train: {text: x, numbers: {opening_rate: 0.9}}\n"
    )
    objective = {"name": "opening_rate", "value": value, "kind": "rate", "interval": [0.8, value]}
    catalog = render.Catalog(project, [make(1, result={"objective": objective})])
    page = catalog.pages["runs_catalog.md"]
    assert ("not replicated" in cells(section(page, "Results"), "How often?")[1]) is missed
    assert ("not replicated" in section(page, "Failures")) is missed
    assert ("**not replicated**" in catalog.table("toy:train")) is missed


def test_operations_that_were_never_run(declared, make):
    (declared.experiments / "toy/pending.yml").write_text("toy:never: six hours\n")
    shown = section(front(declared, [make(1, value=0.5)]), "Never run")
    assert cells(shown, "six hours") == ["six hours", "1", "`toy:never`"]
    assert cells(shown, "no reason given")[1:] == ["2", "`toy:sweep`, `toy:broken`"]


def test_newest(project, make):
    day = 86_400_000
    batch = make(20, operation="toy:sweep", result={"batch": True}, started=50 * day)
    trials = [make(30 + n, value=0.5, batch=batch.run, started=51 * day, lr=n) for n in range(3)]
    singles = [make(n, value=n / 100, started=n * day) for n in range(1, 20)]
    shown = section(front(project, [*singles, batch, *trials]), "Newest")
    rows = [line for line in shown.splitlines() if line.startswith("| 1970")]
    assert len(rows) == 10
    assert rows[0] == (
        "| 1970-02-20 00:00 | [00000014](catalog/toy_runs.md#00000014) | toy:sweep | 3 runs |"
    )
    assert "| 1970-01-20 00:00 |" in rows[1]
    assert "19 % opening rate [13, 28]" in rows[1]


def test_its_size_does_not_grow_with_the_runs(declared, make):
    text = "a name that is long and says much about little " * 4
    records = [
        make(
            n,
            value=n % 7 / 7 if n % 5 else None,
            status=("FINISHED", "FAILED", "KILLED")[n % 3],
            reason=text,
            operation=f"toy:{text.replace(' ', '_')}{n % 40}",
            label=text,
            machine=f"{text}{n % 100}",
            host_cpu=f"{text}{n % 3}",
            lr=n,
        )
        for n in range(1, 2000)
    ]
    page = front(declared, records)
    assert page.count("\n") <= 120
    assert len(page.encode()) <= 15_000
    assert "1999 runs, 1333 failed or killed" in section(page, "Studies")
    for title in ("Results", "Newest", "Failures", "Never run", "Machines"):
        assert section(page, title).count("\n| ") >= 2, title
    assert re.search(r"^\d+ more; `catalog search", page, re.MULTILINE)


def test_a_long_page_keeps_its_headlines_and_shortens_its_lists(project, make, monkeypatch):
    entries = [f'  h{n}: {{question: "Question {n}", operation: "toy:train"}}\n' for n in range(12)]
    (project.experiments / "toy/reported.yml").write_text("headline:\n" + "".join(entries))
    records = [make(n, operation=f"toy:operation{n}", machine=f"machine {n}") for n in range(1, 30)]
    whole = front(project, records)
    monkeypatch.setattr(front_page, "MAX_BYTES", len(whole.encode()) - 900)
    page = front(project, records)
    assert section(page, "Newest").count("| 1970") < section(whole, "Newest").count("| 1970") == 10
    assert section(page, "Results").count("| Question ") == 12


def test_a_project_without_headlines(project, make):
    (project.experiments / "toy/catalog.md.j2").unlink()
    (project.experiments / "toy/reported.yml").unlink()
    page = front(project, [make(1, value=0.5)])
    assert "## Results" not in page
    assert "(#results)" not in page
    assert "](catalog/toy.md)" in section(page, "Studies")
    assert "00000001" in section(page, "Newest")
    assert front(project, []).count("No runs yet.") == 1


def test_links_lead_to_anchors(declared, make):
    records = [make(n, value=0.5, seed=n, status="FINISHED") for n in (1, 2)]
    pages = render.Catalog(declared, [*records, make(3, status="KILLED")]).pages
    targets = re.findall(r"\]\(([^)#]*)#([^)]+)\)", pages["runs_catalog.md"])
    assert len(targets) > 8
    for path, anchor in targets:
        content = pages[path or "runs_catalog.md"]
        headings = [line.lstrip("# ").lower() for line in content.splitlines() if line[:1] == "#"]
        anchors = {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}
        assert f'id="{anchor}"' in content or anchor in anchors, anchor


def test_a_wrong_headline_is_a_one_line_error(project, make):
    path = project.experiments / "toy/reported.yml"
    path.write_text('headline: {own: {question: How?, operation: "toy:tran"}}\n')
    with pytest.raises(
        CatalogError, match=r"^experiments/toy/reported\.yml: headline: own: [^\n]*$"
    ):
        front(project, [make(1, value=0.5)])


def test_a_machine_has_the_runs_that_were_recorded_by_the_name_of_its_host(project, make):
    (project.experiments / "machines.yml").write_text(
        "[{name: box1, host: vm}, {name: gpu1, host: vm, gpu: H100}]"
    )
    cpus = {1: ("vm", "old"), 2: ("vm", "old"), 3: ("box1", "new"), 4: ("box1", ""), 5: ("vm", "")}
    records = [
        make(n, value=0.5, seed=n, machine=machine, host_cpu=cpu)
        for n, (machine, cpu) in cpus.items()
    ]
    assert machine_rows(project, records[:2])[0] == ["box1", "old", "–", "2"]
    records.append(make(6, value=0.5, machine="vm", host_cpu="old", gpu="H100"))
    assert sorted(machine_rows(project, records)) == [
        ["box1", "new", "–", "1"],
        ["box1", "old", "–", "2"],
        ["box1", "–", "–", "2"],
        ["gpu1", "old", "H100", "1"],
    ]


def machine_rows(project, records):
    """Return machine, CPU, GPU and number of runs of each row of the machines."""
    rows = section(front(project, records), "Machines").split("\n| ")[3:]
    return [row.split(" | ")[:4] for row in rows]


@pytest.mark.parametrize(
    ("value", "bounds", "text"),
    [
        (0.999875, (0.9996, 0.99996), "99.99 % [99.96, 99.996]"),
        (1.0, (0.963, 1.0), "100 % [96.3, 100]"),
        (0.0002, (0.0, 0.0040), "0.02 % [0, 0.4]"),
        (0.5, (0.25, 1 - 1e-12), "50 % [25, 100]"),
    ],
)
def test_a_share_is_not_rounded_to_none_or_all(value, bounds, text):
    headline = Headline("where", "toy", "own", "How often?", "toy:train", {}, unit="%")
    assert front_page.number_text(headline, Number((), value, bounds)) == text
