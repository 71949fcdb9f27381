"""The operations that the catalog reads are those that Guild reads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runcatalog.model import values
from runcatalog.model.errors import CatalogError
from runcatalog.model.project import Objective, Project

ROOT = Path(__file__).parents[3]
ASK = """
import json, sys
from guild import guildfile
operations = {}
for model in guildfile.for_dir(sys.argv[1]).models.values():
    for op in model.operations:
        operations[op.fullname] = {
            "description": (op.description.splitlines() or [""])[0],
            "main": op.main or "",
            "flags": {f.name: f.default for f in op.flags if f.default is not None},
            "compare": [column for column in op.compare or [] if isinstance(column, str)],
            "objective": op.objective,
        }
print(json.dumps(operations))
"""


def guild_says(folder: Path) -> dict[str, dict]:
    env = {n: v for n, v in os.environ.items() if not n.startswith("GUILD_")}
    command = [sys.executable, "-W", "ignore", "-c", ASK, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def canonical(flags: dict) -> dict:
    """Defaults in the types that a record has them in: Guild and the YAML file write 1e-3 differently."""
    return {
        name: [values.parse_flag(item) for item in value]
        if isinstance(value, list)
        else values.parse_flag(value)
        for name, value in flags.items()
    }


def catalog_says(folder: Path) -> dict[str, dict]:
    return {
        name: {
            "description": operation.description,
            "main": operation.main,
            "flags": canonical(operation.flags),
            "compare": list(operation.compare),
            "objective": operation.objective,
        }
        for name, operation in Project(folder).operations().items()
    }


def agree(folder: Path, flags_are_imported: bool = False) -> dict[str, dict]:
    asked, read = guild_says(folder), catalog_says(folder)
    assert set(read) == set(asked)
    for name, declared in asked.items():
        goal = {"maximize": "max", "minimize": "min"}
        objective = declared.pop("objective")
        expected = None
        if isinstance(objective, dict):
            ((verb, scalar),) = objective.items()
            expected = Objective(scalar, goal[verb])
        elif objective:
            expected = Objective(objective, "min")
        assert read[name].pop("objective") == expected, name
        declared["flags"] = canonical(declared["flags"])
        if flags_are_imported:  # flags that Guild reads from the scripts are not declared
            declared["flags"] = {
                n: v for n, v in declared["flags"].items() if n in read[name]["flags"]
            }
        assert read[name] == declared, name
    return asked


def test_this_projects_operations():
    assert len(agree(ROOT, flags_are_imported=True)) >= 220
    operations = Project(ROOT).operations()
    assert {operation.study for operation in operations.values()} == {
        path.parent.name for path in ROOT.glob("experiments/*/guild.yml")
    }


FILES = {
    "a mapping": {"guild.yml": "train: {main: train, flags: {lr: 0.1}}\nevaluate: judge\n"},
    "a model without a name": {
        "guild.yml": "- operations:\n    train: {main: train, objective: loss}\n"
    },
    "includes of includes": {
        "guild.yml": "- include: parts/all.yml\n- model: top\n  operations: {run: {main: run}}\n",
        "parts/all.yml": "- include: [deep/one.yml]\n- model: two\n  operations: {b: {main: b}}\n",
        "parts/deep/one.yml": "- model: one\n  operations: {a: {main: a, compare: [=lr, loss]}}\n",
    },
    "inheritance": {
        "guild.yml": """
- config: base
  params: {script: nothing, size: 3}
  operation-defaults: {objective: {maximize: score}, compare: [score]}
  flags: {seed: 1, lr: {default: 0.1, type: float}}
  operations:
    train:
      description: Train {{ what }}
      main: src.{{ script }}
      flags: {$include: base, size: '{{ size }}'}
    check: {main: check, objective: loss}
- config: middle
  extends: base
  params: {what: a model}
- model: m
  extends: [middle]
  params: {script: train}
  operations:
    train: {flags: {lr: 0.5}}
    own: {main: own, flags: {$include: 'base#seed'}}
- model: n
  operations: {$include: base, other: {main: other}}
