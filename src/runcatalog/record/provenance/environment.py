"""Facts about a run's environment: machine, CPU, GPU, package versions, commit."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from runcatalog.record.config import Config, flags_of
from runcatalog.record.provenance import redact
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
# Files that do not change the computation of a run: prose, figures, records, results of benchmarks, where runs may go.
NOT_CODE = (
    ":(exclude)experiments/engines.yml",
    ":(exclude)experiments/records",
    ":(exclude)benchmarks/results",
    ":(exclude,glob)**/*.md",
    ":(exclude,glob)**/figures/**",
)
_UNTRACKED = ["ls-files", "--others", "--exclude-standard", "-z", "--", ".", *NOT_CODE]
UNKNOWN = "unknown"  # instead of a digest of uncommitted changes


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


def machine_facts(project: Path) -> dict[str, Any]:
    """Return host, machine (its name in experiments/machines.yml, else the host), CPU and GPU."""
    host, gpu = socket.gethostname(), gpu_name()
    return {
        "host": host,
        "machine": os.environ.get("RECORD_MACHINE") or machine_name(project, host, gpu),
        "host_cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "gpu": gpu,
        "platform": platform.platform(),
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


def machine_name(project: Path, host: str, gpu: str = "") -> str:
    """Return the name of a host in the inventory; the host itself if it is not listed.

    Of several machines with one host name, such as virtual ones, it is that with the given GPU, else the first.
    """
    path = project / "experiments" / "machines.yml"
    if not path.is_file():
        return host
    with contextlib.suppress(Exception):  # an error in the file must not stop a training
        content = load_yaml(path.read_text(encoding="utf-8")) or {}
        if isinstance(content, dict):
            content = content.get("machines", content)
        if isinstance(content, dict):  # by host
            content = [
                {"host": name, **(entry if isinstance(entry, dict) else {"name": entry})}
                for name, entry in content.items()
            ]
        entries = [entry for entry in content if entry.get("host") == host]
        entries.sort(key=lambda entry: str(entry.get("gpu") or "") != gpu)
        return str(entries[0].get("name") or host) if entries else host
    return host


@functools.cache
def cpu_name() -> str:
    """Return the CPU's model, for example "AMD EPYC (family 25, model 1, stepping 1)".

    Virtual machines hide the model's name; the numbers distinguish CPUs whose results differ in their bits.
    """
    facts: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines():
            name, _, value = line.partition(":")
            facts[name.strip()] = value.strip()
    name = facts.get("model name") or platform.processor() or platform.machine()
    keys = {"family": "cpu family", "model": "model", "stepping": "stepping"}
    numbers = ", ".join(f"{word} {facts[key]}" for word, key in keys.items() if facts.get(key))
    return f"{name} ({numbers})" if numbers else name


@functools.cache
def gpu_name() -> str:
    """Return the GPUs that this process may use, for example "2 x NVIDIA A100"; empty without any."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible in ("", "-1") or not shutil.which("nvidia-smi"):
        return ""
    asked = _output(["nvidia-smi", "--query-gpu=index,uuid,name", "--format=csv,noheader"])
    text = (asked or b"").decode()
    rows = [[cell.strip() for cell in line.split(",", 2)] for line in text.splitlines() if line]
    rows = [row for row in rows if len(row) == 3]
    if visible:
        ids = [name.strip() for name in visible.split(",")]
        named = [row for row in rows if row[0] in ids or row[1] in ids]
        rows = named or rows[: len(ids)]
    names = [row[2] for row in rows]
    parts = [
        f"{names.count(name)} x {name}" if names.count(name) > 1 else name
        for name in dict.fromkeys(names)
    ]
    return ", ".join(parts)


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results may depend on."""
    from importlib import metadata  # 30 modules that most commands do not need

    installed = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed


def commit_facts(project: Path) -> dict[str, str]:
    """Return the commit, and a digest of the uncommitted changes ("" without any, UNKNOWN if git does not tell).

    Only changes that can affect a run count: code and declarations, not Markdown, figures or records. Both values are
    "" outside of a git repository.
    """
    commit = git(["rev-parse", "HEAD"], project).decode().strip()
    if not commit:
        return {"commit": "", "dirty": ""}
    # Without --submodule git says of a submodule only that it was changed, whatever was changed there.
    diff = ["diff", "HEAD", "--binary", "--no-ext-diff", "--submodule=diff"]
    changed = git_or_none([*diff, "--", ".", *NOT_CODE], project)
    listing = git_or_none(_UNTRACKED, project)
    if changed is None or listing is None:
        return {"commit": commit, "dirty": UNKNOWN}
    digest, new = hashlib.sha256(changed), _names(listing)
    for name in new:
        digest.update(f"\0{name}\0".encode("utf-8", "surrogateescape"))
        with contextlib.suppress(OSError):
            if (project / name).stat().st_size < 1 << 20:
                digest.update((project / name).read_bytes())
    return {"commit": commit, "dirty": digest.hexdigest()[:12] if changed or new else ""}


def untracked(project: Path) -> list[str]:
    """Return the files that git neither tracks nor ignores and that can affect a run, sorted."""
    return _names(git(_UNTRACKED, project))


def _names(listing: bytes) -> list[str]:
    return sorted(map(os.fsdecode, filter(None, listing.split(b"\0"))))


def git(
    arguments: Sequence[str],
    project: Path,
    environment: Mapping[str, str] | None = None,
    given: bytes = b"",
) -> bytes:
    """Return the output of a git command; b"" if it fails.

    Args:
        arguments: Arguments after ``git``.
        project: Working directory.
        environment: Environment variables in addition to this process's.
        given: Standard input.
    """
    return git_or_none(arguments, project, environment, given) or b""


def git_or_none(
    arguments: Sequence[str],
    project: Path,
    environment: Mapping[str, str] | None = None,
    given: bytes = b"",
) -> bytes | None:
    """Return the output of a git command as :func:`git`; None if it fails."""
    return _output(["git", *arguments], project, environment, given)


def _output(
    command: Sequence[str],
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
    given: bytes = b"",
) -> bytes | None:
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C", **(environment or {})},
            input=given,
            capture_output=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
