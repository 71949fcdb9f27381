"""Numbers in Markdown pages against the records that they cite."""

from __future__ import annotations

import pytest
from scipy import stats

from runcatalog.model import statistics
from runcatalog.model.run_record import Metric
from runcatalog.pages import cited_numbers


@pytest.fixture
def check(project, make):
    """Return the problems of a text as the project's page."""
    table = {
        "columns": ["stage", "steps [M]"],
        "rows": [
            ["gtg0", "12.5 [12, 13]"],
            ["gtg1", "3"],
            ["small", "1.2e-04"],
            ["dense", "3 [2,4]"],
        ],
    }
    more = {
        "columns": ["agent", "actions", "ALL"],
        "rows": [["MOE", "greedy", "5 of 20 [1, 9] %"], ["MOE", "sampled", "5 % [1, 9]"]],
    }
    records = [
        make(
            n,
            value=value,
            batch="000000ff" if n > 3 else "",
            env_steps=12_345_678,
            wall_seconds=90.0,
            metrics={
                "loss": Metric.from_points([(1, 0.5), (2, 0.25)]),
                "kl": Metric.from_points([(1, 0.125 * n)]),
            },
        )
        for n, value in enumerate((0.5, 0.75, 0.96, 0.1, 0.3), 1)
    ]
    records[0].result.update(
        table=[table, more], metrics={"greedy/success": 0.4, "x": 3, "x_low": 2, "x_high": 4}
    )

    def problems(text: str) -> list[str]:
        (project.root / "docs").mkdir(exist_ok=True)
        (project.root / "docs" / "page.md").write_text(text)
        return cited_numbers.problems(project, records)

    return problems


