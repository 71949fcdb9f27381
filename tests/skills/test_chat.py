"""The client of language models, over real HTTP."""

import json
import socket
import socketserver
import threading
from contextlib import contextmanager, suppress

import pytest

from chat_server import ChatServer, options_of
from runcatalog.record import RunFailed, UserError
from skills.planner import chat, prompts
from skills.planner.chat import Chat

SCHEMA = prompts.schema(["explore", "open the red door"])
ASKED = [{"role": "system", "content": "Plan."}, {"role": "user", "content": "What now?"}]


def _chat(interface: str, url: str, **more) -> Chat:
    return Chat(interface, url, "small:1b", **{"timeout": 120, "retries": 2, "pause": 0.01} | more)


@pytest.mark.parametrize("interface", chat.INTERFACES)
def test_an_answer_is_returned(interface: str) -> None:
    with ChatServer(lambda path, body: (200, prompts.answer(options_of(body)[1]))) as server:
        reply = _chat(interface, server.url, seed=5).ask(ASKED, SCHEMA)
    assert json.loads(reply) == {"subtask": "open the red door"}
    ((path, body),) = server.requests
    assert path == {"ollama": "/api/chat", "openai": "/v1/chat/completions"}[interface]
    assert body["model"] == "small:1b"
    assert body["messages"] == ASKED
    assert body["stream"] is False
    settings = body["options"] if interface == "ollama" else body
    assert (settings["temperature"], settings["seed"]) == (0, 5)


def test_a_server_without_structured_output_is_asked_without_it() -> None:
    def answer(path, body):
        if "response_format" in body:
            return 422, {"detail": "Unexpected fields in the request: {'response_format'}"}
        return 200, "explore"

    with ChatServer(answer) as server:
        asks = _chat("openai", server.url)
        assert asks.ask(ASKED, SCHEMA) == asks.ask(ASKED, SCHEMA) == "explore"
    assert ["response_format" in body for body in server.chats] == [True, True, False, False]


def test_a_server_that_has_another_form_of_a_schema_gets_that() -> None:
    """llama-cpp-python 0.3 answers OpenAI's form with a server error that quotes its own."""
    fault = (
        "1 validation error: {'type': 'literal_error', 'loc': ('body', 'response_format', 'type'), "
        "'msg': \"Input should be 'text' or 'json_object'\", 'input': 'json_schema'}"
    )

    def answer(path, body):
        if body["response_format"]["type"] == "json_schema":
            return 500, {"error": {"message": fault, "type": "internal_server_error"}}
        assert body["response_format"] == {"type": "json_object", "schema": SCHEMA}
        return 200, "explore"

    with ChatServer(answer) as server:
        asks = _chat("openai", server.url)
        assert asks.ask(ASKED, SCHEMA) == asks.ask(ASKED, SCHEMA) == "explore"
    types = [body["response_format"]["type"] for body in server.chats]
    assert types == ["json_schema", "json_object", "json_object"]


def test_a_missing_model_is_named() -> None:
    def answer(path, body):
        return 404, {"error": f"model '{body['model']}' not found"}

    with ChatServer(answer) as server:
        asks = _chat("ollama", server.url)
        for call in (asks.check, lambda: asks.ask(ASKED, SCHEMA)):
            with pytest.raises(UserError, match=r"--model.*small:1b.*ollama pull small:1b"):
                call()
        with pytest.raises(UserError, match=r"--model.*small:1b"):
            _chat("openai", server.url).check()
    assert len(server.requests) == 3  # none of them was repeated


def test_a_busy_server_is_retried() -> None:
    statuses = iter([503, 500, 200])
    with ChatServer(lambda path, body: (next(statuses), "explore")) as server:
        assert _chat("ollama", server.url).ask(ASKED, SCHEMA) == "explore"
    assert len(server.requests) == 3
    with (
        ChatServer(lambda path, body: (500, {"error": "out of memory"})) as server,
        pytest.raises(RunFailed, match="500 out of memory"),
    ):
        _chat("ollama", server.url).ask(ASKED, SCHEMA)
    assert len(server.requests) == 3


def test_a_slow_server_times_out() -> None:
    ended = threading.Event()

    def answer(path, body):
        ended.wait(60)
        return 200, "explore"

    with ChatServer(answer) as server:
        with pytest.raises(UserError, match=r"--url.*none within 1 s"):
            _chat("ollama", server.url, timeout=1, retries=1).ask(ASKED, SCHEMA)
        ended.set()
    assert len(server.requests) == 2


@contextmanager
def _raw_server(write):
    """A server that answers every request by `write(file)`; yields its address and the headers of the requests."""
    requests, ended = [], threading.Event()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            headers, length = [], 0
            while (line := self.rfile.readline().strip().lower()) != b"":
                headers.append(line.decode())
                if line.startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            self.rfile.read(length)
            requests.append(headers)
            with suppress(OSError):  # the client hangs up
                write(self.wfile, ended)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", requests
        finally:
            ended.set()
            server.shutdown()


@pytest.mark.parametrize(
    ("status", "error", "message", "asked"),
    [("500 Out", RunFailed, "500 Out", 2), ("403 No", UserError, "--url: .* 403", 1)],
)
def test_a_server_that_stalls_in_an_error_response_is_an_error_without_its_text(
    status, error, message, asked
) -> None:
    def stall(file, ended):
        file.write(f"HTTP/1.1 {status}\r\nContent-Length: 90\r\n\r\n".encode())
        ended.wait(60)

    with _raw_server(stall) as (url, requests), pytest.raises(error, match=message):
        _chat("ollama", url, timeout=1, retries=1).ask(ASKED, SCHEMA)
    assert len(requests) == asked


