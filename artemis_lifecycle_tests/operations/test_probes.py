"""What the probes of a container are answered, also while Postgres hangs."""

from __future__ import annotations

import queue
import socket
import threading
import time
import urllib.error
import urllib.request

import sqlalchemy as sa

from artemis_lifecycle.cli.output import serve
from artemis_lifecycle.operations.database import Operations


def _status(address: str, page: str) -> int:
    try:
        with urllib.request.urlopen(f"{address}/{page}", timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_probe_is_answered_within_seconds_while_postgres_hangs_and_well_again_after_it(
    operations: Operations,
) -> None:
    asked, port = [operations], queue.Queue[int]()
    serving = threading.Thread(
        target=serve,
        args=("127.0.0.1", 0, lambda: "", lambda: asked[0].require_answer()),
        kwargs={"ready": port.put},
        daemon=True,
    )
    serving.start()
    address = f"http://127.0.0.1:{port.get(timeout=30)}"
    assert [_status(address, page) for page in ("readyz", "healthz", "metrics", "other")] == [200, 200, 200, 404]
    # It accepts connections, and never answers.
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        uri = f"postgresql+psycopg2://me@127.0.0.1:{hangs.getsockname()[1]}/db"
        asked[0] = Operations(sa.create_engine(uri))
        began = time.monotonic()
        assert (_status(address, "readyz"), _status(address, "healthz")) == (503, 200)
        assert time.monotonic() - began < 20
    asked[0] = operations
    assert _status(address, "readyz") == 200
