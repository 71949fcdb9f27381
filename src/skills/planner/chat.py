"""A language model behind HTTP: Ollama's chat interface, and the one of OpenAI that many servers speak.

Ollama: `POST /api/chat` with `format`, a JSON schema that the answer keeps to, and `POST /api/show`, which knows
whether a model is there. OpenAI: `POST /v1/chat/completions` with `response_format`; a server that refuses that field
is asked without it from then on, and one that ignores it answers what it likes: answers are checked in any case.
"""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from runcatalog import record

INTERFACES = ("ollama", "openai")
DEFAULT_URL = {"ollama": "http://127.0.0.1:11434", "openai": "http://127.0.0.1:8000"}
KEY_VARIABLE = "PLANNER_API_KEY"
"""Environment variable with the key that an OpenAI-compatible server may want. No flag: flags are recorded."""
MOST_TOKENS = 256  # of an answer; a valid one has about ten
_AGAIN = (408, 425, 429, 500, 502, 503, 504)  # answers of a server that may be better in a while
_START = "docs/skills.md tells how to start one"


class _NoServer(Exception):
    """Nobody is there, or nobody who answers in time."""


@dataclass
class Chat:
    """A model.

    Args:
        interface: "ollama" or "openai".
        url: Of the server, without the path.
        model: Its name there.
        timeout: Of one request [s]; the first one may have to wait until the model is loaded.
        retries: How often a request is repeated when the server is away, busy or too slow.
        seed: Of the server's own random numbers; the likeliest answer is asked for.
        pause: Before the first repetition [s]; each one after waits twice as long.
    """

    interface: str
    url: str
    model: str
    timeout: float = 120.0
    retries: int = 3
    seed: int = 1
    pause: float = 0.5
    _constrained: bool = field(default=True, init=False)

    def check(self) -> None:
        """Sees to it that the server is there and has the model.

        Raises:
            UserError, RunFailed: As in :meth:`ask`.
        """
        if self.interface == "ollama":
            self._request("/api/show", {"model": self.model})
        else:  # `/v1/models` need not list what a server can load
            greeting = self._common([{"role": "user", "content": "Ready?"}])
            self._request("/v1/chat/completions", greeting | {"max_tokens": 1})

    def ask(self, messages: list[dict[str, str]], schema: dict[str, Any]) -> str:
        """Returns the answer to a conversation.

        Args:
            messages: Each a `role` and a `content`.
            schema: JSON schema of the answer.

        Raises:
            UserError: There is no server, or it has no such model, or it refuses the request.
            RunFailed: It failed each time that it was asked, or what it said is no chat answer.
        """
        if self.interface == "ollama":
            options = {"temperature": 0, "seed": self.seed, "num_predict": MOST_TOKENS}
            body = {"format": schema, "options": options, "think": False}
            found = self._request("/api/chat", self._common(messages) | body)
            said = found.get("message")
        else:
            found = self._completion(messages, schema)
            choices = found.get("choices")
            first = choices[0] if isinstance(choices, list) and choices else None
            said = first.get("message") if isinstance(first, dict) else None
        if not isinstance(said, dict) or not isinstance(said.get("content"), str):
            told = json.dumps(found)[:200]
            raise record.RunFailed(f"{self.url}: no answer in what the server said: {told}")
        return str(said["content"])

    def _common(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        return {"model": self.model, "messages": messages, "stream": False}

    def _completion(self, messages: list[dict[str, str]], schema: dict[str, Any]) -> dict[str, Any]:
        body = self._common(messages) | {
            "temperature": 0, "seed": self.seed, "max_tokens": MOST_TOKENS,
        }  # fmt: skip
        if self._constrained:
            wanted = {"name": "answer", "strict": True, "schema": schema}
            form = {"response_format": {"type": "json_schema", "json_schema": wanted}}
            try:
                return self._request("/v1/chat/completions", body | form)
            except record.UserError as error:
                if "response_format" not in str(error) and "json_schema" not in str(error):
                    raise
                self._constrained = False
        return self._request("/v1/chat/completions", body)

    def _request(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Asks until there is an answer, or no more sense in asking."""
        for attempt in range(self.retries + 1):
            try:
                return self._once(path, body)
            except _NoServer as error:
                why: Exception = error
            except urllib.error.HTTPError as error:
                told = _told(error)
                if error.code not in _AGAIN:
                    raise self._refused(error.code, told) from None
                why = record.RunFailed(
                    f"{self.url}{path}: the server fails, {error.code} {told or error.reason}"
                )
            if attempt < self.retries:
                time.sleep(self.pause * 2**attempt)
        if isinstance(why, _NoServer):
            raise record.UserError(f"--url: no answer from {self.url} ({why}); {_START}") from None
        raise why

    def _once(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY_VARIABLE):
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(
            self.url.rstrip("/") + path, json.dumps(body).encode(), headers
        )
        try:
            with _opener(self.url).open(request, timeout=self.timeout) as answer:
                found = json.loads(answer.read())
        except urllib.error.HTTPError:
            raise
        except TimeoutError:
            raise _NoServer(f"none within {self.timeout:g} s") from None
        except urllib.error.URLError as error:
            timed_out = isinstance(error.reason, TimeoutError)
            reason = f"none within {self.timeout:g} s" if timed_out else _reason(error.reason)
            raise _NoServer(reason) from None
        except (OSError, http.client.HTTPException) as error:
            raise _NoServer(_reason(error)) from None
        except ValueError:
            raise record.UserError(
                f"--url: what answers at {self.url} sends no JSON; {_START}"
            ) from None
        if not isinstance(found, dict):
            raise record.UserError(f"--url: {self.url}{path} is no chat server's; {_START}")
        return found

    def _refused(self, code: int, told: str) -> record.UserError:
        if code == 404 and self.interface == "ollama" and "model" in told:
            return record.UserError(
                f"--model: {self.url} has no model {self.model!r}; `ollama pull {self.model}` fetches it"
            )
        if code == 404 and "model" in told:
            return record.UserError(f"--model: {self.url} has no model {self.model!r} ({told})")
        if code == 404:
            return record.UserError(
                f"--url: what answers at {self.url} does not speak this interface ({self.interface}); {_START}"
            )
        return record.UserError(f"--url: {self.url} refuses the request, {code} {told}")


def _opener(url: str) -> urllib.request.OpenerDirector:
    """Opens addresses; those of this machine never by a proxy."""
    host = urllib.parse.urlsplit(url).hostname or ""
    if host in ("localhost", "::1") or host.startswith("127."):
        return urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return urllib.request.build_opener()


def _told(error: urllib.error.HTTPError) -> str:
    """What a server says about its refusal, in one line; nothing if it breaks off or takes too long."""
    try:
        with error:
            text = error.read(2000).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return ""
    try:
        found = json.loads(text)
    except ValueError:
        found = text
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and name in found:
            found = found[name]
    return " ".join(str(found).split())[:200]


def _reason(error: object) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__).lower()


def check_url(url: str) -> None:
    """Raises UserError if a text is no address of a server."""
    try:
        parts = urllib.parse.urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
    except ValueError:
        good = False
    if not good:
        raise record.UserError(f"--url: {url!r} is no address such as {DEFAULT_URL['ollama']}")
