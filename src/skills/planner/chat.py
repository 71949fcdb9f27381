"""Client of language models behind HTTP: Ollama's chat interface, and OpenAI's, which many servers implement.

Ollama: `POST /api/chat` with `format`, a JSON schema that constrains the answer, and `POST /api/show`, to check that a
model exists. OpenAI: `POST /v1/chat/completions` with `response_format`: a JSON schema as OpenAI has it; after a server
has refused that, as llama-cpp-python has it; then none. A server may ignore it, so answers are always validated.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import socket
import ssl
import time
import urllib.parse
from dataclasses import dataclass, field
from typing import Any

from runcatalog import record
from runcatalog.record.untrusted import is_nested_deeply, printable

INTERFACES = ("ollama", "openai")
DEFAULT_URL = {"ollama": "http://127.0.0.1:11434", "openai": "http://127.0.0.1:8000"}
KEY_VARIABLE = "PLANNER_API_KEY"
"""Environment variable with the key for an OpenAI-compatible server. Not a flag, since flags are recorded."""
MAX_TOKENS = 256  # of an answer; a valid one has about ten
MAX_BYTES = 1 << 20  # of a response; a real one has a few kilobytes
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)  # status codes after which a request is repeated
_START = "docs/skills.md says how to start one"


class _NoServer(Exception):
    """No server at the address, or no answer in time."""


@dataclass
class _Response:
    """Response of a server.

    Attributes:
        status: HTTP status code.
        reason: Its name, as the server sends it.
        location: Address to which the server redirects; "" without one.
        body: The content, at most a little more than `MAX_BYTES`.
    """

    status: int
    reason: str
    location: str
    body: bytes = b""


@dataclass
class Chat:
    """A model on a server.

    Args:
        interface: "ollama" or "openai".
        url: Address of the server, without a path.
        model: Name of the model on the server.
        timeout: Limit of a request [s], from the connection to the last byte of the response; the first request
            includes the loading of the model.
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
    _refused_forms: int = field(default=0, init=False)

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
        return printable(message["content"])

    def _common(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        return {"model": self.model, "messages": messages, "stream": False}

    def _completion(self, messages: list[dict[str, str]], schema: dict[str, Any]) -> dict[str, Any]:
        body = self._common(messages) | {
            "temperature": 0, "seed": self.seed, "max_tokens": MAX_TOKENS,
        }  # fmt: skip
        named = {"name": "answer", "strict": True, "schema": schema}
        forms: list[dict[str, Any]] = [
            {"response_format": {"type": "json_schema", "json_schema": named}},
            {"response_format": {"type": "json_object", "schema": schema}},
        ]
        for number in range(self._refused_forms, len(forms)):
            try:
                return self._request("/v1/chat/completions", body | forms[number])
            except record.UserError as error:
                if not _is_about_form(str(error)):
                    raise
                self._refused_forms = max(self._refused_forms, number + 1)
        return self._request("/v1/chat/completions", body)

    def _request(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request, repeated after transient errors."""
        for attempt in range(self.retries + 1):
            try:
                response = self._once(path, body)
            except _NoServer as error:
                failure: Exception = error
            else:
                if response.status < 300:
                    return self._content(path, response)
                text = _error_text(response.body)
                if response.status not in _TRANSIENT or _is_about_form(text):
                    raise self._refused(response, text)
                why = text or _line(response.reason)
                failure = record.RunFailed(
                    f"{self.url}{path}: the server fails, {response.status} {why}"
                )
            if attempt < self.retries:
                time.sleep(self.pause * 2**attempt)
        if isinstance(failure, _NoServer):
            raise record.UserError(
                f"--url: no answer from {self.url} ({failure}); {_START}"
            ) from None
        raise failure

    def _once(self, path: str, body: dict[str, Any]) -> _Response:
        import httpx2

        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY_VARIABLE):
            if not (key.isascii() and key.isprintable()):  # the client's error would quote it
                raise record.UserError(f"{KEY_VARIABLE}: a key is printable ASCII text on one line")
            headers["Authorization"] = f"Bearer {key}"
        url = self.url.rstrip("/") + path
        try:
            return asyncio.run(_post(url, headers, json.dumps(body).encode(), self.timeout))
        except TimeoutError:
            raise _NoServer(f"none within {self.timeout:g} s") from None
        except httpx2.InvalidURL:
            raise record.UserError(f"--url: {self.url!r} is not an address") from None
        except httpx2.HTTPError as error:
            raise _NoServer(_cause(error)) from None

    def _content(self, path: str, response: _Response) -> dict[str, Any]:
        if len(response.body) > MAX_BYTES:
            raise record.UserError(
                f"--url: the server at {self.url} sends more than {MAX_BYTES >> 20} MiB; {_START}"
            )
        try:
            content = _parsed(response.body)
        except ValueError:
            raise record.UserError(
                f"--url: the server at {self.url} sends no JSON of a chat server; {_START}"
            ) from None
        if not isinstance(content, dict):
            raise record.UserError(f"--url: {self.url}{path} is no chat server's; {_START}")
        return content

    def _refused(self, response: _Response, text: str) -> record.UserError:
        code = response.status
        if code < 400:
            where = _line(response.location) or "nowhere"
            return record.UserError(
                f"--url: {self.url} redirects to {where}, which is not followed; give the server's own address"
            )
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


async def _post(url: str, headers: dict[str, str], body: bytes, timeout: float) -> _Response:
    """Send a request, and read its response up to `MAX_BYTES`.

    Redirects are not followed: the key and the prompts are meant for the given address only. The time limit is one for
    all, which a limit for each read is not. Compressed responses are not asked for, since their size is not known.

    Raises:
        TimeoutError: There is no complete response in time.
        httpx2.HTTPError, httpx2.InvalidURL: As `httpx2` does.
    """
    import httpx2

    response = None
    here = _is_local(url)  # a proxy cannot reach this machine
    try:
        async with (
            asyncio.timeout(timeout),
            httpx2.AsyncClient(
                verify=_certificates(), timeout=None, follow_redirects=False, trust_env=not here
            ) as client,
            client.stream(
                "POST", url, headers=headers | {"Accept-Encoding": "identity"}, content=body
            ) as answer,
        ):
            location = answer.headers.get("Location", "")
            response = _Response(answer.status_code, answer.reason_phrase, location)
            async for part in answer.aiter_raw():
                response.body += part
                if len(response.body) > MAX_BYTES:
                    break
    except (TimeoutError, httpx2.HTTPError):
        if response is None or response.status < 300:
            raise
    return response


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Return the settings of encrypted connections, which take 50 ms to make."""
    import httpx2

    return httpx2.create_ssl_context()


def _is_local(url: str) -> bool:
    host = urllib.parse.urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def _parsed(body: bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: The text is not JSON, or nested too deeply.
    """
    try:
        content = json.loads(body)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if is_nested_deeply(content):
        raise ValueError("nested too deeply")
    return content


def _is_about_form(text: str) -> bool:
    """Return whether an error is about the form of answers; llama-cpp-python sends it as a server error, 500."""
    return "response_format" in text or "json_schema" in text


def _error_text(body: bytes) -> str:
    """Return the error message of a response in one line."""
    content: Any = body[:MAX_BYTES].decode(errors="replace")
    with contextlib.suppress(ValueError):
        content = _parsed(body)
    for name in ("error", "message", "detail"):
        if isinstance(content, dict) and name in content:
            content = content[name]
    return _line(content)


def _line(value: object) -> str:
    """Return the beginning of a text from a server on one line, without control characters."""
    return " ".join(printable(str(value)).split())[:200]


def _cause(error: BaseException) -> str:
    """Return the reason of a failed connection: that of the system's error which led to it, if there is one."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.errno:
            own = isinstance(inner, socket.gaierror | ssl.SSLError)  # whose numbers are their own
            return _line(inner.strerror if own else os.strerror(inner.errno)).lower()
        inner = inner.__cause__ or inner.__context__
    return _line(str(error) or type(error).__name__).lower()


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
