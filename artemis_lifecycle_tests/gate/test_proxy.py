"""What the gate does not refuse passes as it is; what goes wrong behind it never reads as success."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from artemis_lifecycle.commits import proxy, server
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import BadInput
from artemis_lifecycle_tests.contracts.test_requirements import COMPLETE
from artemis_lifecycle_tests.gate.upstream import Answer, Served, Upstream, gate_before, listening, read_body

CONFIG = LifecycleConfig.model_validate(
    {"tables": {"gated.*": {}, "free.my table": {}, "deep.er.*": {}, "watched.*": {"lineage": {"mode": "report"}}}}
)
COMMIT = "/iceberg/v1/main/namespaces/gated/tables/t"


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with listening() as server:
        yield server


@pytest.fixture(scope="module")
def gate(upstream: Upstream) -> Iterator[Served]:
    with gate_before(f"http://127.0.0.1:{upstream.port}/iceberg", CONFIG) as served:
        yield served


@pytest.fixture(autouse=True)
def _fresh(upstream: Upstream, gate: Served) -> None:
    upstream.seen.clear()
    upstream.answer, upstream.act = Answer(), None
    gate.found.clear()


def ask(
    gate: Served, method: str, target: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, list[tuple[str, str]], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", gate.port, timeout=60)
    try:
        connection.request(method, target, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.getheaders(), answer.read()
    finally:
        connection.close()


def commit(*summaries: dict[str, str] | None, **more: Any) -> bytes:
    updates = [
        {"action": "add-snapshot", "snapshot": {"snapshot-id": number, "summary": summary}}
        for number, summary in enumerate(summaries)
    ]
    return json.dumps({"requirements": [], "updates": updates, **more}).encode()


def error(answer: tuple[int, Any, bytes]) -> tuple[int, str, str]:
    """The status, and the type and message in the form of the REST spec."""
    said = json.loads(answer[2])["error"]
    assert said["code"] == answer[0]
    return answer[0], said["type"], said["message"]


# --- untouched --------------------------------------------------------------------------------------------------------

_token = st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=8).map("x-{}".format)
_value = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)
_headers = st.lists(st.tuples(_token, _value), max_size=4)
_conditional = st.sampled_from(
    [
        ("if-none-match", '"a"'),
        ("if-match", "*"),
        ("accept-encoding", "gzip"),
        ("authorization", "Bearer t"),
        ("range", "bytes=0-5"),
    ]
)
_path = st.lists(
    st.sampled_from(
        ["namespaces", "a%1Fb", "a%2Eb", "t", "%E2%82%AC", "x+y", "~u", "(p)", "'q'", "a,b", "%7Cw", "plan"]
    ),
    max_size=5,
).map(lambda parts: "/iceberg/v1/" + "/".join(parts))
_query = st.sampled_from(["", "?pageToken=", "?a=%2F&b=+c", "?warehouse=s3%3A%2F%2Fw&x=%C3%A9"])
_body = st.one_of(st.binary(max_size=3000), st.binary(max_size=3000).map(gzip.compress))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    method=st.sampled_from(["GET", "POST", "DELETE", "HEAD", "PUT"]),
    target=st.tuples(_path, _query).map("".join),
    sent=st.tuples(_headers, st.lists(_conditional, max_size=3, unique=True)).map(lambda both: [*both[0], *both[1]]),
    body=st.one_of(st.none(), _body),
    chunks=st.one_of(st.none(), st.lists(st.integers(1, 700), min_size=1, max_size=4)),
    status=st.sampled_from([200, 204, 304, 400, 401, 404, 409, 419, 429, 500, 503]),
    answered=_headers,
    content=_body,
    sizes=st.lists(st.integers(1, 900), max_size=3).map(tuple),
)
def test_requests_and_answers_pass_byte_for_byte(
    upstream: Upstream,
    gate: Served,
    method: str,
    target: str,
    sent: list[tuple[str, str]],
    body: bytes | None,
    chunks: list[int] | None,
    status: int,
    answered: list[tuple[str, str]],
    content: bytes,
    sizes: tuple[int, ...],
) -> None:
    upstream.seen.clear()
    upstream.answer = Answer(status, [("content-encoding", "gzip"), *answered], content, sizes)
    connection = http.client.HTTPConnection("127.0.0.1", gate.port, timeout=60)
    connection.putrequest(method, target, skip_accept_encoding=True)
    for name, value in sent:
        connection.putheader(name, value)
    pieces = None
    if body is not None and chunks:
        connection.putheader("transfer-encoding", "chunked")
        cuts = [body[at : at + chunks[0]] for at in range(0, len(body), chunks[0])]
        pieces = [f"{len(cut):x}\r\n".encode() + cut + b"\r\n" for cut in cuts] + [b"0\r\n\r\n"]
    elif body is not None:
        connection.putheader("content-length", str(len(body)))
        pieces = [body]
    connection.endheaders()
    for piece in pieces or []:
        connection.send(piece)
    answer = connection.getresponse()
    received = answer.read()
    connection.close()

    (seen,) = upstream.seen
    assert (seen.method, seen.target, seen.body) == (method, target, body or b"")
    framing = ("transfer-encoding",) if body is not None and chunks else ("content-length",)
    added = ("host", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto")
    passed = [(name.lower(), value) for name, value in seen.headers]
    assert [each for each in passed if each[0] not in (*added, *framing)] == sent
    assert dict(passed)["host"] == f"127.0.0.1:{upstream.port}"
    assert answer.status == status
    bodiless = method == "HEAD" or status in (204, 304)
    assert received == (b"" if bodiless else content)
    got = [(name.lower(), value) for name, value in answer.getheaders()]
    framed = ("content-length", "transfer-encoding", "connection")
    assert [each for each in got if each[0] not in framed] == [("content-encoding", "gzip"), *answered]
    if method == "HEAD" and status not in (204, 304) and not sizes:
        assert dict(got)["content-length"] == str(len(content))
    assert gate.found == []


def test_headers_for_one_connection_stay_on_it(upstream: Upstream, gate: Served) -> None:
    upstream.answer = Answer(200, [("Keep-Alive", "timeout=9"), ("X-Kept", "1")], b"{}")
    sent = {
        "Connection": "close, X-Mine",
        "X-Mine": "1",
        "TE": "trailers",
        "Proxy-Authorization": "Basic x",
        "X-Other": "2",
    }
    _, got, _ = ask(gate, "GET", "/iceberg/v1/namespaces", headers=sent)
    passed = {name.lower() for name, _ in upstream.seen[0].headers}
    assert "x-other" in passed and not passed & {"x-mine", "te", "proxy-authorization", "connection"}
    assert "X-Kept" in dict(got) or "x-kept" in dict(got)
    assert "timeout=9" not in dict(got).values()


def test_bodies_are_streamed_and_not_collected(upstream: Upstream, gate: Served) -> None:
    """Each half is sent only after the other side has the first one."""
    half = b"x" * 1_000_000
    uploaded, downloaded = threading.Event(), threading.Event()

    def act(handler: BaseHTTPRequestHandler) -> None:
        assert handler.rfile.read(len(half)) == half
        uploaded.set()
        assert handler.rfile.read(len(half)) == half
        handler.wfile.write(f"HTTP/1.1 200 OK\r\nContent-Length: {2 * len(half)}\r\n\r\n".encode() + half)
        handler.wfile.flush()
        assert downloaded.wait(60)
        handler.wfile.write(half)

    upstream.act = act
    connection = http.client.HTTPConnection("127.0.0.1", gate.port, timeout=60)
    connection.putrequest("POST", "/iceberg/v1/main/namespaces/gated/tables/t/metrics")
    connection.putheader("Content-Length", str(2 * len(half)))
    connection.endheaders()
    connection.send(half)
    assert uploaded.wait(60)
    connection.send(half)
    answer = connection.getresponse()
    assert answer.read(len(half)) == half
    downloaded.set()
    assert answer.read() == half
    connection.close()


def test_the_catalogs_settings_do_not_lead_clients_past_the_gate(upstream: Upstream, gate: Served) -> None:
    said = {"defaults": {"prefix": "main"}, "overrides": {"uri": "http://catalog:1/iceberg/", "a": "b"}}
    upstream.answer = Answer(
        200, [("content-encoding", "gzip"), ("etag", '"1"')], gzip.compress(json.dumps(said).encode())
    )
    status, headers, body = ask(gate, "GET", "/iceberg/v1/config?warehouse=w")
    assert status == 200 and json.loads(body) == {"defaults": {"prefix": "main"}, "overrides": {"a": "b"}}
    assert not {"content-encoding", "etag"} & {name.lower() for name, _ in headers}
    upstream.answer = Answer(200, [], json.dumps({"overrides": {"namespace-separator": "%2B"}}).encode())
    assert error(ask(gate, "GET", "/iceberg/v1/config"))[0] == 502


# --- refused ----------------------------------------------------------------------------------------------------------

LACKING = {"operation": "append", "writer.id": "w"}


def test_a_commit_with_lineage_passes_as_it_came(upstream: Upstream, gate: Served) -> None:
    for body, headers in ((commit(COMPLETE), {}), (gzip.compress(commit(COMPLETE)), {"content-encoding": "gzip"})):
        upstream.answer = Answer(200, [("etag", '"2"')], b'{"metadata-location": "x"}')
        status, got, content = ask(gate, "POST", COMMIT, body, headers)
        assert (status, content) == (200, b'{"metadata-location": "x"}') and ("etag", '"2"') in got
        assert upstream.seen.pop().body == body
    assert gate.found == []


@pytest.mark.parametrize(
    ("target", "body"),
    [
        (COMMIT, commit(LACKING)),
        (COMMIT, commit(COMPLETE, LACKING)),
        (COMMIT, commit(None)),
        # In another one's place, under its id.
        (
            COMMIT,
            commit(LACKING).replace(
                b'"updates": [', b'"updates": [{"action": "remove-snapshots", "snapshot-ids": [0]}, '
            ),
        ),
        (COMMIT, commit(LACKING).replace(b"add-snapshot", b"Add-Snapshot")),
        (COMMIT, commit(COMPLETE).replace(b"add-snapshot", b"add-snapshots-of-tomorrow")),
        (COMMIT, commit(COMPLETE | {"n": 1})),  # type: ignore[dict-item]
        (COMMIT, json.dumps({"requirements": []}).encode()),
        (
            "/iceberg/v1/main/namespaces/free/tables/t",
            commit(LACKING, identifier={"namespace": ["gated"], "name": "t"}),
        ),
        ("/iceberg/v1/namespaces/deep%1Fer/tables/t", commit(LACKING)),
        ("/iceberg/v1/namespaces/deep.er/tables/t", commit(LACKING)),
        ("/iceberg/v1/a/b%2Fc/namespaces/gated/tables/t", commit(LACKING)),
        ("/iceberg/v1//main/names%70aces/gated/%74ables/t/", commit(LACKING)),
        ("/iceberg/v1/main/namespaces/%2567ated/tables/t", commit(LACKING)),
        ("/iceberg/v1/main/namespaces/deep%251Fer/tables/t", commit(LACKING)),
        # Iceberg's Java clients encode a space so.
        ("/iceberg/v1/main/namespaces/free/tables/my+table", commit(LACKING)),
        ("/iceberg/v1/main/namespaces/free/tables/my%2Btable", commit(LACKING)),
        ("/iceberg/v1/main/namespaces/free/tables/my%2520table@branch", commit(LACKING)),
        ("/iceberg/v1/main/namespaces/gated/tables/t@branch", commit(LACKING)),
        ("/iceberg/v1/main/namespaces/gated/tables/rename", commit(LACKING)),
        ("/iceberg/v1/main/namespaces/gated/register", b'{"name": "t", "metadata-location": "s3://x"}'),
        ("/iceberg/v1/main/namespaces/gated/tables/t/notifications", b'{"notification-type": "UPDATE"}'),
        (
            "/iceberg/v1/main/tables/rename",
            b'{"source": {"namespace": ["free"], "name": "s"}, "destination": {"namespace": ["gated"], "name": "t"}}',
        ),
        (
            "/iceberg/v1/main/transactions/commit",
            json.dumps(
                {
                    "table-changes": [
                        {"identifier": {"namespace": ["gated"], "name": "a"}, **json.loads(commit(COMPLETE))},
                        {"identifier": {"namespace": ["gated"], "name": "b"}, **json.loads(commit(LACKING))},
                    ]
                }
            ).encode(),
        ),
    ],
)
def test_a_commit_without_lineage_never_reaches_the_catalog(
    upstream: Upstream, gate: Served, target: str, body: bytes
) -> None:
    status, kind, _ = error(ask(gate, "POST", target, body))
    assert (status, kind) == (403, "LineageRejected")
    assert upstream.seen == []
    (found,) = {(finding.table.partition(".")[0], finding.refused) for finding, _ in gate.found}
    assert found[1]


@pytest.mark.parametrize(
    ("target", "body", "headers"),
    [
        (COMMIT, b"not json", {}),
        (COMMIT, b'{"updates": [], "updates": []}', {}),
        (COMMIT, b"[" * 100_000, {}),
        (COMMIT, b'{"updates": NaN}', {}),
        (COMMIT, "{}".encode("utf-16"), {}),
        (COMMIT, commit(COMPLETE), {"content-encoding": "gzip"}),
        (COMMIT, commit(COMPLETE), {"content-encoding": "br"}),
        (COMMIT, gzip.compress(b" " * 2**25 + b"{}"), {"content-encoding": "gzip"}),
        (COMMIT, gzip.compress(commit(COMPLETE)) + gzip.compress(b"{}"), {"content-encoding": "gzip"}),
        (COMMIT + ";a=b", commit(COMPLETE), {}),
        (COMMIT + "#/x", commit(LACKING), {}),
        (COMMIT + "\\", commit(LACKING), {}),
        (COMMIT + "%2525252525252541", commit(COMPLETE), {}),
        ("/iceberg/v1/main/namespaces/gated/register#x", b"{}", {}),
        ("/iceberg/v1/main/tables/rename#x", b"{}", {}),
        ("/iceberg/v1/main/transactions/commit#x", b"{}", {}),
        ("/iceberg/v1/main/transactions\\commit", b"{}", {}),
        ("/iceberg/v1/namespaces%2Fgated%2Ftables%2Ft", commit(COMPLETE), {}),
        ("/iceberg/v1/namespaces/gated/tables/%FF", commit(COMPLETE), {}),
        ("/iceberg/v1/transactions/commit", b'{"table-changes": [{"updates": []}]}', {}),
        ("/iceberg/v1/tables/rename", b'{"source": {"namespace": ["a"], "name": "s"}}', {}),
    ],
)
def test_what_the_gate_cannot_read_never_reaches_the_catalog(
    upstream: Upstream, gate: Served, target: str, body: bytes, headers: dict[str, str]
) -> None:
    status, kind, _ = error(ask(gate, "POST", target, body, headers))
    assert (status, kind) == (400, "BadRequestException")
    assert upstream.seen == []


@pytest.mark.parametrize(
    "target",
    [
        "/iceberg/../api/v2/trees",
        "/iceberg/v1/%2e%2E/api",
        "/iceberg/v1/..%5C../api",
        "/iceberg/v1/%252e%252e/api",
        "/iceberg/v1/%2e%2e%3B/api",
        "/api/v2/trees",
        "/iceberg",
        "/iceberg/v2/trees",
        "//iceberg/v1/namespaces",
        "/iceberg//v1/namespaces",
        "//catalog/iceberg/v1/namespaces",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_only_the_catalogs_own_path_is_served(upstream: Upstream, gate: Served, method: str, target: str) -> None:
    status, _, message = error(ask(gate, method, target, b"{}"))
    assert status == 404 and "serves only /iceberg/v1/" in message
    assert upstream.seen == []


@pytest.mark.parametrize(
    "target",
    [
        "/iceberg/v1/..;/api/v2/trees",
        "/iceberg/v1/namespaces#/../../api",
        "/iceberg/v1/..\\api/v2/trees",
        "http://catalog/iceberg/v1/main/transactions/commit",
    ],
)
def test_no_method_leaves_the_path_by_what_servers_read_differently(
    upstream: Upstream, gate: Served, target: str
) -> None:
    for method in ("GET", "DELETE", "POST"):
        assert ask(gate, method, target, b"{}")[0] in (400, 404)
    assert upstream.seen == []


@pytest.mark.parametrize("octet", [0, 1, 9, 11, 127, 128, 255])
def test_a_raw_octet_that_is_no_character_of_an_address_ends_the_request(
    upstream: Upstream, gate: Served, octet: int
) -> None:
    with socket.create_connection(("127.0.0.1", gate.port), timeout=60) as connection:
        body = commit(LACKING)
        head = f"{COMMIT} HTTP/1.1\r\nHost: gate\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        connection.sendall(b"POST " + head.replace(b" ", bytes([octet]) + b" ", 1) + body)
        assert connection.recv(65536).startswith(b"HTTP/1.1 400 ")
    assert upstream.seen == []


def test_a_catalog_at_the_root_of_its_server_serves_nothing_but_its_rest_api(upstream: Upstream) -> None:
    """Nessie commits at /api/v2, too, and its Iceberg API is at /iceberg."""
    with gate_before(f"http://127.0.0.1:{upstream.port}", CONFIG) as root:
        for target in (
            "/api/v2/trees/main/history/commit",
            "/iceberg/v1/main/namespaces/gated/tables/t",
            "/management/v1",
        ):
            for method in ("GET", "POST", "DELETE", "PUT"):
                status, kind, message = error(ask(root, method, target, b"{}"))
                assert (status, kind) == (404, "NotFoundException") and "--upstream" in message
        assert upstream.seen == []
        assert ask(root, "POST", "/v1/namespaces/gated/tables/t", commit(COMPLETE))[0] == 200
        assert error(ask(root, "POST", "/v1/namespaces/gated/tables/t", commit(LACKING)))[0] == 403
    assert [seen.target for seen in upstream.seen] == ["/v1/namespaces/gated/tables/t"]


def test_other_tables_and_commits_without_a_snapshot_pass(upstream: Upstream, gate: Served) -> None:
    for target, body in (
        ("/iceberg/v1/main/namespaces/free/tables/t", commit(LACKING)),
        ("/iceberg/v1/main/namespaces/lifecycle/tables/t", commit(LACKING)),
        (COMMIT, b'{"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "b"}}]}'),
        ("/iceberg/v1/main/namespaces/gated/tables", b'{"name": "t"}'),
        ("/iceberg/v1/main/namespaces/free/register", b'{"name": "t", "metadata-location": "s3://x"}'),
        (
            "/iceberg/v1/main/tables/rename",
            b'{"source": {"namespace": ["gated"], "name": "s"}, "destination": {"namespace": ["gated"], "name": "t"}}',
        ),
    ):
        assert ask(gate, "POST", target, body)[0] == 200
        assert upstream.seen.pop().body == body
    assert gate.found == []


def test_report_mode_records_and_lets_pass(upstream: Upstream, gate: Served) -> None:
    sent = {"user-agent": "Writer/1", "authorization": "Bearer never-show-this"}
    assert ask(gate, "POST", "/iceberg/v1/namespaces/watched/tables/t", commit(LACKING), sent)[0] == 200
    ((finding, who),) = gate.found
    assert (finding.table, finding.refused, finding.summary) == ("watched.t", False, LACKING)
    assert who == "127.0.0.1 Writer/1" and "required key writer.host is missing" in finding.problems
    assert len(upstream.seen) == 1


def test_connections_do_not_wait_for_acknowledgments() -> None:
    with server.listening("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize(
    "address", ["catalog:8181/iceberg", "ftp://c", "http://u:never-show-this@c/iceberg", "http://c/?a=b"]
)
def test_an_address_that_cannot_be_used_is_bad_input(address: str) -> None:
    with pytest.raises(BadInput, match=r"--upstream|address") as caught:
        server.serve(CONFIG, address, "127.0.0.1", 0, found=lambda *_: None, ready=lambda _: None)
    assert "never-show-this" not in str(caught.value)


def test_a_body_beyond_the_limit_is_refused(upstream: Upstream, gate: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "LARGEST", 200)
    assert error(ask(gate, "POST", COMMIT, commit(COMPLETE)))[0] == 413
    assert ask(gate, "POST", COMMIT + "/plan", b"x" * 1000)[0] == 200
    assert [seen.target for seen in upstream.seen] == [COMMIT + "/plan"]


# --- when the catalog fails -------------------------------------------------------------------------------------------


def _cut_in_the_body(handler: BaseHTTPRequestHandler) -> None:
    read_body(handler)
    handler.wfile.write(b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"metadata-location": "x"')
    handler.close_connection = True


def _cut_in_a_chunk(handler: BaseHTTPRequestHandler) -> None:
    read_body(handler)
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n")
    handler.close_connection = True


def _no_answer(handler: BaseHTTPRequestHandler) -> None:
    read_body(handler)
    handler.close_connection = True


def _no_http(handler: BaseHTTPRequestHandler) -> None:
    read_body(handler)
    handler.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
    handler.close_connection = True


@pytest.mark.parametrize("act", [_cut_in_the_body, _cut_in_a_chunk, _no_answer, _no_http])
def test_a_lost_answer_to_a_commit_is_a_502(upstream: Upstream, gate: Served, act: Any) -> None:
    upstream.act = act
    status, _, message = error(ask(gate, "POST", COMMIT, commit(COMPLETE)))
    assert status == 502 and "state of the commit is unknown" in message


def test_an_answer_that_takes_too_long_is_a_504(
    upstream: Upstream, gate: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    upstream.act = lambda _: over.wait(60) and None
    monkeypatch.setitem(proxy._TIMEOUTS, "read", 0.2)
    assert error(ask(gate, "POST", COMMIT, commit(COMPLETE)))[0] == 504
    over.set()


def test_a_catalog_that_is_down_is_a_503() -> None:
    with listening() as gone:
        pass
    with gate_before(f"http://127.0.0.1:{gone.port}/iceberg", CONFIG) as served:
        assert error(ask(served, "POST", COMMIT, commit(COMPLETE)))[0] == 503
        assert error(ask(served, "GET", "/iceberg/v1/config"))[0] == 503
        # What lacks lineage is refused for that.
        assert error(ask(served, "POST", COMMIT, commit(LACKING)))[0] == 403


def test_a_cut_answer_to_a_read_is_cut_for_the_client_too(upstream: Upstream, gate: Served) -> None:
    upstream.act = _cut_in_the_body
    with pytest.raises(http.client.IncompleteRead):
        ask(gate, "GET", "/iceberg/v1/namespaces")


def test_a_large_answer_to_a_commit_arrives_whole(
    upstream: Upstream, gate: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "_HELD", 1000)
    content = bytes(range(256)) * 4000
    for sizes in ((), (70_000,)):
        upstream.answer = Answer(200, [], content, sizes)
        assert ask(gate, "POST", COMMIT, commit(COMPLETE))[2] == content


def test_an_expiration_is_alone_among_the_commits_of_its_table(upstream: Upstream, gate: Served) -> None:
    order: list[str] = []
    writing, go_on = threading.Event(), threading.Event()

    def act(handler: BaseHTTPRequestHandler) -> None:
        body = read_body(handler)
        kind = "look" if handler.command == "GET" else "expire" if b"remove-snapshots" in body else "write"
        order.append(f"{kind} begins")
        if kind == "write" and not writing.is_set():
            writing.set()
            go_on.wait(60)
        order.append(f"{kind} ends")
        content = b'{"metadata": {"refs": {"main": {"snapshot-id": 9}, "new": {"snapshot-id": 1}}}}'
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(content), content))

    upstream.act = act
    statuses: list[int] = []

    def start(body: bytes) -> threading.Thread:
        thread = threading.Thread(target=lambda: statuses.append(ask(gate, "POST", COMMIT, body)[0]))
        thread.start()
        return thread

    def expiration(ref: str, snapshot_id: int) -> bytes:
        requirement = {"type": "assert-ref-snapshot-id", "ref": ref, "snapshot-id": snapshot_id}
        update = {"action": "remove-snapshots", "snapshot-ids": [snapshot_id]}
        return json.dumps({"requirements": [requirement], "updates": [update]}).encode()

    threads = [start(commit(COMPLETE))]
    assert writing.wait(60)
    threads.append(start(expiration("other", 2)))
    time.sleep(0.3)
    assert order == ["write begins"]
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert order == ["write begins", "write ends", "look begins", "look ends", "expire begins", "expire ends"]
    assert statuses == [200, 200]
    # It knows of no ref on the snapshot; another one asserts it.
    assert ask(gate, "POST", COMMIT, expiration("main", 1))[0] == 409
    assert ask(gate, "POST", COMMIT, expiration("new", 1))[0] == 200


def test_requests_in_progress_do_not_wait_for_each_other(upstream: Upstream, gate: Served) -> None:
    at_once = threading.Barrier(8, timeout=60)

    def act(handler: BaseHTTPRequestHandler) -> None:
        read_body(handler)
        at_once.wait()
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    upstream.act = act
    statuses: list[int] = []
    clients = [
        threading.Thread(target=lambda: statuses.append(ask(gate, "POST", COMMIT, commit(COMPLETE))[0]))
        for _ in range(8)
    ]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert statuses == [200] * 8
