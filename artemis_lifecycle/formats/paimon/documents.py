"""The JSON documents of a Paimon table: snapshots, tags, long-lived changelogs, schemas and consumers. Source: Paimon's
Snapshot, Tag, Changelog, TableSchema and Consumer.

A document with a field that is unknown here stops the run: the field may name files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from artemis_lifecycle.metadata.unreadable import unreadable
from artemis_lifecycle.storage.bounded import bounded_json

_VERSION = 3


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


_KNOWN = words(
    "version uuid id schemaId baseManifestList baseManifestListSize deltaManifestList deltaManifestListSize "
    "changelogManifestList changelogManifestListSize indexManifest commitUser writerVersion commitIdentifier "
    "commitKind timeMillis totalRecordCount deltaRecordCount changelogRecordCount watermark statistics properties "
    "nextRowId operation logOffsets tagCreateTime tagTimeRetained"
)

Role = Literal["snapshot", "tag", "changelog"]
"""What keeps a document: it is a snapshot of its branch, a tag's copy of one, or a changelog that outlives its
snapshot."""


@dataclass(frozen=True)
class Document:
    """A snapshot as its file says, in one of three roles. `name` is the tag's; `text` the file's bytes. Names of lists
    and manifests are those of files in the folder `manifest`; sizes are None where an old writer recorded none.

    `created_at` (a local time, as Paimon stores it) and `retained` are those of a tag that has them.
    """

    role: Role
    branch: str
    path: str
    text: bytes
    snapshot_id: int
    schema_id: int
    committed_ms: int
    commit_kind: str
    base: str
    base_size: int | None
    delta: str
    delta_size: int | None
    changelog: str | None
    changelog_size: int | None
    index_manifest: str | None
    statistics: str | None
    records: int | None
    name: str | None = None
    created_at: datetime | None = None
    retained: timedelta | None = None

    @property
    def title(self) -> str:
        """The document for a person."""
        what = f"tag {self.name}" if self.role == "tag" else f"{self.role} {self.snapshot_id}"
        return what if self.branch == MAIN else f"{what} of branch {self.branch}"


MAIN = "main"


@dataclass(frozen=True)
class Schema:
    """One schema file: the table's options at that time, and the types of its partition columns, in order."""

    schema_id: int
    text: str
    created_ms: int
    options: Mapping[str, str]
    partition_keys: tuple[tuple[str, str], ...]


def parse_document(role: Role, branch: str, path: str, text: bytes, name: str | None = None) -> Document:
    """Raises UnreadableMetadata for a file that no supported writer produces."""
    content = _object(path, text)
    unknown = content.keys() - _KNOWN
    if unknown:
        raise unreadable(f"The {role} has fields that this version does not know: {', '.join(sorted(unknown))}", path)
    try:
        version = content.get("version", 1)
        if not isinstance(version, int) or version > _VERSION:
            raise unreadable(f"The {role} has format version {version!r}; versions up to {_VERSION} are known", path)
        created = content.get("tagCreateTime")
        retained = content.get("tagTimeRetained")
        return Document(
            role=role,
            branch=branch,
            path=path,
            text=text,
            snapshot_id=_whole(content["id"]),
            schema_id=_whole(content["schemaId"]),
            committed_ms=_whole(content["timeMillis"]),
            commit_kind=_text(content["commitKind"]),
            base=_file_name(content["baseManifestList"]),
            base_size=_maybe_whole(content.get("baseManifestListSize")),
            delta=_file_name(content["deltaManifestList"]),
            delta_size=_maybe_whole(content.get("deltaManifestListSize")),
            changelog=_maybe_name(content.get("changelogManifestList")),
            changelog_size=_maybe_whole(content.get("changelogManifestListSize")),
            index_manifest=_maybe_name(content.get("indexManifest")),
            statistics=_maybe_name(content.get("statistics")),
            records=_maybe_whole(content.get("totalRecordCount")),
            name=name,
            created_at=None if created is None else _local_time(created),
            retained=None if retained is None else _duration(retained),
        )
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        raise unreadable(f"The {role} cannot be understood: {error!r:.120}", path) from error


def parse_schema(path: str, text: bytes) -> Schema:
    """Raises UnreadableMetadata."""
    content = _object(path, text)
    try:
        types = {field["name"]: field["type"] for field in content["fields"]}
        keys = tuple((name, _text(types[name])) for name in content["partitionKeys"])
        options = {str(key): str(value) for key, value in content["options"].items()}
        return Schema(_whole(content["id"]), text.decode(), _whole(content.get("timeMillis", 0)), options, keys)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise unreadable(f"The schema cannot be understood: {error!r:.120}", path) from error


def next_snapshot(path: str, text: bytes) -> int:
    """Return the first snapshot that a consumer has yet to read. Raises UnreadableMetadata."""
    try:
        return _whole(_object(path, text)["nextSnapshot"])
    except (KeyError, ValueError) as error:
        raise unreadable(f"The consumer cannot be understood: {error!r:.120}", path) from error


def _object(path: str, text: bytes) -> Mapping[str, Any]:
    try:
        content = bounded_json(text, path)
    except ValueError as error:
        raise unreadable(f"The file is not JSON: {error}", path) from error
    if not isinstance(content, dict):
        raise unreadable("The file is not a JSON object", path)
    return content


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _maybe_whole(value: object) -> int | None:
    return None if value is None else _whole(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text")
    return value


def _file_name(value: object) -> str:
    """Return a name in the folder `manifest` or `statistics`; anything else could lead out of the table."""
    name = _text(value)
    if not name or "/" in name or name in (".", ".."):
        raise ValueError(f"{name!r} is not a file's name")
    return name


def _maybe_name(value: object) -> str | None:
    return None if value is None else _file_name(value)


def _local_time(value: object) -> datetime:
    """Jackson writes a LocalDateTime as an array, [2024,1,31,10,20,30,123000000], without trailing zeros."""
    if isinstance(value, str):
        return datetime.fromisoformat(value)
    if not isinstance(value, list) or not 3 <= len(value) <= 7:
        raise ValueError(f"{value!r} is not a local time")
    year, month, day, hour, minute, second, nanos = [*map(_whole, value), 0, 0, 0, 0][:7]
    return datetime(year, month, day, hour, minute, second, nanos // 1000)


_ISO_DURATION = re.compile(r"PT(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?\d+)(?:\.(\d{1,9}))?S)?")


def _duration(value: object) -> timedelta:
    """Jackson writes a Duration as seconds, with a fraction, or as java.time's text: PT36H."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return timedelta(seconds=value)
    match = _ISO_DURATION.fullmatch(_text(value))
    if match is None or match[0] == "PT":
        raise ValueError(f"{value!r} is not a duration")
    hours, minutes, seconds = (int(part or 0) for part in match.groups()[:3])
    fraction = int((match[4] or "").ljust(6, "0")[:6] or 0)
    return timedelta(hours=hours, minutes=minutes, seconds=seconds, microseconds=fraction)
