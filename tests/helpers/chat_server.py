"""A server with Ollama's chat protocol, and with OpenAI's, over real HTTP; what it answers a test decides."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[str, dict[str, Any]], tuple[int, Any]]
"""From path and request to status and answer; a text is wrapped as the protocol has it, all else is sent as it is."""


class ChatServer:
    """Serves as long as it is entered.

    Args:
        answer: See `Answer`.

    Attributes:
        requests: Paths and bodies so far.
    """

    def __init__(self, answer: Answer) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.requests.append((self.path, body))
                status, content = answer(self.path, body)
                if isinstance(content, str) and status == 200:
                    message = {"role": "assistant", "content": content}
                    content = {
                        "/api/chat": {"model": body["model"], "message": message, "done": True},
                        "/v1/chat/completions": {"choices": [{"index": 0, "message": message}]},
                    }[self.path]
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._http.handle_error = lambda *_: None  # clients that time out close the connection

    def __enter__(self) -> "ChatServer":
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self._http.server_port}"

    @property
    def chats(self) -> list[dict[str, Any]]:
        """Bodies of the requests for an answer."""
        return [body for path, body in self.requests if "chat" in path]


def options_of(body: dict[str, Any]) -> list[str]:
    """The closed list that a request gives, in Ollama's `format` or OpenAI's `response_format`."""
    schema = body.get("format") or body["response_format"]["json_schema"]["schema"]
    return schema["properties"]["subtask"]["enum"]
