"""Every entry point of MLproject is a script that takes its parameters, or a command that is there."""

import importlib
import shlex
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from runcatalog.model.project import Project
from runcatalog.record import config

ROOT = Path(__file__).parents[2]
ENTRIES = yaml.safe_load((ROOT / "MLproject").read_text())["entry_points"]


# The operation that each is; others are called like theirs.
OPERATIONS = {
    "main": "hnppo:train",
    "ppo_opt_gp": "ppo:opt@gp",
    "skill_babyai": "skill:babyai_gotoobj",
}


@pytest.mark.parametrize("name", [name for name in ENTRIES if name != "catalog"])
def test_an_entry_point_is_the_same_job_as_its_operation(name: str) -> None:
    entry = ENTRIES[name]
    operation = Project(ROOT).operations()[OPERATIONS.get(name, name.replace("_", ":", 1))]
    parameters = entry["parameters"]
    own = [key for key, about in parameters.items() if "default" not in about]
    given = {key: about.get("default", f"a-{key}") for key, about in parameters.items()}
    program, *words = shlex.split(entry["command"].format(**given))
    if program == "guild":
        for word in words[2:-1]:
            flag, value = word.split("=")
            assert value == str(operation.flags[flag]), word
        return
    path = words[0].removeprefix("src/").removesuffix(".py")
    assert operation.main == f"src/{path.replace('/', '.')}"
    script = importlib.import_module(path.replace("/", "."))
    declared = [f"--{flag}={value}" for flag, value in operation.flags.items()]
    wanted, found = (config.parse(script.Config, line) for line in (declared, words[1:]))
    wanted, found = asdict(wanted), asdict(found)
    differ = {field: value for field, value in found.items() if value != wanted[field]}
    assert differ.keys() == set(own), differ


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_point_takes_its_parameters(name: str) -> None:
    """One test of the journeys runs an entry point through MLflow; the others differ in their flags."""
    parameters = ENTRIES[name].get("parameters", {})
    given = {key: about.get("default", f"a-{key}") for key, about in parameters.items()}
    for line in ENTRIES[name]["command"].format(**given).split(" && "):
        program, *words = shlex.split(line)
        if program == "python":
            script = importlib.import_module(words[0].removeprefix("src/")[:-3].replace("/", "."))
            config.parse(script.Config, words[1:])  # ends the process on a wrong flag
        elif program == "guild":
            assert words[1] in Project(ROOT).operations()
        else:
            assert program == "catalog"
