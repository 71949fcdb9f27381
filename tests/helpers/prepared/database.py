"""MLflow's tables in a new SQLite file, copied from a ready one: making them takes seconds."""

import contextlib
import fcntl
import functools
import importlib.util
import sqlite3
import sys
from pathlib import Path

UTILITIES = "mlflow.store.db.utils"


class _AtImport:
    """Change MLflow's module as soon as it has been imported."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(self, name, path=None, target=None):
        if name != UTILITIES:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        real = spec.loader.exec_module

        def exec_module(module):
            real(module)
            _change(module, self._folder)

        spec.loader.exec_module = exec_module
        return spec


def install(folder: Path) -> None:
    """Let this process copy its new databases from one in a folder; a fork of the server does so already."""
    if UTILITIES not in sys.modules:
        sys.meta_path.insert(0, _AtImport(folder))


def _change(module, folder: Path) -> None:
    initialize = module._initialize_tables

    def copied(engine) -> None:
        name = engine.url.database
        if engine.dialect.name != "sqlite" or not name or name.startswith(":") or engine.url.query:
            return initialize(engine)
        with contextlib.closing(sqlite3.connect(_ready(module, folder, initialize))) as source:
            target = sqlite3.connect(name, timeout=20)
            try:
                if target.execute("SELECT COUNT(*) FROM sqlite_master").fetchone() != (0,):
                    return initialize(engine)  # not new
                source.backup(target)
            finally:
                target.close()

    module._initialize_tables = copied
    # Read from 70 files at each opening of a database, though it is one as long as MLflow is installed.
    module._get_latest_schema_revision = functools.cache(module._get_latest_schema_revision)


def _ready(module, folder: Path, initialize) -> Path:
    """Return an SQLite file with MLflow's tables; the first caller of all processes makes it."""
    path = folder / "mlflow.db"
    with (folder / "mlflow.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            new = path.with_suffix(".new")
            new.unlink(missing_ok=True)  # of a process that was killed
            engine = module.create_sqlalchemy_engine_with_retry(f"sqlite:///{new}")
            initialize(engine)
            engine.dispose()
            new.rename(path)
    return path
