"""The scan takes from any records what fastavro takes from them, whatever stands between, or says that it cannot."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, cast

import fastavro
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from artemis_lifecycle.errors import UnreadableMetadata
from artemis_lifecycle.metadata import manifests
from artemis_lifecycle.metadata.avro.scan import Program, Scan, compile_scan, scan_records
from artemis_lifecycle.metadata.types import UNKNOWN_LENGTH, ManifestListEntry, kind_of
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.metadata.avro_files import Shelf
from artemis_lifecycle_tests.reachability.answers import examples
from artemis_lifecycle_tests.reachability.avro_by_hand import CHUNKS, CODECS, Chosen, Chunks, Schema, container, encode
from artemis_lifecycle_tests.reachability.metadata_tables import Tape

PATH = "s3://b/m.avro"
BIG = 2**40


class Types:
    """Random Avro types, from a tape. Named types are defined once, and used again by name."""

    def __init__(self, tape: Tape, *, recursive: bool = True) -> None:
        self.tape = tape
        self.named: list[Schema] = []
        self.count = 0
        self.recursive = recursive
        self.recursion = False

    def any(self, depth: int = 0) -> Schema:
        options = ["long", "string", "int", "bytes", "boolean", "float", "double", "null", "fixed", "enum", "again"]
        if depth < 3:
            options += ["union", "array", "map", "record", "record", "union"]
        if self.recursive:
            options += ["loop"]
        return self._made(self.tape.of(options), depth)

    def _made(self, kind: str, depth: int) -> Schema:
        tape = self.tape
        if kind == "again":
            return tape.of(self.named)["name"] if self.named else {"type": "long"}
        if kind == "fixed":
            return self._name({"type": "fixed", "size": tape.below(20)})
        if kind == "enum":
            return self._name({"type": "enum", "symbols": ["A", "B", "C"][: 1 + tape.below(3)]})
        if kind == "array":
            return {"type": "array", "items": self.any(depth + 1)}
        if kind == "map":
            return {"type": "map", "values": self.any(depth + 1)}
        if kind == "record":
            return self.record(tape.below(4), depth + 1)
        if kind == "loop":
            self.recursion = True
            loop = self._name({"type": "record", "fields": []})
            loop["fields"] = [{"name": "next", "type": ["null", loop["name"]]}, {"name": "value", "type": "long"}]
            return loop
        if kind == "union":
            found: dict[str, Schema] = {}
            for _ in range(1 + tape.below(4)):
                known = len(self.named)
                branch = self.any(depth + 1)
                if isinstance(branch, list) or _branch(branch) in found:
                    # No union stands in a union, and of the types without names each may be there once. What the
                    # branch has defined goes with it.
                    del self.named[known:]
                else:
                    found[_branch(branch)] = branch
            return list(found.values()) or ["null"]
        return kind

    def record(self, count: int, depth: int) -> Schema:
        # Its name is known behind it only: a type inside itself is the business of `loop`.
        fields = self.fields(count, depth)
        return self._name({"type": "record", "fields": fields})

    def fields(self, count: int, depth: int) -> list[Schema]:
        return [{"name": f"f{number}", "type": self.any(depth)} for number in range(count)]

    def _name(self, schema: Schema) -> Schema:
        self.count += 1
        schema["name"] = f"n{self.count}"
        self.named.append(schema)
        return schema

    def value(self, schema: Schema, depth: int = 0) -> Any:
        tape = self.tape
        if isinstance(schema, list):
            # Down a recursive type only so far.
            nulls = [number for number, branch in enumerate(schema) if branch == "null"]
            number = nulls[0] if nulls and depth > 6 else tape.below(len(schema))
            return Chosen(number, self.value(schema[number], depth + 1))
        if isinstance(schema, str):
            known = next((each for each in self.named if each["name"] == schema), None)
            if known is not None:
                return self.value(known, depth + 1)
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind == "record":
            return {field["name"]: self.value(field["type"], depth + 1) for field in schema["fields"]}
        if kind == "array":
            return [self.value(schema["items"], depth + 1) for _ in range(tape.below(4 if depth < 6 else 1))]
        if kind == "map":
            count = tape.below(3 if depth < 6 else 1)
            return {f"k{number}": self.value(schema["values"], depth + 1) for number in range(count)}
        if kind == "fixed":
            return bytes(schema["size"])
        if kind == "enum":
            return tape.of(schema["symbols"])
        return {
            "null": lambda: None,
            "boolean": lambda: tape.once_in(2),
            "int": lambda: tape.of((0, -1, 63, 64, -65, 2**31 - 1, -(2**31))),
            "long": lambda: tape.of((0, -1, 64, BIG, -BIG, 2**63 - 1, -(2**63) + 1)),
            "float": lambda: 0.5,
            "double": lambda: -2.5,
            "string": lambda: tape.of(("", "a", "ü€𝄞", "x" * 70, "x" * 9_000)),
            "bytes": lambda: tape.of((b"", b"\x00\xff", b"\x80" * 70)),
        }[kind]()


def _branch(schema: Schema) -> str:
    if isinstance(schema, str):
        return schema
    return str(schema.get("name", schema["type"]))


TAKEN = {"int", "long", "string", "bytes"}
ALSO_BYTES = {"fixed", "enum"}
"""What comes out of fastavro as a text or bytes does, and is neither."""


def ways(schema: Schema, named: list[Schema], way: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """Ways through records alone to numbers, texts and what looks like them, with the types that stand there."""
    options = schema if isinstance(schema, list) else [schema]
    options = [next((n for n in named if n["name"] == option), option) for option in options if option != "null"]
    kinds = {option if isinstance(option, str) else option["type"] for option in options}
    if way and kinds & (TAKEN | ALSO_BYTES):
        yield way, kinds
    for option in options:
        if isinstance(option, dict) and option["type"] == "record" and len(way) < 4:
            for field in option["fields"]:
                yield from ways(field["type"], named, (*way, field["name"]))


def plain(value: Any, way: tuple[str, ...]) -> Any:
    """What stands at the end of `way`; None where an optional record on it is not there, or is another."""
    for name in way:
        value = value.get(name) if isinstance(value, dict) else None
    return value


@pytest.mark.seconds
@examples(600)
@given(tape=st.binary(min_size=150, max_size=300))
def test_takes_what_fastavro_takes(tape: bytes) -> None:
    decisions = Tape(tape)
    types = Types(decisions)
    schema = types.record(1 + decisions.below(6), 0)
    chunks: Chunks = decisions.of(CHUNKS)
    records = [types.value(schema) for _ in range(decisions.below(4))]
    encoded = [encode(schema, record, chunks) for record in records]
    data = container(schema, [encoded], codec="null")
    expected = list(fastavro.reader(io.BytesIO(data)))
    wanted: dict[tuple[str, ...], set[str]] = {}
    standing: dict[tuple[str, ...], set[str]] = {}
    for way, kinds in ways(schema, types.named):
        standing.setdefault(way, set()).update(kinds & (TAKEN | ALSO_BYTES))
        if kinds <= TAKEN:
            wanted.setdefault(way, set()).update(kinds)
    chosen = {f"w{number}": way for number, way in enumerate(wanted) if decisions.once_in(2)}
    payload = b"".join(encoded)
    program = compile_scan(schema, chosen)
    mixed = any(len({_column(kind) for kind in standing[way] & TAKEN}) > 1 for way in chosen.values())
    if (types.recursion or mixed) and program is None:
        return
    assert program is not None
    scan = scan_records(program, payload, len(records), PATH)
    for name, way in chosen.items():
        found = [plain(record, way) for record in expected]
        if name in scan.longs:
            taken = np.where(scan.is_set(name), scan.longs[name], 0).tolist()
            assert [(number, one) for number, one in enumerate(taken) if scan.is_set(name)[number]] == [
                # Another record of a union may have a boolean there, which is an int to Python and no number to Avro.
                (number, one)
                for number, one in enumerate(found)
                if type(one) is int
            ]
        else:
            texts = list(_texts(scan, name))
            # Another record of a union may have a fixed or an enum there.
            looks_like_it = bool(standing[way] & ALSO_BYTES)
            pairs = zip(found, texts, strict=True)
            assert [None if text is None and looks_like_it else _bytes(one) for one, text in pairs] == texts
    _refuses_what_does_not_end_there(program, payload, len(records), decisions)


def _column(kind: str) -> str:
    return "number" if kind in ("int", "long") else "text"


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else None


def _texts(scan: Scan, name: str) -> Iterator[bytes | None]:
    for start, size in zip(scan.starts[name].tolist(), scan.sizes[name].tolist(), strict=True):
        yield None if size < 0 else scan.data[start : start + size].tobytes()


def _refuses_what_does_not_end_there(program: Program, payload: bytes, records: int, tape: Tape) -> None:
    with pytest.raises(UnreadableMetadata):
        scan_records(program, payload + b"\x00", records, PATH)
    if payload:
        cut = (tape.below(256) * 256 + tape.below(256)) * len(payload) >> 16
        with pytest.raises(UnreadableMetadata):
            scan_records(program, payload[:cut], records, PATH)


# --- manifests --------------------------------------------------------------------------------------------------------

_STATUSES: tuple[Schema, ...] = ("int", "long", ["null", "int"], ["int", "null"], {"type": "int"})
_CONTENTS: tuple[Schema | None, ...] = ("int", None, ["null", "int"], "long", ["int", "null"])
_TEXTS: tuple[Schema, ...] = ("string", ["null", "string"], ["string", "null"], {"type": "string"})
_SIZES: tuple[Schema, ...] = ("long", "int", ["null", "long"], ["long", "null"])
_FORMATS = ("PARQUET", "puffin", "Puffin", "ORC", "avro")


def _manifest(tape: Tape) -> tuple[bytes, list[tuple[int, int, str, str, int]], bool]:
    """A manifest of odd habits, and what is in it: status, content, path, format and size of each entry; and whether a
    type has itself in it."""
    types = Types(tape, recursive=tape.once_in(4))
    ids = not tape.once_in(3)

    def column(name: str, number: int, schema: Schema) -> Schema:
        return {"name": name, "type": schema, **({"field-id": number} if ids else {})}

    content = tape.of(_CONTENTS)
    file_fields = [
        column("file_path", 100, tape.of(_TEXTS)),
        column("file_format", 101, tape.of(_TEXTS)),
        column("record_count", 103, tape.of(_SIZES)),
        column("file_size_in_bytes", 104, tape.of(_SIZES)),
        *([] if content is None else [column("content", 134, content)]),
    ]
    strange = [{**field, "name": f"x{field['name']}"} for field in types.fields(tape.below(5), 0)]
    # In their order: definitions of types stand in front of their uses.
    places = sorted(tape.below(len(file_fields) + 1) for _ in strange)
    for place, field in reversed(list(zip(places, strange, strict=True))):
        file_fields.insert(place, field)
    record = {"type": "record", "name": "r2", "fields": file_fields}
    status_type = tape.of(_STATUSES)
    entry_fields = [column("status", 0, status_type), column("data_file", 2, record)]
    if tape.once_in(2):
        entry_fields.reverse()
    schema = {"type": "record", "name": "manifest_entry", "fields": entry_fields}
    entries, encoded = [], []
    deletes = content is not None and tape.once_in(2)
    strangers = {field["name"] for field in strange}
    for number in range(tape.below(5)):
        values = {
            "content": 1 + tape.below(2) if deletes else 0,
            "file_path": tape.of(("", "s3://b/ü {n}", "x" * 80)) + str(number),
            "file_format": tape.of(_FORMATS),
            "record_count": number,
            "file_size_in_bytes": tape.of((0, 127, 2**31 - 1)),
        }
        inner = {
            field["name"]: types.value(field["type"])
            if field["name"] in strangers
            else _given(field["type"], values[field["name"]])
            for field in file_fields
        }
        status = tape.below(3)
        outer = {"status": _given(status_type, status), "data_file": inner}
        encoded.append(encode(schema, outer, tape.of(CHUNKS)))
        entries.append(
            (status, values["content"], values["file_path"], values["file_format"], values["file_size_in_bytes"])
        )
    cut = tape.below(len(encoded) + 1)
    data = container(schema, [encoded[:cut], encoded[cut:]], codec=tape.of(CODECS), header={"writer": "odd"})
    return data, cast(Any, entries), types.recursion


def _given(schema: Schema, value: Any) -> Any:
    if isinstance(schema, list):
        return Chosen(next(number for number, branch in enumerate(schema) if branch != "null"), value)
    return value


@pytest.mark.seconds
@examples(600)
@given(tape=st.binary(min_size=150, max_size=300))
def test_manifests_of_any_writer_hold_what_was_written(tape: bytes) -> None:
    data, entries, recursive = _manifest(Tape(tape))
    listed = ManifestListEntry(
        PATH, UNKNOWN_LENGTH, 0, int(any(entry[1] for entry in entries)), 0, 0, None, None, None, None
    )
    shelf = cast(Stores, Shelf({PATH: data}))
    try:
        live = manifests.live_files(shelf, listed)
    except UnreadableMetadata:
        assert recursive
        return
    assert [
        (path, int(size), manifests.ENTRY_KINDS[kind])
        for path, size, kind in zip(live.paths.to_pylist(), live.sizes, live.kinds, strict=True)
    ] == [
        (path, size, kind_of(content, file_format))
        for status, content, path, file_format, size in entries
        if status != 2
    ]
    assert live.counts == tuple(sum(entry[0] == status for entry in entries) for status in range(3))