""",
    },
}


@pytest.mark.parametrize("name", FILES)
def test_forms_of_guild_files(tmp_path, name):
    for path, content in FILES[name].items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    agree(tmp_path)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"guild.yml": "train: {main: [\n"}, "guild.yml: line 2"),
        ({"guild.yml": "train"}, "a list of models or a mapping"),
        ({"guild.yml": "- include: none.yml"}, "guild.yml: include: no file or package none.yml"),
        ({"guild.yml": "- include: guild.yml"}, "guild.yml: include: it includes itself"),
        ({"guild.yml": "- {model: a, extends: b}"}, "guild.yml: extends: no model or config b"),
        ({"guild.yml": "- {model: a, extends: a}"}, "extends itself"),
        ({"guild.yml": "train: 3"}, "operation train: a mapping or the name of a script"),
        ({"guild.yml": "a: {compare: loss}"}, "guild.yml: a: compare: a list of columns is expected"),
        ({"guild.yml": "a: {compare: 5}"}, "guild.yml: a: compare: a list of columns is expected"),
        ({"catalog.yml": "name: x\nsize: 3"}, "catalog.yml: line 2: size: no such setting"),
        ({"catalog.yml": "name: a/b"}, "catalog.yml: line 1: name: letters, digits"),
        ({"catalog.yml": "\nobjective: {largest: x}"}, "catalog.yml: line 2: objective: {maximize"),
        ({"catalog.yml": "- name"}, "catalog.yml: a mapping is expected"),
    ],
)  # fmt: skip
def test_a_mistake_names_the_file_and_the_place(tmp_path, files, message):
    for path, content in ({"guild.yml": "train: {main: train}"} | files).items():
        (tmp_path / path).write_text(content)
    with pytest.raises(CatalogError) as caught:
        Project(tmp_path).operations()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["a: {main: a, flags: 5}", "- {model: '', operation-defaults: {flags: 5}, operations: {a: a}}"],
)
def test_flags_that_are_no_mapping_are_no_flags(tmp_path, text):
    (tmp_path / "guild.yml").write_text(text)
    assert Project(tmp_path).operations()["a"].flags == {}


def _read_all(project):
    operations = project.operations()
    for read in (project.machines, project.reported, lambda: project.pending(operations)):
        read()


@pytest.mark.parametrize(
    "name", ["guild.yml", "catalog.yml", "experiments/machines.yml", "experiments/a/reported.yml",
             "experiments/a/pending.yml"],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["unfolds", "deep", "large"])
def test_a_yaml_file_that_would_fill_the_memory_is_a_one_line_error(
    tmp_path, monkeypatch, name, kind
):
    if kind == "large":
        monkeypatch.setattr("runcatalog.model.declarations._MAX_BYTES", 100)
    text = {
        "unfolds": "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)),
        "deep": "a: " + "[" * 500 + "]" * 500,
        "large": "a: " + "x" * 200,
    }[kind]
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "guild.yml").write_text("train: {main: train}")
    path.write_text(text)
    with pytest.raises(CatalogError) as caught:
        _read_all(Project(tmp_path))
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_an_objective_after_a_minus_sign_is_maximised(tmp_path):
    (tmp_path / "guild.yml").write_text(
        "a: {main: a, objective: -score}\nb: {main: b, objective: -max score}\n"
    )
    operations = Project(tmp_path).operations()
    assert operations["a"].objective == Objective("score", "max")
    assert operations["b"].objective == Objective("score", "max", "max")


@pytest.mark.parametrize("objective", ["{maximze: score}", "[score]", "{maximize: ''}", "3"])
def test_an_objective_of_another_shape_is_refused(tmp_path, objective):
    (tmp_path / "guild.yml").write_text(f"a: {{main: a, objective: {objective}}}\n")
    with pytest.raises(CatalogError, match=r"guild.yml: a: objective: \{maximize: SCALAR\} or"):
        Project(tmp_path).operations()


def test_an_operation_without_an_objective_has_the_projects(tmp_path):
    (tmp_path / "guild.yml").write_text(
        "a: {main: a}\nb: {main: b, objective: loss}\nc: {main: c, objective: {maximize: min score}}\n"
    )
    (tmp_path / "catalog.yml").write_text("name: mine\nobjective: {maximize: accuracy}\n")
    operations = Project(tmp_path).operations()
    assert operations["a"].objective == Objective("accuracy", "max")
    assert operations["b"].objective == Objective("loss", "min")
    assert operations["c"].objective == Objective("score", "max", "min")
    assert {operation.study for operation in operations.values()} == {"mine"}
    assert Project(tmp_path).studies() == ["mine"]
