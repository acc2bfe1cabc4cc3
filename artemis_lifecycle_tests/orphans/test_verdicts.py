"""The verdict on a listed file is one, whether this process gives it or executors do."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from artemis_lifecycle.deletion.last_look import (
    CURRENT_METADATA,
    IN_FLIGHT,
    NOT_OWNED,
    OTHER_TABLE,
    REACHABLE,
    RECEIPT,
    Grounds,
)
from artemis_lifecycle.deletion.ownership import subject, subject_array
from artemis_lifecycle.errors import PrefixMismatch
from artemis_lifecycle.orphans.verdicts import (
    OPEN_PLAN,
    OPEN_SCAN,
    ORPHAN,
    PREFIX_MISMATCH,
    TOO_YOUNG,
    UNKNOWN_AGE,
    Limits,
    classified,
    classified_here,
    refuse_mismatches,
    split_location,
    split_paths,
)
from artemis_lifecycle.storage.location import LocationRules, normalise

NOW = datetime(2026, 1, 10, tzinfo=UTC)
RULES = LocationRules()
_STRENGTH = (OPEN_SCAN, OPEN_PLAN, CURRENT_METADATA, REACHABLE)
PREFIXES = ("s3://b", "s3a://b", "s3://other", "hdfs://n:8020", "file:", "file://host")
NAMES = ("data/a.parquet", "data/.a.parquet.crc", "data/ü b.parquet", "metadata/v1.metadata.json", "in/x", "nested/y")


def _paths(random_: random.Random, number: int) -> list[str]:
    return [f"{random_.choice(PREFIXES)}/t/{random_.randrange(40)}/{random_.choice(NAMES)}" for _ in range(number)]


def test_the_verdicts_of_this_process_are_those_of_the_executors(spark: SparkSession) -> None:
    random_ = random.Random(7)
    listed_paths = sorted(set(_paths(random_, 1500)))
    ages = [random_.choice([None, timedelta(days=1), timedelta(days=9), timedelta(days=40)]) for _ in listed_paths]
    listed = pa.table(
        {
            "path": listed_paths,
            "last_modified": pa.array([None if age is None else NOW - age for age in ages], pa.timestamp("us", "UTC")),
            "size_in_bytes": pa.array(range(len(listed_paths)), pa.int64()),
        }
    )
    reasons = (REACHABLE, CURRENT_METADATA, OPEN_PLAN)
    known = [(normalise(subject(path), RULES), random_.choice(reasons)) for path in _paths(random_, 400)]
    # Equal in weight are only reasons that never stand for one file together, in this test as in a scan's answer.
    known += [(normalise(path, RULES), OPEN_SCAN) for path in ("s3://b/t/99/only-scan", "hdfs://n:8020/t/1/in/x2")]
    grounds = Grounds(("s3://b/t", "/t", "hdfs://n:8020/t"), ("s3://b/t/3/nested",), ("s3://b/t/4",), RULES)
    seen = set()
    for mismatches_go in (False, True):
        limits = Limits(NOW - timedelta(days=7), NOW - timedelta(days=30), mismatches_go)
        here = classified_here(listed, known, grounds, RULES, limits)
        there = classified(
            spark.createDataFrame(listed),
            spark.createDataFrame(known, "location string, reason string"),
            grounds,
            RULES,
            limits,
        )
        columns = ("path", "size_in_bytes", "kind", "verdict", "twin")
        found = sorted(tuple(row[name] for name in columns) for row in there.collect())
        assert sorted(tuple(row[name] for name in columns) for row in here.to_pylist()) == found
        assert {row["path"]: row["verdict"] for row in here.to_pylist()} == dict(
            _told(listed.to_pylist(), known, grounds, limits)
        )
        refused = []
        for judged in (here, there):
            try:
                refuse_mismatches(judged, "t")
            except PrefixMismatch as error:
                refused.append(str(error))
        assert len(refused) == (0 if mismatches_go else 2)
        assert len(set(refused)) <= 1
        seen |= {verdict for _, _, _, verdict, _ in found}
    assert len(seen) >= 8, seen


def _told(
    listed: list[dict[str, Any]], known: list[tuple[str, str]], grounds: Grounds, limits: Limits
) -> Iterator[tuple[str, str]]:
    """The verdicts by the rule, one file at a time: what protects it, the first that speaks."""
    for row in listed:
        prefix, key = split_location(normalise(subject(row["path"]), RULES))
        alike = [(split_location(other)[0], reason) for other, reason in known if split_location(other)[1] == key]
        spelled = sorted({other for other, _ in alike})
        if alike and prefix in (spelled[0], spelled[-1]):
            strongest = max((reason for _, reason in alike), key=_STRENGTH.index)
            if strongest != REACHABLE:
                yield row["path"], strongest
            continue
        if len(spelled) > 1:
            continue  # It may be any of them: it stays, as if it were reachable.
        place = grounds.why(row["path"])
        young = limits.metadata_cutoff if ".metadata.json" in row["path"] else limits.cutoff
        if place in (NOT_OWNED, OTHER_TABLE, RECEIPT):
            yield row["path"], place
        elif spelled and not limits.mismatches_go:
            yield row["path"], PREFIX_MISMATCH
        elif place == IN_FLIGHT:
            yield row["path"], IN_FLIGHT
        elif row["last_modified"] is None:
            yield row["path"], UNKNOWN_AGE
        else:
            yield row["path"], TOO_YOUNG if row["last_modified"] >= young else ORPHAN


@given(st.lists(st.text(st.sampled_from("/.:?#bcrcs3filé\n"), max_size=14)))
def test_many_paths_are_split_as_each_is(paths: list[str]) -> None:
    paths = sorted(paths)
    parts = [split_location(normalise(subject(path), RULES)) for path in paths]
    assert [*zip(*split_paths(pa.array(paths, pa.string()), RULES), strict=True)] == parts


@given(st.lists(st.text(st.sampled_from("/.crcab\n"), max_size=14)))
def test_what_a_path_is_about_is_one_thing_for_one_path_and_for_many(paths: list[str]) -> None:
    assert subject_array(pa.array(paths, pa.string())).to_pylist() == [subject(path) for path in paths]