@pytest.mark.parametrize(
    "text",
    [
        "50 %<!-- =objective; run: 00000001 -->",
        "**50.0** %<!-- =opening_rate; run: 00000001 -->",
        "0.5<!-- =opening_rate; run: 00000001 --> and .25<!-- =loss; run: 00000001 -->",
        "40 %<!-- =greedy/success; run: 00000001 -->",
        "12.3 M<!-- =env_steps; run: 00000001 --> steps in 1.5 min<!-- =wall_seconds; run: 00000001 -->",
        "12,345,678<!-- =env_steps; run: 00000001 -->",
        "360<!-- =at; run: 00000001 --> updates",
        "74 %<!-- =mean of objective; run: 00000001 00000002 00000003 -->",
        "3<!-- =count of objective; run: 00000001, 00000002, 00000003 --> seeds",
        "0.96<!-- =max of objective; run: 00000001 00000002 00000003 -->",
        "0.375<!-- =max of kl; run: 00000001 00000002 00000003 -->",
        "20 %<!-- =mean of objective; run: 000000ff -->",
        "12.5 M<!-- =table gtg0 :: steps [M]; run: 00000001 -->",
        "12.5 [12, 13] M<!-- =table gtg0 :: steps [M]; run: 00000001 -->",
        "3 [2,4] M<!-- =table dense :: steps [M]; run: 00000001 -->",
        "5<!-- =table MOE greedy :: ALL; run: 00000001 --> of 20",
        "0.00012<!-- =table small :: steps [M]; run: 00000001 -->",
        "3 [2, 4]<!-- =x; run: 00000001 -->",
        "75 [66, 82] %<!-- =objective; run: 00000002 -->",
        "66 %<!-- =low of objective; run: 00000002 -->",
        # Newcombe's interval by hand: 75 [66, 82] against 50 [40, 60] of 100 games per side.
        "25 [11.6, 37.2] percentage points"
        "<!-- =difference of objective; run: 00000002; minus objective; run: 00000001 -->",
        "−0.25 [−0.37, −0.12]<!-- =difference of objective; run: 00000001; minus objective; run: 00000002 -->",
        # 5 in per cent, [1, 9], against 50 [40.4, 59.6].
        "-45 [−55.4, −34.6] %"
        "<!-- =difference of table MOE sampled :: ALL; run: 00000001; minus objective; run: 00000001 -->",
        "-9.5<!-- =difference of x; run: 00000001; minus table gtg0 :: steps [M]; run: 00000001 -->",
        "`1 %<!-- =objective; run: 00000001 -->`",
        "```\n1 %<!-- =objective; run: 00000001 -->\n```",
        "1 %<!-- an ordinary comment -->",
    ],
)
def test_a_number_that_agrees_with_its_record(check, text: str):
    assert check(text) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("51 %<!-- =objective; run: 00000001 -->", "51 %, but objective of 00000001 is 50"),
        ("\n50.1 %<!-- =objective; run: 00000001 -->", "docs/page.md:2: "),
        ("50 %<!-- =objective; run: 0000abcd -->", "no record of run 0000abcd"),
        ("50 %<!-- =objective; run: 000000 -->", "start of"),
        ("50 %<!-- =nothing; run: 00000001 -->", "00000001 has no nothing"),
        ("50 %<!-- =objective; run: 00000001 00000002 -->", "no statistic"),
        ("75 [60, 82] %<!-- =objective; run: 00000002 -->", "is 75 [65.6955, 82.4548]"),
        ("0.5 %<!-- =objective; run: 00000001 -->", "0.5 %, but objective of 00000001 is 50"),
        ("90 min<!-- =wall_seconds; run: 00000001 -->", "is 1.5"),
        ("12,345,678 M<!-- =env_steps; run: 00000001 -->", "is 12.3457"),
        ("a word<!-- =objective; run: 00000001 -->", "is not NUMBER"),
        ("3 %<!-- =difference of objective; run: 00000001 -->", "has no difference of objective"),
        (
            "25 [12, 40] %<!-- =difference of objective; run: 00000002; minus objective; run: 00000001 -->",
            "of 00000001 is 25 [11.6",
        ),
        (
            "1<!-- =difference of x; run: 00000001; minus x; run: 0000abcd -->",
            "no record of run 0000abcd",
        ),
        (
            "1<!-- =difference of x; run: 00000001; minus x; run: 00000002 -->",
            "run 00000002 has no x",
        ),
        (
            "1 [0, 2]<!-- =difference of kl; run: 00000002; minus kl; run: 00000001 -->",
            "[none, none]",
        ),
        (  # the interval of their mean, which is 73.7
            "75.0 [16.5, 100.0] %<!-- =median of objective; run: 00000001 00000002 00000003 -->",
            "is 75 [none, none]",
        ),
        ("50 %<!-- =objective -->", "is not NUMBER"),
        ("1,50 %<!-- =objective; run: 00000001 -->", "is not NUMBER"),
    ],
)
def test_a_number_that_differs_from_its_record(check, text: str, problem: str):
    (line,) = check(text)
    assert problem in line


def test_the_interval_of_a_share_in_per_cent_ends_at_100(project, make):
    records = [
        make(n, seed=n, metrics={"share": Metric.from_points([(1, v)])})
        for n, v in enumerate((0.9, 1.0, 1.0), 1)
    ]
    (project.root / "docs").mkdir()
    page = project.root / "docs/page.md"
    cited = "<!-- =mean of share; run: 00000001 00000002 00000003 -->"
    page.write_text(f"97 [82, 100] %{cited}")
    assert cited_numbers.problems(project, records) == []
    page.write_text(f"0.97 [0.82, 1.11]{cited}")  # whether it is a share is not known here
    assert cited_numbers.problems(project, records) == []


