"""The answer for many files is the rule asked of each, and the same after a journey to an executor."""

from __future__ import annotations

import pickle
import random
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa

from artemis_lifecycle.metadata.types import kind_by_name
from artemis_lifecycle.protection.ownership import subject
from artemis_lifecycle.protection.places import HIDDEN, IN_FLIGHT, NOT_OWNED, OTHER_TABLE, RECEIPT, Places
from artemis_lifecycle.protection.protection import (
    OPEN_PLAN,
    PREFIX_MISMATCH,
    TOO_YOUNG,
    UNKNOWN_AGE,
    Ages,
    ProtectedFiles,
)
from artemis_lifecycle.protection.table_state import CURRENT_METADATA, REACHABLE, hash_texts
from artemis_lifecycle.storage.location import LocationRules, normalize

NOW = datetime(2026, 1, 10, tzinfo=UTC)
RULES = LocationRules()
PREFIXES = ("s3://b", "s3a://b", "s3://other", "hdfs://n:8020", "file:", "file://host")
NAMES = ("data/a.parquet", "data/.a.parquet.crc", "data/ü b.parquet", "metadata/v1.metadata.json", "_x/y", "nested/y")
_KNOWN = (REACHABLE, CURRENT_METADATA, OPEN_PLAN)


def _paths(random_: random.Random, number: int) -> list[str]:
    return [f"{random_.choice(PREFIXES)}/t/{random_.randrange(40)}/{random_.choice(NAMES)}" for _ in range(number)]


def test_the_answer_for_many_files_is_the_rule_asked_of_each() -> None:
    random_ = random.Random(7)
    paths = sorted(set(_paths(random_, 1500)))
    ages = [random_.choice([None, timedelta(days=1), timedelta(days=9), timedelta(days=40)]) for _ in paths]
    files = pa.table(
        {
            "path": paths,
            "last_modified": pa.array([None if age is None else NOW - age for age in ages], pa.timestamp("us", "UTC")),
            "kind": [kind_by_name(subject(path)) for path in paths],
        }
    )
    known = {reason: set(_paths(random_, 150)) for reason in _KNOWN}
    twins = set(_paths(random_, 300))
    places = Places(
        ("s3://b/t", "file:///t", "hdfs://n:8020/t"),
        ("s3://b/t/3/nested",),
        ("s3://b/t/1",),
        RULES,
        receipts=("s3://b/t/5/metadata",),
        partition_fields=frozenset(),
    )
    limits = Ages(NOW - timedelta(days=7), NOW - timedelta(days=30))
    protected = ProtectedFiles(
        tuple((reason, hash_texts(named, RULES)) for reason, named in known.items()),
        places,
        np.sort(hash_texts(twins, RULES)),
        limits,
    )

    found = protected.reasons(files)

    located = {reason: {normalize(path, RULES) for path in named} for reason, named in known.items()}
    twin_locations = {normalize(path, RULES) for path in twins}
    for row, (path, age) in enumerate(zip(paths, ages, strict=True)):
        location, place = normalize(subject(path), RULES), places.why(path)
        # A table may name as its own what is named like a checksum file.
        names = {location, normalize(path, RULES)}
        youngest = limits.metadata_cutoff if path.endswith(".metadata.json") else limits.cutoff
        reasons = [reason for reason in _KNOWN if names & located[reason]]
        reasons += [place] if place not in (None, IN_FLIGHT) else []
        reasons += [PREFIX_MISMATCH] if location in twin_locations else []
        reasons += [IN_FLIGHT] if place == IN_FLIGHT else []
        reasons += [UNKNOWN_AGE] if age is None else []
        reasons += [TOO_YOUNG] if age is not None and NOW - age >= youngest else []
        assert found.get(row) == (reasons[0] if reasons else None), path
    seen = set(found.values())
    assert {
        *_KNOWN,
        NOT_OWNED,
        OTHER_TABLE,
        RECEIPT,
        HIDDEN,
        IN_FLIGHT,
        PREFIX_MISMATCH,
        TOO_YOUNG,
        UNKNOWN_AGE,
    } <= seen
    assert len(found) < len(paths)
    assert pickle.loads(pickle.dumps(protected)).reasons(files) == found
