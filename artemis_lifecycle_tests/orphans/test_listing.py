from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from artemis_lifecycle.errors import LocationConflict, StorageError
from artemis_lifecycle.orphans import listing as listing_module
from artemis_lifecycle.orphans.listing import Listing, list_table
from artemis_lifecycle.storage import frames as frames_module
from artemis_lifecycle.storage.local import store as local_module
from artemis_lifecycle.storage.location import DEFAULT_RULES
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.types import Span
from artemis_lifecycle_tests.deletion.world import World, listed_files
from artemis_lifecycle_tests.storage.s3_server import S3Server

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


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("rounds", [2, 8])
def test_one_flat_prefix_is_listed_in_pieces_by_many_tasks(
    world: World, s3: S3Server, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    """What a task leaves over is divided anew, in the last round without an end; each file is listed once."""
    bucket = s3.bucket()
    names = [f"{number:05d}-77-aaaa.parquet" for number in range(300)] + ["a/b/c", "a/b.c", "\u00e9", "\U0001f600/x"]
    s3.fill(bucket, [*(f"w/t/{name}" for name in names), "w/t0/not-ours", "w/s"])
    monkeypatch.setattr(listing_module, "_FILES_OF_A_SPAN", 4)
    monkeypatch.setattr(listing_module, "_ROUNDS", rounds)
    listing, asked = _list_bucket(world, s3, f"s3://{bucket}/w/t/", monkeypatch)
    assert _paths(world, listing) == sorted(f"s3://{bucket}/w/t/{name}" for name in names)
    assert listing.files == listing.bytes == len(names)
    assert len(asked) >= 2 and len(asked[1]) >= 8


@pytest.mark.parametrize("lacks", ["order", "spans"])
def test_a_store_without_an_order_or_without_spans_is_listed_by_one_task(
    world: World, s3: S3Server, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    bucket, in_order = s3.bucket(), Stores.list
    s3.fill(bucket, [f"w/t/{number:02d}.parquet" for number in range(30)])
    if lacks == "order":
        monkeypatch.setattr(Stores, "list", lambda self, prefix: reversed(list(in_order(self, prefix))))
    else:
        monkeypatch.setattr(Stores, "has_spans", lambda self, prefix: False)
    monkeypatch.setattr(listing_module, "_FILES_OF_A_SPAN", 4)
    listing, asked = _list_bucket(world, s3, f"s3://{bucket}/w/t", monkeypatch)
    assert _paths(world, listing) == [f"s3://{bucket}/w/t/{number:02d}.parquet" for number in range(30)]
    assert asked == [[Span(f"s3://{bucket}/w/t")]] * 2


def _list_bucket(
    world: World, s3: S3Server, location: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[Listing, list[list[Span]]]:
    """The listing, and the spans of each round."""
    asked: list[list[Span]] = []
    rounds_of = listing_module._rounds

    def noted(*args: Any) -> Iterator[tuple[Sequence[Span], int | None]]:
        for spans, most in rounds_of(*args):
            asked.append(list(spans))
            yield spans, most

    monkeypatch.setattr(listing_module, "_rounds", noted)
    stores, clock = s3.stores(), world.operations.clock.now
    options = {"root": world.root, "clock": clock, "rules": DEFAULT_RULES, "sealed_by": world.stores}
    return list_table(world.spark, stores, [location], **options), asked


def test_a_listing_of_a_disk_is_written_in_parts_and_can_be_stopped(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        (tmp_path / f"d{number % 3}").mkdir(exist_ok=True)
        (tmp_path / f"d{number % 3}" / f"{number}").write_bytes(b"x" * number)
    monkeypatch.setattr(local_module, "_BATCH", 4)
    monkeypatch.setattr(frames_module, "_GROUP_ROWS", 4)
    monkeypatch.setattr(frames_module, "_PART_ROWS", 8)
    listing = _list(world, f"file://{tmp_path}")
    sealed = frames_module.describe_frame(listing.files_location, world.stores)
    assert sealed is not None and len(sealed.parts) == 5 and sealed.rows == listing.files == 40
    assert listing.bytes == sum(range(40))
    assert _paths(world, listing) == sorted(f"file://{path}" for path in tmp_path.rglob("*") if path.is_file())

    class Stopped(Exception):  # noqa: N818
        pass

    def stop() -> None:
        raise Stopped

    monkeypatch.setattr(listing_module, "_CHECKED_EVERY", 0.0)
    with pytest.raises(Stopped):
        list_table(
            world.spark,
            world.stores,
            [f"file://{tmp_path}"],
            root=world.root,
            clock=world.operations.clock.now,
            rules=DEFAULT_RULES,
            listing_id="stopped",
            check=stop,
        )
    assert frames_module.describe_frame(f"{world.root}/listings/stopped/files", world.stores) is None


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
        _list(world, f"file://{tmp_path}", "hdfs://bucket/table")
    assert set(state.glob("listings/*/files/_sealed.json")) == before


@pytest.mark.parametrize("location", ["file:///", "s3://bucket", "s3://bucket/", "/"])
def test_a_whole_bucket_or_file_system_is_never_a_tables_location(world: World, location: str) -> None:
    with pytest.raises(LocationConflict):
        _list(world, location)
