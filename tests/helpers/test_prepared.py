"""A prepared Python behaves like the real one."""

import hashlib
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import prepared


def outcome(python, words, **options):
    done = subprocess.run([python, *words], capture_output=True, text=True, **options)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["-c", "import sys; print(sys.argv, __name__); sys.exit(3)", "-m", "two words"],
        ["-c", "import sys; sys.exit('message')"],
        ["-c", "import sys; print(1); print(2, file=sys.stderr); 1 / 0"],
        ["-c", "raise KeyboardInterrupt"],
        ["-c", "import atexit; atexit.register(print, 'last'); print('first')"],
        ["-c", "import threading; threading.Thread(target=print, args=['thread']).start()"],
        ["-c", "import os; os.kill(os.getpid(), 9)"],
        ["-c", "import os; os._exit(7)"],
        ["-c", "import os; print(os.getcwd(), os.environ['HOME'], os.umask(0)); print(input())"],
        ["-W", "error", "-c", "import warnings; warnings.warn('careful')"],
        ["-um", "json.tool", "--help"],
        ["-m", "nowhere"],
        ["script.py", "--flag", "é"],
        ["-P", "script.py"],
        ["-I", "script.py"],
        ["nowhere.py"],
    ],
)
def test_arguments_environment_streams_and_end_are_those_of_python(tmp_path, words):
    (tmp_path / "beside.py").write_text("words = 'imported'\n")
    (tmp_path / "script.py").write_text(
        "import sys\nprint(sys.argv, __file__, __name__)\nimport beside\nprint(beside.words)\nopen('nowhere')\n"
    )
    options = {"cwd": tmp_path, "input": "line\n", "env": os.environ | {"HOME": "elsewhere"}}
    real = outcome(sys.executable, words, **options)
    code, out, errors = outcome(prepared.python(), words, **options)
    assert (code, out) == real[:2]
    if words[-1].startswith("nowhere"):  # in the words of `runpy`
        assert "nowhere" in errors
    else:  # Python 3.13 shows the source of `-c` in a traceback, which a fork does not know
        shown = [line for line in real[2].splitlines() if not line.startswith("    ")]
        assert [line for line in errors.splitlines() if not line.startswith("    ")] == shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signals_reach_it(number):
    code = f"""if True:
        import signal, sys, time
        signal.signal({int(number)}, lambda *_: sys.exit(5))
        print("ready", flush=True)
        time.sleep(600)
    """
    with subprocess.Popen([prepared.python(), "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.wait(240) == 5


def test_files_that_are_passed_on_keep_their_numbers():
    read, write = os.pipe()
    above = os.dup2(write, 40)
    os.write(write, b"text\n")
    code = f"import os; os.write({above}, os.read({read}, 9) * 2); print(sorted(os.listdir('/proc/self/fd')))"
    words, files = ["-c", code], (read, above)
    real = outcome(sys.executable, words, pass_fds=files)
    assert os.read(read, 99) == b"text\ntext\n"
    os.write(write, b"text\n")
    assert outcome(prepared.python(), words, pass_fds=files) == real
    os.close(write)
    os.close(above)
    assert os.read(read, 99) == b"text\ntext\n"
    assert os.read(read, 99) == b""  # no process keeps the other end open
    os.close(read)


def test_processes_that_it_spawns_are_prepared_too(tmp_path):
    (tmp_path / "script.py").write_text(
        "import multiprocessing, os, sys, time\n"
        "def work(pipe, ends):\n"
        "    pipe.send(('numpy' in sys.modules, sys.executable, os.environ['WORDS']))\n"
        "    time.sleep(0 if ends else 600)\n"
        "    sys.exit(3)\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    for ends in (True, False):\n"
        "        ours, theirs = context.Pipe()\n"
        "        process = context.Process(target=work, args=(theirs, ends))\n"
        "        process.start()\n"
        "        theirs.close()\n"
        "        print(ours.recv())\n"
        "        if not ends: process.kill()\n"
        "        try: ours.recv()\n"
        "        except EOFError: process.join()\n"
        "        print(process.exitcode)\n"
    )
    env = os.environ | {"WORDS": "é"}
    code, out, errors = outcome(prepared.python(), ["script.py"], cwd=tmp_path, env=env)
    said = str((True, prepared.python(), "é"))
    assert (code, out.splitlines(), errors) == (0, [said, "3", said, "-9"], "")


def test_killed_it_is_gone(monkeypatch):
    monkeypatch.setenv("KMP_INIT_AT_FORK", "FALSE")  # as in a process that has imported sklearn
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with prepared.Process([prepared.python(), "-c", code], stdout=subprocess.PIPE) as process:
        fork = int(process.stdout.readline())
        process.kill()
        assert process.wait(240) == -signal.SIGKILL
        assert not Path(f"/proc/{fork}").exists()
        assert process.stdout.read() == b""
    assert fork != process.pid


def test_a_process_is_killed_with_all_that_it_has_started(tmp_path):
    lives = (
        "import os, time; open(str(os.getpid()), 'x').close(); {}time.sleep(600); open('late', 'x')"
    )
    child = [prepared.python(), "-c", lives.format("")]
    code = lives.format(f"import subprocess; subprocess.call({child}); ")
    command = shlex.join([prepared.python(), "-c", code])
    started = subprocess.Popen(f"{command}; touch after", shell=True, cwd=tmp_path)
    while len(list(tmp_path.iterdir())) < 2:
        assert started.poll() is None
        time.sleep(0.01)
    prepared.kill_all(started, prepared.folder().parent)
    numbers = [path.name for path in tmp_path.iterdir()]
    assert len(numbers) == 2
    assert not any(Path("/proc", number).exists() for number in numbers)


def test_variables_that_python_reads_at_its_start_use_the_real_interpreter():
    code = "import sys; print(sys.flags.hash_randomization, sys.executable)"
    env = os.environ | {"PYTHONHASHSEED": "0"}
    assert outcome(prepared.python(), ["-c", code], env=env) == (0, f"0 {sys.executable}\n", "")


def test_only_changed_sources_are_compiled_again(tmp_path):
    """Each file's code names that file, as a traceback shows it."""
    compiled = []
    for folder, source in (("one", "1 / 0"), ("two", "1 / 0"), ("two", "\n1 / 0  # changed")):
        path = tmp_path / folder / "divides.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# {tmp_path}\n{source}\n")
        code, _, errors = outcome(prepared.python(), ["-c", "import divides"], cwd=path.parent)
        assert code == 1
        assert f'{path}", line {2 + source.count(chr(10))}' in errors
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        compiled.append((prepared.folder().parent / "code" / digest).stat().st_mtime_ns)
    first, again, changed = compiled
    assert first == again != changed
