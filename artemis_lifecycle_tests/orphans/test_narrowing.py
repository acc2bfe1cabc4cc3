"""A long listing is narrowed by hashes before it is judged: the verdicts are those of comparing everything."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from artemis_lifecycle.deletion.ownership import subject
from artemis_lifecycle.operations.scans import ScanState
from artemis_lifecycle.orphans.narrowing import Known, _Prefixes, keys_of
from artemis_lifecycle.orphans.scan import OrphanScanResult
from artemis_lifecycle.orphans.verdicts import split_location
from artemis_lifecycle.storage.frames import write_table
from artemis_lifecycle.storage.location import LocationRules, normalise
from artemis_lifecycle.storage.location_hash import text_buffers
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.conftest import on_executors
from artemis_lifecycle_tests.deletion.world import World

RULES = LocationRules(equal_schemes={"hdfs": "file"}, equal_authorities={"nn1": ""})
PATHS = st.lists(
    st.builds(
        "".join,
        st.lists(
            st.sampled_from(["s3:", "s3a:", "S3:", "file:", "hdfs:", "//", "/", "b", "nn1", ".", "..", ".x.crc", "ü"]),
            min_size=1,
            max_size=7,
        ),
    ),
    max_size=12,
)


def _rows(scan: OrphanScanResult) -> list[tuple[Any, ...]]:
    found = scan.unreferenced().select("path", "size_in_bytes", "last_modified", "kind", "verdict", "twin").collect()
    return sorted((tuple(row) for row in found), key=str)


def test_however_a_scan_is_made_its_verdicts_are_the_same(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    table, around = "narrowing.inner", "narrowing.around"
    world.create(around)
    world.create(table, location=world.place(around) / "in/inner")
    place = world.place(table)
    first = world.append(table, 1, 2)
    world.overwrite(table, 3)
    foreign = world.drop_in(table, "data/of-the-outer.parquet", age=timedelta(days=20))
    jvm: Any = world.spark._jvm
    for named, recorded in ((around, f"file://{foreign}"), (table, f"hdfs://nn7{place}/data/twin.parquet")):
        loaded = world.java(named)
        file = jvm.org.apache.iceberg.DataFiles.builder(loaded.spec()).withPath(recorded).withFormat("parquet")
        file = file.withFileSizeInBytes(1).withRecordCount(1).build()
        loaded.newFastAppend().appendFile(file).commit()
    world.plan(table, first)
    for name in ("data/twin.parquet", "data/lost.parquet", "data/.lost.parquet.crc", "metadata/old.avro"):
        world.drop_in(table, name)
    world.drop_in(table, "data/young.parquet", age=timedelta(0))
    world.age_all(table)
    listing = world.list(table)

    def scanned() -> OrphanScanResult:
        return world.scan(table, listing, prefix_mismatch="ignore")

    here = scanned()
    with monkeypatch.context() as patch:
        for module in ("storage.frames", "orphans.scan"):
            patch.setattr(f"artemis_lifecycle.{module}.ROWS_HERE", -1)
        narrowed = scanned()
    with monkeypatch.context() as patch:
        on_executors(patch)
        there = scanned()

    assert _rows(narrowed) == _rows(here) == _rows(there)
    assert narrowed.summary == here.summary == there.summary
    verdicts = {verdict for *_, verdict, _ in _rows(here)}
    assert {"orphan", "prefix_mismatch", f"reachable from {around}"} <= verdicts, verdicts
    assert not world.operations.scans.of_table(here.table_uuid, [ScanState.DELETING])


@given(PATHS)
def test_the_ways_in_which_paths_begin_are_found_without_reading_each(paths: list[str]) -> None:
    prefixes = _Prefixes(RULES)
    starts, data = text_buffers(pa.array(paths, pa.string()))

    prefixes.add_paths(data, starts)

    assert prefixes.found == {split_location(normalise(path, RULES))[0] for path in paths}


def test_paths_that_begin_in_too_many_ways_are_not_looked_for_one_by_one(tmp_path: Any) -> None:
    stores, folder = Stores(), f"file://{tmp_path}/frame"
    paths = [f"s3://bucket-{number}/x" for number in range(200)]
    write_table(pa.table({"path": paths}), folder, stores)

    assert Known.sealed_in(folder, stores, "because", RULES) is None


@given(PATHS, PATHS)
def test_what_is_known_beside_a_file_is_all_that_has_its_path(known: list[str], listed: list[str]) -> None:
    locations = {normalise(path, RULES) for path in known}
    prefixes = frozenset(split_location(location)[0] for location in locations)
    files = pa.table({"path": pa.array(listed, pa.string())})
    from artemis_lifecycle.storage.location_hash import hash_location

    hashes = np.array([hash_location(location) for location in locations], np.uint64)
    found = Known("because", lambda wanted: np.isin(wanted, hashes), prefixes)

    keys = {split_location(normalise(subject(path), RULES))[1] for path in listed}
    expected = {location for location in locations if split_location(location)[1] in keys}
    beside = list(found.beside(keys_of(files, RULES), RULES))
    # A key behind another authority may normalise to a location of yet another key: more is known, never less.
    assert expected <= {location for location, _ in beside}
