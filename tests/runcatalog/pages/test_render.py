"""The generated files: sections, rows in place, the same bytes, and what `check` reports."""

import difflib
import posixpath
import random
import re

import pytest

from rendered import joined
from runcatalog.model.errors import CatalogError
from runcatalog.model.project import Reported
from runcatalog.model.record_files import write_all
from runcatalog.model.run_record import RunRecord
from runcatalog.pages import check, findings, render, runs_page
from runcatalog.pages.tables import cells, setting_table
from runcatalog.pages.tables.settings import Setting
from runcatalog.text import links


def rows(markdown: str, name: str) -> list[list[str]]:
    """Cells of the rows whose name begins so."""
    table = [re.split(r"(?<!\\)\|", line)[1:-1] for line in markdown.splitlines()]
    cells = [[cell.strip() for cell in line] for line in table]
    return [line for line in cells if line and line[0].startswith(name)]


@pytest.fixture
def records(make) -> list[RunRecord]:
    batch = make(1, operation="toy:sweep", result={"batch": True, "method": "grid"}, machine="box1")
    trials = []
    for i, (lr, seed) in enumerate([(lr, seed) for lr in (1e-3, 5e-3) for seed in (1, 2)]):
        curve = [(step, min(1.0, step * lr * (4 + seed))) for step in range(200)]
        trials.append(
            make(10 + i, value=curve[-1][1], operation="toy:sweep", batch=batch.run, lr=lr, seed=seed,
                 machine="box1", host_cpu="a | b").with_points({"opening_rate": curve})
        )  # fmt: skip
    return [
        batch,
        *trials,
        make(30, value=0.93, seed=3, machine="box7"),
        make(31, status="KILLED", reason="SIGTERM", label="<b>|\n*x*", lr=0.1),
        make(32, operation="old:thing", value=0.2),
    ]


def test_the_pages_of_a_project(project, records):
    pages = render.Catalog(project, records).pages
    assert list(pages) == ["catalog/toy.md", "catalog/toy_runs.md", "runs_catalog.md"]
    text, runs, front = pages.values()
    low, high = rows(text, "sweep")
    assert low[:4] == ["sweep lr 1e-3", "99.8 %", "[97, 100]", "2"]
    assert high[-1] == "[00000001](toy_runs.md#00000001)"
    assert low[-3] == "5e-3 opens (a list)"
    assert "declared, not run" in rows(text, "never")[0]
    assert len(rows(text, "train “&lt;b&gt;\\| \\*x\\*”")) == 1
    assert "## Other operations" in text
    assert "(toy_runs.md#00000020)" in rows(text, "thing")[0][-1]
    assert "![opening rate, sweep](../experiments/toy/figures/sweep.svg)" in text
    entries = [line[0] for line in rows(runs, '<a id="')]
    assert len(entries) == 4  # the batch with its trials, three single runs
    assert "[Toy](catalog/toy.md" in front


def test_every_link_between_pages_has_a_target(project, records):
    render.write(project, records)
    write_all(records, project.records)
    for page in [*project.root.glob("catalog/**/*.md"), project.catalog]:
        for address in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            path, _, anchor = address.partition("#")
            target = page.parent / path if path else page
            assert target.exists(), f"{page}: {address}"
            if anchor:
                text = target.read_text()
                anchors = {links.anchor(h) for n in (1, 2, 3) for h in links.headings(text, n)}
                assert anchor in anchors or f'id="{anchor}"' in text, f"{page}: {address}"


def test_a_machine_with_several_kinds_of_cpu_is_no_single_machine(project, make):
    first = make(1, value=0.1, machine="box7", host_cpu="old")
    others = [make(n, value=0.2, machine="box7", host_cpu="new", lr=n) for n in (2, 3)]
    retracted = make(4, value=0.3, machine="box7", host_cpu="old", lr=4, retracted="a bug")
    text = joined(render.Catalog(project, [first, *others, retracted]))
    entries = [row for row in rows(text, '<a id="') if "retracted" not in row]
    assert [row[-1].split("; ")[-1] for row in entries] == [
        "box7 (CPU 1), old",
        *["box7 (CPU 2), new"] * 2,
    ]


