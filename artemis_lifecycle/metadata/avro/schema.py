"""Avro schemas of Iceberg's files: their structure alone, and the names of fields by `field-id`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from artemis_lifecycle.metadata.unreadable import unreadable


def structure(schema: Any, path: str) -> Any:
    """Return only the structure of a file's schema: no logical types, ids, docs or defaults.

    With it, every value is read as stored, and written back unchanged. Raises UnreadableMetadata.
    """
    try:
        return _bare(schema)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise unreadable(f"The Avro file's schema is broken ({error!r:.80})", path) from error


def _bare(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_bare(option) for option in schema]
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    if isinstance(kind, dict | list):
        return _bare(kind)
    if kind in ("record", "error"):
        fields = [{"name": field["name"], "type": _bare(field["type"])} for field in schema["fields"]]
        return {"type": "record", "name": schema["name"], "fields": fields}
    if kind == "array":
        return {"type": "array", "items": _bare(schema["items"])}
    if kind == "map":
        return {"type": "map", "values": _bare(schema["values"])}
    if kind == "fixed":
        size = schema["size"]
        if type(size) is not int or not 0 <= size < 2**31:
            raise ValueError(f"fixed of size {size!r:.30}")
        return {"type": "fixed", "name": schema["name"], "size": size}
    if kind == "enum":
        return {"type": "enum", "name": schema["name"], "symbols": schema["symbols"]}
    return kind


def field_names(
    schema: Any, by_id: Mapping[int, str], required: frozenset[str], path: str, aliases: Mapping[str, str] = {}
) -> Mapping[str, str]:
    """Map this project's name of each known field of the record `schema` to its name in the file.

    A field is identified by its id, or by its name if a writer omitted ids; `aliases` are other names for such fields.
    Raises UnreadableMetadata if `schema` is not a record, or lacks a required field.
    """
    record = _record_type(schema)
    if record is None:
        raise unreadable("The Avro file's schema is not a record", path)
    known = set(by_id.values())
    names: dict[str, str] = {}
    for field in _fields(record):
        stored = field["name"]
        field_id = field.get("field-id")
        name = by_id.get(field_id) if isinstance(field_id, int) else aliases.get(stored, stored)
        if name in known and name is not None:
            names[name] = stored
    if not required <= names.keys():
        raise unreadable(f"The Avro file's schema lacks {', '.join(sorted(required - names.keys()))}", path)
    return names


def field_type(schema: Any, name: str, path: str) -> Any:
    for field in _fields(_record_type(schema)):
        if field["name"] == name:
            return field.get("type")
    raise unreadable(f"The Avro file's schema lacks {name}", path)


def record_names(schema: Any, name: str) -> tuple[str, ...]:
    """Return the names of the fields of the record in field `name` of a record, in order; none if it has no such."""
    return tuple(field["name"] for field in record_fields(schema, name))


def record_fields(schema: Any, name: str) -> list[Mapping[str, Any]]:
    """Return the fields of the record in field `name` of a record, with their annotations; none if it has no such."""
    types = [field.get("type") for field in _fields(_record_type(schema)) if field["name"] == name]
    return _fields(_record_type(types[0] if types else None))


def _record_type(schema: Any) -> Mapping[str, Any] | None:
    if isinstance(schema, list):
        return next(filter(None, map(_record_type, schema)), None)
    if isinstance(schema, dict):
        if schema.get("type") == "record":
            return schema
        if isinstance(schema.get("type"), dict | list):
            return _record_type(schema["type"])
    return None


def _fields(record: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    fields = (record or {}).get("fields")
    if not isinstance(fields, list):
        return []
    return [field for field in fields if isinstance(field, dict) and isinstance(field.get("name"), str)]
