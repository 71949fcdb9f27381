"""The file: sections, rows in place, the same bytes, and what `check` says."""

import random
import re

import pytest

from runcatalog.model.errors import CatalogError
from runcatalog.model.project import Reported
from runcatalog.model.run_record import RunRecord
from runcatalog.pages import check, render


def rows(markdown: str, name: str) -> list[list[str]]:
    """Cells of the rows whose name begins so."""
    found = [re.split(r"(?<!\\)\|", line)[1:-1] for line in markdown.splitlines()]
    cells = [[cell.strip() for cell in line] for line in found]
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


def test_the_whole_file(project, records):
    catalog = render.Catalog(project, records)
    text = joined(catalog)
    assert rows(text, "box7") == [["box7", "–", "RTX 2070", "1", "no access"]]
    assert rows(text, "box1") == [["box1", "a \\| b", "–", "4", ""]]
    (sweep,) = rows(text, "sweep")
    assert sweep[1:4] == ["00000001", "box1", "1, 2"]
    assert "best **5e-3**" in sweep[4]
    assert sweep[-1] == "5e-3 opens (a list)"
    assert "declared, not run: `guild run toy:never -y`" in rows(text, "never")[0][-2]
    killed = rows(text, "train “&lt;b&gt;\\| \\*x\\*” lr=0.1")
    assert len(killed) == 1
    assert "## Other operations" in text
    assert rows(text, "thing")[0][1] == "00000020"
    assert "![opening rate, sweep](experiments/toy/figures/sweep.svg)" in text
    # Empty in all rows of the second table.
    assert "task id" not in text


def test_a_machine_with_several_kinds_of_cpu_is_no_single_machine(project, make):
    first = make(1, value=0.1, machine="box7", host_cpu="old")
    others = [make(n, value=0.2, machine="box7", host_cpu="new", lr=n) for n in (2, 3)]
    retracted = make(4, value=0.3, machine="box7", host_cpu="old", lr=4, retracted="a bug")
    text = joined(render.Catalog(project, [first, *others, retracted]))
    assert [row[:4] for row in rows(text, "box7")] == [
        ["box7 (CPU 1)", "old", "RTX 2070", "1"],
        ["box7 (CPU 2)", "new", "RTX 2070", "2"],
    ]
    assert [row[2] for row in rows(text, "train")] == ["box7 (CPU 1)", *["box7 (CPU 2)"] * 2]


def test_why_an_operation_waits(project, records):
    reasons = project.experiments / "toy/pending.yml"
    reasons.write_text("toy:never: six hours | one core\ntoy:sweep: it has a run\n")
    text = joined(render.Catalog(project, records))
    (never,) = rows(text, "never")
    assert never[-2] == "declared, not run (six hours \\| one core): `guild run toy:never -y`"
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
    }
    assert render.write(project, records) == []
    assert check.difference(project, records) == []


def test_check_names_the_first_row_that_differs(project, records, make):
    render.write(project, records)
    changed = [r for r in records if r.run != records[-3].run]
    told = check.difference(project, changed)
    assert re.match(r"runs_catalog.md:\d+: row “train.*93 % opening rate", told[0])
    assert "without a record (`catalog export`" in told[1]
    assert records[-3].id8 in told[1]

    going = make(0x90, status="RUNNING", result=None)
    render.write(project, [*records, going])
    first, advice = check.difference(project, records)
    assert "row “train | 00000090" in first
    assert "run 00000090, still running" in advice
    assert "`catalog render` leaves it out" in advice
    assert "catalog export" not in advice
    batch = make(0x91, result={"batch": True}, status="RUNNING", operation="toy:sweep")
    trials = [make(0x92, status="RUNNING", batch=batch.run), make(0x93, value=0.5, batch=batch.run)]
    render.write(project, [*records, batch, *trials])
    assert "run 00000091, still running" in check.difference(project, records)[-1]
    render.write(project, records)

    project.catalog.write_text(project.catalog.read_text() + "typed by hand\n")
    (line,) = check.difference(project, records)
    assert "typed by hand" in line
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
    ],
)
def test_a_wrong_template_is_named(project, template, words):
    (project.experiments / "toy" / "catalog.md.j2").write_text(template)
    with pytest.raises(CatalogError, match=re.escape(words)):
        joined(render.Catalog(project, []))


def test_seeds_share_a_row_where_asked_for(project, make):
    template = '{{ table(["toy:train"], group=true, flags=["lr"]) }}'
    (project.experiments / "toy" / "catalog.md.j2").write_text(template)
    runs = [make(i, value=0.9, lr=0.1, seed=i) for i in (1, 2, 3, 4)] + [
        make(9, value=0.1, lr=0.2, seed=1)
    ]
    found = rows(joined(render.Catalog(project, runs)), "train")
    assert [line[0] for line in found] == ["train lr=0.1", "train lr=0.2"]
    assert found[0][1] == "00000001, 00000002, 00000003, 00000004"
    assert found[0][2] == "1–4"
    assert "mean of 4 seeds" in found[0][3]