def test_the_mean_of_a_split_is_one_value_of_the_interval(project, make):
    rates = {1: (0.5, 1), 2: (0.6, 1), 3: (0.8, 2), 4: (0.9, 2)}  # and their splits
    trained = [make(10 + n, split=split) for n, (_, split) in rates.items()]
    evaluated = [
        make(n, parents=(of.run,), metrics={"share": Metric.from_points([(1, rates[n][0])])})
        for n, of in enumerate(trained, 1)
    ]
    (project.root / "docs").mkdir()
    page = project.root / "docs/page.md"
    runs = " ".join(run.id8 for run in evaluated)
    low, high = statistics.interval([0.55, 0.85])
    page.write_text(f"0.70 [{low:.2f}, {high:.2f}]<!-- =mean by split of share; run: {runs} -->")
    assert cited_numbers.problems(project, [*trained, *evaluated]) == []
    low, high = statistics.interval([0.5, 0.6, 0.8, 0.9])
    page.write_text(f"0.70 [{low:.2f}, {high:.2f}]<!-- =mean by split of share; run: {runs} -->")
    (line,) = cited_numbers.problems(project, [*trained, *evaluated])
    assert "mean by split of share of 00000001" in line
    page.write_text(f"0.70<!-- =mean by spilt of share; run: {runs} -->")
    (line,) = cited_numbers.problems(project, [*trained, *evaluated])
    assert line == "docs/page.md:1: run 00000001 has no flag 'spilt'"


def test_a_difference_by_split_pairs_the_means_of_each_split(project, make):
    def runs(first, shares):
        """A training on each split, and its evaluation."""
        trained = [make(first + n, split=split) for n, (split, _) in enumerate(shares)]
        return trained, [
            make(
                first + 20 + n,
                parents=(trained[n].run,),
                metrics={"share": Metric.from_points([(1, share)])},
            )
            for n, (_, share) in enumerate(shares)
        ]

    default, evaluated = runs(1, [(1, 0.5), (1, 0.6), (2, 0.8), (2, 0.9), (3, 0.75)])
    variant, others = runs(41, [(3, 0.85), (1, 0.6), (2, 0.9)])
    changes = [0.6 - 0.55, 0.9 - 0.85, 0.85 - 0.75]
    low, high = stats.ttest_1samp(changes, 0).confidence_interval(0.95)

    (project.root / "docs").mkdir()
    page = project.root / "docs/page.md"

    def problems(number, ids, other_ids):
        source = f"difference by split of share; runs: {ids}; minus share; runs: {other_ids}"
        page.write_text(f"{number}<!-- ={source} -->")
        records = [*default, *evaluated, *variant, *others]
        return cited_numbers.problems(project, records)

    ids, other_ids = (" ".join(run.id8 for run in side) for side in (others, evaluated))
    assert problems(f"0.0667 [{low:.4f}, {high:.4f}]", ids, other_ids) == []
    points = f"6.67 [{100 * low:.2f}, {100 * high:.2f}] percentage points"
    assert problems(points, ids, other_ids) == []
    (line,) = problems(f"0.0733 [{low:.4f}, {high:.4f}]", ids, other_ids)  # the mean over runs
    assert "but difference by split of share of 0000003d" in line
    (line,) = problems("0.0667", ids, evaluated[0].id8)
    assert line == "docs/page.md:1: the sides differ in split: 1, 2, 3 and 1"
    two, other_two = others[1].id8 + " " + others[2].id8, " ".join(r.id8 for r in evaluated[:4])
    assert problems("0.05", two, other_two) == []
    (line,) = problems("0.05 [0.05, 0.05]", two, other_two)  # too few for an interval
    assert line.endswith("is 0.05 [none, none]")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("20 [0, 100] %<!-- =headline toy/trials -->", ""),
        ("21 %<!-- =headline toy/trials -->", "page.md:1: 21 %, but headline toy/trials is 20"),
        ("20 [0, 28.9] %<!-- =headline toy/trials -->", "headline toy/trials is 20 [0, 100]"),
        ("20 %<!-- =headline toy/other -->", "no headline toy/other is declared"),
        ("20 %<!-- =headline toy/never -->", "headline toy/never has no runs"),
    ],
)
def test_a_number_of_a_headline(project, make, text: str, problem: str):
    (project.experiments / "toy/reported.yml").write_text(
        "headline:\n"
        "  trials: {question: How often?, operation: 'toy:sweep'}\n"
        "  never: {question: How often?, operation: 'toy:never'}\n"
    )
    batch = make(1, operation="toy:sweep", result={"batch": True})
    records = [batch, *(make(9 + n, value=n / 10, batch=batch.run, seed=n) for n in (1, 3))]
    (project.root / "docs").mkdir()
    (project.root / "docs/page.md").write_text(text)
    lines = cited_numbers.problems(project, records)
    assert bool(lines) == bool(problem)
    assert all(problem in line for line in lines)


