"""Fork processes from one that has loaded large packages.

    python server.py FOLDER [library]

With `library` the packages are those that the library uses, without those of the studies alone.
The packages are imported when the first fork is asked for. ``FOLDER/cpu-WORKER`` holds the CPU seconds of the ended
forks that a test process asked for; ``FOLDER/forked-for-PID`` exists while the fork of a caller does, and holds its
process id. The end of standard input ends the server and its forks.

The projects of tests are copies, and Guild copies their sources for every run: ``FOLDER/code`` holds what was compiled,
by source, and a fork takes that of an equal file from there.
"""

import _imp
import atexit
import contextlib
import ctypes
import fcntl
import gc
import hashlib
import importlib
import importlib.machinery
import marshal
import multiprocessing.spawn
import os
import runpy
import select
import shutil
import signal
import socket
import sys
import sysconfig
import threading
import types
import warnings
import weakref
from collections import Counter
from pathlib import Path

LIBRARY = (
    "numpy", "scipy.optimize", "scipy.stats", "torch", "safetensors.torch", "matplotlib.pyplot",
    "matplotlib.backends.backend_svg", "PIL.Image", "sklearn.gaussian_process", "yaml", "jinja2", "rich.live",
    "psutil", "guild.main", "guild.commands.run_impl", "mlflow.tracking.client",
    "mlflow.store.tracking.sqlalchemy_store", "mlflow.store.artifact.local_artifact_repo", "mlflow.cli",
    "mlflow.server.fastapi_app", "uvicorn", "pkg_resources", "absl.logging", "xml.dom.minidom", "pdb", "skopt",
)  # fmt: skip
STUDIES = (
    "numba", "mujoco", "mujoco.rollout", "gymnasium", "minigrid", "httpx2", "imageio",
    "transformers.models.auto.modeling_auto", "transformers.models.auto.tokenization_auto",
    "transformers.models.qwen2.modeling_qwen2", "transformers.models.qwen2.tokenization_qwen2",
    "transformers.trainer_utils", "accelerate", "peft",
)  # fmt: skip


AT_START = Path(sysconfig.get_path("purelib"), "runcatalog_engine.pth")  # Python reads it


def share_code(folder):
    """Let this process and its forks compile a source once, whatever file it is in."""
    compiled = importlib.machinery.SourceFileLoader.source_to_code
    folder.mkdir()

    def source_to_code(self, data, path, **options):
        if options or not isinstance(data, bytes):
            return compiled(self, data, path, **options)
        kept = folder / hashlib.sha256(data).hexdigest()
        try:
            code = marshal.loads(kept.read_bytes())
        except FileNotFoundError:
            code = compiled(self, data, path)
            with contextlib.suppress(OSError):  # the server has ended
                new = kept.with_suffix(f".{os.getpid()}")
                new.write_bytes(marshal.dumps(code))
                new.rename(kept)
        _imp._fix_co_filename(code, path)
        return code

    importlib.machinery.SourceFileLoader.source_to_code = source_to_code


def load(packages):
    """Import the packages; one that is not installed is left out."""
    shown, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)  # one of them warns that another is deprecated
    for name in packages:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    os.dup2(shown, 2)
    os.close(shown)
    os.close(nowhere)
    # Torch would take down its operators at the end of every fork, which copies their memory.
    for teardown in list(weakref.finalize._registry):
        teardown.atexit = False
    gc.collect()
    gc.freeze()
    use_large_pages()


def use_large_pages():
    """Move this process's memory to pages of 2 MiB, where Linux can: a fork copies the table of all its pages."""
    collapse = 25  # MADV_COLLAPSE of madvise(2), since Linux 6.1
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for line in Path("/proc/self/maps").read_text().splitlines():
        where, access, _, _, file, *_ = line.split()
        if access == "rw-p" and file == "0":
            first, end = (int(address, 16) for address in where.split("-"))
            first, end = -(-first >> 21) << 21, end >> 21 << 21
            if first < end:
                advise(first, end - first, collapse)


def receive(connection):
    """Return what is to run, and its open files, in the order of their numbers in the request."""
    size, files, _, _ = socket.recv_fds(connection, 8, 253)  # as many as Linux sends at once
    content = b""
    while len(content) < int(size):
        if not (part := connection.recv(65536)):
            raise ValueError("the caller was killed before it had sent all")
        content += part
    return marshal.loads(content), files


def run(request, files, command):
    """Turn this process into the one that was asked for, run it and end as Python ends.

    The packages are not taken down again, which would take longer than most scripts.
    """
    code, interrupted = 0, False
    try:
        become(request, files, command)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if not isinstance(end.code, int | None):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        code, interrupted = 1, isinstance(error, KeyboardInterrupt)
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    threading._shutdown()
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


