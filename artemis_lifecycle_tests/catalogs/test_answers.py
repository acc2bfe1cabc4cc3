"""A server's answer is bounded before it is parsed, by bytes, values, levels and seconds."""

from __future__ import annotations

import gzip
import socket
import tracemalloc
from collections.abc import Iterator

import pytest
import requests

from artemis_lifecycle.catalogs import rest
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.config.deployment import Catalog
from artemis_lifecycle.errors import LifecycleError, TooLarge
from artemis_lifecycle.nessie.references import NessieClient
from artemis_lifecycle.storage.bounded import ReadLimits
from artemis_lifecycle_tests.gate.upstream import Answer, Upstream, listening


@pytest.fixture
def server() -> Iterator[Upstream]:
    with listening() as found:
        yield found


@pytest.mark.parametrize(
    "content",
    [b'{"x":[' + b"[]," * 5_000_000 + b"[]]}", b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"],
    ids=["values", "levels"],
)
def test_an_answer_of_a_server_is_bounded_before_it_is_parsed(server: Upstream, content: bytes) -> None:
    uri = f"http://127.0.0.1:{server.port}"
    server.answer = Answer(
        200, [("content-encoding", "gzip"), ("content-type", "application/json")], gzip.compress(content)
    )
    clients = {
        "plain": lambda: rest.bounded(requests.Session()).get(uri),
        "nessie": lambda: NessieClient(uri).get("config"),
        "rest": lambda: CatalogReader(Catalog(name="live", type="rest", uri=uri, warehouse="w")),
    }
    for name, ask in clients.items():
        tracemalloc.start()
        with pytest.raises(LifecycleError):
            ask()
        assert tracemalloc.get_traced_memory()[1] < 100 << 20, name
        tracemalloc.stop()


def test_an_answer_within_the_limits_reads_as_it_came(server: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    session = rest.bounded(requests.Session())
    server.answer = Answer(200, [("content-type", "application/json")], b'{"a": [1, 2]}', (3,))
    assert session.get(f"http://127.0.0.1:{server.port}").json() == {"a": [1, 2]}
    monkeypatch.setattr(rest, "_LIMITS", ReadLimits(max_bytes=10))
    with pytest.raises(TooLarge):
        session.get(f"http://127.0.0.1:{server.port}")


def test_a_server_that_never_answers_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "_SECONDS", (0.3, 0.3))
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(requests.Timeout):
        rest.bounded(requests.Session()).get(f"http://127.0.0.1:{silent.getsockname()[1]}")