def test_reasons_of_operations_that_were_not_run(project, records):
    reasons = project.experiments / "toy/pending.yml"
    reasons.write_text("toy:never: six hours | one core\ntoy:sweep: it has a run\n")
    text = joined(render.Catalog(project, records))
    (never,) = rows(text, "never")
    assert "declared, not run (six hours \\| one core)" in never
    assert "it has a run" not in text
    for wrong in ("toy:nowhere: soon\n", "- toy:never\n"):
        reasons.write_text(wrong)
        with pytest.raises(CatalogError, match=r"pending\.yml: "):
            render.Catalog(project, records)


def test_the_order_of_the_records_does_not_matter(project, records):
    first = joined(render.Catalog(project, records))
    shuffled = random.Random(1).sample(records, len(records))
    assert joined(render.Catalog(project, shuffled)) == first


def test_writing_twice_writes_once(project, records):
    assert {path.name for path in render.write(project, records)} == {
        "sweep.svg",
        "runs_catalog.md",
        "toy.md",
        "toy_runs.md",
    }
    assert render.write(project, records) == []
    assert check.difference(project, records) == []


def test_check_requires_no_record_of_a_batch_that_exists_only_in_its_trials(project, records):
    batch, *others = records
    render.write(project, others)
    assert batch.id8 in project.catalog.read_text()
    assert check.difference(project, others) == []
    project.catalog.write_text(project.catalog.read_text() + "one more line\n")
    lines = check.difference(project, others)
    assert lines
    assert not any(batch.id8 in line for line in lines)
    assert check.lost_rows(project, others) == ""


def test_pages_of_other_origin_are_kept_and_outdated_ones_removed(project, records, make):
    other = make(0x70, operation="other:train", study="other", value=0.5)
    mine = project.root / "catalog" / "mine.md"
    mine.parent.mkdir()
    mine.write_text("# Written by hand\n")
    render.write(project, [*records, other])
    assert (project.root / "catalog/other.md").is_file()
    assert any("other.md has no study" in line for line in check.difference(project, records))
    changed = {path.name for path in render.write(project, records)}
    assert {"other.md", "other_runs.md"} <= changed
    assert sorted(p.name for p in mine.parent.iterdir()) == ["mine.md", "toy.md", "toy_runs.md"]


