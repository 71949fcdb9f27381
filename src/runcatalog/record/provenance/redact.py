"""Redaction of secrets from published text, and the allow-list of published environment variables.

Guild stores all variables of the shell that started a run. Only those on the allow-list below are published, since
they can affect a run's results or speed. Secrets can also get into published text in other ways, for example by a
traceback or a printed request. Therefore every text is scanned for the values of variables that are named like
secrets, and for known forms of access tokens.
"""

from __future__ import annotations

import base64
import contextlib
import html
import itertools
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes

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
# Variables with a name like a secret's whose value is a number or a path: MAX_TOKENS, TOKEN_TTL, SSH_AUTH_SOCK.
_COUNT_NAME = re.compile(
    r"(^|_)(KEYS|TOKENS|MAX|MIN|NUM|N|COUNT|LIMIT|SIZE|LENGTH|LEN|BITS|PORT|VERSION|TTL|TIMEOUT|EXPIR\w*|AGE|DAYS|HOURS"
    r"|MINUTES|SECONDS)(_|$)",
    re.IGNORECASE,
)
_PATH_NAME = re.compile(
    r"(FILE|PATH|DIR|DIRECTORY|FOLDER|HOME|SOCK|SOCKET|APPLICATION_CREDENTIALS)$", re.IGNORECASE
)
_PATH = re.compile(r"(/[\w.@+-]+)+/?|/")
_DECIMAL = re.compile(r"(?=.{1,11}\Z)[0-9.]*\.[0-9.]*")
_NUMBER = re.compile(r"-?[0-9]{1,10}\.[0-9]{1,17}(?:e[+-]?[0-9]{1,3})?[.)]?")
# Switches and defaults that everybody knows; as whole words they are parts of ordinary text.
_ORDINARY = re.compile(
    r"true|false|yes|no|on|off|none|null|auto|test|root|admin|user|guest|demo|local|dev|prod",
    re.IGNORECASE,
)
_CONTEXT = (
    12  # characters on either side of a hidden value by which it is recognised in another text
)
_MIN_CONTEXT = (
    6  # characters; a shorter context identifies a hidden value only at the begin or end of a text
)
_MIN_SECRET = 3  # characters; shorter values are not hidden
_MIN_PART = 6  # characters; shorter values are hidden only as whole words
_MIN_DIGITS, _MANY_DIGITS = 4, 8  # of numbers, which are hidden only as whole words
_MIN_BASE64 = 8  # characters by which a value is recognised inside of a base64 text

# Where a number of few digits is not a secret: values of flags, and counts.
_UNITS = r"(?:step|update|epoch|episode|iteration|level|point|run|trial|seed|batch|line|token)s?"
_FLAG_BEFORE = re.compile(r"(?:(?<!\S)--?([A-Za-z][\w-]*)[ =]|\b([A-Za-z][\w-]*)=)['\"]?\Z")
_UNIT_BEFORE = re.compile(rf"\b{_UNITS}['\"]?[ :=]+\Z", re.IGNORECASE)
_UNIT_AFTER = re.compile(rf" {_UNITS}\b", re.IGNORECASE)

