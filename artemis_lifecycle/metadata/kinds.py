"""The kinds of files in a table's metadata, in the spelling of all reports and stored frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

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
