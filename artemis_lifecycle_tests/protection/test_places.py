from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artemis_lifecycle.protection.ownership import subject
from artemis_lifecycle.protection.places import HIDDEN, NOT_OWNED, OTHER_TABLE, OUTSIDE_ROOTS, Places
from artemis_lifecycle.storage.location import DEFAULT_RULES

_FOLDERS = st.lists(
    st.sampled_from(["t", "u", "data", "in", "..", ".", "", "a#b", "metadata", "artemis-receipts"]), max_size=5
)
_NAMES = st.sampled_from(["x", "y.parquet", ".x.crc", "", ".", "..", "a?b", "a#b", "...", "t"])
_PREFIXES = st.sampled_from(["s3://b/", "s3a://b/", "s3://c/", "s3:/", "hdfs://n/", "s3://", "", "relative/"])


@pytest.mark.slow
@settings(max_examples=500)
@given(st.lists(st.tuples(_PREFIXES, _FOLDERS, _NAMES), min_size=1, max_size=25))
def test_what_is_cached_of_a_folder_matches_each_file(parts: list[tuple[str, list[str], str]]) -> None:
    def places() -> Places:
        return Places(
            ("s3://b/t", "hdfs://n/t"),
            ("s3://b/t/in",),
            ("s3://b/t/data", "hdfs://n/t/u"),
            DEFAULT_RULES,
            ("s3://b/t/metadata/artemis-receipts",),
        )

    paths = [prefix + "/".join([*folders, name]) for prefix, folders, name in parts]
    # The same folders with plain names first, which is what is remembered.
    paths = [*(f"{path.rpartition('/')[0]}/z" for path in paths), *paths]
    remembering = places()
    alone = [places()._of_path(subject(path)) for path in paths]
    assert [remembering.why(path) for path in paths] == alone
    together = places().of(pa.array(paths))
    assert [together.get(row) for row in range(len(paths))] == alone


def test_a_name_that_engines_truncate_has_no_owner_in_an_owned_folder() -> None:
    places = Places(("s3://b/t",), (), (), DEFAULT_RULES)
    assert places.why("s3://b/t/data/x") is None
    assert places.why("s3://b/t/data/x?y") == NOT_OWNED
    assert places.why("s3://b/t/data/..") == NOT_OWNED


def test_names_that_start_with_a_dot_or_an_underscore_are_hidden_below_the_tables_own_location() -> None:
    places = Places(("s3://b/_w/.t",), (), (), DEFAULT_RULES, partition_fields=frozenset({"_day", ".h"}))
    for hidden in (
        "_checkpoints/0/offsets/1",
        "data/_temporary/0/part-0.parquet",
        ".hoodie/x.commit",
        "data/.staging/a=1/x.parquet",
        "data/_SUCCESS",
        "data/.x.parquet",
        "data/_day/x.parquet",
        "data/_other=1/x.parquet",
    ):
        assert places.why(f"s3://b/_w/.t/{hidden}") == HIDDEN, hidden
    for plain in ("data/x.parquet", "data/_day=1/x.parquet", "data/.h=2/x.parquet", "metadata/x.avro", "a_b/c.d"):
        assert places.why(f"s3://b/_w/.t/{plain}") is None, plain
    # A checksum file is judged with the file beside it.
    assert places.why("s3://b/_w/.t/data/.x.parquet.crc") is None
    scanned = Places(("s3://b/_w/.t",), (), (), DEFAULT_RULES)
    assert scanned.why("s3://b/_w/.t/_checkpoints/x") is None


def test_orphans_are_collected_below_the_roots_alone() -> None:
    places = Places(("s3://b/t", "s3://c/home"), (), (), DEFAULT_RULES, roots=("s3://b",))
    assert places.why("s3://b/t/x") is None
    assert places.why("s3://c/home/thesis.txt") == OUTSIDE_ROOTS


def test_a_neighbor_behind_a_link_is_a_neighbor(tmp_path: Path) -> None:
    (tmp_path / "real/t/inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    places = Places((f"file://{tmp_path}/real/t",), (f"file://{tmp_path}/link/t/inner",), (), DEFAULT_RULES)
    assert places.why(f"file://{tmp_path}/real/t/inner/x") == OTHER_TABLE
    assert places.why(f"file://{tmp_path}/real/t/x") is None
