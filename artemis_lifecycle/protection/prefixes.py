"""Where a writer's declared prefix is. Belongs here: the only interpretation of a heartbeat's `prefix`, both for
recording it and for protecting by it. Does not belong here: which heartbeats are alive."""

from __future__ import annotations

from artemis_lifecycle.errors import BadInput
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.protection.ownership import spelled_locations
from artemis_lifecycle.storage.location import LocationRules, normalize, overlap, split

_HASHED = "write.object-storage.enabled"


def prefix_locations(prefix: str, metadata: TableMetadata, rules: LocationRules) -> tuple[str, ...]:
    """Return the folders (normal form) that a prefix protects: the prefix, or, if it is relative, that folder in each
    location of the table. The result is empty if the prefix does not say where the table's files go; then the whole
    table must be protected.

    That is the case for a folder that touches no location of the table (a typo, a former location), for one with `.` or
    `..`, and where Iceberg puts a hash between the location and the rest of a path.
    """
    segments = prefix.split("/")
    if not prefix.strip("/") or "." in segments or ".." in segments or _is_hashed(metadata):
        return ()
    own = [normalize(location, rules) for location in spelled_locations(metadata)]
    if split(prefix).scheme or prefix.startswith("/"):
        place = normalize(prefix.rstrip("/"), rules)
        return (place,) if any(overlap(place, location, rules) for location in own) else ()
    return tuple(dict.fromkeys(normalize(f"{location.rstrip('/')}/{prefix.strip('/')}", rules) for location in own))


def require_prefix(prefix: str, metadata: TableMetadata, table: str, rules: LocationRules) -> None:
    """Raise BadInput with the table's locations for a prefix that is in none of them, because it is probably a typo."""
    if prefix_locations(prefix, metadata, rules) or (prefix.strip("/") and _is_hashed(metadata)):
        return
    raise BadInput(
        f"The prefix {prefix!r} is in no location of the table ({', '.join(spelled_locations(metadata))})",
        table=table,
        untouched="everything: no heartbeat was begun",
        hint="use a folder in one of them, or one relative to them; or omit the prefix, which protects the whole table",
    )


def _is_hashed(metadata: TableMetadata) -> bool:
    return metadata.properties.get(_HASHED, "").lower() == "true"