def test_runs_of_seeds_share_a_row_though_each_began_from_a_run_of_its_own_seed(project, make):
    template = '{{ table(["toy:train"], group=true, flags=[]) }}'
    (project.experiments / "toy" / "catalog.md.j2").write_text(template)
    parents = [make(i, value=0.5, operation="toy:opt", seed=i) for i in (1, 2)]
    other = make(3, value=0.5, operation="toy:opt", seed=1, lr=0.5)
    runs = [
        make(10 + n, value=0.9, seed=each.seed, parents=(each.run,))
        for n, each in enumerate((*parents, other, parents[0]))
    ]
    # Of another parent's flags, of a parent of another seed, of one that nobody knows: rows of their own.
    runs.append(make(20, value=0.9, seed=2, parents=(parents[0].run,)))
    runs.append(make(21, value=0.9, seed=2, parents=("f" * 32,)))
    found = rows(joined(render.Catalog(project, [*parents, other, *runs])), "train")
    assert [line[1].split(", ") for line in found] == [
        [runs[0].id8, runs[1].id8, runs[3].id8], [runs[2].id8], [runs[4].id8], [runs[5].id8],
    ]  # fmt: skip


def test_runs_that_all_began_from_one_share_a_row_though_it_has_the_seed_of_one(project, make):
    template = '{{ table(["toy:train"], group=true, flags=[]) }}'
    (project.experiments / "toy" / "catalog.md.j2").write_text(template)
    parents = [make(i, value=0.5, operation="toy:opt", seed=1, lr=i) for i in (1, 2)]
    runs = [
        make(10 + 10 * n + seed, value=0.9, seed=seed, parents=(parents[n].run,))
        for seed in (1, 2, 3)
        for n in (0, 1)
    ]
    found = rows(joined(render.Catalog(project, [*parents, *runs])), "train")
    assert [line[2] for line in found] == ["1, 2, 3", "1, 2, 3"]


def test_a_flag_is_shown_where_it_differs_from_what_the_template_leaves_unsaid(project, make):
    template = '{{ table(["toy:train"], flags={"lr": 0.005, "updates": [30, 40]}) }}'
    (project.experiments / "toy" / "catalog.md.j2").write_text(template)
    flags = {"lr": 0.005, "updates": 30}
    runs = [
        make(n, value=0.9, **(flags | more))
        for n, more in enumerate(({}, {"lr": 0.1}, {"updates": 60}))
    ]
    found = rows(joined(render.Catalog(project, runs)), "train")
    assert [line[0] for line in found] == ["train", "train lr=0.1", "train updates=60"]


def test_the_seed_in_a_label_parts_no_row_and_nothing_is_said_twice(project, make):
    template = '{{ table(["toy:train"], group=true) }}'
    (project.experiments / "toy" / "catalog.md.j2").write_text(template)
    runs = [
        make(10 * n + seed, value=0.9, lr=lr, seed=seed, label=f"lr={lr} seed={seed}")
        for n, lr in enumerate((0.1, 0.2))
        for seed in (1, 12)
    ]
    found = rows(joined(render.Catalog(project, runs)), "train")
    assert [line[0] for line in found] == ["train “lr=0.1”", "train “lr=0.2”"]
    assert found[0][2] == "1, 12"


def test_a_run_used_again_says_so(project, make):
    template = '{{ table(["toy:train"], reused={"toy:train": "series3"}) }}'
    (project.experiments / "toy" / "catalog.md.j2").write_text(template)
    (line,) = rows(joined(render.Catalog(project, [make(1, value=0.5)])), "train")
    assert line[1:] == ["00000001", "reused from series3"]


def test_a_search_by_option_is_named_and_trials_are_no_rows(project, make):
    batch = make(1, operation="toy:train", result={"batch": True, "method": "gp"})
    trials = [make(i, value=i / 10, batch=batch.run, lr=i / 100) for i in (2, 3)]
    found = rows(joined(render.Catalog(project, [batch, *trials])), "train")
    assert [line[0] for line in found] == ["train (gp)"]
    orphans = rows(joined(render.Catalog(project, trials)), "train")
    assert [line[1] for line in orphans] == [batch.id8]


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


def test_tables_that_runs_computed_are_put_together(project, make):
    template = '{{ details(["toy:train", "toy:sweep"]) }}'
    (project.experiments / "toy" / "catalog.md.j2").write_text(template)
    told = {"columns": ["who", "median"], "rows": [["a|b", "3 [2, 4]"], ["c", "never"]]}
    wider = {"columns": ["who", "mean", "median"], "rows": [["d", "5", "6"]]}
    other = {"columns": ["what"], "rows": [["x"]] * 13}
    catalog = render.Catalog(
        project,
        [
            make(1, value=0.5, lr=0.1, result={"table": told}),
            make(2, value=0.5, lr=0.2, result={"table": wider}),
            make(3, value=0.5, lr=0.2),
            make(4, operation="toy:sweep", result={"table": other}),
        ],
    )
    text = joined(catalog)
    # Those whose columns another has are put into it; a name stands on the first of its lines.
    assert rows(text, "train lr=0.1")[0][1:] == ["00000001", "a\\|b", "", "3 \\[2, 4\\]"]
    assert rows(text, "train lr=0.2")[0][1:] == ["00000002", "d", "5", "6"]
    assert [line[2:] for line in rows(text, "") if line[2:3] == ["c"]] == [["c", "", "never"]]
    headers = [line[2:] for line in rows(text, "Name")][:2]
    assert headers == [["who", "mean", "median"], ["what"]]
    assert text.count("<details><summary>13 lines: what</summary>") == 1  # the long one
    (project.experiments / "toy" / "catalog.md.j2").write_text(
        '{{ details(["toy:train"], folded=false) }}'
    )
    both = {"table": [told, other | {"rows": [["x"]] * 20}]}  # one run, two tables
    text = joined(render.Catalog(project, [make(1, value=0.5, result=both)]))
    assert [line[2:] for line in rows(text, "Name")][:2] == [["who", "median"], ["what"]]
    assert len([line for line in rows(text, "") if line[2:3] == ["x"]]) == 20
    assert "20 lines" not in text


