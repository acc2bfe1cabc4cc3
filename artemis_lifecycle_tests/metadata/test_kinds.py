"""The kinds of files, by the names that writers give."""

from __future__ import annotations

import pytest

from artemis_lifecycle.metadata.types import kind_by_name

UUID = "0f3b5e52-9d6c-4a51-8c39-6f0e7f8d9b10"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (f"00000-1-{UUID}-0-00001.parquet", "data"),
        (f"00000-1-{UUID}-0-00001-deletes.parquet", "position_deletes"),
        (f"00000-1-{UUID}-00001-deletes.puffin", "deletion_vectors"),
        (f"{UUID}-m0.avro", "manifest"),
        ("optimized-m-x-m12.avro", "manifest"),
        (f"snap-8744736658442914487-1-{UUID}.avro", "manifest_list"),
        (f"00003-{UUID}.metadata.json", "metadata"),
        (f"00003-{UUID}.gz.metadata.json", "metadata"),
        ("v3.metadata.json.gz", "metadata"),
        ("version-hint.text", "metadata"),
        (f"20240315_120000-{UUID}.stats", "statistics"),
        (f"8744736658442914487-{UUID}.puffin", "statistics"),
        (f"partition-stats-8744736658442914487-{UUID}.parquet", "partition_statistics"),
        ("rows.avro", "data"),
        ("copied by hand", "data"),
    ],
)
def test_the_kind_is_guessed_by_the_names_that_writers_give(name: str, kind: str) -> None:
    assert kind_by_name(f"s3://bucket/table/data/{name}") == kind