def test_check_names_the_first_row_that_differs(project, records, make):
    render.write(project, records)
    changed = [r for r in records if r.run != records[-3].run]
    lines = check.difference(project, changed)
    assert re.match(r"catalog/toy.md:\d+: row “train.*93 %.*; \d more pages differ", lines[0])
    assert "without a record (`catalog export`" in lines[1]
    assert records[-3].id8 in lines[1]

    going = make(0x90, status="RUNNING", result=None)
    render.write(project, [*records, going])
    _, advice = check.difference(project, records)
    assert "run 00000090, still running" in advice
    assert "`catalog render` leaves it out" in advice
    assert "catalog export" not in advice
    batch = make(0x91, result={"batch": True}, status="RUNNING", operation="toy:sweep")
    trials = [make(0x92, status="RUNNING", batch=batch.run), make(0x93, value=0.5, batch=batch.run)]
    render.write(project, [*records, batch, *trials])
    assert "run 00000091, still running" in check.difference(project, records)[-1]
    render.write(project, records)

    page = project.root / "catalog/toy.md"
    written = page.read_text()
    page.write_text(f"<<<<<<< HEAD\n=======\n{written}>>>>>>> other\n")
    assert check.difference(project, records) == [
        "catalog/toy.md: a merge conflict; `catalog render` writes the page again"
    ]
    page.write_text(written + "typed by hand\n")
    (line,) = check.difference(project, records)
    assert "typed by hand" in line
    page.unlink()
    assert check.difference(project, records) == ["catalog/toy.md is missing"]
    project.catalog.unlink()
    with pytest.raises(CatalogError, match="missing; `catalog render` writes it"):
        check.difference(project, records)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ table( }}", "catalog.md.j2: line 1"),
        ("{{ tabel([]) }}", "'tabel' is undefined"),
        ("{{ table(['a'], wrong=1) }}", "wrong"),
        ('{{ figure("../x", "toy:train", "loss") }}', "a file name of letters"),
        ("{{ series([{'name': 'a'}], ['b']) }}", "catalog.md.j2: KeyError: 'steps'"),
        ("{{ 1 / 0 }}", "catalog.md.j2: division by zero"),
        ("{{ value('toy:train').index('?') }}", "catalog.md.j2: substring not found"),
    ],
)
def test_a_wrong_template_is_named(project, template, words):
    (project.experiments / "toy" / "catalog.md.j2").write_text(template)
    with pytest.raises(CatalogError, match=re.escape(words)):
        joined(render.Catalog(project, []))


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (
            '{{ value("toy:train", lrr=0.1) }}',
            "value: no run of toy:train has a flag lrr, did you mean lr?",
        ),
        ('{{ value("toy:train", "scoer", lr=0.1) }}', "has a metric scoer, did you mean score?"),
        ('{{ cell("toy:train", "a", "b", lrr=0.1) }}', "has a flag lrr"),
        ('{{ finding(["toy:train"], x="lrr", y="seed") }}', "has a flag lrr"),
        ('{{ figure("loss", ["toy:train"], "lss") }}', "has a metric lss, did you mean loss?"),
        ('{{ figure("loss", ["toy:train"], "loss", flags=["lrr"]) }}', "has a flag lrr"),
        ('{{ seed_points("p", ["toy:train"], {"x": 1}, where={"lrr": 1}) }}', "has a flag lrr"),
        (
            '{{ seed_points("p", ["toy:train"], {"x": 1}, names={"a": {"lrr": 1}}) }}',
            "has a flag lrr",
        ),
        ('{{ table(["toy:train"], names={"a": {"lrr": 1}}) }}', "has a flag lrr"),
        ('{{ table(["toy:train"], flags=["lrr"]) }}', "has a flag lrr, did you mean lr?"),
        ('{{ table(["toy:train"], flags={"lrr": 1}) }}', "has a flag lrr"),
        ('{{ sweep(["toy:train"], x="lr", y="lrr") }}', "has a flag lrr, did you mean lr?"),
        ('{{ heatmap("map", ["toy:train"], x="lr", y="lrr") }}', "has a flag lrr"),
    ],
)
def test_a_name_that_no_run_has_is_an_error_of_the_template(project, make, template, words):
    (project.experiments / "toy" / "catalog.md.j2").write_text(template)
    objective = {"name": "x", "value": 1.0, "also": [{"name": "score", "value": 2.0}]}
    run = make(1, lr=0.1, seed=1, result={"objective": objective})
    run = run.with_points({"loss": [(1, 0.5), (2, 0.25)]})
    with pytest.raises(CatalogError, match=re.escape(words)) as error:
        joined(render.Catalog(project, [run]))
    assert "catalog.md.j2" in str(error.value)
    joined(render.Catalog(project, []))  # before the first run the names cannot be known


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ('{{ seed_points("p", ["toy:train"], ["objective"]) }}', "figure 'p': AttributeError"),
        ('{{ figure("p", ["toy:train"], "loss") }}{{ figure("p", ["toy:train"], "score") }}',
         "figure 'p': another figure of the study has this name"),
    ],
)  # fmt: skip
def test_a_figure_that_cannot_be_drawn_or_would_replace_another_is_named(
    project, make, template, words
):
    (project.experiments / "toy" / "catalog.md.j2").write_text(template)
    run = make(1, value=1.0, lr=0.1, seed=1)
    run = run.with_points({name: [(1, 0.5), (2, 0.25)] for name in ("loss", "score")})
    with pytest.raises(CatalogError, match=re.escape(words)):
        render.Catalog(project, [run]).write()


def test_a_figure_may_stand_in_two_places(project, make):
    figure = '{{ figure("p", ["toy:train"], "loss") }}'
    (project.experiments / "toy" / "catalog.md.j2").write_text(figure + figure)
    run = make(1, lr=0.1, seed=1).with_points({"loss": [(1, 0.5), (2, 0.25)]})
    assert joined(render.Catalog(project, [run])).count("figures/p.svg") == 2


def test_seeds_share_a_row(project, make):
    template = '{{ table(["toy:train"], flags=["lr"]) }}'
    (project.experiments / "toy" / "catalog.md.j2").write_text(template)
    runs = [make(i, value=0.9, lr=0.1, seed=i) for i in (1, 2, 3, 4)] + [
        make(9, value=0.1, lr=0.2, seed=1)
    ]
    table = rows(joined(render.Catalog(project, runs)), "train")
    assert [line[:5] for line in table] == [
        ["train lr 0.1", "90 %", "[87, 93]", "4", "360 updates"],
        ["train lr 0.2", "10 %", "[6, 17]", "1", "360 updates"],
    ]
    assert table[0][-1].endswith(
        "[00000003](toy_runs.md#00000003) and [1 more](toy_runs.md#toytrain)"
    )


