"""What a catalog with a commit log has: named references, commits, and the contents that keys have at a commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

TABLE = "ICEBERG_TABLE"
VIEW = "ICEBERG_VIEW"


@dataclass(frozen=True, slots=True)
class Reference:
    """A named reference: a branch or a tag of a Nessie catalog, or one table of a catalog without references. `head` is
    the commit to which it points."""

    name: str
    kind: Literal["branch", "tag", "table"]
    head: str


@dataclass(frozen=True, slots=True)
class Content:
    """What a key has at a commit. `content_id` stays the same for all versions of one content. `key` has the namespace
    levels and the name. `type` is the catalog's own, e.g. `TABLE` or `VIEW`. `snapshot_id` is None for a table without
    snapshots, and for what is not a table."""

    content_id: str
    key: tuple[str, ...]
    type: str
    metadata_location: str
    snapshot_id: int | None


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit of a log, with the contents that it puts."""

    hash: str
    committed_at: datetime
    puts: tuple[Content, ...]


class ReferenceSource(Protocol):
    """A catalog as mark reads it. Each method raises a LifecycleError if any part cannot be read: an incomplete answer
    would make live files look like orphans."""

    def references(self) -> Sequence[Reference]:
        """Return every named reference, the default one first."""

    def commits(self, head: str) -> Iterator[Commit]:
        """Yield the commit `head` and its ancestors by first parents, newest first."""

    def contents_at(self, commit: str) -> Iterator[Content]:
        """Yield what every key has at a commit; without namespaces, which have no files."""