def test_of_many_runs_the_last_are_shown_and_the_others_folded(project, make):
    (project.experiments / "toy" / "catalog.md.j2").write_text(
        '{{ table(["toy:train", "toy:sweep"]) }}'
    )
    runs = [make(i, value=0.5, seed=i) for i in range(1, 24)]
    runs[4] = make(5, status="FAILED", reason="out of memory", seed=5)
    catalog = render.Catalog(project, [*runs, make(99, value=0.5, operation="toy:sweep")])
    catalog.data.reported = {"toy:train": Reported("what the source says")}
    shown, earlier, facts = joined(catalog).split("## Other operations")[0].split("<details>")
    assert [line[2] for line in rows(shown, "train")] == [str(seed) for seed in range(14, 24)]
    assert [line[2] for line in rows(earlier, "train")] == [str(seed) for seed in range(1, 14)]
    assert "failed: out of memory" in rows(earlier, "train")[4]
    assert earlier.startswith("<summary>13 earlier rows</summary>\n\n|")
    assert len(rows(shown, "sweep")) == 1
    assert rows(shown, "train")[0][-1] == "what the source says"
    assert len(rows(facts, "[000000")) == 24


def test_what_a_row_leaves_out_is_folded(project, make):
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
    text = joined(render.Catalog(project, [single, running, batch, *trials]))
    facts = {line[0]: line[1:] for line in rows(text, "[0000") + rows(text, "00000002")}
    assert facts["[00000001](experiments/records/toy/00000001.json)"] == [
        "`guild run toy:train lr=0.25 seed=3 -y`", "`abcdef0` with changes `feed5678`", "a cpu", "1 min 1 s",
        "metrics `01234567`",
    ]  # fmt: skip
    assert facts["00000002"][0] == "`guild run toy:train seed=4 -y`"  # no record of what goes on
    assert facts["[00000009](experiments/records/toy/00000009.json)"] == [
        "`guild run toy:sweep lr='[0.1,0.2]' seed=1 -y`", "`aaaaaaa`, `bbbbbbb`", "RTX 3090", "1 h 6 min", "",
    ]  # fmt: skip
    assert rows(text, "train")[0][-2].endswith("; uncommitted code")
    assert text.count("uncommitted code") == 1
    assert text.startswith(
        render.HEADER + "\n4 runs: 3 finished, 1 running; 1 batch: 1 finished. "
        "2 declared operations were never run."
    )


def test_ids_are_links_where_a_server_is_given(project, records):
    plain = joined(render.Catalog(project, records))
    links = {r.run: f"http://mlflow.lab:8080/#/experiments/1/runs/{r.run}" for r in records}
    render.write(project, records, links)
    linked = project.catalog.read_text()
    assert f"| [{records[0].id8}]({links[records[0].run]}) | box1 |" in linked
    assert linked.count("](http://") == len([r for r in records if not r.batch])
    assert check.difference(project, records) == []  # who has another server has other links
    render.write(project, records)
    assert project.catalog.read_text() == plain


def test_a_long_result_has_a_line_for_each_part(project, make):
    (project.experiments / "toy" / "catalog.md.j2").write_text('{{ table(["toy:train"]) }}')
    long, short = "; ".join(["x" * 30] * 6), "a; b"
    runs = [make(i, result={"summary": s}, lr=i / 10) for i, s in enumerate((long, short), 1)]
    first, second = rows(joined(render.Catalog(project, runs)), "train")
    assert first[-1].split(";<br>") == ["x" * 30] * 6
    assert second[-1] == short


def test_quotes_that_guild_puts_round_numbers_are_gone(project, make):
    (project.experiments / "toy" / "catalog.md.j2").write_text('{{ table(["toy:train"]) }}')
    run = make(1, value=0.5, label="value lr='0.02' hidden='8 4' name='x'", lr=0.02, seed=1)
    other = make(2, value=0.5, label="lr='1e-3'", lr=1e-3)
    names = [line[0] for line in rows(joined(render.Catalog(project, [run, other])), "train")]
    assert names == ["train “value lr=0.02 hidden='8 4' name='x'”", "train “lr=1e-3” lr=1e-3"]
