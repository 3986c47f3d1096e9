"""The server of the review page. It answers this machine only, needs a token and refuses requests of other pages."""

from __future__ import annotations

import hmac
import json
import secrets
import sys
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fedwinnow.auditing.reviewing.review_queue import ReviewQueue
from fedwinnow.errors import FedwinnowError, UsageError
from fedwinnow.experiment.report.templates import render

ADDRESS = "127.0.0.1"
LARGEST_REQUEST = 1 << 16
HERE = Path(__file__).parent
STATIC = {"/app.js": ("app.js", "text/javascript"), "/app.css": ("app.css", "text/css")}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SAFETY = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class ReviewServer(ThreadingHTTPServer):
    """Serves the queue of one reviewer, on a free port unless one is given."""

    daemon_threads = True
    allow_reuse_address = False

    def __init__(self, queue: ReviewQueue, port: int = 0) -> None:
        try:
            super().__init__((ADDRESS, port), Handler)
        except (OSError, OverflowError) as problem:
            raise UsageError(f"--port {port} cannot be used ({problem}); leave it out to take any free one.") from None
        self.queue = queue
        self.token = secrets.token_urlsafe(24)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the error, except when the browser closed the connection."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def hosts(self) -> tuple[str, str]:
        """The names of this server in a browser; a request with another name came through another page."""
        return f"{ADDRESS}:{self.server_port}", f"localhost:{self.server_port}"

    @property
    def url(self) -> str:
        """The address to open."""
        return f"http://{self.hosts[0]}/?token={self.token}"


class RequestRefused(Exception):
    """A request is refused, with the reason."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: ReviewServer
    server_version = "fedwinnow"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        """Pages, pictures and the state."""
        self.guarded(self.get)

    def do_POST(self) -> None:
        """Decisions and undo."""
        self.guarded(self.post)

    def guarded(self, answer: Callable[[str, dict[str, str]], None]) -> None:
        """Answer requests of our page only; errors become answers too."""
        try:
            parts = urlsplit(self.path)
            query = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
            self.check(query)
            answer(parts.path, query)
        except RequestRefused as refusal:
            self.reply(refusal.status, "application/json", as_json({"error": str(refusal)}))
        except FedwinnowError as problem:
            self.reply(HTTPStatus.BAD_REQUEST, "application/json", as_json({"error": str(problem)}))
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except (OSError, ValueError) as problem:
            self.reply(HTTPStatus.INTERNAL_SERVER_ERROR, "application/json", as_json({"error": str(problem)}))

    def check(self, query: dict[str, str]) -> None:
        """Check host, origin and token, in this order, so that another page cannot guess the token."""
        if self.headers.get("Host") not in self.server.hosts:
            raise RequestRefused(HTTPStatus.MISDIRECTED_REQUEST, "this server answers on its own address only")
        origin = self.headers.get("Origin")
        own = [f"http://{host}" for host in self.server.hosts]
        if (origin is None and self.command == "POST") or (origin is not None and origin not in own):
            raise RequestRefused(HTTPStatus.FORBIDDEN, "this request comes from another page")
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            raise RequestRefused(HTTPStatus.FORBIDDEN, "this request comes from another page")
        given = self.headers.get("X-Token") or query.get("token", "")
        if not hmac.compare_digest(given.encode(), self.server.token.encode()):
            raise RequestRefused(
                HTTPStatus.FORBIDDEN, "the token is missing or wrong; open the address that was printed"
            )

    def get(self, path: str, query: dict[str, str]) -> None:
        """Answer a request that changes nothing."""
        queue = self.server.queue
        if path == "/":
            page = render(HERE / "page.html", {"token": self.server.token, "site": queue.title})
            self.reply(HTTPStatus.OK, "text/html; charset=utf-8", page.encode())
        elif path in STATIC:
            name, kind = STATIC[path]
            self.reply(HTTPStatus.OK, f"{kind}; charset=utf-8", (HERE / name).read_bytes())
        elif path == "/state":
            self.reply(HTTPStatus.OK, "application/json", as_json(queue.state()))
        elif path == "/sample":
            self.reply(HTTPStatus.OK, "application/json", as_json(queue.sample(query.get("id", ""))))
        elif path == "/picture" and (found := queue.picture(query.get("id", ""), whole="whole" in query)) is not None:
            self.reply(HTTPStatus.OK, "image/png" if found.suffix == ".png" else "image/jpeg", found.read_bytes())
        else:
            raise RequestRefused(HTTPStatus.NOT_FOUND, "there is nothing here")

    def post(self, path: str, query: dict[str, str]) -> None:
        """Answer a request that saves something."""
        body = self.body()
        if path == "/decide":
            self.server.queue.decide(text(body, "id"), text(body, "decision"), text(body, "label", ""))
            self.reply(HTTPStatus.OK, "application/json", as_json(self.server.queue.state()))
        elif path == "/undo":
            undone = self.server.queue.undo()
            self.reply(HTTPStatus.OK, "application/json", as_json({**self.server.queue.state(), "undone": undone}))
        else:
            raise RequestRefused(HTTPStatus.NOT_FOUND, "there is nothing here")

    def body(self) -> dict[str, Any]:
        """The JSON object of a request; refuses large requests and other content."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > LARGEST_REQUEST:
            self.close_connection = True
            raise RequestRefused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request may have at most {LARGEST_REQUEST} bytes"
            )
        content = self.rfile.read(int(length))
        if self.headers.get_content_type() != "application/json":
            raise RequestRefused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "JSON is needed")
        try:
            found = json.loads(content)
        except (ValueError, RecursionError):
            raise RequestRefused(HTTPStatus.BAD_REQUEST, "this is not valid JSON") from None
        if not isinstance(found, dict):
            raise RequestRefused(HTTPStatus.BAD_REQUEST, "a JSON object is needed")
        return found

    def reply(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        """Send an answer with headers that keep it on this machine."""
        self.send_response(status)
        for name, value in {**SAFETY, "Content-Type": kind, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        if status != HTTPStatus.OK:
            self.send_header("Connection", "close")  # the unread body must not be read as the next request
            self.close_connection = True
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: the address has the token in it."""


def text(body: dict[str, Any], name: str, otherwise: str | None = None) -> str:
    """A text in a request; refuses other types."""
    value = body.get(name, otherwise)
    if not isinstance(value, str):
        raise RequestRefused(HTTPStatus.BAD_REQUEST, f"'{name}' is missing or not a text")
    return value


def as_json(content: Any) -> bytes:
    """JSON as bytes; surrogates, which UTF-8 cannot hold, become escapes."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False).encode(errors="backslashreplace")
