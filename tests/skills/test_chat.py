"""The client of language models, over real HTTP."""

import json
import socket
import socketserver
import threading

import pytest

from chat_server import ChatServer, options_of
from runcatalog.record import RunFailed, UserError
from skills.planner import chat, prompts
from skills.planner.chat import Chat

SCHEMA = prompts.schema(["explore", "open the red door"])
ASKED = [{"role": "system", "content": "Plan."}, {"role": "user", "content": "What now?"}]


def _chat(interface: str, url: str, **more) -> Chat:
    return Chat(interface, url, "small:1b", **{"timeout": 30, "retries": 2, "pause": 0.01} | more)


@pytest.mark.parametrize("interface", chat.INTERFACES)
def test_an_answer_comes_through(interface: str) -> None:
    with ChatServer(lambda path, body: (200, prompts.answer(options_of(body)[1]))) as server:
        said = _chat(interface, server.url, seed=5).ask(ASKED, SCHEMA)
    assert json.loads(said) == {"subtask": "open the red door"}
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
    assert ["response_format" in body for body in server.chats] == [True, False, False]


def test_a_model_that_is_not_there_is_named() -> None:
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


def test_a_busy_server_is_asked_again() -> None:
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


def test_a_slow_server_is_not_waited_for() -> None:
    ended = threading.Event()

    def answer(path, body):
        ended.wait(60)
        return 200, "explore"

    with ChatServer(answer) as server:
        with pytest.raises(UserError, match=r"--url.*none within 0\.2 s"):
            _chat("ollama", server.url, timeout=0.2, retries=1).ask(ASKED, SCHEMA)
        ended.set()
    assert len(server.requests) == 2


class _Stalling(socketserver.StreamRequestHandler):
    """Answers with an error whose body does not come."""

    def handle(self) -> None:
        self.server.asked += 1
        length = 0
        while (line := self.rfile.readline().strip()) != b"":
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        self.rfile.read(length)
        self.wfile.write(self.server.answer)
        self.server.ended.wait(60)


@pytest.mark.parametrize(
    ("status", "wanted", "message", "asked"),
    [("500 Out", RunFailed, "500 Out", 3), ("403 No", UserError, "--url: .* 403", 1)],
)
def test_a_server_that_stalls_in_an_error_is_as_one_that_tells_nothing(
    status, wanted, message, asked
) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Stalling) as server:
        server.answer = f"HTTP/1.1 {status}\r\nContent-Length: 90\r\n\r\n".encode()
        server.asked, server.ended = 0, threading.Event()
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            with pytest.raises(wanted, match=message):
                _chat("ollama", url, timeout=0.3).ask(ASKED, SCHEMA)
        finally:
            server.ended.set()
            server.shutdown()
    assert server.asked == asked


def test_without_a_server_one_line_says_so() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(UserError, match=f"--url.*{url}.*refused.*docs/skills.md") as caught:
            _chat("openai", url).check()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("said", [b"<html>hello</html>", b"[1, 2]"])
def test_what_is_no_chat_server_is_told(said: bytes) -> None:
    with (
        ChatServer(lambda path, body: (200, said)) as server,
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
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UserError, match="--url"):
        chat.check_url(url)