def test_repetitions_without_a_seed_are_seeds_only_where_their_results_differ(project, make):
    def row(*results):
        runs = [make(i, value=value, lr=1) for i, value in enumerate(results, 1)]
        text = render.Catalog(project, runs).table(["toy:train"])
        (header,), (shown,) = rows(text, "setting"), rows(text, "train")
        return dict(zip(header, shown, strict=True))

    same = row(0.9, 0.9, 0.9)
    assert same["runs"] == "1"
    assert same["outcome"] == "2 older runs of the same result, without a seed, left out"
    assert row(0.9, 0.9, 0.8)["runs"] == "3"


def test_a_whole_number_of_seeds_is_a_count_unless_the_run_says_that_it_lists_them(make):
    run = make(1, value=0.5, seed=4, seeds=2)
    assert cells.seeds(run) == ["4", "5"]
    run.result["variant"] = {"seeds": "2"}
    assert cells.seeds(run) == ["4"]


def test_seeds_share_a_row_if_they_started_from_runs_of_their_own_seeds(project, make):
    template = '{{ table(["toy:train"], flags=[]) }}'
    (project.experiments / "toy" / "catalog.md.j2").write_text(template)
    parents = [make(i, value=0.5, operation="toy:opt", seed=i) for i in (1, 2)]
    other = make(3, value=0.5, operation="toy:opt", seed=1, lr=0.5)
    runs = [
        make(10 + n, value=0.9, seed=parent.seed, parents=(parent.run,))
        for n, parent in enumerate((*parents, other, parents[0]))
    ]
    # runs[3] repeats runs[0], so that it counts in its place.
    # Other flags of the parent, another seed of the parent, an unknown parent: separate rows.
    runs.append(make(20, value=0.9, seed=2, parents=(parents[0].run,)))
    runs.append(make(21, value=0.9, seed=2, parents=("f" * 32,)))
    table = rows(joined(render.Catalog(project, [*parents, other, *runs])), "train")
    assert [re.findall(r"\[([0-9a-f]{8})\]", line[-1]) for line in table] == [
        [runs[1].id8, runs[3].id8], [runs[2].id8], [runs[4].id8], [runs[5].id8],
    ]  # fmt: skip


def test_seeds_share_a_row_if_they_started_from_a_common_run(project, make):
    template = '{{ table(["toy:train"], flags=[]) }}'
    (project.experiments / "toy" / "catalog.md.j2").write_text(template)
    parents = [make(i, value=0.5, operation="toy:opt", seed=1, lr=i) for i in (1, 2)]
    runs = [
        make(10 + 10 * n + seed, value=0.9, seed=seed, parents=(parents[n].run,))
        for seed in (1, 2, 3)
        for n in (0, 1)
    ]
    table = rows(joined(render.Catalog(project, [*parents, *runs])), "train")
    assert [line[3] for line in table] == ["3", "3"]


def test_a_rerun_of_the_common_run_is_the_same_origin(project, make):
    first, again = (make(i, operation="toy:sweep", seed=1, lr=1e-3, value=0.5) for i in (1, 2))
    other = make(3, operation="toy:sweep", seed=2, lr=1e-3, value=0.5)
    started = [
        make(10, seed=1, value=0.1, parents=(again.run,)),
        make(11, seed=2, value=0.3, parents=(first.run,)),
        make(12, seed=3, value=0.5, parents=(first.run,)),
        make(13, seed=3, value=0.8, parents=(again.run,)),  # instead of the one before
        make(14, seed=3, value=0.9, parents=(other.run,)),
    ]
    page = joined(render.Catalog(project, [first, again, other, *started]))
    assert [row[:3] for row in rows(page, "train")] == [
        ["train from 00000002, 00000001", "40 %", "[0, 100]"],
        ["train from 00000003", "90 %", "[83, 94]"],
    ]


def test_a_flag_is_shown_where_it_differs_from_the_templates_default(project, make):
    template = '{{ table(["toy:train"], flags={"lr": 0.005, "updates": [30, 40]}) }}'
    (project.experiments / "toy" / "catalog.md.j2").write_text(template)
    flags = {"lr": 0.005, "updates": 30}
    runs = [
        make(n, value=0.9, **(flags | more))
        for n, more in enumerate(({}, {"lr": 0.1}, {"updates": 60}))
    ]
    table = rows(joined(render.Catalog(project, runs)), "train")
    assert [line[0] for line in table] == ["train", "train lr 0.1", "train updates 60"]


