from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from artemis_lifecycle.metadata.types import kind_by_name, kinds_by_name
from artemis_lifecycle.orphans.origins import Known, origin_of, origins_of, version_of
from artemis_lifecycle.protection.ownership import subject, subject_array
from artemis_lifecycle.storage.instants import microseconds

UUID = "0f3b5e52-9d6c-4a51-8c39-6f0e7f8d9b10"
OTHER = "7a3b5e52-9d6c-4a51-8c39-6f0e7f8d9b10"
NOON = datetime(2024, 3, 15, 12, tzinfo=UTC)
HISTORY = Known(frozenset({UUID}), 10, NOON)


@pytest.mark.parametrize(
    ("name", "kind", "at", "origin"),
    [
        (f"00000-1-{OTHER}-0-00001.parquet", "data", NOON - timedelta(days=1), "crashed_writer"),
        ("backup of march.parquet", "data", None, "unknown"),
        (f"{UUID}-m0.avro", "manifest", NOON - timedelta(days=1), "lost_commit"),
        (f"snap-1-1-{UUID}.avro", "manifest_list", None, "lost_commit"),
        (f"snap-1-1-{OTHER}.avro", "manifest_list", NOON + timedelta(days=1), "lost_commit"),
        (f"snap-1-1-{OTHER}.avro", "manifest_list", NOON - timedelta(days=1), "unknown"),
        ("mine-m0.avro", "manifest", NOON + timedelta(days=1), "unknown"),
        (f"00012-{OTHER}.metadata.json", "metadata", None, "lost_commit"),
        (f"00009-{OTHER}.metadata.json", "metadata", None, "unknown"),
        ("some.stats", "statistics", None, "unknown"),
    ],
)
def test_the_origin_is_named_if_it_is_known(name: str, kind: str, at: datetime | None, origin: str) -> None:
    assert origin_of(f"file:///t/{name}", kind, at, HISTORY) == origin


def test_versions_are_read_from_both_ways_of_naming_metadata_files() -> None:
    assert version_of(f"s3://b/t/metadata/00042-{UUID}.metadata.json") == 42
    assert version_of("hdfs://nn/t/metadata/v7.gz.metadata.json") == 7
    assert version_of("s3://b/t/metadata/snap-1.avro") is None


_PARTS = st.sampled_from(
    [
        *(
            UUID,
            OTHER.upper(),
            "-m0",
            ".avro",
            "snap-",
            "1-",
            "-deletes",
            "-DELETES",
            ".parquet",
            ".PARQUET",
            ".puffin",
        ),
        *(
            "00012-",
            ".metadata.json",
            ".crc",
            "/.",
            "/",
            "partition-stats-",
            "Partition-Stats-",
            ".stats",
            "x",
            "é",
            "\n",
        ),
    ]
)
_AGES = st.sampled_from([None, *(timedelta(minutes=minutes) for minutes in (-1, 0, 5, 60, 61, 9999))])


@given(st.lists(st.tuples(st.lists(_PARTS, max_size=6).map("".join), _AGES), max_size=12))
def test_many_names_give_the_same_results_as_each_alone(rows: list[tuple[str, timedelta | None]]) -> None:
    paths = [path for path, _ in rows]
    kinds = [kind_by_name(subject(path)) for path in paths]
    assert kinds_by_name(subject_array(pa.array(paths, pa.string()))).to_pylist() == kinds
    times = [None if age is None else NOON + age for _, age in rows]
    origins = [origin_of(subject(path), kind, at, HISTORY) for path, kind, at in zip(paths, kinds, times, strict=True)]
    since = pa.array([None if at is None else microseconds(at) for at in times], pa.int64())
    texts = (pa.array(each, pa.string()) for each in (paths, kinds))
    assert origins_of(*texts, since, HISTORY).to_pylist() == origins
