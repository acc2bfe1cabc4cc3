"""Found beside finding 5: a heartbeat prefix with a typo protected nothing, and a relative one was read against
`location` even where `write.data.path` says that the files go elsewhere."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.errors import BadInput
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.protection.ownership import prefix_locations
from artemis_lifecycle.storage.location import DEFAULT_RULES
from artemis_lifecycle_tests.expiration.aged import make_table


def _metadata(lifecycle: Lifecycle, table: str) -> TableMetadata:
    return lifecycle.steps.table_state(table).metadata


@pytest.fixture
def table(lifecycle: Lifecycle) -> str:
    root = str(lifecycle.config.catalogs.live.warehouse)
    paths = {"write.data.path": f"{root}/data-of-t", "write.metadata.path": f"{root}/metadata-of-t"}
    return make_table(lifecycle, "t", 1, properties=", ".join(f"'{key}'='{value}'" for key, value in paths.items()))


def test_a_prefix_in_no_location_of_the_table_is_refused_and_names_them(lifecycle: Lifecycle, table: str) -> None:
    own = _metadata(lifecycle, table)
    for wrong in (
        f"{own.location}s/day=1",
        f"{own.location}/../u/day=1",
        "s3://bucket/t/day=1",
        "/somewhere/else",
        "../u",
        "./day=1",
        "",
        "/",
    ):
        with pytest.raises(BadInput) as refused:
            lifecycle.writing(table, "w", prefix=wrong)
        assert own.location in str(refused.value) and "data-of-t" in str(refused.value), wrong
    assert lifecycle.writers(table) == []


def test_a_prefix_in_any_location_of_the_table_is_taken(lifecycle: Lifecycle, table: str) -> None:
    own = _metadata(lifecycle, table)
    data = own.properties["write.data.path"]
    for right in (f"{own.location}/day=1", f"{data}/day=1/", data, own.properties["write.metadata.path"], "day=1"):
        with lifecycle.writing(table, "w", prefix=right):
            assert [each.prefix for each in lifecycle.writers(table)] == [right]
    # The local scheme in its other spelling is the same place.
    with lifecycle.writing(table, "w", prefix=data.replace("file://", "file:")):
        pass


def test_a_relative_prefix_is_a_folder_in_each_location(lifecycle: Lifecycle, table: str) -> None:
    own = _metadata(lifecycle, table)
    found = prefix_locations("day=1/", own, DEFAULT_RULES)
    for location in (own.location, own.properties["write.data.path"]):
        assert f"{location.replace('file:/', 'file:///').replace('file://///', 'file:///')}/day=1" in found


def test_what_matches_no_location_protects_the_whole_table(lifecycle: Lifecycle, table: str) -> None:
    """A foreign writer's row is not checked when it is written; read, it protects too much rather than nothing."""
    own = _metadata(lifecycle, table)
    assert prefix_locations(f"{own.location}s/day=1", own, DEFAULT_RULES) == ()
    assert prefix_locations("day=1/../../u", own, DEFAULT_RULES) == ()


def test_where_paths_are_hashed_a_prefix_protects_the_whole_table(lifecycle: Lifecycle, spark: SparkSession) -> None:
    table = make_table(lifecycle, "hashed", 1, properties="'write.object-storage.enabled'='true'")
    with lifecycle.writing(table, "w", prefix="day=1"):
        assert prefix_locations("day=1", _metadata(lifecycle, table), DEFAULT_RULES) == ()
