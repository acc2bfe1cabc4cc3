"""A TCP proxy before Postgres that cuts a connection at the COMMIT of a swap: before the server has it, or after it
did it."""

from __future__ import annotations

import random
import select
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

COMMIT = b"Q\x00\x00\x00\x0bCOMMIT\x00"
"""A simple query in Postgres' protocol, as psycopg2 sends it."""
SWAP = b"UPDATE iceberg_tables"


@dataclass
class CuttingProxy:
    """`before` and `after`: shares of the swaps that are cut. `down`: the share of connections that are refused once
    something was cut. `call`: a swap's name in another protocol, one message of which is the whole swap."""

    upstream: tuple[str, int]
    before: float = 0.0
    after: float = 0.0
    down: float = 0.0
    dice: random.Random = field(default_factory=lambda: random.Random(1))
    cut: Counter[str] = field(default_factory=Counter)
    call: bytes | None = None
    calls: list[bytes] = field(default_factory=list)

    @contextmanager
    def serving(self) -> Iterator[int]:
        """The port."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
            yield listener.getsockname()[1]

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            if self.cut and self.dice.random() < self.down:
                client.close()
                continue
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(self.upstream) as server:
            swapping = False
            while True:
                ready, _, _ = select.select([client, server], [], [])
                for each in ready:
                    try:
                        data = each.recv(1 << 16)
                    except ConnectionError:
                        return
                    if not data:
                        return
                    if each is server:
                        client.sendall(data)
                        continue
                    decides = swapping and data == COMMIT if self.call is None else self.call in data
                    self.calls += [data] if decides else []
                    fate = self.dice.random() if decides else 1.0
                    swapping = SWAP in data or (swapping and data != COMMIT)
                    if fate < self.before:
                        self.cut["before"] += 1
                        return
                    server.sendall(data)
                    if fate < self.before + self.after:
                        # The answer shows that it is done; the client never has it.
                        server.recv(1 << 16)
                        self.cut["after"] += 1
                        return
