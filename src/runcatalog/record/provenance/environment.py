"""Facts about a run at its start: project, script, package versions, what its submitter sent."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shlex
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from runcatalog.record.config import Config, flags_of
from runcatalog.record.provenance import redact
from runcatalog.record.provenance.git import commit_facts
from runcatalog.record.provenance.machine import machine_facts
from runcatalog.record.untrusted import load_yaml

PACKAGES = [
    "guildai",
    "gymnasium",
    "llvmlite",
    "minigrid",
    "mlflow",
    "mujoco",
    "numba",
    "numpy",
    "safetensors",
    "scikit-optimize",
    "scipy",
    "stable-baselines3",
    "torch",
    "transformers",
]
_SUBMITTED = "RECORD_SUBMITTED"  # folder of what the submitter has sent along


def project_root() -> Path:
    """Return the project's directory: $PROJECT_DIR, else the nearest ancestor with a guild.yml.

    It is looked up from the working directory, then from this file; without a project it is the working directory.
    """
    if os.environ.get("PROJECT_DIR"):
        return Path(os.environ["PROJECT_DIR"]).resolve()
    for start in (Path.cwd(), Path(__file__).resolve()):
        for directory in (start, *start.parents):
            if (directory / "guild.yml").is_file():
                return directory
    return Path.cwd()


SETTINGS_FILE = "catalog.yml"  # in a project's root; `runcatalog.model.project` checks its content


def project_name(root: Path) -> str:
    """Return a project's name: `name:` of its catalog.yml, else its folder's name; letters, digits, - and _."""
    name: Any = None
    path = root / SETTINGS_FILE
    if path.is_file():
        with contextlib.suppress(Exception):  # an error in the file must not stop a training
            name = (load_yaml(path.read_text(encoding="utf-8")) or {}).get("name")
    chosen = name if isinstance(name, str) else root.resolve().name
    return re.sub(r"[^A-Za-z0-9_-]+", "-", chosen).strip("-")[:100] or "project"


def default_study(root: Path) -> str:
    """Return the default study of a script: its Guild model if that is a folder in experiments/, else the project."""
    model = os.environ.get("GUILD_OP", "").partition(":")[0]
    if re.fullmatch(r"[A-Za-z0-9_-]+", model) and (root / "experiments" / model).is_dir():
        return model
    return project_name(root)


def script(config: Config) -> str:
    """Return the name of the script that defines a configuration, which may also run as an imported module."""
    module = type(config).__module__
    return Path(sys.argv[0]).stem if module == "__main__" else module.rpartition(".")[2]


class Submitted(NamedTuple):
    """What a run gets from another machine that has submitted it.

    Attributes:
        facts: Project, commit and uncommitted changes there.
        mlflow: MLflow to which the run is sent from there, as shown; "" if it is not sent.
        directory: The run's directory there.
        patch: The uncommitted changes; the file is missing without any.
    """

    facts: dict[str, str]
    mlflow: str
    directory: str
    patch: Path


def is_submitted() -> bool:
    """Return whether this run was sent here from another machine."""
    return bool(os.environ.get(_SUBMITTED))


def submitted() -> Submitted | None:
    """Return what the submitter has sent along; None for a run that was started on this machine."""
    if not is_submitted():
        return None
    folder = Path(os.environ[_SUBMITTED])
    content = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    return Submitted(
        content["facts"], content["mlflow"], content["directory"], folder / "dirty.patch"
    )


def run_facts(config: Config, study: str, run_id: str, project: Path) -> dict[str, Any]:
    """Return the facts of a run at its first start: the content of ``run.json``.

    Project and commit of a submitted run are the submitter's.
    """
    given = submitted()
    facts = given.facts if given else {"project": str(project), **commit_facts(project)}
    return {
        "id": run_id,
        "study": study,
        "operation": os.environ.get("GUILD_OP") or Path(sys.argv[0]).stem,
        "script": script(config),
        "flags": flags_of(config),
        "seed": config.seed,
        "command": shlex.join([Path(sys.executable).name, *sys.argv]),
        "started": int(time.time() * 1000),
        "versions": versions(),
        "environment": redact.allowed(os.environ),
        "mlflow_run_id": os.environ.get("MLFLOW_RUN_ID", ""),
        **machine_facts(project),
        **facts,
    }


def moved_facts(stored: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the machine's facts if a run goes on elsewhere than where it began; {} otherwise.

    Args:
        stored: Facts of the run's first start; None before that.
    """
    if stored is None or (submitted() is None and socket.gethostname() == stored.get("host")):
        return {}
    facts = machine_facts(project_root())
    return {} if all(stored.get(name) == value for name, value in facts.items()) else facts


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results may depend on."""
    from importlib import metadata  # 30 modules that most commands do not need

    installed = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed
