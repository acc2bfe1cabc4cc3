"""Many refs on one snapshot take memory by their number, in every step that goes through them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from artemis_lifecycle.cold_tier.cold_metadata import continued, refs_of, written
from artemis_lifecycle.expiration.tags_and_holds import table_refs
from artemis_lifecycle.metadata.table_metadata import parse_table_metadata
from artemis_lifecycle.metadata.types import SnapshotHistory, TableMetadata
from artemis_lifecycle.retention.rules import HoldView, RetentionSettings, decide, held_by, ref_ends, view_of
from artemis_lifecycle_tests.metadata.metadata_json import metadata_bytes, snapshot_node

pytestmark = pytest.mark.seconds

SNAPSHOTS = 50
NOW_MS = 10**12
TAGGED = SNAPSHOTS // 2


def many(refs: int, kind: str = "tag") -> bytes:
    """A metadata file of SNAPSHOTS in a row, with so many refs on the one in the middle, and as many properties."""
    on_it = {f"{kind}-{number}": {"snapshot-id": TAGGED, "type": kind} for number in range(refs)}
    return metadata_bytes(
        [snapshot_node(number, number - 1 or None, number * 1000, number) for number in range(1, SNAPSHOTS + 1)],
        current=SNAPSHOTS,
        refs={"main": {"snapshot-id": SNAPSHOTS, "type": "branch"}, **on_it},
        log=[(number * 1000, number) for number in range(1, SNAPSHOTS + 1)],
        properties={f"owner.{number}": "x" for number in range(refs)},
    )


def read(data: bytes) -> TableMetadata:
    return parse_table_metadata(data, "file:///tables/t/metadata/1.metadata.json")


def settings(rule: str) -> RetentionSettings:
    return RetentionSettings(rule=rule, window_ms=1, explicit_window=True)  # type: ignore[arg-type]


HOLD = HoldView("hold-1", "ada", "evidence")

STEPS: dict[str, Callable[[TableMetadata], object]] = {
    **{
        rule: lambda metadata, rule=rule: decide(view_of(metadata), settings(rule), NOW_MS)
        for rule in ("as-of", "iceberg", "paimon")
    },
    "held": lambda metadata: held_by(view_of(metadata), [HOLD], NOW_MS),
    "ends": lambda metadata: ref_ends(view_of(metadata), settings("as-of"), NOW_MS),
    "refs": lambda metadata: table_refs("db.t", metadata, (), settings("as-of"), NOW_MS),
    "history": lambda metadata: SnapshotHistory.of("db.t", metadata, datetime.now(UTC)).to_pandas(),
    "cold": lambda metadata: written(continued((), [(at, refs_of(metadata)) for at in range(5)])),
}


def peak(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["tag", "branch"])
@pytest.mark.parametrize("step", STEPS)
def test_memory_follows_the_number_of_refs_on_one_snapshot(step: str, kind: str) -> None:
    """Four times the refs take four times the memory, not sixteen times."""
    few, more = (read(many(number, kind)) for number in (1_000, 4_000))
    STEPS[step](few)
    assert peak(lambda: STEPS[step](more)) < 6 * peak(lambda: STEPS[step](few)) + 100_000


@pytest.mark.slow
def test_a_metadata_file_with_100_000_tags_on_one_snapshot_is_read_and_decided() -> None:
    """It took above 23 GB."""
    data = many(100_000)
    metadata = read(data)
    assert peak(lambda: read(data)) < 20 * len(data)
    assert len(decide(view_of(metadata), settings("as-of"), NOW_MS).kept[TAGGED]) == 100_000
    assert peak(lambda: decide(view_of(metadata), settings("as-of"), NOW_MS)) < 100_000 * 2_000
