from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from artemis_lifecycle.errors import BadInput, LocationConflict, NaiveDatetime, StorageError
from artemis_lifecycle.orphans.listing import Listing, given_listing, list_table, listed_files
from artemis_lifecycle.storage.location import DEFAULT_RULES
from artemis_lifecycle_tests.deletion.world import World

ODD = ["plain", "with space", "_underscore", ".hidden", "a%20b", "ü", "u\u0308", "Upper", "comma,plus+&=", "new\nline"]


def _list(world: World, *locations: str) -> Listing:
    return list_table(
        world.spark, world.stores, locations, root=world.root, clock=world.operations.clock.now, rules=DEFAULT_RULES
    )


def _paths(world: World, listing: Listing) -> list[str]:
    return sorted(row["path"] for row in listed_files(world.spark, world.stores, listing).collect())


@pytest.mark.usefixtures("anywhere")
def test_every_file_is_listed_once_whatever_its_name_and_depth(world: World, tmp_path: Path) -> None:
    for index, name in enumerate(ODD):
        place = tmp_path / name / "/".join(["deep"] * index)
        place.mkdir(parents=True)
        (place / f"{name}.parquet").write_bytes(b"x" * index)
    (tmp_path / "flat").mkdir()
    for index in range(30):
        (tmp_path / "flat" / f"{index}.parquet").write_bytes(b"xy")
    expected = sorted(f"file://{path}" for path in tmp_path.rglob("*") if path.is_file())

    # A nested location, the root again with a slash: still once.
    listing = _list(world, f"file://{tmp_path}", f"file://{tmp_path}/flat", f"file:{tmp_path}/")

    assert _paths(world, listing) == expected
    assert listing.files == len(expected)
    assert listing.bytes == sum(Path(path.removeprefix("file://")).stat().st_size for path in expected)
    assert listing.started_at <= listing.finished_at
    rows = {row["path"]: row for row in listed_files(world.spark, world.stores, listing).collect()}
    for path in expected[:3]:
        modified = datetime.fromtimestamp(Path(path.removeprefix("file://")).stat().st_mtime, tz=UTC)
        assert abs(rows[path]["last_modified"].replace(tzinfo=UTC) - modified) < timedelta(milliseconds=1)


def test_a_listing_is_found_again_by_its_record(world: World, tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"x")
    listing = _list(world, f"file://{tmp_path}")
    stored = world.operations.scans.store_listing(listing.record("uuid-1", "ns.t"))
    assert Listing.of_record(stored) == listing


def test_a_place_without_files_is_an_empty_listing(world: World, tmp_path: Path) -> None:
    listing = _list(world, f"file://{tmp_path}/nowhere")
    assert (listing.files, listing.bytes) == (0, 0)


@pytest.mark.usefixtures("anywhere")
def test_a_prefix_that_cannot_be_listed_fails_the_whole_listing(world: World, tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"x")
    state = Path(world.root.removeprefix("file://"))
    before = set(state.glob("listings/*/files/_sealed.json"))
    with pytest.raises(StorageError, match="No store here answers"):
        _list(world, f"file://{tmp_path}", "gs://bucket/table")
    assert set(state.glob("listings/*/files/_sealed.json")) == before


@pytest.mark.parametrize("location", ["file:///", "s3://bucket", "s3://bucket/", "/"])
def test_a_whole_bucket_or_file_system_is_never_a_tables_location(world: World, location: str) -> None:
    with pytest.raises(LocationConflict):
        _list(world, location)


def _given(world: World, ddl: str, rows: list[tuple[object, ...]], taken_at: datetime) -> Listing:
    return given_listing(
        world.spark,
        world.stores,
        world.spark.createDataFrame(rows, ddl),
        ["file:///warehouse/t"],
        taken_at=taken_at,
        root=world.root,
        clock=world.operations.clock.now,
        rules=DEFAULT_RULES,
    )


def test_a_given_listing_keeps_what_is_under_the_table_and_each_path_once(world: World) -> None:
    taken_at = world.operations.clock.now() - timedelta(hours=3)
    old, young = datetime(2024, 1, 1), datetime(2024, 2, 1)
    listing = _given(
        world,
        "path string, last_modified timestamp, size_in_bytes bigint, etag string",
        [
            ("file:/warehouse/t/data/a", old, 1, "e"),
            ("file:/warehouse/t/data/a", young, 2, "e"),
            ("/warehouse/t/data/b", old, 3, "e"),
            ("/warehouse/t/data/b", None, 3, "e"),
            ("file:///warehouse/t2/data/c", old, 4, "e"),
            ("file:///warehouse/t/../t2/d", old, 5, "e"),
        ],
        taken_at,
    )
    rows = {row["path"]: row for row in listed_files(world.spark, world.stores, listing).collect()}
    assert set(rows) == {"file:/warehouse/t/data/a", "/warehouse/t/data/b"}
    assert rows["file:/warehouse/t/data/a"]["last_modified"] == young
    assert rows["/warehouse/t/data/b"]["last_modified"] is None
    assert listing.started_at == taken_at
    # Metadata must be newer than the moment at which the rows were really read.
    assert listing.finished_at > taken_at + timedelta(hours=2)


def test_a_given_listing_of_another_shape_is_refused(world: World) -> None:
    now = world.operations.clock.now()
    with pytest.raises(BadInput, match="last_modified is bigint"):
        _given(world, "path string, last_modified bigint, size_in_bytes bigint", [("a", 1, 1)], now)
    with pytest.raises(BadInput, match="size_in_bytes is nothing"):
        _given(world, "path string, last_modified timestamp", [("a", None)], now)
    columns = "path string, last_modified timestamp, size_in_bytes bigint"
    with pytest.raises(BadInput, match="without a path"):
        _given(world, columns, [(None, None, 1)], now)
    with pytest.raises(BadInput, match="was taken at"):
        _given(world, columns, [], now + timedelta(hours=1))
    with pytest.raises(NaiveDatetime):
        _given(world, columns, [], datetime(2024, 1, 1))
