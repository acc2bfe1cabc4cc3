"""A Postgres that hangs: a relay before a real one, which from some time on reads and forwards nothing."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from sqlalchemy import make_url


@dataclass
class Relay:
    uri: str
    port: int
    hangs: threading.Event = field(default_factory=threading.Event)


@contextmanager
def relay(uri: str) -> Iterator[Relay]:
    """Yield a relay to the Postgres at `uri`. It accepts connections also while it hangs."""
    url = make_url(uri)
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    port = listener.getsockname()[1]
    made = Relay(url.set(host="127.0.0.1", port=port).render_as_string(hide_password=False), port)
    opened: list[socket.socket] = []

    def pass_on(client: socket.socket) -> None:
        with suppress(OSError):
            server = socket.create_connection((url.host or "", url.port or 5432))
            opened.append(server)  # Left open while it hangs.
            while True:
                for source in select.select([client, server], [], [], 0.2)[0]:
                    if made.hangs.is_set():
                        return
                    data = source.recv(65536)
                    if not data:
                        client.close()
                        return
                    (server if source is client else client).sendall(data)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                opened.append(client)
                if not made.hangs.is_set():
                    threading.Thread(target=pass_on, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield made
    finally:
        listener.close()
        for each in opened:
            each.close()
