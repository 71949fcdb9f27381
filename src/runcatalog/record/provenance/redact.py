"""Redaction of secrets from published text, and the allow-list of published environment variables.

Guild stores all variables of the shell that started a run. Only those on the allow-list below are published, since
they can affect a run's results or speed. Secrets can also get into published text in other ways, for example by a
traceback or a printed request. Therefore every text is scanned for the values of variables that are named like
secrets, and for known forms of access tokens.
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

MAX_TEXT_BYTES = 8 << 20  # a larger file is data and not scanned

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
# Suspect only as environment variables; as flags they are ordinary words (a key that opens a door).
_SECRET_VARIABLE = re.compile(
    r"(^|_)(PASS|PW|PAT|KEYS?|PIN|DSN|AUTH|COOKIE|TOKENS|PRIVATE|SIGNATURE)(_|$)", re.IGNORECASE
)
# Numbers, switches and paths are not secrets, even if the variable's name is suspect (SSH_AUTH_SOCK).
_HARMLESS = re.compile(r"[0-9.]{1,11}|true|false|yes|no|on|off|(/[\w.@+-]+)+/?", re.IGNORECASE)
_CONTEXT = (
    12  # characters on either side of a hidden value by which it is recognised in another text
)
_MIN_CONTEXT = (
    6  # characters; a shorter context identifies a hidden value only at the begin or end of a text
)
_MIN_SECRET = 6  # characters; shorter values occur in ordinary text by chance

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
    """Return the variables that may be published."""
    return {n: v for n, v in sorted(environment.items()) if _ALLOWED.fullmatch(n)}


class Redactor:
    """Removes secrets from texts that are about to be published.

    Args:
        environments: Environments; the values of their secret variables are hidden everywhere.
    """

    def __init__(self, environments: Iterable[Mapping[str, str]] = ()) -> None:
        values = {
            value
            for environment in environments
            for name, value in environment.items()
            if is_secret_variable(name)
            and len(value) >= _MIN_SECRET
            and not _HARMLESS.fullmatch(value)
        }
        spellings = {text for value in values for text in (value, json.dumps(value)[1:-1])}
        longest_first = sorted(spellings, key=lambda text: (-len(text), text))
        self._values = re.compile("|".join(map(re.escape, longest_first))) if values else None

    @classmethod
    def for_run(cls, directory: Path) -> Redactor:
        """Return the redactor for a run, from this process's environment and the one that Guild stored."""
        return cls([os.environ, guild_secrets(directory)])

    def text(self, shown: str) -> str:
        """Return a text without secrets."""
        shown = self.known(shown)
        shown = _BEARER.sub(rf"\1 {HIDDEN}", shown)
        shown = _ARGUMENT.sub(rf"\1{HIDDEN}", shown)
        return _ASSIGNED.sub(_hide_value, shown)

    def known(self, shown: str) -> str:
        """Return a text without the values of secret variables and tokens of known forms.

        Values after words such as "token" are kept, so that no number is removed from output that is parsed later.
        """
        if self._values is not None:
            shown = self._values.sub(HIDDEN, shown)
        shown = _FORMS.sub(HIDDEN, shown)
        return _USER_INFO.sub(rf"\1{HIDDEN}@", shown)

    def contains_secret(self, shown: str) -> bool:
        """Return whether a text contains the value of a secret variable or a token; names of secrets do not count."""
        known = self._values is not None and self._values.search(shown)
        return bool(known or _FORMS.search(shown) or _USER_INFO.search(shown))

    def flag(self, name: str, value: Any) -> Any:
        """Return a flag's value, or HIDDEN if its name is that of a secret."""
        if isinstance(value, str) and value and is_secret_name(name):
            return HIDDEN
        return self.text(value) if isinstance(value, str) else value

    def value(self, value: Any) -> Any:
        """Return a JSON value without secrets in its texts."""
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
        """Return a file's text without its secrets; None if it contains no secrets or is not a text file.

        Args:
            path: The file.
            known: Whether to remove only what :meth:`known` removes.
        """
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if path.stat().st_size <= MAX_TEXT_BYTES:
                shown = path.read_bytes().decode("utf-8")
                clean = self.known(shown) if known else self.text(shown)
                return clean if clean != shown else None
        return None


def still_hidden(now: str, before: str) -> str:
    """Return a text with the parts hidden that were hidden in its earlier, published form.

    When a run is sent again, the environment variables with its secrets may no longer exist.

    Args:
        now: The text.
        before: Its published form; if that is a different text, `now` is returned unchanged.
    """
    if HIDDEN not in before or not now:
        return now
    shown = before.split(HIDDEN)
    if re.fullmatch(".+".join(map(re.escape, shown)), now, re.DOTALL):
        return before
    # The text has changed elsewhere too: hide the parts with the same context.
    for number, (left, right) in enumerate(itertools.pairwise(shown)):
        begin = r"\A" if number == 0 and len(left) < _MIN_CONTEXT else ""
        end = r"\Z" if number == len(shown) - 2 and len(right) < _MIN_CONTEXT else ""
        before_it, after_it = re.escape(left[-_CONTEXT:]), re.escape(right[:_CONTEXT])
        hidden = f"({begin}{before_it}).+?(?={after_it}{end})"
        now = re.sub(hidden, lambda match: match[1] + HIDDEN, now, count=1, flags=re.DOTALL)
    return now


def is_hidden(value: Any, shown: Any) -> bool:
    """Return whether the published form of a flag is (partly) hidden and consistent with this value."""
    text = str(value)
    return isinstance(shown, str) and HIDDEN in shown and still_hidden(text, shown) == shown


def is_secret_name(name: str) -> bool:
    """Return whether a flag is named like a secret."""
    return bool(_SECRET_NAME.search(_words(name)))


def is_secret_variable(name: str) -> bool:
    """Return whether an environment variable is named like a secret."""
    suspect = is_secret_name(name) or _SECRET_VARIABLE.search(_words(name))
    return bool(suspect) and not _ALLOWED.fullmatch(name)


def _words(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).replace("-", "_")


def guild_secrets(directory: Path) -> dict[str, str]:
    """Return the secret variables of the environment that Guild stored for a run; empty without Guild."""
    path = directory / ".guild" / "attrs" / "env"
    with contextlib.suppress(
        Exception
    ):  # a damaged file of an untrusted run has no secrets to hide
        if path.stat().st_size <= 1 << 20:
            entries = re.split(r"\n(?=\S)", path.read_text(encoding="utf-8"))
            secret = [entry for entry in entries if is_secret_variable(entry.partition(":")[0])]
            if secret:
                import yaml

                # BaseLoader keeps all values as text, so that tokens that look like numbers are not converted.
                content = yaml.load("\n".join(secret), yaml.BaseLoader)
                return {str(n): v for n, v in content.items() if isinstance(v, str)}
    return {}


def _hide_value(match: re.Match[str]) -> str:
    return f"{match['name']}{match['sign']}{match['quote']}{HIDDEN}"