def test_a_seed_in_a_label_splits_no_row_and_nothing_is_repeated(project, make):
    template = '{{ table(["toy:train"]) }}'
    (project.experiments / "toy" / "catalog.md.j2").write_text(template)
    runs = [
        make(10 * n + seed, value=0.9, lr=lr, seed=seed, label=f"lr={lr} seed={seed}")
        for n, lr in enumerate((0.1, 0.2))
        for seed in (1, 12)
    ]
    table = rows(joined(render.Catalog(project, runs)), "train")
    assert [line[0] for line in table] == ["train lr 0.1", "train lr 0.2"]
    assert table[0][3] == "2"


def test_a_reused_run_is_marked_as_such(project, make):
    template = '{{ table(["toy:train"], reused={"toy:train": "series3"}) }}'
    (project.experiments / "toy" / "catalog.md.j2").write_text(template)
    (line,) = rows(joined(render.Catalog(project, [make(1, value=0.5)])), "train")
    assert "reused from series3" in line


def test_a_search_by_option_is_named_and_trials_are_no_rows(project, make):
    batch = make(1, operation="toy:train", result={"batch": True, "method": "gp"})
    trials = [make(i, value=i / 10, batch=batch.run, lr=i / 100) for i in (2, 3)]
    (row,) = rows(render.Catalog(project, [batch, *trials]).table(["toy:train"]), "train")
    assert row[:3] == ["train (gp)", "lr 3e-2", "30 % opening rate [22, 40]"]
    # Without the batch's record its trials are points of a grid.
    orphans = render.Catalog(project, trials).pages["catalog/toy_runs.md"]
    assert len(rows(orphans, '<a id="')) == 1
    assert f'<a id="{batch.id8}"></a>' in orphans


def test_operations_of_odd_guild_files(project):
    path = project.experiments / "toy" / "guild.yml"
    odd = "- model: m\n  operations:\n    x: a.py\n- model: empty\n"
    path.write_text(odd)
    assert sorted(project.operations()) == ["m:x"]
    path.write_text(f"{odd}- 5\n")
    with pytest.raises(CatalogError, match=r"guild.yml: '5' is neither model nor config"):
        project.operations()
    path.write_text("train: {main: train}\n")
    assert sorted(project.operations()) == ["train"]
    path.write_text("a: [\n")
    with pytest.raises(CatalogError, match=r"guild.yml: line 2"):
        project.operations()


def test_tables_of_several_runs_are_joined(project, make):
    template = '{{ details(["toy:train", "toy:sweep"]) }}'
    (project.experiments / "toy" / "catalog.md.j2").write_text(template)
    table = {"columns": ["who", "median"], "rows": [["a|b", "3 [2, 4]"], ["c", "never"]]}
    wider = {"columns": ["who", "mean", "median"], "rows": [["d", "5", "6"]]}
    other = {"columns": ["what"], "rows": [["x"]] * 13}
    catalog = render.Catalog(
        project,
        [
            make(1, value=0.5, lr=0.1, result={"table": table}),
            make(2, value=0.5, lr=0.2, result={"table": wider}),
            make(3, value=0.5, lr=0.2),
            make(4, operation="toy:sweep", result={"table": other}),
        ],
    )
    text = joined(catalog)
    # Those whose columns another has are put into it; a name stands on the first of its lines.
    link = "[{0}](toy_runs.md#{0})"
    first, second = (rows(text, f"train lr {lr}")[0][1:] for lr in (0.1, 0.2))
    assert first == [link.format("00000001"), "a\\|b", "", "3 \\[2, 4\\]"]
    assert second == [link.format("00000002"), "d", "5", "6"]
    assert [line[2:] for line in rows(text, "") if line[2:3] == ["c"]] == [["c", "", "never"]]
    headers = [line[2:] for line in rows(text, "setting") if line[1] == "id"][:2]
    assert headers == [["who", "mean", "median"], ["what"]]
    assert text.count("<details><summary>13 lines: what</summary>") == 1  # the long one
    (project.experiments / "toy" / "catalog.md.j2").write_text(
        '{{ details(["toy:train"], folded=false) }}'
    )
    both = {"table": [table, other | {"rows": [["x"]] * 20}]}  # one run, two tables
    text = joined(render.Catalog(project, [make(1, value=0.5, result=both)]))
    assert [line[2:] for line in rows(text, "setting") if line[1] == "id"][:2] == [
        ["who", "median"],
        ["what"],
    ]
    assert len([line for line in rows(text, "") if line[2:3] == ["x"]]) == 20
    assert "20 lines" not in text


