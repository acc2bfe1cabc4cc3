"""Files that a table has elsewhere do not use up what a scan looks for below its locations."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from artemis_lifecycle.errors import MissingFile
from artemis_lifecycle.orphans.scan import LOOKED_UP
from artemis_lifecycle_tests.deletion.world import World
from artemis_lifecycle_tests.orphans.test_scan import _file_of_nobody


def _name(world: World, table: str, folder: str, count: int) -> None:
    """A commit that names so many files of nobody."""
    loaded, jvm = world.java(table), world.spark._jvm
    change: Any = loaded.newAppend()
    for number in range(count):
        built = jvm.org.apache.iceberg.DataFiles.builder(loaded.spec())  # type: ignore[union-attr]
        built = built.withPath(f"{folder}/{number:05d}.parquet").withFormat("parquet")
        change = change.appendFile(built.withFileSizeInBytes(10).withRecordCount(1).build())
    change.commit()


@pytest.mark.parametrize("elsewhere", [0, LOOKED_UP], ids=["nothing-elsewhere", "files-elsewhere"])
def test_a_scan_stops_where_a_reachable_file_is_not_in_the_store(world: World, elsewhere: int) -> None:
    table = world.create(f"scan.elsewhere_{uuid.uuid4().hex[:6]}")
    world.append(table, 1)
    if elsewhere:
        _name(world, table, "file:///imported", elsewhere)
    right = world.place(table) / "data" / "00000-7-right.parquet"
    wrong = _file_of_nobody(
        world, table, "data/00000-7-right.parquet", recorded=f"file://{right}".replace("-7-", "-6-")
    )
    world.java(table).newAppend().appendFile(wrong).commit()
    world.age_all(table)

    with pytest.raises(MissingFile, match=r"00000-6-right\.parquet"):
        # Without the error, the live file is an orphan.
        world.scan(table, missing_files="error")


def test_a_scan_looks_for_files_directly_in_a_listed_location(world: World) -> None:
    table = world.create(f"scan.direct_{uuid.uuid4().hex[:6]}")
    world.append(table, 1)
    right = world.place(table) / "00000-7-right.parquet"
    wrong = _file_of_nobody(world, table, "00000-7-right.parquet", recorded=f"file://{right}".replace("-7-", "-6-"))
    world.java(table).newAppend().appendFile(wrong).commit()
    world.age_all(table)
    with pytest.raises(MissingFile, match=r"00000-6-right\.parquet"):
        world.scan(table, missing_files="error")


def test_a_scan_stops_where_the_listing_lacks_more_files_than_are_looked_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("artemis_lifecycle.orphans.scan.LOOKED_UP", 20)
    table = world.create(f"scan.many_{uuid.uuid4().hex[:6]}")
    world.append(table, 1)
    data = world.place(table) / "data"
    wrong = _file_of_nobody(world, table, "data/00000-7-right.parquet", recorded=f"file://{data}/00000-6-right.parquet")
    _name(world, table, f"file://{data}", 20)
    world.java(table).newAppend().appendFile(wrong).commit()
    world.age_all(table)
    listing = world.list(table)
    # They are there, and the listing lacks them: only behind them comes the one that a wrong name stands for.
    for number in range(20):
        (data / f"{number:05d}.parquet").write_bytes(b"0123456789")
    with pytest.raises(MissingFile, match="lacks more than 20 files that snapshots reach"):
        world.scan(table, listing, missing_files="error")
    monkeypatch.setattr("artemis_lifecycle.orphans.scan.LOOKED_UP", 21)
    with pytest.raises(MissingFile, match=r"1 files that snapshots reach are not in the store.*00000-6-right"):
        world.scan(table, listing, missing_files="error")
