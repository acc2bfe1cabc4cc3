"""What holds a file: the snapshots that reach it, and the refs on them."""

from __future__ import annotations

from dataclasses import dataclass

from artemis_lifecycle.reachability.index import IndexView
from artemis_lifecycle.reachability.index.lookups import holders
from artemis_lifecycle.storage.location import normalize


@dataclass(frozen=True)
class Holder:
    """A snapshot that reaches the file, with the refs on it; or, without an id, the metadata file that references
    it."""

    snapshot_id: int | None
    refs: tuple[str, ...] = ()
    what: str | None = None

    def __str__(self) -> str:
        if self.snapshot_id is None:
            return self.what or "the table's metadata"
        return f"snapshot {self.snapshot_id}" + (f" ({', '.join(self.refs)})" if self.refs else "")


def holders_of(view: IndexView, location: str) -> tuple[Holder, ...]:
    """Return every snapshot of the view's metadata that reaches the file at `location`, in the order of the history."""
    metadata, rules = view.metadata, view.index.rules
    own = [metadata.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)]
    if location in {normalize(path, rules) for path in own}:
        return (Holder(None, what="the table's metadata log"),)
    refs: dict[int, list[str]] = {}
    for name, ref in sorted(metadata.refs.items()):
        refs.setdefault(ref.snapshot_id, []).append(f"{ref.type} {name}")
    return tuple(Holder(snapshot_id, tuple(refs.get(snapshot_id, ()))) for snapshot_id in holders(view, location))
