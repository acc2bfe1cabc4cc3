"""What a catalog says about a table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A table as its catalog names it: the pointer that every reader and every commit starts from."""

    catalog: str
    namespace: str
    table: str
    metadata_location: str
    previous_metadata_location: str | None = None

    @property
    def identifier(self) -> str:
        """`namespace.table`, the key of the table's partition."""
        return f"{self.namespace}.{self.table}"


def split_identifier(table: str) -> tuple[str, str]:
    """`a.b.t` as namespace `a.b` and table `t`. Raises ValueError for a name without a namespace, or an empty part."""
    namespace, _, name = table.rpartition(".")
    if not name or not all(namespace.split(".")):
        raise ValueError(f"{table!r} is no table identifier: write namespace.table")
    return namespace, name