def become(request, files, command):
    """Take over arguments, environment, folder, files and signals; run the script, module or text."""
    os.setsid()
    for number, ignored in request["signals"].items():
        default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if ignored else default)
    # First out of the way: one may have the number of another.
    above = [fcntl.fcntl(file, fcntl.F_DUPFD, 512) for file in files]
    for file in files:
        os.close(file)
    for number, file in zip(request["files"], above, strict=True):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["env"])
    os.umask(request["umask"])
    os.chdir(request["cwd"])
    given = {} if request["isolated"] else os.environ  # variables that Python reads
    unbuffered = request["unbuffered"] or bool(given.get("PYTHONUNBUFFERED"))
    # New streams: the server's remember what kind of file theirs was.
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty(), write_through=unbuffered)
    sys.stderr.reconfigure(line_buffering=True, write_through=unbuffered)
    filters = given.get("PYTHONWARNINGS", "").split(",")
    warnings._processoptions([*filter(None, filters), *request["warnings"]])
    sys.dont_write_bytecode = bool(given.get("PYTHONDONTWRITEBYTECODE"))
    sys.executable = command
    multiprocessing.spawn.set_executable(command)
    sys.orig_argv[1:] = request["words"]
    first, *rest = request["run"]
    paths = [path for path in given.get("PYTHONPATH", "").split(os.pathsep) if path]
    beside = {"-m": os.getcwd(), "-c": ""}.get(first, os.path.dirname(os.path.realpath(first)))
    sys.path[:0] = map(os.path.abspath, paths)
    if AT_START.exists():
        exec(AT_START.read_text(), {})
    if not request["safe_path"]:
        sys.path.insert(0, beside)
    # Python looks for a module of users at its start: hooks that a program adds are too late for these folders.
    importlib.machinery.PathFinder.find_spec("usercustomize")
    if first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if first == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
        return
    sys.argv = request["run"]
    main.__file__ = os.path.abspath(first)
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", main.__file__)
    exec(compile(Path(first).read_bytes(), main.__file__, "exec"), main.__dict__)


class Server:
    """Take requests, fork, and say how forks ended."""

    def __init__(self, folder, packages):
        self.folder, self.packages, self.cpu = folder, packages, Counter()
        self.forks = {}  # file that is readable when a fork has ended: (process, connection, worker, caller)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(folder / "new"))
        self.listener.listen(256)
        os.rename(folder / "new", folder / "socket")
        self.loaded = False

    def serve(self):
        """Serve until standard input ends; return what a fork is to run, in the fork."""
        while True:
            waiting = {connection: fork for fork, (_, connection, *_) in self.forks.items()}
            ready, _, _ = select.select([0, self.listener, *self.forks, *waiting], [], [])
            if 0 in ready:
                for fork in list(self.forks):
                    self._left_alone(fork)
                shutil.rmtree(self.folder, ignore_errors=True)
                return None
            for file in ready:
                if file in self.forks:
                    self._ended(file)
            for file in ready:
                if file in waiting and waiting[file] in self.forks:
                    self._left_alone(waiting[file])  # nothing is sent on it: it was closed
            if self.listener in ready:
                wanted = self._fork()
                if wanted:
                    return wanted

    def _fork(self):
        connection, _ = self.listener.accept()
        try:
            request, files = receive(connection)
        except (OSError, ValueError):
            connection.close()
            return None
        if not self.loaded:
            load(self.packages)
            self.loaded = True
        fork_of_caller = self.folder / f"forked-for-{request['pid']}"
        fork_of_caller.touch()
        process = os.fork()
        if not process:
            for each in (self.listener, connection, *(c for _, c, *_ in self.forks.values())):
                each.close()
            for each in self.forks:
                os.close(each)
            return request, files
        fork_of_caller.write_text(str(process))
        for each in files:
            os.close(each)
        with contextlib.suppress(OSError):
            # As long as the caller reads: the status follows
            connection.send(f"{process:16d}".encode())
        of_parent = (w for p, _, w, _ in self.forks.values() if p == request["parent"])
        worker = request["env"].get("PYTEST_XDIST_WORKER") or next(of_parent, "main")
        self.forks[os.pidfd_open(process)] = (process, connection, worker, request["pid"])
        return None

    def _ended(self, fork):
        process, connection, worker, caller = self.forks.pop(fork)
        _, status, usage = os.wait4(process, 0)
        os.close(fork)
        (self.folder / f"forked-for-{caller}").unlink(missing_ok=True)
        self.cpu[worker] += usage.ru_utime + usage.ru_stime
        path = self.folder / f"cpu-{worker}"
        path.with_suffix(".new").write_text(f"{self.cpu[worker]:.3f}")
        path.with_suffix(".new").rename(path)
        with contextlib.suppress(OSError):
            connection.send(str(os.waitstatus_to_exitcode(status)).encode())
        connection.close()

    def _left_alone(self, fork):
        """Kill a fork whose caller was killed."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(fork, signal.SIGKILL)
        self._ended(fork)


def main():
    folder = Path(sys.argv[1])
    sys.path.pop(0)  # this folder; a fork has that of its script
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from prepared import database

    sys.path.pop(0)
    database.install(folder)
    share_code(folder / "code")
    wanted = Server(folder, LIBRARY if sys.argv[2:] else LIBRARY + STUDIES).serve()
    if wanted:
        run(*wanted, str(folder / "bin" / "python"))


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    main()
