"""Repeat recorded runs: each at its commit, with every flag of its record, started by Guild.

The repeated runs have a Guild home of their own and are not sent to MLflow. Runs that a run starts from (its parents)
are taken from this machine's Guild home or from the committed weights; others have to be trained again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from runcatalog.guild.compat import COMMAND
from runcatalog.model.errors import CatalogError
from runcatalog.model.project import Project
from runcatalog.model.run_record import FINISHED, RunRecord
from runcatalog.model.values import flag_text, is_cut
from runcatalog.pages.rerun_command import typed
from runcatalog.pages.tables.page_data import with_intervals
from runcatalog.record.journal.files import read_json
from runcatalog.record.output.console import last_line
from runcatalog.record.training.checkpoint import checkpoints_in
from runcatalog.rerun.checkout import checked_out, full_id
from runcatalog.rerun.outcome import Outcome, compare

FOLDER = ".cache/rerun"
# Set by Guild or by the shell for another run or project.
_NOT_INHERITED = ("PROJECT_DIR", "RUN_DIR", "RUN_ID", "GUILD_OP", "CMD_DIR", "MLFLOW_RUN_ID")


class Repeater:
    """Repeats runs of a project.

    Args:
        project: The project.
        records: Its records by run id.
        home: This machine's Guild home, for parents; None without one.
        train_parents: Whether parents whose weights are not kept are trained again.
        report_line: Called with a line per started run.
    """

    def __init__(
        self,
        project: Project,
        records: Mapping[str, RunRecord],
        home: Path | None,
        train_parents: bool,
        report_line: Callable[[str], None],
    ) -> None:
        self.project = project
        self.records = records
        self.home = home
        self.train_parents = train_parents
        self.report_line = report_line
        self.folder = project.root / FOLDER
        self._repeated: dict[str, str] = {}

    def repeat(self, record: RunRecord) -> Outcome:
        """Repeat a run and compare it with its record.

        Raises:
            CatalogError: It cannot be repeated, or the repeated run did not finish.
        """
        self.check(record)
        directory = self._run(record)
        facts = read_json(directory / "journal" / "run.json") or {}
        result = read_json(directory / "result.json") or {}
        repeated = replace(record, result=result.get("result"))
        both = with_intervals([record, repeated], self.project.intervals())
        day = time.strftime("%Y-%m-%d", time.gmtime())
        return compare(both[0], both[1], facts, result.get("digest") or {}, day)

    def check(self, record: RunRecord) -> None:
        """Raise CatalogError if a run cannot be repeated, with the reason."""
        name = f"{record.id8} ({record.operation})"
        if (record.result or {}).get("batch"):
            raise CatalogError(f"{name}: a batch, of which only the trials can be repeated")
        if record.reported_by or not record.flags:
            raise CatalogError(f"{name}: imported, without the flags of its run")
        if cut := [flag for flag, value in record.flags.items() if is_cut(value)]:
            raise CatalogError(f"{name}: its record has only the beginning of the flag {cut[0]}")
        if record.status != FINISHED:
            raise CatalogError(f"{name}: has not finished ({record.status})")
        if not record.digest:
            raise CatalogError(
                f"{name}: its script does not use `runcatalog.record`, so nothing of a repeated run can be compared"
            )
        if not record.commit:
            raise CatalogError(f"{name}: its record names no commit")
        if record.dirty:
            raise CatalogError(
                f"{name}: ran with uncommitted changes ({record.dirty}), which commit "
                f"{record.commit[:8]} lacks"
            )
        try:
            full_id(self.project.root, record.commit)
        except CatalogError as error:
            raise CatalogError(f"{name}: {error}") from None
        for parent in self._parents(record):
            if self._kept(parent) is not None:
                continue
            known = self.records.get(parent)
            if known is None:
                raise CatalogError(f"{name}: starts from {parent[:8]}, of which there is no record")
            if not self.train_parents:
                minutes = (known.wall_seconds or 0) / 60
                lacks = "weights are" if "weights" in known.digest else "result is"
                raise CatalogError(
                    f"{name}: starts from {parent[:8]} ({known.operation}), whose {lacks} not "
                    f"kept; with --parents it is trained again ({minutes:.0f} min by its record)"
                )
            self.check(known)

    def _parents(self, record: RunRecord) -> list[str]:
        """Return the runs that a run started from, without those that it started itself."""
        return [
            parent
            for parent in record.parents
            if parent not in self.records
            or (self.records[parent].started or 0) < (record.started or 0)
        ]

    def _kept(self, run: str) -> Path | None:
        """Return a folder of a run with its weights, or else its result: in the Guild home, or else committed."""
        known = self.records.get(run)
        has_weights = known is None or "weights" in known.digest
        folders = [self.home / "runs" / run] if self.home else []
        for folder in (*folders, self.project.weights / run):
            if checkpoints_in(folder / "checkpoints") or not (
                has_weights or read_json(folder / "result.json") is None
            ):
                return folder
        return None

    def _parent(self, run: str) -> str:
        """Make a parent available to the repeated run; return its id there."""
        if run not in self._repeated:
            target = self.folder / "guild" / "runs" / run
            if (kept := self._kept(run)) is not None:
                shutil.rmtree(target, ignore_errors=True)
                shutil.copytree(kept, target, symlinks=True)
                self._repeated[run] = run
            else:
                self._repeated[run] = self._run(self.records[run]).name
        return self._repeated[run]

    def _run(self, record: RunRecord) -> Path:
        """Run a record's operation at its commit; return the run's directory.

        Raises:
            CatalogError: The run did not finish.
        """
        parents = {parent: self._parent(parent) for parent in self._parents(record)}
        directory = self.folder / "guild" / "runs" / uuid.uuid4().hex
        directory.parent.mkdir(parents=True, exist_ok=True)
        log = directory.with_suffix(".log")
        with checked_out(self.project.root, record.commit, self.folder) as root:
            words = [sys.executable, "-P", "-m", COMMAND, "run", "--yes", record.operation]
            words += ["--run-dir", str(directory), *self._flags(record, root, parents)]
            minutes = (record.wall_seconds or 0) / 60
            self.report_line(
                f"{record.id8}  {record.operation}  at {record.commit[:8]}, "
                f"{minutes:.1f} min by its record"
            )
            with log.open("wb") as output:
                subprocess.run(
                    words, cwd=root, env=self._environment(root), stdout=output, stderr=output
                )
        result = read_json(directory / "result.json") or {}
        if result.get("status") != FINISHED:
            reason = result.get("reason") or f"{last_line(log) or 'no output'} ({log})"
            raise CatalogError(
                f"{record.id8} ({record.operation}): the repeated run did not finish: {reason}"
            )
        log.unlink()
        return directory

    def _flags(self, record: RunRecord, root: Path, parents: Mapping[str, str]) -> list[str]:
        """Return `name=value` words of a record's flags and required runs, with the new ids of its parents."""
        words = {
            name: "" if value is None else typed(value) for name, value in record.flags.items()
        }
        for name, value in record.flags.items():
            text = flag_text(value)  # not as typed: an id of digits alone may be in quotes there
            for parent, new in parents.items():
                if len(text) >= 8 and parent.startswith(text):
                    words[name] = new
        operation = Project(root).operations().get(record.operation)
        if operation is None:
            raise CatalogError(
                f"{record.id8}: operation {record.operation} is not declared at {record.commit[:8]}"
            )
        words |= operation.required(list(parents.values()))
        return [f"{name}={word}" for name, word in words.items()]

    def _environment(self, root: Path) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in _NOT_INHERITED and not name.startswith("FLAG_")
        }
        paths = [str(root / "src"), *filter(None, [kept.get("PYTHONPATH")])]
        return kept | {
            "GUILD_HOME": str(self.folder / "guild"),
            "PYTHONPATH": os.pathsep.join(paths),
            "RECORD_MLFLOW": "off",
        }