def test_the_last_of_many_settings_are_shown_and_the_others_folded(project, make):
    (project.experiments / "toy" / "catalog.md.j2").write_text(
        '{{ table(["toy:train", "toy:sweep"]) }}'
    )
    runs = [make(i, value=0.5, lr=i) for i in range(1, 24)]
    runs[4] = make(5, status="FAILED", reason="out of memory", lr=5)
    catalog = render.Catalog(project, [*runs, make(99, value=0.5, operation="toy:sweep")])
    catalog.data.reported = {"toy:train": Reported("what the source says")}
    shown, earlier = (
        catalog.pages["catalog/toy.md"].split("## Other operations")[0].split("<details>")
    )
    assert [line[0] for line in rows(shown, "train")] == [f"train lr {n}" for n in range(12, 24)]
    assert [line[0] for line in rows(earlier, "train")] == [f"train lr {n}" for n in range(1, 12)]
    assert "failed: out of memory" in rows(earlier, "train")[4]
    assert earlier.startswith("<summary>11 earlier rows</summary>\n\n|")
    assert len(rows(shown, "sweep")) == 1
    assert "what the source says" in rows(shown, "train")[0]


def test_settings_with_a_name_come_first_in_the_order_of_the_names_and_are_not_folded(
    project, make
):
    (project.experiments / "toy" / "catalog.md.j2").write_text(
        '{{ table(["toy:train"], names={"large": {"lr": 20}, "small": {"lr": 1}, "late": {"clip": 2, "lr": 9}}) }}'
    )
    runs = [make(i, value=0.5, lr=i) for i in range(1, 24)]
    runs[8:9] = [make(30 + c, value=0.5, flags={"lr": 9, "clip": 2, "critic": c}) for c in (1, 2)]
    text = render.Catalog(project, runs).pages["catalog/toy.md"]
    shown, earlier = text.split("## Other operations")[0].split("<details>")
    first = [line.split(" | ")[0] for line in shown.split("--- |\n")[1].splitlines()[:4]]
    assert first == ["| large", "| small", "| late critic 1, lr 9", "| late critic 2, lr 9"]
    assert [line[0] for line in rows(shown, "train")] == [
        f"train lr {n}" for n in (*range(15, 20), 21, 22, 23)
    ]
    assert [line[0] for line in rows(earlier, "train")] == [
        f"train lr {n}" for n in (*range(2, 9), *range(10, 15))
    ]


def test_the_entry_of_a_run_has_what_its_row_leaves_out(project, make):
    (project.experiments / "toy" / "catalog.md.j2").write_text(
        '{{ table(["toy:train", "toy:sweep"]) }}'
    )
    batch = make(9, operation="toy:sweep", result={"batch": True}, wall_seconds=4000)
    trial = {"operation": "toy:sweep", "batch": batch.run, "value": 0.5, "gpu": "RTX 3090"}
    trials = [
        make(10 + i, flags={"lr": lr, "seed": 1}, commit=digit * 40, **trial)
        for i, (lr, digit) in enumerate([(0.1, "a"), (0.2, "b")])
    ]
    single = make(
        1, value=0.5, flags={"lr": 0.25, "seed": 3}, commit="abcdef0123", dirty="feed5678" * 8,
        wall_seconds=61.2, host_cpu="a cpu", digest={"metrics": "0123456789"},
    )  # fmt: skip
    running = make(2, status="RUNNING", flags={"seed": 4})
    pages = render.Catalog(project, [single, running, batch, *trials]).pages
    runs = pages["catalog/toy_runs.md"]
    entries = {line[0]: line for line in rows(runs, "<a id=")}
    record = '<a id="{0}"></a>[{0}](../experiments/records/toy/{0}.json)'
    shown = entries[record.format("00000001")]
    for expected in (
        "`guild run toy:train lr=0.25 seed=3 -y`", "`abcdef0` with uncommitted code `feed5678`", "a cpu", "1 min 1 s",
        "metrics `01234567`",
    ):  # fmt: skip
        assert expected in " | ".join(shown)
    # No record of a running run.
    assert "`guild run toy:train seed=4 -y`" in entries['<a id="00000002"></a>00000002']
    for expected in (
        "`guild run toy:sweep lr='[0.1,0.2]' seed=1 -y`", "`aaaaaaa`, `bbbbbbb`", "RTX 3090", "1 h 6 min",
    ):  # fmt: skip
        assert expected in " | ".join(entries[record.format("00000009")])
    assert "uncommitted code" in rows(pages["catalog/toy.md"], "train")[0]


