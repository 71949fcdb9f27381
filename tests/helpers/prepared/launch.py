"""Let the server fork a process, wait for its end, and end in the same way.

    python -IS launch.py SOCKET PYTHON [OPTION ...] (SCRIPT | -m MODULE | -c CODE) [ARGUMENT ...]

An option that a fork cannot have, or an environment that Python reads as it starts, gets the real Python.
Only built-in modules are imported: with `json` and `socket` a start would take three times as long.
"""

import _signal as signal
import _socket
import marshal
import os
import sys

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)  # fmt: skip
# Variables that change Python or a library as it starts, but for those that the fork reads again.
READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "KMP_", "CUDA_LAUNCH")
PARENT_COUNTS = ("TEXTGAMES_STARTED_BY",)  # the script compares its parent, which a fork has not
READ_AGAIN = ("PYTHONPATH", "PYTHONWARNINGS", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")
FOR_MAKE = ("PYTHON",)  # which interpreter the set-up takes
# In every process that imports it, the server too
SET_BY_SKLEARN = ("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")


def parse(words):
    """Return (what is to run, letters of options, warnings); None if a fork cannot run it."""
    words, letters, warnings = list(words), "", []
    while words:
        word = words[0]
        if not word.startswith("-"):
            return words, letters, warnings
        if word == "-W" and words[1:]:
            warnings.append(words[1])
            words = words[2:]
            continue
        letters += word[1:].rstrip("mc")
        if set(letters) - set("uPI") or not words[1:]:
            return None
        words = words[1:]
        if word[-1] in "mc":
            return [f"-{word[-1]}", *words], letters, warnings
    return None


def main():
    address, python, *words = sys.argv[1:]
    parsed = parse(words)
    odd = [
        n
        for n in os.environ
        if n.startswith((*READ_AT_START, *PARENT_COUNTS))
        and n not in (*READ_AGAIN, *FOR_MAKE, *SET_BY_SKLEARN)
    ]
    script = parsed and not parsed[0][0].startswith("-")
    if parsed is None or odd or (script and not os.path.isfile(parsed[0][0])):
        os.execv(python, [python, *words])
    run, letters, warnings = parsed
    umask = os.umask(0)
    os.umask(umask)
    listed = [number for number in map(int, os.listdir("/proc/self/fd")) if number > 2]
    files = [0, 1, 2, *(n for n in listed if os.path.lexists(f"/proc/self/fd/{n}"))]
    request = {
        "run": run, "unbuffered": "u" in letters, "safe_path": bool({"P", "I"} & set(letters)),
        "isolated": "I" in letters, "warnings": warnings, "cwd": os.getcwd(),
        "env": dict(os.environ), "words": words, "umask": umask,
        "files": files, "pid": os.getpid(), "parent": os.getppid(),
        "signals": {number: signal.getsignal(number) == signal.SIG_IGN for number in PASSED_ON},
    }  # fmt: skip
    fork, early = [], []

    def pass_on(number, frame):
        if fork:
            try:  # noqa: SIM105 - contextlib is not imported, see above
                os.kill(fork[0], number)
            except ProcessLookupError:
                pass
        else:
            early.append(number)

    for number in PASSED_ON:  # also one that is ignored, which what is run may handle
        signal.signal(number, pass_on)
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    server.connect(address)
    content = marshal.dumps(request)
    numbers = b"".join(number.to_bytes(4, sys.byteorder) for number in files)
    rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)
    server.sendmsg([f"{len(content):08d}".encode()], [rights])
    server.sendall(content)
    for number in files:
        os.close(number)  # a pipe ends with the fork that it was given to
    fork.append(int(server.recv(16)))
    for number in early:
        pass_on(number, None)
    status = server.recv(16)
    code = int(status or b"-9")
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (9, 19) else None
        os.kill(os.getpid(), -code)
    os._exit(code)


main()
