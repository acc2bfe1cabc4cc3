"""Where tables read, in few folders: never one too few, and read once."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artemis_lifecycle.catalogs.identifier import CatalogEntry, parse
from artemis_lifecycle.reachability.reached import ReachedFolders, covering
from artemis_lifecycle.storage.location import DEFAULT_RULES, normalize, overlap
from artemis_lifecycle.storage.stores import Stores

_NAMES = st.sampled_from(["a", "b", "data", "day=1", "wh", "t.x", "_", "%20"])
_FOLDERS = st.builds(
    lambda start, names: "/".join([start, *names]),
    st.sampled_from(["s3://one", "s3://two", "file://", "hdfs://nn:8020"]),
    st.lists(_NAMES, max_size=5),
)


@given(st.sets(_FOLDERS, max_size=60), st.integers(1, 8))
def test_every_folder_is_covered_by_few(folders: set[str], most: int) -> None:
    few = covering(folders, most)

    stores = {folder.split("/")[2] for folder in folders}
    assert len(few) <= max(most, len(stores))
    for folder in folders:
        assert any(f"{folder}/".startswith(f"{cover}/") for cover in few), (folder, few)


def test_many_partitions_become_their_place_and_a_far_place_stays_apart() -> None:
    partitions = [f"s3://lake/wh/t/data/day={day}" for day in range(1000)]

    assert covering([*partitions, "s3://lake/old/import/data"]) == ("s3://lake/old/import/data", "s3://lake/wh/t/data")


@pytest.mark.parametrize(
    "spelled",
    ["file:/w/a/../b/data", "file:///w/b//data", "/w/b/data", "file:/w/./b/data"],
    ids=["dots", "//", "/", "."],
)
def test_a_cover_of_a_location_touches_the_table_that_has_it(spelled: str) -> None:
    folder = normalize(f"{spelled}/x").rpartition("/")[0]

    assert any(overlap("file:///w/b", cover, DEFAULT_RULES) for cover in covering([folder], 1))


def test_a_damaged_store_of_what_is_known_is_read_anew(tmp_path: Path) -> None:
    stores = Stores()
    path = tmp_path / "reached" / "tables.json"
    path.parent.mkdir()
    known = ReachedFolders(None, stores, str(tmp_path), lambda _: DEFAULT_RULES)
    path.write_text(json.dumps({"format": 1, "sha256": "0" * 64, "tables": {"a.b": {"folders": []}}}))

    problems = known.refresh({"a.b": CatalogEntry("c", parse("a.b"), f"file://{tmp_path}/none.metadata.json")})

    assert list(problems) == ["a.b"]
    assert known.of("a.b") == ()


def test_a_refresh_for_one_table_keeps_what_is_known_of_others(tmp_path: Path) -> None:
    stores, root = Stores(), f"file://{tmp_path}"
    one = CatalogEntry("c", parse("a.one"), f"{root}/00001-{uuid4()}.metadata.json")
    path = tmp_path / "reached" / "tables.json"
    path.parent.mkdir()
    tables = {
        name: {"table_uuid": name, "metadata_location": f"{root}/{name}", "folders": [f"s3://{name}"], "segments": []}
        for name in ("a.one", "a.two", "a.dropped")
    }
    checksum = hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({"format": 1, "sha256": checksum, "tables": tables}))
    known = ReachedFolders(None, stores, root, lambda _: DEFAULT_RULES)

    # From table two: table one has moved, and cannot be read; the third is in the catalog no more.
    assert list(known.refresh({"a.one": one}, {"a.one", "a.two"})) == ["a.one"]
    assert known.refresh({"a.one": one}, {"a.one", "a.two"}) == {}

    again = ReachedFolders(None, stores, root, lambda _: DEFAULT_RULES)
    assert [again.of(name) for name in tables] == [("s3://a.one",), ("s3://a.two",), ()]
