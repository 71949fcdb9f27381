"""Where the machine code of compiled functions is stored."""

import fcntl
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rl import kernels

HERE = Path(__file__).parent


def doubled(value):
    return 2 * value


def test_the_digest_covers_the_kernels_of_a_study_and_what_they_import(tmp_path):
    study = tmp_path / "study"
    kernel, sizes, constants, script = (
        study / path for path in ("room/kernel.py", "room/sizes.py", "constants.py", "run.py")
    )
    kernel.parent.mkdir(parents=True)
    for path in (study / "__init__.py", study / "room" / "__init__.py"):
        path.write_text("")
    kernel.write_text("import math\nfrom rl.kernels import kernel\nfrom study.room import sizes\n")
    sizes.write_text("from study.constants import (\n    WALL,\n)\n")
    constants.write_text("WALL = 1\n")
    script.write_text("from study.room.kernel import kernel\n")
    assert kernels.package_of(kernel) == kernels.package_of(script) == study
    before = kernels.digest(study)
    for changed in (kernel, sizes, constants, script):
        kernels.digest.cache_clear()
        changed.write_text(changed.read_text() + "\n")
        assert (kernels.digest(study) != before) == (changed != script)
        before = kernels.digest(study)


def test_a_changed_constant_of_another_file_changes_a_kernel(tmp_path):
    package = tmp_path / "counting"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "adding.py").write_text(
        "from counting.numbers import STEP\n"
        "from rl.kernels import kernel\n\n\n"
        "@kernel\n"
        "def following(value):\n"
        "    return value + STEP\n"
    )
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join((str(Path(kernels.__file__).parents[1]), str(tmp_path))),
    }
    for step in (1, 10):
        (package / "numbers.py").write_text(f"STEP = {step}\n")
        command = [sys.executable, "-c", "from counting.adding import following as f; print(f(2))"]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert int(run.stdout) == 2 + step


def test_machine_code_is_stored_by_the_digest_of_the_sources(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert kernels.folder(HERE) == tmp_path / f"rl-{kernels.digest(HERE)}"
    assert kernels.kernel(doubled)(2) == 4
    assert list(kernels.folder(HERE).glob("*.nbc"))
    again = kernels.kernel(doubled)
    assert again(3) == 6
    assert sum(again.stats.cache_hits.values()) == 1


def test_a_function_that_another_process_compiles_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert kernels.kernel(doubled)(2) == 4
    (lock,) = kernels.folder(HERE).glob("*.lock")
    index, code = (next(kernels.folder(HERE).glob(name)) for name in ("*.nbi", "*.nbc"))
    kept = index.read_bytes()
    index.unlink()
    late = kernels.kernel(doubled)
    with lock.open() as compiling, ThreadPoolExecutor() as threads:
        fcntl.flock(compiling, fcntl.LOCK_EX)
        waiting = threads.submit(late, 3)
        time.sleep(0.2)
        assert not waiting.done()
        index.write_bytes(kept)
        fcntl.flock(compiling, fcntl.LOCK_UN)
        assert waiting.result(240) == 6
    assert sum(late.stats.cache_hits.values()) == 1
    assert code.exists()


def test_kernels_work_without_a_folder_for_machine_code(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    assert kernels.kernel(doubled)(2) == 4


def test_a_full_disk_is_not_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    compiled = kernels.kernel(doubled)
    monkeypatch.setattr(kernels._Locator, "ensure_cache_path", _full)
    assert compiled(2) == 4
    assert not list(kernels.folder(HERE).glob("*.nbc"))


def _full(self):
    raise OSError(28, "No space left on device")
