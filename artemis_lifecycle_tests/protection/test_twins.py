"""Twins are found by hashes as they would be by comparing every path with every other."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from artemis_lifecycle.errors import Refused
from artemis_lifecycle.protection.ownership import (
    Known,
    _Prefixes,
    split_location,
    split_paths,
    subject,
    subject_array,
    twins,
)
from artemis_lifecycle.storage.frames import write_batches
from artemis_lifecycle.storage.location import LocationRules, normalize
from artemis_lifecycle.storage.stores import Stores

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


@given(PATHS)
def test_the_ways_in_which_paths_begin_are_found_without_reading_each(paths: list[str]) -> None:
    prefixes = _Prefixes(RULES)

    prefixes.add_paths(pa.array(paths, pa.string()))

    assert prefixes.found == {split_location(normalize(path, RULES))[0] for path in paths}


def test_paths_that_begin_in_too_many_ways_are_refused(tmp_path: Path) -> None:
    stores, folder = Stores(), f"file://{tmp_path}/frame"
    paths = pa.table({"path": [f"s3://bucket-{number}/x" for number in range(1_100)]})
    write_batches(paths.to_batches(), paths.schema, folder, stores)

    with pytest.raises(Refused, match="begin in more than"):
        Known.sealed_in(folder, stores, RULES)


@given(PATHS, PATHS)
def test_a_file_has_the_twins_that_comparing_everything_finds(known: list[str], listed: list[str]) -> None:
    locations = {normalize(path, RULES) for path in known}
    found = twins(pa.array(listed, pa.string()), [Known.at(locations, RULES)], RULES)

    expected = set()
    for row, path in enumerate(listed):
        prefix, key = split_location(normalize(subject(path), RULES))
        expected |= {
            (row, other)
            for other in locations
            if split_location(other)[1] == key and split_location(other)[0] != prefix
        }
    # A key behind another authority may normalize to a location of yet another key: more is known, never less.
    assert expected <= set(found)


@given(st.lists(st.text(st.sampled_from("/.:?#bcrcs3filé\n"), max_size=14)))
def test_many_paths_are_split_as_each_is(paths: list[str]) -> None:
    paths = sorted(paths)
    parts = [split_location(normalize(subject(path), RULES)) for path in paths]
    assert [*zip(*split_paths(pa.array(paths, pa.string()), RULES), strict=True)] == parts


@given(st.lists(st.text(st.sampled_from("/.crcab\n"), max_size=14)))
def test_what_a_path_is_about_is_one_thing_for_one_path_and_for_many(paths: list[str]) -> None:
    assert subject_array(pa.array(paths, pa.string())).to_pylist() == [subject(path) for path in paths]
