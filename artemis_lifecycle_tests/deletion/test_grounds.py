from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from artemis_lifecycle.deletion.last_look import NOT_OWNED, Grounds
from artemis_lifecycle.storage.location import DEFAULT_RULES

_FOLDERS = st.lists(
    st.sampled_from(["t", "u", "data", "in", "..", ".", "", "a#b", "metadata", "artemis-receipts"]), max_size=5
)
_NAMES = st.sampled_from(["x", "y.parquet", ".x.crc", "", ".", "..", "a?b", "a#b", "...", "t"])
_PREFIXES = st.sampled_from(["s3://b/", "s3a://b/", "s3://c/", "s3:/", "hdfs://n/", "s3://", "", "relative/"])


@settings(max_examples=500)
@given(st.lists(st.tuples(_PREFIXES, _FOLDERS, _NAMES), min_size=1, max_size=25))
def test_what_is_remembered_of_a_folder_is_what_each_file_is_told(parts: list[tuple[str, list[str], str]]) -> None:
    def grounds() -> Grounds:
        return Grounds(
            ("s3://b/t", "hdfs://n/t"),
            ("s3://b/t/in",),
            ("s3://b/t/data", "hdfs://n/t/u"),
            DEFAULT_RULES,
            ("s3://b/t/metadata/artemis-receipts",),
        )

    paths = [prefix + "/".join([*folders, name]) for prefix, folders, name in parts]
    # The same folders with plain names first, which is what is remembered.
    paths = [*(f"{path.rpartition('/')[0]}/z" for path in paths), *paths]
    remembering = grounds()
    alone = [grounds()._why(path) for path in paths]
    assert [remembering.why(path) for path in paths] == alone
    together = grounds().of(pa.array(paths))
    assert [together.get(row) for row in range(len(paths))] == alone


def test_a_name_that_engines_cut_is_nobodys_in_a_folder_that_is_owned() -> None:
    grounds = Grounds(("s3://b/t",), (), (), DEFAULT_RULES)
    assert grounds.why("s3://b/t/data/x") is None
    assert grounds.why("s3://b/t/data/x?y") == NOT_OWNED
    assert grounds.why("s3://b/t/data/..") == NOT_OWNED
