"""Client of language models behind HTTP: Ollama's chat interface, and OpenAI's, which many servers implement.

Ollama: `POST /api/chat` with `format`, a JSON schema that constrains the answer, and `POST /api/show`, to check that a
model exists. OpenAI: `POST /v1/chat/completions` with `response_format`; after a server has refused that field, it is
left out. A server may ignore it, so answers are always validated.
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
"""Environment variable with the key for an OpenAI-compatible server. Not a flag, since flags are recorded."""
MAX_TOKENS = 256  # of an answer; a valid one has about ten
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)  # status codes after which a request is repeated
_START = "docs/skills.md says how to start one"


class _NoServer(Exception):
    """No server at the address, or no answer in time."""


@dataclass
class Chat:
    """A model on a server.

    Args:
        interface: "ollama" or "openai".
        url: Address of the server, without a path.
        model: Name of the model on the server.
        timeout: Limit of a request [s]; the first request includes the loading of the model.
        retries: Repetitions of a request when the server is unreachable, busy or too slow.
        seed: Seed of the server's random numbers; the temperature is 0.
        pause: Wait before the first repetition [s]; doubles for every further one.
    """

    interface: str
    url: str
    model: str
    timeout: float
    retries: int
    seed: int = 1
    pause: float = 0.5
    _constrained: bool = field(default=True, init=False)

    def check(self) -> None:
        """Check that the server answers and has the model.

        Raises:
            UserError, RunFailed: As in :meth:`ask`.
        """
        if self.interface == "ollama":
            self._request("/api/show", {"model": self.model})
        else:  # `/v1/models` need not list what a server can load
            greeting = self._common([{"role": "user", "content": "Ready?"}])
            self._request("/v1/chat/completions", greeting | {"max_tokens": 1})

    def ask(self, messages: list[dict[str, str]], schema: dict[str, Any]) -> str:
        """Return the answer to a conversation.

        Args:
            messages: Messages with a `role` and a `content`.
            schema: JSON schema of the answer.

        Raises:
            UserError: There is no server, it has no such model, or it refuses the request.
            RunFailed: All repetitions failed, or the response is not a chat answer.
        """
        if self.interface == "ollama":
            options = {"temperature": 0, "seed": self.seed, "num_predict": MAX_TOKENS}
            body = {"format": schema, "options": options, "think": False}
            response = self._request("/api/chat", self._common(messages) | body)
            message = response.get("message")
        else:
            response = self._completion(messages, schema)
            choices = response.get("choices")
            first = choices[0] if isinstance(choices, list) and choices else None
            message = first.get("message") if isinstance(first, dict) else None
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            text = json.dumps(response)[:200]
            raise record.RunFailed(f"{self.url}: no answer in the server's response: {text}")
        return str(message["content"])

    def _common(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        return {"model": self.model, "messages": messages, "stream": False}

    def _completion(self, messages: list[dict[str, str]], schema: dict[str, Any]) -> dict[str, Any]:
        body = self._common(messages) | {
            "temperature": 0, "seed": self.seed, "max_tokens": MAX_TOKENS,
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
        """Send a request, repeated after transient errors."""
        for attempt in range(self.retries + 1):
            try:
                return self._once(path, body)
            except _NoServer as error:
                failure: Exception = error
            except urllib.error.HTTPError as error:
                text = _error_text(error)
                if error.code not in _TRANSIENT:
                    raise self._refused(error.code, text) from None
                failure = record.RunFailed(
                    f"{self.url}{path}: the server fails, {error.code} {text or error.reason}"
                )
            if attempt < self.retries:
                time.sleep(self.pause * 2**attempt)
        if isinstance(failure, _NoServer):
            raise record.UserError(
                f"--url: no answer from {self.url} ({failure}); {_START}"
            ) from None
        raise failure

    def _once(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY_VARIABLE):
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(
            self.url.rstrip("/") + path, json.dumps(body).encode(), headers
        )
        try:
            with _opener(self.url).open(request, timeout=self.timeout) as answer:
                content = json.loads(answer.read())
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
                f"--url: the server at {self.url} sends no JSON; {_START}"
            ) from None
        if not isinstance(content, dict):
            raise record.UserError(f"--url: {self.url}{path} is no chat server's; {_START}")
        return content

    def _refused(self, code: int, text: str) -> record.UserError:
        if code == 404 and self.interface == "ollama" and "model" in text:
            return record.UserError(
                f"--model: {self.url} has no model {self.model!r}; `ollama pull {self.model}` fetches it"
            )
        if code == 404 and "model" in text:
            return record.UserError(f"--model: {self.url} has no model {self.model!r} ({text})")
        if code == 404:
            return record.UserError(
                f"--url: the server at {self.url} does not implement this interface ({self.interface}); {_START}"
            )
        return record.UserError(f"--url: {self.url} refuses the request, {code} {text}")


def _opener(url: str) -> urllib.request.OpenerDirector:
    """Return an opener that uses no proxy for addresses of this machine."""
    host = urllib.parse.urlsplit(url).hostname or ""
    if host in ("localhost", "::1") or host.startswith("127."):
        return urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return urllib.request.build_opener()


def _error_text(error: urllib.error.HTTPError) -> str:
    """Return the error message of a response in one line; "" if it cannot be read."""
    try:
        with error:
            text = error.read(2000).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return ""
    try:
        content = json.loads(text)
    except ValueError:
        content = text
    for name in ("error", "message", "detail"):
        if isinstance(content, dict) and name in content:
            content = content[name]
    return " ".join(str(content).split())[:200]


def _reason(error: object) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__).lower()


def check_url(url: str) -> None:
    """Check that a text is the address of a server.

    Raises:
        UserError: It is not.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
    except ValueError:
        good = False
    if not good:
        raise record.UserError(f"--url: {url!r} is no address such as {DEFAULT_URL['ollama']}")
