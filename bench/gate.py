"""What the REST gate adds to a request. `python -m bench.gate WORK HOME` prints JSON.

A real Nessie server (versions in memory, files on the tests' S3 server) is asked directly and through `artemis gate
serve`, in turns within one run, by one client that keeps its connections: a commit that adds a snapshot with lineage,
loading the table, and a commit that is refused and recorded in Postgres. Then `--megabytes` are sent and received
through the gate before a server that only counts, beside the same without the gate. Memory is the most that the gate's
process has had (VmHWM).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import httpx
import pyarrow as pa
import yaml
from pyiceberg.catalog import load_catalog
from sqlalchemy import create_engine, text

from artemis_lifecycle.embedded.postgres import CATALOGS, EmbeddedPostgres
from artemis_lifecycle_tests.contracts.test_requirements import COMPLETE
from artemis_lifecycle_tests.nessie import server as rest_catalog
from artemis_lifecycle_tests.nessie.server import Nessie
from artemis_lifecycle_tests.storage import s3_server
from bench.configuration import config_in
from bench.parsing import resident

_PIECE = b"x" * 2**20


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.gate")
    parser.add_argument("work")
    parser.add_argument("home", help="the folder of the embedded Postgres")
    parser.add_argument("--commits", type=int, default=300)
    parser.add_argument("--megabytes", type=int, default=500)
    chosen = parser.parse_args()
    folder = Path(chosen.work).resolve() / f"gate-{uuid.uuid4().hex[:8]}"
    folder.mkdir(parents=True)
    home = Path(chosen.home).resolve()
    admin = create_engine(EmbeddedPostgres(home).uri(CATALOGS), isolation_level="AUTOCOMMIT")
    name = folder.name.replace("-", "_")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    uri = admin.url.set(database=name).render_as_string(hide_password=False)
    config = config_in(folder, uri, home, defaults={}).model_dump(mode="json", by_alias=True, exclude_none=True)
    (folder / "lifecycle.yaml").write_text(yaml.safe_dump(config))
    with (
        s3_server.running() as s3,
        rest_catalog.running(s3, folder) as nessie,
        _gate(folder, nessie.uri) as (address, pid),
    ):
        results: dict[str, Any] = _requests(nessie, address, chosen.commits)
        results["peak_bytes"] = resident("VmHWM", pid)
    with _counting() as sink, _gate(folder, f"{sink}/iceberg") as (address, pid):
        before = resident("VmHWM", pid)
        direct, through = _streams(f"{sink}/iceberg", chosen.megabytes), _streams(address, chosen.megabytes)
        results["stream"] = {
            "megabytes": chosen.megabytes,
            "direct_mb_per_second": direct,
            "through_mb_per_second": through,
            "peak_bytes_above_start": resident("VmHWM", pid) - before,
        }
    print(json.dumps(results, indent=2))


def _requests(nessie: Nessie, gate: str, number: int) -> dict[str, Any]:
    catalog = load_catalog("direct", type="rest", uri=nessie.uri, **nessie.files)
    catalog.create_namespace("bench")
    rows = pa.table({"id": pa.array([1], pa.int64())})
    table = catalog.create_table("bench.t", rows.schema)
    table.append(rows, snapshot_properties={key: value for key, value in COMPLETE.items() if key != "operation"})
    snapshot = table.refresh().current_snapshot()
    assert snapshot is not None
    state = {"sequence": table.metadata.last_sequence_number, "id": snapshot.snapshot_id}

    def commit(summary: dict[str, str]) -> dict[str, Any]:
        added = {
            "snapshot-id": state["id"] + 1,
            "parent-snapshot-id": state["id"],
            "sequence-number": state["sequence"] + 1,
            "timestamp-ms": snapshot.timestamp_ms + state["sequence"],
            "manifest-list": snapshot.manifest_list,
            "schema-id": 0,
            "summary": summary,
        }
        main = {"ref-name": "main", "type": "branch", "snapshot-id": added["snapshot-id"]}
        updates = [{"action": "add-snapshot", "snapshot": added}, {"action": "set-snapshot-ref", **main}]
        return {"requirements": [], "updates": updates}

    def passes(client: httpx.Client, path: str) -> None:
        answer = client.post(path, json=commit(COMPLETE))
        assert answer.status_code == 200, answer.text
        state["sequence"] += 1
        state["id"] += 1

    def refused(client: httpx.Client, path: str) -> None:
        assert client.post(path, json=commit({"operation": "append"})).status_code == 403

    def loads(client: httpx.Client, path: str) -> None:
        assert client.get(path).status_code == 200

    path = "/v1/main/namespaces/bench/tables/t"
    with httpx.Client(timeout=60) as client:
        return {
            "commit": _in_turns(client, nessie.uri + path, gate + path, passes, number),
            "load_table": _in_turns(client, nessie.uri + path, gate + path, loads, number),
            "refused_ms": _spread([_timed(refused, client, gate + path) for _ in range(number)]),
        }


def _in_turns(
    client: httpx.Client, direct: str, through: str, ask: Callable[[httpx.Client, str], None], number: int
) -> dict[str, Any]:
    for address in (direct, through) * 20:
        ask(client, address)
    pairs = []
    for turn in range(number):
        first, second = (direct, through) if turn % 2 else (through, direct)
        took = {address: _timed(ask, client, address) for address in (first, second)}
        pairs.append((took[direct], took[through]))
    added = [after - before for before, after in pairs]
    return {
        "direct_ms": _spread([before for before, _ in pairs]),
        "through_ms": _spread([after for _, after in pairs]),
        "added_ms": _spread(added),
        "ratio": median(after for _, after in pairs) / median(before for before, _ in pairs),
    }


def _timed(ask: Callable[[httpx.Client, str], None], client: httpx.Client, address: str) -> float:
    began = time.perf_counter()
    ask(client, address)
    return (time.perf_counter() - began) * 1000


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": round(median(values), 2), "p95": round(quantiles(values, n=20)[-1], 2)}


@contextmanager
def _gate(folder: Path, upstream: str) -> Iterator[tuple[str, int]]:
    command = [sys.executable, "-m", "artemis_lifecycle.cli", "gate", "serve", "--upstream", upstream, "--port", "0"]
    gate = subprocess.Popen(
        [*command, "--json", "--config", str(folder / "lifecycle.yaml")],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    try:
        assert gate.stdout is not None
        address = json.loads(gate.stdout.readline())["serving"]
        threading.Thread(target=gate.stdout.read, daemon=True).start()
        yield address, gate.pid
    finally:
        gate.terminate()
        gate.wait()


@contextmanager
def _counting() -> Iterator[str]:
    """A server that reads what it is sent, and sends as much as it is asked for."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            left = int(self.headers["Content-Length"])
            while left:
                left -= len(self.rfile.read(min(left, len(_PIECE))))
            self.send_response(204)
            self.end_headers()

        def do_GET(self) -> None:
            megabytes = int(self.path.rpartition("=")[2])
            self.send_response(200)
            self.send_header("Content-Length", str(megabytes * len(_PIECE)))
            self.end_headers()
            for _ in range(megabytes):
                self.wfile.write(_PIECE)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()


def _streams(address: str, megabytes: int) -> dict[str, float]:
    with httpx.Client(timeout=60) as client:
        began = time.perf_counter()
        sent = client.post(
            f"{address}/v1/views",
            content=(_PIECE for _ in range(megabytes)),
            headers={"content-length": str(megabytes * len(_PIECE))},
        )
        assert sent.status_code == 204
        middle = time.perf_counter()
        with client.stream("GET", f"{address}/v1/views?size={megabytes}") as answer:
            assert sum(map(len, answer.iter_raw())) == megabytes * len(_PIECE)
        ended = time.perf_counter()
    return {"sent": round(megabytes / (middle - began)), "received": round(megabytes / (ended - middle))}


if __name__ == "__main__":
    main()
