"""The contents of a set: their names, and where their tables have files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from artemis_lifecycle.catalogs.identifier import dotted, parts_of
from artemis_lifecycle.catalogs.references import VIEW
from artemis_lifecycle.live_sets.versions import FilesOfVersions
from artemis_lifecycle.operations.live_sets import LiveContent, LiveVersion
from artemis_lifecycle.storage.location import parent


def contents_of(
    live_set_id: str,
    prefix: str,
    versions: Iterable[LiveVersion],
    default: Mapping[str, str] | None,
    read: FilesOfVersions,
) -> Iterator[LiveContent]:
    """Yield the contents of a set, whose `versions` come content by content.

    `default` has the keys of the default reference's head, by content id: their names are `<prefix><key>`. Others are
    named after a reference that shows them, `<prefix><key>@<reference>`. For each folder with metadata files of a
    content, the first and the last file by name are read. Without `default`, a key is a name.

    Raises UnreadableMetadata.
    """
    used = set() if default is None else set(default.values())
    for content_id, group in groupby(versions, lambda each: each.content_id):
        first: LiveVersion | None = None
        count, folders = 0, dict[str, tuple[str, str]]()
        for version in group:
            first = version if first is None or version.reference < first.reference else first
            count += 1
            place, location = parent(version.metadata_location), version.metadata_location
            folders[place] = (folders.get(place, (location,))[0], location)
        assert first is not None
        name = first.key if default is None else default.get(content_id)
        if name is None:
            name = _unique(at_reference(first.key, first.reference), content_id, used)
        if first.type == VIEW:
            yield LiveContent(live_set_id, content_id, f"{prefix}{name}", VIEW, None, (), count)
            continue
        found = [read(location) for location in dict.fromkeys(each for both in folders.values() for each in both)]
        locations = tuple(dict.fromkeys(each for metadata in found for each in metadata.locations))
        yield LiveContent(live_set_id, content_id, f"{prefix}{name}", first.type, found[0].table_uuid, locations, count)


def at_reference(key: str, reference: str) -> str:
    """Return the name of a key that only `reference` shows."""
    parts: Sequence[str] = parts_of(key, "key", "name it as Nessie does")
    return dotted((*parts[:-1], f"{parts[-1]}@{reference}"))


def _unique(name: str, content_id: str, used: set[str]) -> str:
    """A reference may have had two contents under one key, one after the other."""
    found = name if name not in used else at_reference(name, content_id[:8])
    used.add(found)
    return found
