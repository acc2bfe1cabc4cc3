"""Where a table's files are: its folders, and the folder of a partition's bucket. Source: Paimon's
FileStorePathFactory, InternalRowPartitionComputer, PartitionPathUtils and BinaryRow."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial

from artemis_lifecycle.metadata.unreadable import unreadable

BUCKET = "bucket-"
_POSTPONED = -2
_BLANK = re.compile("[\\t-\\r\\x1c-\\x20\\u1680\\u2000-\\u2006\\u2008-\\u200a\\u2028\\u2029\\u205f\\u3000]*")
"""Java's `Character.isWhitespace`: unlike Python's, without no-break spaces and U+0085."""
_ESCAPED = re.compile("[\\x00-\\x1f\"#%'*/:=?\\\\\\x7f{}\\[\\]^]")
_TYPE = re.compile(
    r"([A-Z_]+(?: [A-Z_]+)*?)(?:\((\d+)(?:, ?(\d+))?\))?((?: WITH(?:OUT)? (?:LOCAL )?TIME ZONE)?)(?: NOT NULL)?"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class UnknownType(Exception):  # noqa: N818  (becomes UnreadableMetadata, with the file's path)
    """A partition value of a type whose text is not known to be the same as Paimon's."""


@dataclass(frozen=True)
class Folders:
    """The folders of the table at `location`; names in them are those of lists, manifests and data files."""

    location: str
    partition_keys: tuple[tuple[str, str], ...]
    options: Mapping[str, str]
    _of_bucket: dict[tuple[bytes, int], str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def in_manifests(self, name: str) -> str:
        return f"{self.location}/manifest/{name}"

    def in_statistics(self, name: str) -> str:
        return f"{self.location}/statistics/{name}"

    @property
    def data(self) -> str:
        """The folder of the partitions' folders."""
        directory = self.options.get("data-file.path-directory", "").strip("/")
        return f"{self.location}/{directory}" if directory else self.location

    def of_index(self, partition: bytes, bucket: int, path: str) -> str:
        """Return the folder of an index file of this partition and bucket; `path` is the manifest that says so."""
        beside = self.options.get("index-file-in-data-file-dir", "false").lower() == "true"
        return self.of_bucket(partition, bucket, path) if beside else f"{self.location}/index"

    def of_bucket(self, partition: bytes, bucket: int, path: str) -> str:
        """Return the folder of a bucket. `partition` is a serialized BinaryRow, `path` the manifest that has it. Raises
        UnreadableMetadata for a partition whose folder is not certain."""
        known = self._of_bucket.get((partition, bucket))
        if known is None:
            parts = self._partition(partition, path)
            known = "/".join((self.data, *parts, f"{BUCKET}{'postpone' if bucket == _POSTPONED else bucket}"))
            self._of_bucket[partition, bucket] = known
        return known

    def _partition(self, partition: bytes, path: str) -> list[str]:
        legacy = self.options.get("partition.legacy-name", "true").lower() == "true"
        default = self.options.get("partition.default-name", "__DEFAULT_PARTITION__")
        try:
            (arity,) = struct.unpack_from(">i", partition)
            if arity != len(self.partition_keys):
                raise UnknownType(f"it has {arity} values, and the table {len(self.partition_keys)} partition columns")
            values = [
                _value(partition[4:], at, arity, kind, legacy) for at, (_, kind) in enumerate(self.partition_keys)
            ]
        except (UnknownType, struct.error, UnicodeDecodeError, OverflowError, IndexError) as error:
            raise unreadable(f"The folder of a partition is not certain: {error}", path) from error
        texts = [default if value is None or _BLANK.fullmatch(value) else value for value in values]
        return [
            f"{_escaped(name)}={_escaped(text)}" for (name, _), text in zip(self.partition_keys, texts, strict=True)
        ]


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", text)


def _value(row: bytes, at: int, arity: int, kind: str, legacy: bool) -> str | None:
    if row[(at + 8) >> 3] >> ((at + 8) & 7) & 1:
        return None
    start = (arity + 63 + 8) // 64 * 8 + 8 * at
    match = _TYPE.fullmatch(kind)
    reading = None if match is None else _READINGS.get(match[1])
    if match is None or reading is None or (match[4] and "WITHOUT" not in match[4]):
        raise UnknownType(f"its text for a column of type {kind} is not known")
    return reading(row, start, [int(size) for size in (match[2], match[3]) if size is not None], legacy)


_Reading = Callable[[bytes, int, Sequence[int], bool], str]


def _number(code: str, row: bytes, start: int, sizes: Sequence[int], legacy: bool) -> str:
    return str(struct.unpack_from(code, row, start)[0])


def _bytes(row: bytes, start: int) -> bytes:
    # Up to seven bytes are in place, with their number in the last byte; longer ones are elsewhere in the row.
    if row[start + 7] & 0x80:
        return row[start : start + (row[start + 7] & 0x7F)]
    size, offset = struct.unpack_from("<ii", row, start)
    if size < 0 or offset < 0 or offset + size > len(row):
        raise UnknownType("it ends before its values do")
    return row[offset : offset + size]


def _date(row: bytes, start: int, sizes: Sequence[int], legacy: bool) -> str:
    (days,) = struct.unpack_from("<i", row, start)
    return str(days) if legacy else (_EPOCH + timedelta(days=days)).date().isoformat()


def _decimal(row: bytes, start: int, sizes: Sequence[int], legacy: bool) -> str:
    precision, scale = (*sizes, *(10, 0)[len(sizes) :])
    if precision <= 18:
        (unscaled,) = struct.unpack_from("<q", row, start)
    else:
        size, offset = struct.unpack_from("<ii", row, start)
        unscaled = int.from_bytes(row[offset : offset + size], "big", signed=True)
    return format(Decimal(unscaled).scaleb(-scale), "f")


def _timestamp(row: bytes, start: int, sizes: Sequence[int], legacy: bool) -> str:
    precision = (*sizes, 6)[0]
    if precision <= 3:
        (milliseconds,), nanos = struct.unpack_from("<q", row, start), 0
    else:
        nanos, offset = struct.unpack_from("<ii", row, start)
        (milliseconds,) = struct.unpack_from("<q", row, offset)
    instant = _EPOCH + timedelta(milliseconds=milliseconds)
    nanos += instant.microsecond * 1000
    if not legacy:
        fraction = f"{nanos:09d}"
        while len(fraction) > precision and fraction.endswith("0"):
            fraction = fraction[:-1]
        return f"{instant.date()} {instant:%H:%M:%S}" + (f".{fraction}" if fraction else "")
    # As LocalDateTime.toString: no seconds if they are zero, and fractions in groups of three digits.
    text = f"{instant.date()}T{instant:%H:%M}"
    if instant.second or nanos:
        text += f":{instant:%S}"
    if nanos:
        digits = f"{nanos:09d}"
        text += f".{digits[:3] if nanos % 1_000_000 == 0 else digits[:6] if nanos % 1000 == 0 else digits}"
    return text


_READINGS: Mapping[str, _Reading] = {
    **dict.fromkeys(("CHAR", "VARCHAR", "STRING"), lambda row, start, *_: _bytes(row, start).decode()),
    "BOOLEAN": lambda row, start, *_: "true" if row[start] else "false",
    "TINYINT": partial(_number, "<b"),
    "SMALLINT": partial(_number, "<h"),
    **dict.fromkeys(("INT", "INTEGER"), partial(_number, "<i")),
    "BIGINT": partial(_number, "<q"),
    "DATE": _date,
    **dict.fromkeys(("DECIMAL", "NUMERIC", "DEC"), _decimal),
    "TIMESTAMP": _timestamp,
}
