"""Nobody exhausts the gate before it knows them, and a Postgres that hangs does not keep it from its work."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from artemis_lifecycle.commits import proxy
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle_tests.contracts.test_requirements import COMPLETE
from artemis_lifecycle_tests.gate.test_clients import serving
from artemis_lifecycle_tests.gate.test_proxy import COMMIT, CONFIG, LACKING, ask, commit, error
from artemis_lifecycle_tests.gate.upstream import Answer, Served, Upstream, gate_before, listening
from artemis_lifecycle_tests.operations.hanging import Relay, relay

pytestmark = pytest.mark.seconds

FREE = "/iceberg/v1/main/namespaces/free/tables/t"


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with listening() as server:
        yield server


@pytest.fixture
def gate(upstream: Upstream) -> Iterator[Served]:
    upstream.seen.clear()
    upstream.answer, upstream.act = Answer(), None
    with gate_before(f"http://127.0.0.1:{upstream.port}/iceberg", CONFIG) as served:
        yield served


@pytest.fixture(scope="module")
def process(
    upstream: Upstream, postgres_uri: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Served, Relay, int]]:
    """`artemis gate serve` as a process, before a Postgres that can hang: its address, the relay, its id."""
    folder = tmp_path_factory.mktemp("gate")
    with (
        relay(postgres_uri) as database,
        serving(f"http://127.0.0.1:{upstream.port}/iceberg", database.uri, folder) as (address, started, _),
    ):
        yield Served(int(address.rsplit(":", 1)[1].split("/")[0]), []), database, started.pid


def _peak(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def test_many_refused_snapshots_are_one_record_and_one_short_answer(
    process: tuple[Served, Relay, int], postgres_uri: str
) -> None:
    served, _, _ = process
    snapshots = [{"operation": "append", "writer.commit_hash": f"not a hash {number}"} for number in range(20_000)]
    began = time.monotonic()
    answer = ask(served, "POST", COMMIT, commit(*snapshots))
    assert error(answer)[0] == 403 and len(answer[2]) < 20_000
    assert time.monotonic() - began < 20
    with Operations.open(postgres_uri) as operations:
        (attempt,) = operations.gate_attempts.of("gated.t")
    assert len(json.dumps([attempt.problems, dict(attempt.summary)])) < 20_000


def test_a_small_body_that_becomes_many_objects_costs_little_memory(process: tuple[Served, Relay, int]) -> None:
    served, _, pid = process
    ask(served, "GET", FREE)
    before = _peak(pid)
    bomb = gzip.compress(b'{"x":[' + b"[]," * 10_600_000 + b"[]]}")
    assert len(bomb) < 40_000
    with ThreadPoolExecutor(8) as clients:
        sent = [
            clients.submit(ask, served, "POST", each, bomb, {"content-encoding": "gzip"}) for each in (COMMIT, FREE) * 4
        ]
        assert {error(each.result())[0] for each in sent} == {400}
    assert _peak(pid) - before < 250 << 20


def test_a_postgres_that_hangs_delays_no_refusal_and_nothing_that_needs_no_pass(
    process: tuple[Served, Relay, int], upstream: Upstream
) -> None:
    served, database, _ = process
    upstream.answer, upstream.act = Answer(), None
    assert ask(served, "POST", COMMIT, commit(COMPLETE))[0] == 200
    database.hangs.set()
    time.sleep(1.1)  # For so long, an answer of Postgres counts.

    def timed(method: str, target: str, body: bytes | None = None) -> tuple[int, float]:
        began = time.monotonic()
        return ask(served, method, target, body)[0], time.monotonic() - began

    with ThreadPoolExecutor(60) as clients:
        refusals = [clients.submit(timed, "POST", COMMIT, commit(LACKING)) for _ in range(45)]
        time.sleep(0.2)
        passing = [clients.submit(timed, "POST", COMMIT, commit(COMPLETE)) for _ in range(3)]
        others = [clients.submit(timed, "POST", FREE, commit(LACKING)) for _ in range(3)]
        others += [clients.submit(timed, "GET", COMMIT) for _ in range(3)]
        for each in others:
            status, seconds = each.result()
            assert status == 200 and seconds < 2.5
        for status, each_of in ((403, refusals), (503, passing)):
            for each in each_of:
                found, seconds = each.result()
                assert found == status and seconds < 10


def test_the_bodies_of_all_requests_share_one_budget(
    upstream: Upstream, gate: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "_BODIES", 1000)
    assert ask(gate, "POST", COMMIT, b"x" * 2000)[0] == 503
    # What was taken is given back.
    assert ask(gate, "POST", COMMIT, commit(COMPLETE))[0] == 200
    assert error(ask(gate, "POST", COMMIT, b"[" * 500))[0] == 400


def test_a_body_and_a_head_that_do_not_arrive_end_the_request(gate: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "_BODY_SECONDS", 0.3)
    monkeypatch.setattr("artemis_lifecycle.commits.server._HEAD_SECONDS", 0.3)
    for sent, expected in (
        (f"POST {COMMIT} HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{{", b"HTTP/1.1 400"),
        (f"POST {COMMIT} HTTP/1.1\r\nHost: ", b""),
        ("", b""),
    ):
        with socket.create_connection(("127.0.0.1", gate.port), timeout=10) as client:
            client.sendall(sent.encode())
            assert client.recv(4096).startswith(expected)


# --- what the gate does not know, it refuses for gated tables ---------------------------------------------------------


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_an_unknown_endpoint_below_a_gated_table_is_refused_and_passes_for_others(
    upstream: Upstream, gate: Served, method: str
) -> None:
    for below in ("/branches/main", "/rollback", "/plan/1/more"):
        answer = ask(gate, method, COMMIT + below, b"{}")
        assert error(answer)[:2] == (403, "LineageRejected") and upstream.seen == []
        assert ask(gate, method, FREE + below, b"{}")[0] == 200
        upstream.seen.clear()
    for below in ("/plan", "/plan/1", "/metrics", "/tasks"):
        assert ask(gate, method, COMMIT + below, b"{}")[0] == 200
    assert ask(gate, "GET", COMMIT + "/branches")[0] == 200


@pytest.mark.parametrize(
    "content",
    [
        b'{"defaults": {}, "overrides": {"namespace-separator": "|"}}',
        b'{"defaults": {"namespace-separator": 7}, "overrides": {}}',
        b"not json",
        b"[]",
        b'{"defaults": []}',
        b"[" * 100_000,
        b'{"defaults": {"a": "' + b"x" * 2**21 + b'"}}',
    ],
)
def test_settings_that_the_gate_cannot_read_reach_no_client(upstream: Upstream, gate: Served, content: bytes) -> None:
    upstream.answer = Answer(200, [], content)
    assert error(ask(gate, "GET", "/iceberg/v1/config"))[0] == 502


def test_no_header_makes_another_method_of_a_request(upstream: Upstream, gate: Served) -> None:
    sent = {"X-HTTP-Method-Override": "POST", "x-http-method": "PUT", "X-Method-Override": "POST", "X-Other": "1"}
    assert ask(gate, "GET", COMMIT, headers=sent)[0] == 200
    (seen,) = upstream.seen
    names = {name.lower() for name, _ in seen.headers}
    assert "x-other" in names and not any("method" in name for name in names)


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE"])
def test_two_lengths_are_a_clean_400(upstream: Upstream, gate: Served, method: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", gate.port, timeout=10)
    connection.putrequest(method, COMMIT)
    connection.putheader("Content-Length", "5")
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    connection.send(b"0\r\n\r\n")
    assert connection.getresponse().status == 400
    assert upstream.seen == []
    connection.close()
