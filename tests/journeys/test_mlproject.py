"""Every entry point of MLproject is a script that takes its parameters, or a command that is there."""

import importlib
import shlex
from pathlib import Path

import pytest
import yaml

from catalog.project import Project
from record import config

ROOT = Path(__file__).parents[2]
ENTRIES = yaml.safe_load((ROOT / "MLproject").read_text())["entry_points"]


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
