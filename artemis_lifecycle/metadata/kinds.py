"""The kinds of files in a table's metadata, in the spelling of all reports and stored frames."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

Kind = Literal[
    "data",
    "position_deletes",
    "equality_deletes",
    "deletion_vectors",
    "manifest",
    "manifest_list",
    "metadata",
    "statistics",
    "partition_statistics",
    "index",
    "changelog",
]

DATA: Final = "data"
POSITION_DELETES: Final = "position_deletes"
EQUALITY_DELETES: Final = "equality_deletes"
DELETION_VECTORS: Final = "deletion_vectors"
MANIFEST: Final = "manifest"
MANIFEST_LIST: Final = "manifest_list"
METADATA: Final = "metadata"
STATISTICS: Final = "statistics"
PARTITION_STATISTICS: Final = "partition_statistics"
INDEX: Final = "index"
"""An index file of a Paimon table that holds no deletion vectors."""
CHANGELOG: Final = "changelog"
"""A changelog file of a Paimon table."""

CONTENT_KINDS: Final[frozenset[str]] = frozenset({DATA, POSITION_DELETES, EQUALITY_DELETES, DELETION_VECTORS})
"""The kinds in manifest entries."""


NAMED_BY_SNAPSHOT: Final[Mapping[str, Kind]] = {
    "statistics": STATISTICS,
    "partition-statistics": PARTITION_STATISTICS,
}
"""Files that the table's metadata has for a snapshot in addition to its manifest list: the field's name, and their
kind."""

_MANIFEST_NAME = re.compile(r".*-m\d+\.avro", re.IGNORECASE)
_NO_PLAIN_DATA = r"(?i)(-deletes\.parquet|(\A|/)partition-stats-[^/]*)\z"


def kind_of(content: int, file_format: str) -> Kind:
    """Return the kind of a manifest entry's file, from its `content` (0, 1, 2) and `file_format` in any case.

    A position delete in a Puffin file is a deletion vector (format/spec.md, "Deletion Vectors"). Raises ValueError for
    a content that no format version up to 3 has.
    """
    if content == 0:
        return DATA
    if content == 1:
        return DELETION_VECTORS if file_format.lower() == "puffin" else POSITION_DELETES
    if content == 2:
        return EQUALITY_DELETES
    raise ValueError(f"content {content} is not 0 (data), 1 (position deletes) or 2 (equality deletes)")


def kind_by_name(path: str) -> Kind:
    """Return the kind that the file's name suggests; `data` if nothing else fits."""
    name = path.rpartition("/")[2].lower()
    if name.endswith((".metadata.json", ".metadata.json.gz")) or name == "version-hint.text":
        return METADATA
    if name.endswith(".avro") and name.startswith("snap-"):
        return MANIFEST_LIST
    if _MANIFEST_NAME.fullmatch(name):
        return MANIFEST
    if name.endswith(".puffin"):
        return DELETION_VECTORS if name.endswith("-deletes.puffin") else STATISTICS
    if name.endswith(".stats"):
        return STATISTICS
    if name.startswith("partition-stats-"):
        return PARTITION_STATISTICS
    stem = name.rpartition(".")[0]
    return POSITION_DELETES if stem.endswith("-deletes") else DATA


def kinds_by_name(paths: pa.Array) -> pa.Array:
    """`kind_by_name` for each path of an Arrow array. Most are plain data files."""
    plain = pc.and_not(pc.ends_with(paths, ".parquet"), pc.match_substring_regex(paths, _NO_PLAIN_DATA))
    if pc.all(plain).as_py() is not False:
        return pa.repeat(DATA, len(paths))
    rows = zip(plain.to_pylist(), paths.to_pylist(), strict=True)
    return pa.array([DATA if known else kind_by_name(path) for known, path in rows], pa.string())
