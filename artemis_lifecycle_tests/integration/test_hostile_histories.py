"""Numbers that a writer may put into metadata: parents in a cycle, and times that no calendar has, keep no question of
the table or of its catalog from its answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.commits.actions import unanalyzed_records
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import UnreadableMetadata
from artemis_lifecycle.operations.database import connected
from artemis_lifecycle.storage.instants import if_in_calendar, in_calendar, instant_text, milliseconds, of_microseconds
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.protection.foreign import make_history

TABLE = "db.t"
BEYOND = 2**62


@pytest.fixture(scope="module")
def config(module_configs: MakeConfig) -> LifecycleConfig:
    return module_configs()


@pytest.fixture(scope="module")
def lifecycle(config: LifecycleConfig, spark: SparkSession) -> Iterator[Lifecycle]:
    """Its table's parents form a cycle, and its first and last snapshot are of no time."""
    with Lifecycle.open(config, spark=spark) as lifecycle:
        make_history(lifecycle)
        yield _damaged(lifecycle)


def _damaged(lifecycle: Lifecycle) -> Lifecycle:
    live = lifecycle.config.catalogs.live
    location = lifecycle.snapshot_history(TABLE).metadata_location
    path = Path(location.removeprefix("file://").removeprefix("file:"))
    document = json.loads(path.read_text())
    snapshots = document["snapshots"]
    for place, snapshot in enumerate(snapshots):
        snapshot["parent-snapshot-id"] = snapshots[place - 1]["snapshot-id"]
    for place, at in ((0, -BEYOND), (-1, BEYOND)):
        snapshots[place]["timestamp-ms"] = at
        document["snapshot-log"][place]["timestamp-ms"] = at
    written = path.with_name("00099-hostile.metadata.json")
    written.write_text(json.dumps(document))
    with connected(str(live.uri)) as engine, engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE iceberg_tables SET metadata_location = :new WHERE catalog_name = :catalog AND table_name = 't'"
            ),
            {"new": location.replace(path.name, written.name), "catalog": live.name},
        )
    return lifecycle


def test_a_cycle_of_parents_ends_every_walk_over_them(lifecycle: Lifecycle) -> None:
    metadata = lifecycle.health(TABLE) and lifecycle.snapshot_history(TABLE)
    assert len(metadata.snapshots) == 4
    lifecycle.check_table(TABLE)
    state = lifecycle.reachable_set(TABLE)
    assert len(state.snapshot_ids) == 4
    report = lifecycle.incident(TABLE, metadata.snapshots[1].snapshot_id)
    assert "Blast radius" in report.markdown


def test_the_walk_over_parents_yields_each_ancestor_once() -> None:
    from artemis_lifecycle.metadata.table_metadata import parse_table_metadata
    from artemis_lifecycle_tests.metadata.metadata_json import metadata_bytes, snapshot_node

    cycle = [snapshot_node(number, number % 3 + 1, 1_000 + number) for number in (1, 2, 3)]
    document = json.loads(metadata_bytes(cycle, current=1))
    metadata = parse_table_metadata(json.dumps(document).encode(), "x.metadata.json")
    assert [each.snapshot_id for each in metadata.ancestors(1)] == [1, 2, 3]
    assert list(metadata.ancestors(7)) == list(metadata.ancestors(None)) == []
    assert unanalyzed_records(metadata) >= 0


def test_a_time_that_no_calendar_has_keeps_no_question_from_its_answer(lifecycle: Lifecycle) -> None:
    history = lifecycle.snapshot_history(TABLE)
    first, last = history.snapshots[0].snapshot_id, history.snapshots[-1].snapshot_id
    assert history.to_pandas().shape[0] == 4
    assert lifecycle.health(TABLE).to_pandas().shape[0] >= 1
    costs = lifecycle.commit_costs(TABLE)
    assert costs.to_pandas().shape[0] >= 4 and costs.plot("svg")
    path = str(lifecycle.reachable_set(TABLE).data_file_paths.collect()[0][0])
    assert lifecycle.explain(TABLE, path).verdict
    for snapshot_id in (first, last):
        report = lifecycle.incident(TABLE, snapshot_id)
        assert "at an unknown time" in report.markdown and report.html
    lifecycle.retention_curve(TABLE).plot("svg")
    lifecycle.schema_history(TABLE)
    lifecycle.tags(TABLE)
    lifecycle.overwrites(datetime(2020, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, tzinfo=UTC), TABLE)
    lifecycle.compact_history(TABLE)
    lifecycle.fleet(), lifecycle.metrics()
    plan = lifecycle.plan_expiration(TABLE, older_than=datetime.now(UTC))
    lifecycle.check_plan(plan)


def test_such_a_time_breaks_no_mark_of_the_whole_catalog(lifecycle: Lifecycle) -> None:
    marked = lifecycle.mark(lifecycle.config.catalogs.live.name, {"*": "30d"})
    assert marked is not None


def test_instants_keep_their_order_and_are_never_beyond_what_drivers_hold() -> None:
    numbers = [-(2**70), -BEYOND, -1, 0, 1, BEYOND, 2**70]
    found = [in_calendar(each) for each in numbers]
    assert found == sorted(found) and found[3] == datetime(1970, 1, 1, tzinfo=UTC)
    assert [if_in_calendar(each) is None for each in numbers] == [True, True, False, False, False, True, True]
    for each in found:
        assert each + timedelta(hours=23) > each > each - timedelta(hours=23)
    assert milliseconds(in_calendar(1_700_000_000_123)) == 1_700_000_000_123
    assert instant_text(BEYOND) == f"{BEYOND} ms since 1970" and "2023" in instant_text(1_700_000_000_123)
    assert of_microseconds(2**62).year == 9999


def test_json_of_few_bytes_and_many_objects_is_refused_before_it_is_parsed() -> None:
    import gzip
    import tracemalloc

    from artemis_lifecycle.metadata.table_metadata import metadata_json, parse_table_metadata

    bombs = {
        "arrays": b'{"x":[' + b"[]," * 5_000_000 + b"[]]}",
        "objects": b'{"snapshots":[' + b"{}," * 5_000_000 + b"{}]}",
        "numbers": b'{"snapshot-log":[' + b"0," * 8_000_000 + b"0]}",
        "depth": b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        "levels": b'{"x":' + b'{"a":[' * 150 + b"]}" * 150 + b"}",
    }
    for name, content in bombs.items():
        for data, location in ((content, "a.metadata.json"), (gzip.compress(content), "a.gz.metadata.json")):
            for parse in (parse_table_metadata, metadata_json):
                tracemalloc.start()
                with pytest.raises(UnreadableMetadata):
                    parse(data, location)
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
                assert peak < 4 * len(content) + (64 << 20), (name, peak)