@pytest.mark.parametrize(
    "begin", [b"HTTP/1.1 200 OK\r\nX-", b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"]
)
def test_a_byte_now_and_then_does_not_prolong_the_time_limit(begin: bytes) -> None:
    """In the headers and in the body; every single byte arrives well before the limit."""
    sent = []

    def trickle(file, ended):
        file.write(begin)
        while not ended.wait(0.05):
            file.write(b"1")
            sent.append(1)

    with (
        _raw_server(trickle) as (url, requests),
        pytest.raises(UserError, match=r"--url.*none within 1 s"),
    ):
        _chat("ollama", url, timeout=1, retries=0).ask(ASKED, SCHEMA)
    assert len(sent) >= 2
    assert len(requests) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_named_and_the_key_goes_nowhere_else(status, monkeypatch) -> None:
    monkeypatch.setenv(chat.KEY_VARIABLE, "the-key-of-the-planner")

    def never(file, ended):
        file.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    with _raw_server(never) as (elsewhere, received):

        def redirect(file, ended):
            to = f"{elsewhere}/\x1b[31m"
            head = f"HTTP/1.1 {status} Moved\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n"
            file.write(head.encode())

        with (
            _raw_server(redirect) as (url, requests),
            pytest.raises(UserError, match=r"--url: .* redirects") as caught,
        ):
            _chat("openai", url).ask(ASKED, SCHEMA)
    assert [line for line in requests[0] if "the-key" in line]
    assert len(requests) == 1
    assert not received
    assert "\x1b" not in str(caught.value)


def test_a_key_that_no_header_can_hold_is_not_quoted(monkeypatch) -> None:
    for key in ("the-key\n", "the-k\xe9y"):
        monkeypatch.setenv(chat.KEY_VARIABLE, key)
        with (
            ChatServer(lambda path, body: (200, "explore")) as server,
            pytest.raises(UserError, match=chat.KEY_VARIABLE) as caught,
        ):
            _chat("openai", server.url).ask(ASKED, SCHEMA)
        assert "the-k" not in str(caught.value)


def test_a_response_is_read_up_to_a_limit() -> None:
    sent = []

    def endless(file, ended):
        file.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not ended.is_set():
            file.write(b" " * (1 << 16))
            sent.append(1 << 16)

    with (
        _raw_server(endless) as (url, _),
        pytest.raises(UserError, match=r"--url.*more than 1 MiB"),
    ):
        _chat("ollama", url, retries=0).ask(ASKED, SCHEMA)
    assert sum(sent) < 64 << 20  # the rest is what the buffers of a connection hold


@pytest.mark.parametrize("depth", [100, 400, 100_000])
@pytest.mark.parametrize("status", [200, 400])
def test_deep_json_is_a_one_line_error(depth: int, status: int) -> None:
    nested = b'{"message": ' + b"[" * depth + b"]" * depth + b"}"
    with (
        ChatServer(lambda path, body: (status, nested)) as server,
        pytest.raises(UserError, match="--url") as caught,
    ):
        _chat("ollama", server.url).ask(ASKED, SCHEMA)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_terminal_gets_no_commands_from_a_server() -> None:
    screen = "\x1b]0;title\x07\x1b[2Jexplore\u202e\n\tnext"
    with ChatServer(lambda path, body: (200, screen)) as server:
        assert _chat("ollama", server.url).ask(ASKED, SCHEMA) == "]0;title[2Jexplore\n\tnext"

    def hostile(path, body):
        return int(body["model"]), {"error": {"message": f"no {screen}"}}

    with ChatServer(hostile) as server:
        for status in ("400", "404", "500"):
            with pytest.raises((UserError, RunFailed)) as caught:
                Chat("openai", server.url, status, 30, 0).ask(ASKED, SCHEMA)
            assert str(caught.value).isprintable()

    def reason(file, ended):
        file.write(b"HTTP/1.1 500 \x1b[2J\x9b2J\r\nContent-Length: 0\r\n\r\n")

    with _raw_server(reason) as (url, _), pytest.raises((UserError, RunFailed)) as caught:
        _chat("ollama", url, retries=0).ask(ASKED, SCHEMA)
    assert str(caught.value).isprintable()


def test_a_missing_server_is_a_one_line_error() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(UserError, match=f"--url.*{url}.*refused.*docs/skills.md") as caught:
            _chat("openai", url).check()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"<html>hello</html>", b"[1, 2]"])
def test_a_server_of_another_kind_is_named_in_the_error(content: bytes) -> None:
    with (
        ChatServer(lambda path, body: (200, content)) as server,
        pytest.raises(UserError, match="--url"),
    ):
        _chat("ollama", server.url).check()


def test_an_answer_without_a_message_ends_the_run() -> None:
    with (
        ChatServer(lambda path, body: (200, {"choices": []})) as server,
        pytest.raises(RunFailed, match="no answer"),
    ):
        _chat("openai", server.url).ask(ASKED, SCHEMA)


@pytest.mark.parametrize("url", ["127.0.0.1:11434", "ftp://host", "http://", "http://host:high"])
def test_an_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(UserError, match="--url"):
        chat.check_url(url)