def test_the_readme_is_read_too(project, make):
    (project.root / "README.md").write_text("9 %<!-- =objective; run: 00000001 -->\n")
    (line,) = cited_numbers.problems(project, [make(1, value=0.1)])
    assert line.startswith("README.md:1: 9 %")


def test_runs_that_a_page_names(check):
    named = "<!-- runs three-seeds: 00000001 00000002\n00000003 -->\n"
    assert check(f"{named}73.67 %<!-- =mean of objective; run: three-seeds -->") == []
    # Before they are named, among ids, and on both sides of a difference.
    assert (
        check(f"5<!-- =count of objective; runs: three-seeds 00000004 00000005 -->\n{named}") == []
    )
    same = "0<!-- =difference of objective; run: three-seeds; minus objective; run: three-seeds -->"
    assert check(f"{named}{same}") == []
    assert check(f"50 %<!-- =mean of objective; run: three-seeds -->\n{named}") == [
        "docs/page.md:1: 50 %, but mean of objective of 00000001 00000002 00000003 is 73.6667"
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("5<!-- =x; run: seeds -->", "no <!-- runs seeds: ID … --> in this page"),
        ("`<!-- runs seeds: 00000001 -->` 5<!-- =x; run: seeds -->", "no <!-- runs seeds: ID"),
        ("<!-- runs seeds: 00000009 -->\n5<!-- =x; run: seeds -->", "no record of run 00000009"),
        ("<!-- runs seeds: 0001 -->\n<!-- runs seeds: 0002 -->", "“runs seeds” is named twice"),
        ("<!-- runs abc: 00000001 -->", "“runs abc” could be an id"),
    ],
)
def test_runs_that_a_page_does_not_name_well(check, text: str, problem: str):
    (line,) = check(text)
    assert problem in line


def test_numbers_are_written_anew_as_they_were_written(project, make):
    runs = [make(n, value=value, env_steps=n * 1_000_000) for n, value in ((1, 0.5), (2, 0.75))]
    page = project.root / "docs" / "page.md"
    page.parent.mkdir()
    page.write_bytes(
        "**9** % or 0.1 [0.2, 0.3]<!-- =objective; run: 00000001 -->,\r\n"
        "**9** [1, 2] %<!-- =objective; run: 00000002 --> after 1,234<!-- =env_steps; run: 00000002 --> steps,\n"
        "1.0 [−1.0, 1.0] percentage points"
        "<!-- =difference of objective; run: 00000001; minus objective; run: 00000002 -->;\n"
        "75 %<!-- =objective; run: 00000002 -->, 3 %<!-- =objective; run: 00000009 -->,\n"
        "`9 %<!-- =objective; run: 00000001 -->`\n".encode()
    )
    before = cited_numbers.problems(project, runs)
    assert len(before) == 5
    written, left = cited_numbers.fix(project, runs)
    assert left == ["docs/page.md:4: no record of run 00000009"]
    assert [*written, *left] == before
    # Wilson's and Newcombe's intervals of 100 games.
    assert page.read_bytes().decode() == (
        "**9** % or 0.5 [0.4, 0.6]<!-- =objective; run: 00000001 -->,\r\n"
        "**75** [66, 82] %<!-- =objective; run: 00000002 --> after 2,000,000<!-- =env_steps; run: 00000002 --> steps,\n"
        "−25.0 [−37.2, −11.6] percentage points"
        "<!-- =difference of objective; run: 00000001; minus objective; run: 00000002 -->;\n"
        "75 %<!-- =objective; run: 00000002 -->, 3 %<!-- =objective; run: 00000009 -->,\n"
        "`9 %<!-- =objective; run: 00000001 -->`\n"
    )
    assert cited_numbers.problems(project, runs) == left
    assert cited_numbers.fix(project, runs) == ([], left)