def test_entries_are_linked_to_mlflow_where_a_server_is_configured(project, records):
    plain = render.Catalog(project, records).pages
    addresses = {r.run: f"http://mlflow.lab:8080/#/experiments/1/runs/{r.run}" for r in records}
    render.write(project, records, addresses)
    page = project.root / "catalog/toy_runs.md"
    linked = page.read_text()
    assert f" [MLflow]({addresses[records[0].run]}) |" in linked
    assert linked.count("](http://") == len([r for r in records if not r.batch])
    assert check.difference(project, records) == []  # who has another server has other links
    render.write(project, records)
    assert page.read_text() == plain["catalog/toy_runs.md"]


def test_a_long_result_is_cut_and_whole_in_its_entry(project, make):
    long = "; ".join(["x" * 30] * 6)
    pages = render.Catalog(project, [make(1, result={"summary": long})]).pages
    (row,) = rows(pages["catalog/toy.md"], "train")
    assert max(len(cell.partition("](")[0]) for cell in row) <= 101
    assert long in pages["catalog/toy_runs.md"]


def test_guilds_quotes_around_numbers_are_removed(project, make):
    (project.experiments / "toy" / "catalog.md.j2").write_text('{{ table(["toy:train"]) }}')
    run = make(1, value=0.5, label="value lr='0.02' hidden='8 4' name='x'", lr=0.02, seed=1)
    other = make(2, value=0.5, label="lr='1e-3'", lr=1e-3)
    names = [line[0] for line in rows(joined(render.Catalog(project, [run, other])), "train")]
    assert names == ["train “value hidden='8 4' name='x'” lr 2e-2", "train lr 1e-3"]


@pytest.mark.parametrize(
    ("label", "flags", "shown"),
    [
        ("splits '4 5 6' seeds '1'", {"seeds": "1", "splits": "4 5 6"}, "train splits 4 5 6, seeds 1"),
        ("'lr=0.1 x=2' again", {"more": "lr=0.1 x=2"}, "train “again” more lr=0.1 x=2"),
        ("sizes '9'", {"sizes": 9}, "train sizes 9"),
        ("splits '1'", {"splits": "2"}, "train “splits '1'” splits 2"),
        ("train lr=0.1", {"lr": 0.1}, "train lr 0.1"),
    ],
)  # fmt: skip
def test_what_flags_say_stands_once(make, label, flags, shown):
    """Guild quotes a text of digits, and one with spaces, where a label shows it."""
    setting = Setting("toy:train", (make(1, label=label, **flags),))
    assert setting_table.setting_cell(setting, "train", list(flags)) == shown


def test_a_new_run_changes_few_lines(project, make):
    (project.experiments / "toy" / "catalog.md.j2").write_text(
        '{{ finding("toy:train") }}\n\n{{ table(["toy:train"]) }}'
    )
    runs = [
        make(100 * n + seed, value=0.9, lr=n, width=64, clip=0.2, seed=seed)
        for n in range(1, 30)
        for seed in (1, 2, 3)
    ]
    before = render.Catalog(project, runs).pages
    for new in (make(9001, value=0.5, lr=3, width=64, clip=0.2, seed=9),  # another seed
                make(9002, value=0.5, lr=77, width=32, clip=0.2, seed=9)):  # another setting  # fmt: skip
        after = render.Catalog(project, [*runs, new]).pages
        assert list(after) == list(before)
        changed = sum(
            line[0] in "+-" and not line.startswith(("+++", "---"))
            for path in after
            for line in difflib.unified_diff(
                before[path].splitlines(), after[path].splitlines(), n=0, lineterm=""
            )
        )
        assert 0 < changed < 40


