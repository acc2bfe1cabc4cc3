"""A Nessie catalog as a source of references, commits and contents.

Commits are read by their hash, not through a reference: a reference that is reassigned in between changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from artemis_lifecycle.catalogs.identifier import dotted
from artemis_lifecycle.catalogs.references import TABLE, VIEW, Commit, Content, Reference
from artemis_lifecycle.errors import Refused
from artemis_lifecycle.nessie.client import NessieClient, at, unexpected

_NAMESPACE = "NAMESPACE"
_PAGE = 250
_KINDS: Mapping[str, Any] = {"BRANCH": "branch", "TAG": "tag"}


class NessieReferences:
    """Implements `catalogs.references.ReferenceSource`.

    Raises OperationsUnavailable and UnreadableMetadata as `NessieClient` does; Refused, with key and type, for a
    content that is neither an Iceberg table nor an Iceberg view: nobody here knows which files it has.
    """

    def __init__(self, client: NessieClient) -> None:
        self._client = client

    def references(self) -> Sequence[Reference]:
        default = self._client.get("config").get("defaultBranch")
        found = [_reference(each) for each in self._client.pages("trees", "references")]
        if default not in {each.name for each in found}:
            # A login that may see only some references gets a shorter list, without a word.
            raise unexpected("trees", f"the default branch {default} is not among the references")
        return sorted(found, key=lambda each: (each.name != default, each.name))

    def commits(self, head: str) -> Iterator[Commit]:
        path = f"{at(head)}/history"
        for entry in self._client.pages(path, "logEntries", fetch="ALL", **{"max-records": _PAGE}):
            yield _commit(entry, path)

    def contents_at(self, commit: str) -> Iterator[Content]:
        path = f"{at(commit)}/entries"
        for entry in self._client.pages(path, "entries", content="true"):
            if entry.get("type") != _NAMESPACE:
                yield _content(entry.get("name"), entry.get("content"), path)


def _reference(found: Mapping[str, Any]) -> Reference:
    try:
        return Reference(str(found["name"]), _KINDS[found["type"]], str(found["hash"]))
    except KeyError as error:
        raise unexpected(
            "trees", f"reference {found.get('name')} lacks {error}, or is neither branch nor tag"
        ) from None


def _commit(entry: Mapping[str, Any], path: str) -> Commit:
    operations = entry.get("operations")
    try:
        meta = entry["commitMeta"]
        committed_at = datetime.fromisoformat(meta["commitTime"])
        if committed_at.tzinfo is None:
            raise ValueError(f"the time {committed_at} has no time zone")
        puts = [each for each in operations or () if each["type"] == "PUT"]
        contents = [
            _content(each["key"], each["content"], path) for each in puts if each["content"]["type"] != _NAMESPACE
        ]
        return Commit(str(meta["hash"]), committed_at, tuple(contents))
    except (KeyError, TypeError, ValueError) as error:
        raise unexpected(path, f"a commit is incomplete: {error!r}") from error


def _content(key: Any, content: Any, path: str) -> Content:
    try:
        elements = tuple(map(str, key["elements"]))
        kind = str(content["type"])
        if kind not in (TABLE, VIEW):
            raise Refused(
                f"Key {dotted(elements)} has a content of type {kind}: which files it needs is unknown",
                path=path,
                untouched="all files",
                hint="remove it from all references, or keep such contents in a catalog of their own",
            )
        snapshot = content.get("snapshotId")
        has_none = kind == VIEW or snapshot is None or snapshot < 0
        return Content(
            str(content["id"]), elements, kind, str(content["metadataLocation"]), None if has_none else int(snapshot)
        )
    except (KeyError, TypeError) as error:
        raise unexpected(path, f"a content is incomplete: {error!r}") from error
