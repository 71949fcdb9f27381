"""What may be published of a run's environment, and what must never be.

Guild keeps every variable of the shell that started a run. Of these the allow-list below is
published, because it can change what a run computes or how fast; nothing else is. A secret can
also get into what is published by other ways, a traceback or a printed request for example, so that
every text is searched for the values of variables that are named like secrets, and for the forms
that access tokens have.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from runcatalog.record.journal import HIDDEN

MAX_TEXT_BYTES = 8 << 20  # a larger file is data; it is not searched

_ALLOWED = re.compile(
    r"CUDA_VISIBLE_DEVICES|CUBLAS_WORKSPACE_CONFIG|PYTORCH_(CUDA_)?ALLOC_CONF|NVIDIA_TF32_OVERRIDE"
    r"|(OMP|MKL|OPENBLAS|NUMEXPR|VECLIB_MAXIMUM)_NUM_THREADS|OMP_(PROC_BIND|PLACES|DYNAMIC)"
    r"|KMP_(AFFINITY|BLOCKTIME)|MKL_DYNAMIC|ATEN_CPU_CAPABILITY"
    r"|MUJOCO_GL|PYOPENGL_PLATFORM|PYTHONHASHSEED|RECORD(_MLFLOW)?|(HF|TRANSFORMERS)(_HUB)?_OFFLINE"
    r"|TOKENIZERS_PARALLELISM|LANG|LC_ALL|TZ"
)
_SECRET_NAME = re.compile(
    r"TOKEN(_|$)|SECRET|PASS(WORD|WD|PHRASE)|CREDENTIAL|(API|ACCESS|PRIVATE|SIGNING|ACCOUNT)_?KEY",
    re.IGNORECASE,
)
# Of a shell's variables more are suspect; as flags these are ordinary words (a key that opens a door).
_SECRET_VARIABLE = re.compile(
    r"(^|_)(PASS|PW|PAT|KEYS?|PIN|DSN|AUTH|COOKIE|TOKENS|PRIVATE|SIGNATURE)(_|$)", re.IGNORECASE
)
# Numbers, switches and paths are no secrets, however the variable is called (SSH_AUTH_SOCK).
_HARMLESS = re.compile(r"[0-9.]{1,11}|true|false|yes|no|on|off|(/[\w.@+-]+)+/?", re.IGNORECASE)
_AROUND = 12  # characters on either side of a hidden value by which it is found again
_TELLING = 6  # characters; fewer of them stand by a hidden value only where the text begins or ends
_SHORTEST = 6  # characters; shorter values stand in ordinary text by chance

_FORMS = re.compile(
    r"\b(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|glpat-[\w-]{20,}|hf_[A-Za-z0-9]{30,}"
    r"|sk-[\w-]{20,}|xox[abposr]-[\w-]{10,}|A(?:KI|SI)A[0-9A-Z]{16}|AIza[\w-]{35}|pypi-[\w-]{32,}"
    r"|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
_USER_INFO = re.compile(
    r"(\b[a-z][a-z0-9+.-]{0,20}://)[^\s/@'\"]{0,200}:[^\s/@'\"]{0,200}@", re.IGNORECASE
)
_BEARER = re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]{12,}")
_ASSIGNED = re.compile(
    r"(?P<name>(?:token|secret|password|passwd|passphrase|(?:api|access|private)[_-]?key))"
    r"(?P<sign>['\"]?\s*[=:]\s*)"
    r"(?P<quote>['\"]?)(?P<value>[^\s'\",;\[]{8,})",
    re.IGNORECASE,
)
_ARGUMENT = re.compile(
    r"((?<![\w-])--?[\w-]{0,40}(?:token|secret|password|passwd|passphrase|(?:api|access|private)[_-]?key)[ =])"
    r"('[^']*'|\"[^\"]*\"|[^\s\[]\S*)",
    re.IGNORECASE,
)


def allowed(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that may be published."""
    return {n: v for n, v in sorted(environment.items()) if _ALLOWED.fullmatch(n)}


