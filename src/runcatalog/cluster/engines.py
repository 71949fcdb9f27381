"""Engines: where runs may go, from the entry of `experiments/engines.yml` that $ENGINE names."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runcatalog.numbers import is_number
from runcatalog.record.errors import UserError
from runcatalog.record.untrusted import load_yaml

VARIABLE = "ENGINE"
FILE = Path("experiments") / "engines.yml"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")  # of a machine, a user or an entry
_NEEDS = {"gpu": int, "gpu_memory": float, "memory": float, "disk": float, "machine": str}
_SECONDS = {"poll": 2.0, "lease": 120.0, "lost_after": 30.0, "health": 2.0, "wait": 600.0}


@dataclass(frozen=True)
class Needs:
    """What a machine must have for a run.

    Attributes:
        gpu: Number of GPUs.
        gpu_memory: Memory of each GPU [GB].
        memory: Free main memory [GB].
        disk: Free disk in the worker's scratch folder [GB].
        machine: Name of the worker; "" for any.
    """

    gpu: int = 0
    gpu_memory: float = 0.0
    memory: float = 0.0
    disk: float = 1.0
    machine: str = ""


@dataclass(frozen=True)
class Settings:
    """An entry of `engines.yml`.

    Attributes:
        name: Name of the entry.
        scheduler: Address of the scheduler, `tls://HOST:PORT`.
        tls: Folder with `ca.pem` and certificates (see `runcatalog.cluster.certificates`).
        certificate: Name of the submitter's certificate.
        scratch: Folder in which workers keep runs; each in a folder of its name.
        needs: What a machine must have.
        probe: Command of the lab's own that a worker's check runs in place of matrix products; "" for none.
        variables: Names of further environment variables that runs get from the submitter.
        poll: Seconds between two looks at a run.
        lease: Seconds without such a look after which a worker ends a run.
        lost_after: Seconds without an answer after which a worker counts as lost.
        health: Seconds of matrix products in the check before each run.
        wait: Seconds to wait for a scheduler that does not answer.
    """

    name: str
    scheduler: str
    tls: Path
    certificate: str
    scratch: Path
    needs: Needs = Needs()
    probe: str = ""
    variables: tuple[str, ...] = ()
    poll: float = _SECONDS["poll"]
    lease: float = _SECONDS["lease"]
    lost_after: float = _SECONDS["lost_after"]
    health: float = _SECONDS["health"]
    wait: float = _SECONDS["wait"]
    file: Path = field(default=FILE, compare=False)


def read(project: Path, name: str = "") -> Settings:
    """Return an entry of a project's `experiments/engines.yml`.

    Args:
        project: The project's folder.
        name: Name of the entry; "" for that of $ENGINE, else the only one.

    Raises:
        UserError: The file or the entry is missing, or the entry is not valid.
    """
    path = project / FILE
    try:
        content = load_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{VARIABLE}: {path} is missing; docs/cluster.md shows one") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from None
    except Exception as error:  # PyYAML's own
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UserError(f"{path}: it must map names to entries")
    name = name or os.environ.get(VARIABLE, "")
    if not name:
        if len(content) != 1:
            raise UserError(f"{path}: set {VARIABLE} to one of {', '.join(content) or 'no entry'}")
        name = next(iter(content))
    if name not in content:
        raise UserError(
            f"{VARIABLE}={name}: {FILE} has no such entry, only {', '.join(content) or 'none'}"
        )
    return _settings(path, name, content[name])


def _settings(path: Path, name: str, entry: Any) -> Settings:
    where = f"{path}: {name}"
    if not isinstance(entry, dict):
        raise UserError(f"{where}: it must have scheduler and tls")
    known = {"scheduler", "tls", "certificate", "scratch", "needs", "probe", "variables", *_SECONDS}
    if unknown := sorted(map(str, entry.keys() - known)):
        raise UserError(
            f"{where}: unknown {', '.join(unknown)}; known are {', '.join(sorted(known))}"
        )
    scheduler = entry.get("scheduler")
    if not isinstance(scheduler, str) or not re.fullmatch(r"tls://[^\s/:]+:\d{1,5}", scheduler):
        raise UserError(
            f"{where}: scheduler must be tls://HOST:PORT, not {scheduler!r}; nothing else is spoken"
        )
    if not isinstance(entry.get("tls"), str):
        raise UserError(f"{where}: tls must be the folder of the certificates")
    certificate = entry["certificate"] if "certificate" in entry else _user(where)
    if not isinstance(certificate, str) or not NAME.fullmatch(certificate):
        raise UserError(f"{where}: certificate must be a name, not {certificate!r}")
    variables = entry.get("variables", [])
    if not isinstance(variables, list) or not all(isinstance(each, str) for each in variables):
        raise UserError(f"{where}: variables must be a list of names")
    seconds = {key: entry.get(key, default) for key, default in _SECONDS.items()}
    for key, value in seconds.items():
        if not is_number(value) or not 0 < value < 1e6:
            raise UserError(f"{where}: {key} must be a number of seconds, not {value!r}")
    scratch = entry.get("scratch", "~/.cache/runcatalog/workers")
    if not isinstance(scratch, str):
        raise UserError(f"{where}: scratch must be a folder, not {scratch!r}")
    probe = entry.get("probe", "")
    if not isinstance(probe, str):
        raise UserError(f"{where}: probe must be a command, not {probe!r}")
    return Settings(
        name=name,
        scheduler=scheduler,
        tls=_folder(path, f"{where}: tls", entry["tls"]),
        certificate=certificate,
        scratch=_folder(path, f"{where}: scratch", scratch),
        needs=_needs(where, entry.get("needs", {})),
        probe=probe,
        variables=tuple(variables),
        file=path,
        **{key: float(value) for key, value in seconds.items()},
    )


def _user(where: str) -> str:
    """Return the user's name, which a container may lack."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # OSError from Python 3.13 on
        raise UserError(
            f"{where}: this user has no name on this machine: certificate must name the submitter's certificate"
        ) from None


def _folder(file: Path, where: str, text: str) -> Path:
    """Return a folder of the file; a relative one is in the project."""
    try:
        return file.parents[1] / Path(text).expanduser()
    except RuntimeError as error:  # ~ of an unknown user
        raise UserError(f"{where}: {text}: {error}") from None


def _needs(where: str, given: Any) -> Needs:
    if not isinstance(given, Mapping):
        raise UserError(f"{where}: needs must be like {{gpu: 1, memory: 10}}, not {given!r}")
    for key, value in given.items():
        kind = _NEEDS.get(key)
        if kind is None:
            raise UserError(f"{where}: unknown need {key!r}; known are {', '.join(_NEEDS)}")
        numeric = is_number(value) and 0 <= value < 1e9
        if kind is str and not (isinstance(value, str) and NAME.fullmatch(value)):
            raise UserError(f"{where}: need {key} must be a name, not {value!r}")
        if kind is not str and not (numeric and (kind is float or value == int(value))):
            raise UserError(f"{where}: need {key} must be a number, not {value!r}")
    return Needs(**{key: _NEEDS[key](value) for key, value in given.items()})