def test_long_pages_are_split_and_every_id_leads_to_its_entry(project, make, monkeypatch):
    monkeypatch.setattr(render, "MAX_BYTES", 500)
    monkeypatch.setattr(runs_page, "MAX_BYTES", 500)
    monkeypatch.setattr(runs_page, "MAX_ENTRIES", 4)
    (project.experiments / "toy" / "catalog.md.j2").write_text(
        '# Toy\n\nAbout.\n\n## First\n\n{{ table(["toy:train"]) }}\n\n## Second\n\n'
        '{{ table(["toy:sweep"]) }}\n\n{{ figure("sweep", ["toy:sweep"], "opening_rate") }}'
    )
    runs = [make(n, value=0.5, lr=n) for n in range(1, 10)]
    sweep = make(99, value=0.5, operation="toy:sweep").with_points({"opening_rate": [(1, 0.5)]})
    pages = render.Catalog(project, [*runs, sweep]).pages
    assert list(pages)[:4] == [
        "catalog/toy.md", "catalog/toy/first.md", "catalog/toy/second.md", "catalog/toy/other-operations.md",
    ]  # fmt: skip
    assert "[First](toy/first.md)" in pages["catalog/toy.md"]
    assert "(../../experiments/toy/figures/sweep.svg)" in pages["catalog/toy/second.md"]
    for n in range(1, 10):
        (address,) = set(re.findall(rf"\[{n:08x}\]\(([^)]*)\)", pages["catalog/toy/first.md"]))
        path, _, anchor = address.partition("#")
        assert f'<a id="{anchor}"></a>' in pages[posixpath.normpath(f"catalog/toy/{path}")]


def test_studies_whose_pages_would_have_one_name_are_refused(project, make):
    runs = [make(1, study=s, operation=f"{s}:train", value=0.5) for s in ("a", "a_runs")]
    runs[1] = make(2, study="a_runs", operation="a_runs:train", value=0.5)
    with pytest.raises(CatalogError, match="a_runs"):
        render.Catalog(project, runs).pages  # noqa: B018


@pytest.mark.parametrize(
    "table",
    [
        {"columns": ["a"], "rows": [3]},
        {"columns": ["a"], "rows": None},
        {"columns": 5, "rows": [["x"]]},
        {"columns": ["a"]},
        [3],
    ],
)
def test_a_table_of_another_form_in_a_result_is_left_out(project, make, table):
    objective = {"name": "x", "value": 1.0}
    run = make(1, result={"objective": objective, "table": table})
    assert render.Catalog(project, [run]).details("toy:train") == ""


def test_an_integer_that_no_float_can_hold_is_no_number_of_a_result(project, make):
    huge = -(10**400)
    objective = {"name": "x", "value": 1, "also": [{"name": "y", "value": huge}]}
    result = {"objective": objective, "metrics": {"z": huge}}
    run = make(1, result=result, reproduced=({"when": "2026", "value": huge},))
    catalog = render.Catalog(project, [run])
    assert "x 1" in catalog.pages["catalog/toy_runs.md"]
    assert findings.above(catalog.data, "toy", "z", 0).startswith("0 of 0 runs")
    assert make(2, result={"objective": objective | {"value": huge}}).objective is None


def test_a_heading_without_text_is_no_section(project):
    (project.experiments / "toy" / "catalog.md.j2").write_text("# T\n\n## \n\ntext\n")
    assert "text" in render.Catalog(project, []).pages["catalog/toy.md"]


def test_a_study_that_no_record_can_name_is_refused(project):
    """Its page had 0 runs, since a record's study had a hyphen for the space, and links with a space."""
    path = project.experiments / "toy" / "guild.yml"
    folder = project.experiments / "my toy"
    path.parent.rename(folder)
    for content in ("- include: [experiments/my toy/guild.yml]", ""):
        (project.root / "guild.yml").write_text(content)
        with pytest.raises(CatalogError, match="my toy: the name of a study is of letters"):
            joined(render.Catalog(project, []))


def test_a_seed_that_ran_again_is_one_point_of_a_figure(make, project):
    (project.experiments / "toy/catalog.md.j2").write_text(
        '{{ seed_points("p", ["toy:train"], {"all": "objective"}) }}\n'
    )
    records = [make(i, value=0.2 * i, seed=max(1, i - 1), lr=0.1) for i in (1, 2, 3)]
    catalog = render.Catalog(project, records)
    assert catalog.pages
    (drawing,) = catalog.figures.values()
    assert [run.run for run in drawing.runs] == [record.run for record in records[1:]]