class Redactor:
    """Takes secrets out of what is about to be published.

    Args:
        environments: Environments whose secret variables' values are hidden wherever they stand.
    """

    def __init__(self, environments: Iterable[Mapping[str, str]] = ()) -> None:
        values = {
            value
            for environment in environments
            for name, value in environment.items()
            if is_secret_variable(name)
            and len(value) >= _SHORTEST
            and not _HARMLESS.fullmatch(value)
        }
        spellings = {each for value in values for each in (value, json.dumps(value)[1:-1])}
        longest_first = sorted(spellings, key=lambda each: (-len(each), each))
        self._values = re.compile("|".join(map(re.escape, longest_first))) if values else None

    @classmethod
    def of_run(cls, directory: Path) -> Redactor:
        """Returns the one for a run: this process's environment and the one that Guild kept."""
        return cls([os.environ, guild_secrets(directory)])

    def text(self, shown: str) -> str:
        """Returns a text without secrets."""
        shown = self.known(shown)
        shown = _BEARER.sub(rf"\1 {HIDDEN}", shown)
        shown = _ARGUMENT.sub(rf"\1{HIDDEN}", shown)
        return _ASSIGNED.sub(_hide_value, shown)

    def known(self, shown: str) -> str:
        """Returns a text without known secrets and tokens of known forms.

        What merely follows a word such as "token" stays: what others read numbers from keeps all of them.
        """
        if self._values is not None:
            shown = self._values.sub(HIDDEN, shown)
        shown = _FORMS.sub(HIDDEN, shown)
        return _USER_INFO.sub(rf"\1{HIDDEN}@", shown)

    def holds_secret(self, shown: str) -> bool:
        """Whether a known secret or a token's form stands in a text; code that merely names one does not count."""
        known = self._values is not None and self._values.search(shown)
        return bool(known or _FORMS.search(shown) or _USER_INFO.search(shown))

    def flag(self, name: str, value: Any) -> Any:
        """Returns a flag's value, or that it is hidden."""
        if isinstance(value, str) and value and is_secret_name(name):
            return HIDDEN
        return self.text(value) if isinstance(value, str) else value

    def value(self, value: Any) -> Any:
        """Returns a JSON value without secrets in its texts."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {
                self.text(str(name)): self.flag(str(name), self.value(v))
                for name, v in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value

    def file(self, path: Path, *, known: bool = False) -> str | None:
        """Returns a file's text without its secrets; None if there are none in it, or it is no text.

        Args:
            path: The file.
            known: Take out what :meth:`known` does, and no more.
        """
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if path.stat().st_size <= MAX_TEXT_BYTES:
                shown = path.read_bytes().decode("utf-8")
                clean = self.known(shown) if known else self.text(shown)
                return clean if clean != shown else None
        return None


def still_hidden(now: str, before: str) -> str:
    """Returns a text without what an earlier form of it hid.

    Who sends a run again may not know its secrets: the variable that held one is gone.

    Args:
        now: The text.
        before: What was published of it; if it is another text, `now` is returned as it is.
    """
    if HIDDEN not in before or not now:
        return now
    shown = before.split(HIDDEN)
    if re.fullmatch(".+".join(map(re.escape, shown)), now, re.DOTALL):
        return before
    # Something else in it has changed too: what stands where the same few characters surround it.
    for number, (left, right) in enumerate(itertools.pairwise(shown)):
        begin = r"\A" if number == 0 and len(left) < _TELLING else ""
        end = r"\Z" if number == len(shown) - 2 and len(right) < _TELLING else ""
        around = re.escape(left[-_AROUND:]), re.escape(right[:_AROUND])
        hidden = f"({begin}{around[0]}).+?(?={around[1]}{end})"
        now = re.sub(hidden, lambda match: match[1] + HIDDEN, now, count=1, flags=re.DOTALL)
    return now


def is_hidden(value: Any, shown: Any) -> bool:
    """Whether what was published of a flag hides a part of it, or all, and may be of this value."""
    text = str(value)
    return isinstance(shown, str) and HIDDEN in shown and still_hidden(text, shown) == shown


def is_secret_name(name: str) -> bool:
    """Whether a flag is named like something secret."""
    return bool(_SECRET_NAME.search(_words(name)))


def is_secret_variable(name: str) -> bool:
    """Whether an environment variable is named like something secret."""
    suspect = is_secret_name(name) or _SECRET_VARIABLE.search(_words(name))
    return bool(suspect) and not _ALLOWED.fullmatch(name)


def _words(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).replace("-", "_")


def guild_secrets(directory: Path) -> dict[str, str]:
    """Returns the secret variables of the environment that Guild kept of a run; none without Guild."""
    path = directory / ".guild" / "attrs" / "env"
    with contextlib.suppress(Exception):  # damaged, from outside: then there are none
        if path.stat().st_size <= 1 << 20:
            entries = re.split(r"\n(?=\S)", path.read_text(encoding="utf-8"))
            secret = [each for each in entries if is_secret_variable(each.partition(":")[0])]
            if secret:
                import yaml

                # Text alone, no YAML types: tokens that look like numbers stay as they are written.
                content = yaml.load("\n".join(secret), yaml.BaseLoader)
                return {str(n): v for n, v in content.items() if isinstance(v, str)}
    return {}


def _hide_value(match: re.Match[str]) -> str:
    return f"{match['name']}{match['sign']}{match['quote']}{HIDDEN}"
