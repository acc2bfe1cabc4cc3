"""Serves a text over HTTP, for Prometheus to scrape."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from artemis_lifecycle.cli.output import say
from artemis_lifecycle.errors import BadInput, LifecycleError


def serve(host: str, port: int, text: Callable[[], str], *, ready: Callable[[int], None] | None = None) -> None:
    """Answer GET /metrics with `text()` until interrupted. Raises BadInput for an address that cannot be used. `ready`
    receives the port; for 0, it is any free one."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/metrics":
                self.send_error(404)
                return
            try:
                body, status = text().encode(), 200
            except LifecycleError as error:
                body, status = f"{error}\n".encode(), 503
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Suppress the log line per scrape."""

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise BadInput(
            f"Cannot listen on {host}:{port}: {error.strerror}", hint="choose another --port or --host"
        ) from error
    with server:
        (ready or (lambda at: say(f"http://{host}:{at}/metrics")))(server.server_address[1])
        with suppress(KeyboardInterrupt):
            server.serve_forever()
