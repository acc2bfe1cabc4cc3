"""Finding 8: `scan_orphans(location=<the table's own location>)` was refused, with a message that asked for exactly
that."""

from __future__ import annotations

from pathlib import Path

import pytest

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.errors import BadInput
from artemis_lifecycle_tests.deletion.world import local
from artemis_lifecycle_tests.expiration.aged import make_table
from artemis_lifecycle_tests.protection.foreign import ids, place, stray, warehouse


def found(lifecycle: Lifecycle, table: str, location: str) -> set[Path]:
    return {local(row["path"]) for row in lifecycle.scan_orphans(table, location=location).files().collect()}


def test_a_scan_takes_the_tables_own_location_in_every_spelling(at_once: Lifecycle) -> None:
    table = make_table(at_once, "t", 2)
    location = at_once.steps.table_state(table).metadata.location
    lost = stray(place(at_once, table))
    plain = str(place(at_once, table))
    for spelled in (location, f"{location}/", plain, f"file:{plain}", f"file://{plain}", f"file://{plain}//"):
        assert found(at_once, table, spelled) == {lost}, spelled
        assert at_once.list_objects(table, spelled).files > 1
    assert at_once.delete_orphans(at_once.scan_orphans(table, location=location)).deleted == 1
    assert not lost.exists() and ids(at_once, table) == [0, 1]


def test_a_scan_of_a_subfolder_finds_only_its_files(at_once: Lifecycle) -> None:
    table = make_table(at_once, "t", 2)
    folder = place(at_once, table)
    inside, outside = stray(folder, "data/day=1/stray.parquet"), stray(folder)
    assert found(at_once, table, f"file://{folder}/data/day=1") == {inside}
    assert found(at_once, table, f"file://{folder}/data") == {inside, outside}
    assert found(at_once, table, f"file://{folder}/metadata") == set()
    assert found(at_once, table, f"file://{folder}/nothing/is/there") == set()


def test_a_scan_takes_each_location_that_a_property_names(at_once: Lifecycle) -> None:
    root = warehouse(at_once, "live")
    places = {"write.data.path": root / "data-of-t", "write.metadata.path": root / "metadata-of-t"}
    named = ", ".join(f"'{key}'='file://{path}'" for key, path in places.items())
    table = make_table(at_once, "t", 2, properties=named)
    lost = {path: stray(path, "stray.parquet") for path in places.values()}
    for path, file in lost.items():
        assert found(at_once, table, f"file://{path}") == {file}
    assert found(at_once, table, f"file://{place(at_once, table)}") == set()


def test_what_is_not_the_tables_is_refused_and_the_locations_are_named(at_once: Lifecycle) -> None:
    table, other = make_table(at_once, "t", 2), make_table(at_once, "t2", 1)
    own = place(at_once, table)
    lost = stray(place(at_once, other))
    for location in (
        own.parent,
        warehouse(at_once, "live"),
        place(at_once, other),
        f"{own}s",
        f"{own}/../t2",
        f"{own}/..",
        "/",
        "",
    ):
        with pytest.raises(BadInput) as refused:
            at_once.scan_orphans(table, location=f"file://{location}" if str(location) else "")
        assert at_once.steps.table_state(table).metadata.location in str(refused.value), location
    assert lost.exists()
