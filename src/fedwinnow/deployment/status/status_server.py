"""The server of the status page: this machine only, read only, with a token, and no request of another page."""

from __future__ import annotations

import hmac
import json
import secrets
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fedwinnow.deployment.status.status import Status
from fedwinnow.errors import UsageError

ADDRESS = "127.0.0.1"
HERE = Path(__file__).parent
FILES = {
    "/": ("status.html", "text/html"),
    "/status.js": ("status.js", "text/javascript"),
    "/status.css": ("status.css", "text/css"),
}
OPEN = ("/status.js", "/status.css")  # the same for everybody, so they need no token
SAFETY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class StatusServer(ThreadingHTTPServer):
    """Serves the status of one run, in a thread; a port of 0 takes any free one."""

    daemon_threads = True
    allow_reuse_address = False

    def __init__(self, status: Status, port: int) -> None:
        try:
            super().__init__((ADDRESS, port), StatusRequest)
        except (OSError, OverflowError) as problem:
            raise UsageError(f"--page {port} cannot be used ({problem}); 0 takes any free port.") from None
        self.status, self.token = status, secrets.token_urlsafe(24)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def hosts(self) -> tuple[str, str]:
        """The names of this server in a browser."""
        return f"{ADDRESS}:{self.server_port}", f"localhost:{self.server_port}"

    @property
    def url(self) -> str:
        """The address to open."""
        return f"http://{self.hosts[0]}/?token={self.token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the error, except when the browser closed the connection."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class StatusRequest(BaseHTTPRequestHandler):
    """One request; there is no request that changes anything."""

    server: StatusServer
    server_version = "fedwinnow"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        """The page, its two files, and the state."""
        parts = urlsplit(self.path)
        if self.headers.get("Host") not in self.server.hosts:
            self.reply(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", b"this server answers on its own address only")
        elif self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            self.reply(HTTPStatus.FORBIDDEN, "text/plain", b"this request comes from another page")
        elif parts.path not in OPEN and not self.has_token(parse_qs(parts.query)):
            self.reply(HTTPStatus.FORBIDDEN, "text/plain", b"the token is missing or wrong; open the printed address")
        elif parts.path in FILES:
            name, kind = FILES[parts.path]
            self.reply(HTTPStatus.OK, kind, (HERE / name).read_bytes())
        elif parts.path == "/state":
            self.reply(HTTPStatus.OK, "application/json", json.dumps(self.server.status.state()).encode())
        else:
            self.reply(HTTPStatus.NOT_FOUND, "text/plain", b"there is nothing here")

    def has_token(self, query: dict[str, list[str]]) -> bool:
        """Whether the request has the token of the printed address."""
        return hmac.compare_digest(query.get("token", [""])[-1].encode(), self.server.token.encode())

    def reply(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        """Send an answer."""
        self.send_response(status)
        for name, value in {**SAFETY, "Content-Type": f"{kind}; charset=utf-8"}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *words: Any) -> None:
        """No line for each request."""