_FORMS = re.compile(
    r"\b(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|glpat-[\w-]{20,}|hf_[A-Za-z0-9]{30,}"
    r"|sk-[\w-]{20,}|xox[abposr]-[\w-]{10,}|A(?:KI|SI)A[0-9A-Z]{16}|AIza[\w-]{35}|pypi-[\w-]{32,}"
    r"|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
# User and password of an address: up to the last @ before a slash, or with slashes, which no port begins.
USER_INFO = re.compile(
    r"\b(?P<scheme>[a-z][a-z0-9+.-]{0,20})://(?P<user>(?!\[)[^\s/@:?#'\"]{0,200}"
    r"(?:(?P<word>:(?:[^\s/'\"]{0,200}|(?!\d{1,5}/)[^\s'\"]{0,200})))?)@(?=[\w.\[{<$%-])",
    re.IGNORECASE,
)
# Schemes in whose addresses a lone name may be a token; in others, such as ssh://, it is that of a user.
_TOKEN_SCHEME = re.compile(r"(.*\+)?(https?|wss?|ftps?)", re.IGNORECASE)
_PLACEHOLDER = re.compile(
    r"\{[^{}]*\}|<[^<>]*>|\$\{?\w+\}?|%\(\w+\)s|%s|\*+|x{3,}|\.{3}|…", re.IGNORECASE
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


_NAMED = r"(?:password|passwd|passphrase|secret|(?:api|access|private|secret)[_-]?key)"
_LITERAL = re.compile(
    rf"(?P<name>{_NAMED}|token)(?:_?\d+)?['\"]?\]?[ \t]*(?::[ \t]*\w+[ \t]*)?(?:==?|:)[ \t]*[bru]?"
    r"(?P<quote>['\"])(?P<value>[^'\"\n]{4,200})(?P=quote)",
    re.IGNORECASE,
)
_SETTING = re.compile(
    rf"^[+ -]?[ \t]*(?:export\s+)?[\w.-]*{_NAMED}[ \t]*[=:][ \t]*(?P<value>[^\s'\"#]{{4,}})[ \t]*$",
    re.IGNORECASE | re.MULTILINE,
)
_VARIABLE_NAME = re.compile(r"[A-Z]+(_[A-Z0-9]+)+")


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
            if is_secret_variable(name) and _is_secret_value(name, value)
        }
        numbers = {value for value in values if value.isdecimal()}
        parts = {value for value in values - numbers if len(value) >= _MIN_PART}
        many = {number for number in numbers if len(number) >= _MANY_DIGITS}
        self._spellings: dict[str, str] = {}  # pattern by the text that it begins or contains
        for value in parts | many:
            self._spellings |= _spellings(value)
        self._words = _whole_words((values - numbers - parts) | many)
        self._numbers = _whole_words(numbers - many)
        self._names: dict[str, str] = {}

    @classmethod
    def for_run(cls, directory: Path) -> Redactor:
        """Return the redactor for a run, from this process's environment and the one that Guild stored."""
        return cls([os.environ, guild_secrets(directory)])

    def text(self, shown: str) -> str:
        """Return a text without secrets."""
        shown = self._without_patterns(shown)
        return self._numbers.sub(_hide_number, shown) if self._numbers else shown

    def known(self, shown: str) -> str:
        """Return a text without the values of secret variables and tokens of known forms.

        Values after words such as "token" and numbers of few digits are kept, so that no number is removed from output
        that is parsed later.
        """
        present = sorted((s for s in self._spellings if s in shown), key=lambda s: (-len(s), s))
        if present:
            # HIDDEN itself is an alternative, so that a value such as "hidden" does not change it.
            patterns = [re.escape(HIDDEN), *(self._spellings[spelling] for spelling in present)]
            shown = re.sub("|".join(patterns), HIDDEN, shown)
        if self._words is not None:
            shown = self._words.sub(HIDDEN, shown)
        shown = _FORMS.sub(HIDDEN, shown)
        return USER_INFO.sub(_hide_user_info, shown)

    def name(self, shown: str) -> str:
        """Return the name of a metric or an artifact without what :meth:`known` hides."""
        clean = self._names.get(shown)
        if clean is None:
            # Brackets are not allowed in the name of a metric.
            clean = self._names[shown] = self.known(shown).replace(HIDDEN, HIDDEN.strip("[]"))
        return clean

    def contains_secret(self, shown: str, *, is_config: bool = False) -> bool:
        """Return whether a source file contains the value of a secret variable, a token or a literal password.

        Args:
            shown: The file's text, or a patch of it.
            is_config: Whether values stand without quotes, as in YAML.
        """
        if self.known(shown) != shown:
            return True
        if self._numbers and any(
            shown[m.start() - 1 : m.start()] in ("'", '"') for m in self._numbers.finditer(shown)
        ):
            return True
        settings = _SETTING.finditer(shown) if is_config else ()
        return any(map(_is_literal, (*_LITERAL.finditer(shown), *settings)))

    def _without_patterns(self, shown: str) -> str:
        shown = self.known(shown)
        shown = _BEARER.sub(rf"\1 {HIDDEN}", shown)
        shown = _ARGUMENT.sub(rf"\1{HIDDEN}", shown)
        return _ASSIGNED.sub(_hide_value, shown)

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

    def file(self, path: Path, *, known: bool = False) -> bytes | None:
        """Return a file's content without its secrets; None if it contains none or is not a text file.

        Text may be in any encoding that extends ASCII; all other bytes stay as they are. Numbers of few digits are
        kept, since files contain data.

        Args:
            path: The file.
            known: Whether to remove only what :meth:`known` removes.
        """
        with contextlib.suppress(OSError):
            if path.stat().st_size <= MAX_TEXT_BYTES and b"\0" not in (
                content := path.read_bytes()
            ):
                shown = content.decode("utf-8", "surrogateescape")
                clean = self.known(shown) if known else self._without_patterns(shown)
                return clean.encode("utf-8", "surrogateescape") if clean != shown else None
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
    if _is_sequence(now, shown):
        return before
    # The text has changed elsewhere too: hide the parts with the same context.
    for number, (left, right) in enumerate(itertools.pairwise(shown)):
        begin = r"\A" if number == 0 and len(left) < _MIN_CONTEXT else ""
        end = r"\Z" if number == len(shown) - 2 and len(right) < _MIN_CONTEXT else ""
        before_it, after_it = re.escape(left[-_CONTEXT:]), re.escape(right[:_CONTEXT])
        hidden = f"({begin}{before_it}).+?(?={after_it}{end})"
        now = re.sub(hidden, lambda match: match[1] + HIDDEN, now, count=1, flags=re.DOTALL)
    return now


def _is_sequence(text: str, parts: list[str]) -> bool:
    """Return whether a text is these parts, at least two, with at least one character between any two."""
    first, *middle, last = parts
    end = len(first)
    for part in middle:
        begin = text.find(part, end + 1)
        if begin < 0:
            return False
        end = begin + len(part)
    return text.startswith(first) and text.endswith(last) and end < len(text) - len(last)


def is_hidden(value: Any, shown: Any) -> bool:
    """Return whether the published form of a flag is (partly) hidden and consistent with this value."""
    text = str(value)
    return isinstance(shown, str) and HIDDEN in shown and still_hidden(text, shown) == shown


def is_secret_name(name: str) -> bool:
    """Return whether a flag is named like a secret."""
    return bool(_SECRET_NAME.search(_words(name)))


def is_secret_variable(name: str) -> bool:
    """Return whether an environment variable is named like a secret."""
    if name.startswith("FLAG_"):  # Guild sets one for each flag, whose names are ordinary words
        return is_secret_name(name.removeprefix("FLAG_"))
    suspect = is_secret_name(name) or _SECRET_VARIABLE.search(_words(name))
    return bool(suspect) and not _ALLOWED.fullmatch(name)


def _is_secret_value(name: str, value: str) -> bool:
    """Return whether the value of a variable that is named like a secret can be one."""
    if len(value) < _MIN_SECRET or _ORDINARY.fullmatch(value) or _DECIMAL.fullmatch(value):
        return False
    if value.isdecimal():
        return len(value) >= _MIN_DIGITS and not _COUNT_NAME.search(_words(name))
    if _PATH.fullmatch(value):
        return not (_PATH_NAME.search(_words(name)) or os.path.exists(value))
    return True


def _spellings(value: str) -> dict[str, str]:
    """Return patterns of a value as it is, and as JSON, Python, shells, URLs, HTML, hex and base64 write it.

    Each is given by a text that every match contains.
    """
    raw = value.encode("utf-8", "surrogateescape")
    escaped = json.dumps(value)[1:-1]
    quoted = {quote_from_bytes(raw, safe=safe) for safe in ("", "/", "/:@!$&'()*+,;=~-._")}
    quoted |= {text.replace("%20", "+") for text in quoted}
    quoted |= {re.sub("%[0-9A-F]{2}", lambda m: m[0].lower(), text) for text in quoted}
    entities = {html.escape(value), html.escape(value, quote=False)}
    entities |= {
        text.replace("&#x27;", "&#39;").replace("&quot;", "&#34;") for text in set(entities)
    }
    texts = {value, escaped, json.dumps(escaped)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    texts |= {repr(value)[1:-1], *(value.replace("'", mark) for mark in ("'\\''", "'\"'\"'"))}
    texts |= {*quoted, *entities, raw.hex(), raw.hex().upper()}
    if value.isdecimal():  # the number itself is hidden only as a whole word
        texts = {raw.hex()}
    patterns = {text: re.escape(text) for text in texts if len(text) >= _MIN_PART}
    # At each of the three positions that a value can have in base64's groups, some characters depend on it alone.
    for before in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            whole = encode(b"\0" * before + raw).decode().rstrip("=")
            core = whole[-(-before * 8 // 6) : (before + len(raw)) * 8 // 6]
            if len(core) >= _MIN_BASE64:
                patterns[core] = rf"[\w+/-]?{re.escape(core)}[\w+/-]*={{0,2}}"
    return patterns


def _whole_words(values: Iterable[str]) -> re.Pattern[str] | None:
    """Return the pattern of values that are not part of a longer word or number; None without values."""
    longest_first = sorted(values, key=lambda value: (-len(value), value))
    if not longest_first:
        return None
    either = "|".join(map(re.escape, longest_first))
    return re.compile(rf"(?<!\w)(?<!\d\.)(?:{either})(?!\w|\.\d)")


def _hide_number(match: re.Match[str]) -> str:
    """Hide a number of few digits, unless it is a whole text, the value of a flag or a count."""
    text, begin, end = match.string, match.start(), match.end()
    before = text[max(0, begin - 60) : begin]
    flag = _FLAG_BEFORE.search(before)
    is_value = flag is not None and not is_secret_variable(flag[1] or flag[2])
    is_count = _UNIT_BEFORE.search(before) or _UNIT_AFTER.match(text, end)
    return match[0] if match[0] == text.strip() or is_value or is_count else HIDDEN


def _hide_user_info(match: re.Match[str]) -> str:
    user = match["user"]
    is_name = not match["word"] and (user == "git" or not _TOKEN_SCHEME.fullmatch(match["scheme"]))
    parts = (part for part in user.split(":") if part)
    if not user or is_name or all(map(_PLACEHOLDER.fullmatch, parts)):
        return match[0]
    return f"{match['scheme']}://{HIDDEN}@"


def _is_literal(match: re.Match[str]) -> bool:
    """Return whether the value of an assignment in a source file is a secret, not a placeholder or a name."""
    value, is_token = match["value"], match.groupdict().get("name", "").lower() == "token"
    ordinary = (_PLACEHOLDER, _VARIABLE_NAME, _ORDINARY)
    if any(pattern.fullmatch(value) for pattern in ordinary) or re.search(r"\{\w*\}|\$\{", value):
        return False
    # Language models' tokens are words such as "<|im_end|>" or "[MASK]".
    return not is_token or bool(re.fullmatch(r"(?=.*[0-9])(?=.*[A-Za-z])[\w.~+/=-]{8,}", value))


def _words(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).replace("-", "_")


def guild_secrets(directory: Path) -> dict[str, str]:
    """Return the secret variables of the environment that Guild stored for a run; empty without Guild."""
    path = directory / ".guild" / "attrs" / "env"
    # A damaged file of an untrusted run has no secrets to hide
    with contextlib.suppress(Exception):
        if path.stat().st_size <= 1 << 20:
            entries = re.split(r"\n(?=\S)", path.read_text(encoding="utf-8"))
            secret = [entry for entry in entries if is_secret_variable(entry.partition(":")[0])]
            if secret:
                import yaml

                # BaseLoader keeps all values as text, so that tokens that look like numbers are not converted.
                content = yaml.load("\n".join(secret), yaml.BaseLoader)
                return {str(n): v for n, v in content.items() if isinstance(v, str)}
    return {}


def keep_private(directory: Path) -> None:
    """Let only the user read the environment that Guild stored for a run, which holds all variables of the shell."""
    with contextlib.suppress(OSError):
        (directory / ".guild" / "attrs" / "env").chmod(0o600)


def _hide_value(match: re.Match[str]) -> str:
    if _NUMBER.fullmatch(match["value"]):  # "loss per token: 0.12345678"
        return match[0]
    return f"{match['name']}{match['sign']}{match['quote']}{HIDDEN}"
