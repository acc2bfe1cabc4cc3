"""Schema `lifecycle`. The frozen record of a row declares every column once; the table is derived from it.

    @dataclass(frozen=True)
    class Pause:
        pause_id: Key
        table_uuid: str | None
        since: Filled

    pauses = table_of(Pause, "pauses", Index("pauses_in_force", "table_uuid"))

A field's type determines the column's type. `| None` makes it nullable, and an enum or Literal adds a CHECK of its
values. `Annotated` adds keywords of the column. Field `table` is column `table_name`.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, Insert
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeDecorator

from artemis_lifecycle.errors import BadInput, NoSuchPlan
from artemis_lifecycle.operations.crash_points import around

SCHEMA = "lifecycle"


class Utc(TypeDecorator[datetime]):
    """`timestamptz`, aware and in UTC on both sides."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is not None and value.tzinfo is None:
            raise ValueError(f"{value.isoformat()} has no time zone")
        return value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)


metadata = sa.MetaData(schema=SCHEMA)

# Not now(), which is the transaction's start: a transaction may wait for a lock.
CLOCK = sa.text("clock_timestamp()")

Key = Annotated[str, {"primary_key": True}]
Serial = Annotated[int, {"primary_key": True, "autoincrement": True}]
Count = Annotated[int, {"server_default": sa.text("0")}]
Small = Annotated[int, {"type_": sa.Integer}]
SmallCount = Annotated[Small, {"server_default": sa.text("0")}]
SmallKey = Annotated[Small, {"primary_key": True, "autoincrement": False}]
Filled = Annotated[datetime, {"server_default": CLOCK}]
FilledLater = Annotated[datetime | None, {"nullable": False, "server_default": CLOCK}]
"""Set by the Postgres clock. A `FilledLater` field is None in a record that is not stored yet."""

Record = TypeVar("Record")

_TYPES: dict[Any, Any] = {
    str: sa.Text,
    int: sa.BigInteger,
    bool: sa.Boolean,
    float: sa.Double,
    datetime: Utc,
    date: sa.Date,
    timedelta: sa.Interval,
}
_tables: dict[type, sa.Table] = {}
_selects: dict[type, sa.Select[Any]] = {}


def table_of(record: type, name: str, *more: SchemaItem, **keywords: Any) -> sa.Table:
    """Return the table of a record. `more` has what the record lacks: other columns, indexes, constraints."""
    items: list[SchemaItem] = []
    for field, hint in get_type_hints(record, include_extras=True).items():
        extras: dict[str, Any] = {}
        if get_origin(hint) is Annotated:
            hint, *annotations = get_args(hint)
            for each in annotations:
                extras |= each
        kind, values = _kind(hint), _values(_kind(hint))
        if get_origin(kind) is tuple:
            sql: Any = ARRAY(_TYPES[get_args(kind)[0]])
        elif get_origin(kind) is Mapping:
            sql = JSONB
        else:
            sql = sa.Text if values else _TYPES[kind]
        items.append(sa.Column(_column(field), **{"type_": sql, "nullable": kind is not hint, **extras}))
        if values:
            allowed = ", ".join(f"'{value}'" for value in values)
            items.append(sa.CheckConstraint(f"{field} IN ({allowed})", name=f"{name}_{field}"))
    _tables[record] = sa.Table(name, metadata, *items, *more, **keywords)
    _selects[record] = sa.select(_tables[record])
    return _tables[record]


def to_record(kind: Callable[..., Record], row: sa.Row[Any]) -> Record:
    """Return the record of a row that begins with the table's columns."""
    return kind(*(value if read is None else read(value) for value, read in zip(row, _readers(kind), strict=False)))


def values_of(record: object, *, without: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return the fields of a record as values for `insert` and `update`."""
    names = [each.name for each in fields(record) if each.name not in without]  # type: ignore[arg-type]
    return _row({name: getattr(record, name) for name in names})


def if_given(column: sa.ColumnElement[Any], value: object) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the condition that `column` has `value`; no condition for None."""
    return () if value is None else (column == value,)


class Part:
    """A part of `Operations`: what is asked of some tables, and written there."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine


def rows(engine: sa.Engine, query: sa.Executable) -> Sequence[Any]:
    """Return the rows of a query, in a transaction of its own."""
    with engine.connect() as connection:
        return connection.execute(query).all()


def scalars(engine: sa.Engine, query: sa.Executable) -> Sequence[Any]:
    """Return the first column of `rows`."""
    with engine.connect() as connection:
        return connection.execute(query).scalars().all()


@dataclass(frozen=True)
class Reached:
    """How far rows that are never deleted have come: how many there are, and the instant of the newest."""

    count: int = 0
    at: str = ""


def reached(engine: sa.Engine, instant: sa.Column[Any], until: str = "") -> Reached:
    """Return how far the rows of a table have come, by a column with their instants; with `until`, how far they had
    come then."""
    query = sa.select(sa.func.count(), sa.func.max(instant)).select_from(instant.table)
    [(count, newest)] = rows(engine, query.where(instant <= datetime.fromisoformat(until)) if until else query)
    return Reached(count, newest.astimezone(UTC).isoformat()) if count else Reached()


def grouped(pairs: Iterable[Sequence[Any]]) -> dict[Any, list[Any]]:
    """Return the second of each pair, by the first; an empty list for what is not there."""
    found = defaultdict[Any, list[Any]](list)
    for key, value in pairs:
        found[key].append(value)
    return found


def nested(triples: Iterable[Sequence[Any]]) -> dict[Any, dict[Any, Any]]:
    """Return the third of each triple, by the first and the second; nothing for what is not there."""
    found = defaultdict[Any, dict[Any, Any]](dict)
    for first, second, value in triples:
        found[first][second] = value
    return found


def write(engine: sa.Engine, point: str, statement: sa.Executable) -> int:
    """Execute a statement in a transaction of its own, between the crash points of `point`. Return the number of rows
    that it changed."""
    with around(point), engine.begin() as connection:
        return connection.execute(statement).rowcount


def records(
    source: sa.Engine | sa.Connection,
    kind: type[Record],
    *where: sa.ColumnElement[bool],
    order_by: tuple[sa.ColumnElement[Any] | sa.UnaryExpression[Any], ...] = (),
    limit: int | None = None,
    for_update: bool = False,
) -> tuple[Record, ...]:
    query = _selects[kind].where(*where).order_by(*order_by).limit(limit)
    if for_update:
        query = query.with_for_update()
    with source.connect() if isinstance(source, sa.Engine) else nullcontext(source) as connection:
        return tuple(to_record(kind, row) for row in connection.execute(query))


def one(
    source: sa.Engine | sa.Connection, kind: type[Record], *where: sa.ColumnElement[bool], for_update: bool = False
) -> Record | None:
    """Return the record that matches `where`, or None."""
    return next(iter(records(source, kind, *where, limit=1, for_update=for_update)), None)


def required(found: Record | None, missing: str, hint: str) -> Record:
    """Return a row that must be there. Raises NoSuchPlan, with `missing` and `hint`, if it is not."""
    if found is None:
        raise NoSuchPlan(missing, hint=hint)
    return found


def insert_record(connection: sa.Connection, kind: type[Record], /, **values: object) -> Record:
    statement = sa.insert(_tables[kind]).values(_row(values)).returning(_tables[kind])
    return to_record(kind, connection.execute(statement).one())


def new_values(record: object) -> dict[str, Any]:
    """Return `values_of` a record without those that are None, which its columns fill."""
    return {name: value for name, value in values_of(record).items() if value is not None}


def insert_new(connection: sa.Connection, record: Record) -> Record:
    """Insert a record, and return it with what its columns filled."""
    statement = sa.insert(_tables[type(record)]).values(new_values(record)).returning(_tables[type(record)])
    return to_record(type(record), connection.execute(statement).one())


def update_records(
    connection: sa.Connection, kind: type[Record], /, *where: sa.ColumnElement[bool], **values: object
) -> tuple[Record, ...]:
    """Update the rows that match `where`, and return their new state."""
    statement = sa.update(_tables[kind]).where(*where).values(_row(values)).returning(_tables[kind])
    return tuple(to_record(kind, row) for row in connection.execute(statement))


def update_record(
    connection: sa.Connection, kind: type[Record], /, *where: sa.ColumnElement[bool], **values: object
) -> Record | None:
    """`update_records` for at most one row; None if no row matches `where`."""
    return next(iter(update_records(connection, kind, *where, **values)), None)


@cache
def _readers(kind: Any) -> tuple[Callable[[Any], Any] | None, ...]:
    """Return the functions that convert a column's value to the field's."""
    found: list[Callable[[Any], Any] | None] = []
    for hint in get_type_hints(kind).values():
        plain = _kind(hint)
        read: Callable[[Any], Any] | None = None
        if get_origin(plain) is tuple:
            read = _tuple
        elif get_origin(plain) is Mapping:
            read = MappingProxyType
        elif isinstance(plain, type) and issubclass(plain, StrEnum):
            read = plain
        found.append(read)
    return tuple(found)


def new(table: sa.Table, values: Mapping[str, Any] | Sequence[Mapping[str, Any]] = ()) -> Insert:
    """Return the insertion of rows that are not there yet."""
    return upsert(table).values(values).on_conflict_do_nothing()


def put(
    table: sa.Table,
    values: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    again: Collection[str] = (),
    where: Callable[[Any], sa.ColumnElement[bool]] = lambda given: sa.true(),
    **changed: Any,
) -> Insert:
    """Return the insertion of rows. Of a row that is there, by its primary key, the columns `again` take the new value
    instead, and those in `changed` that one, if `where` is true of what was given."""
    statement = upsert(table).values(values)
    given = statement.excluded
    set_ = {**{name: given[name] for name in again}, **changed}
    return statement.on_conflict_do_update(index_elements=[*table.primary_key], set_=set_, where=where(given))


def put_newest(connection: sa.Connection, table: sa.Table, record: Any, by: str) -> None:
    """Insert the record of a table (`table_uuid`), or replace its former one, unless that has a later value of `by`."""
    values = values_of(record)
    connection.execute(put(table, values, values.keys() - {"table_uuid"}, lambda given: table.c[by] <= given[by]))


def _tuple(value: Any) -> Any:
    return None if value is None else tuple(value)


def _kind(hint: Any) -> Any:
    """Return the type without `| None`."""
    if isinstance(hint, UnionType):
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    return hint


def _values(kind: Any) -> tuple[str, ...]:
    if get_origin(kind) is Literal:
        return get_args(kind)
    return tuple(kind) if isinstance(kind, type) and issubclass(kind, StrEnum) else ()


def _column(field: str) -> str:
    return "table_name" if field == "table" else field


def _row(values: Mapping[str, Any]) -> dict[str, Any]:
    return {_column(field): value for field, value in values.items()}


# Tables whose rows are not read as records: `database.py` and `storage/pace.py` read theirs with their own SQL.
sa.Table(
    "identity",
    metadata,
    sa.Column("operations_id", sa.Text, primary_key=True),
    sa.Column("made_at", Utc, nullable=False, server_default=CLOCK),
    sa.Index("identity_once", sa.text("(true)"), unique=True),
)
# Losing the rows in a crash is harmless: the next request is free at once.
sa.Table(
    "paces",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("ready_at", Utc, nullable=False),
    prefixes=["UNLOGGED"],
)


# --- texts ------------------------------------------------------------------------------------------------------------
# Texts that are stored: what people enter, and errors. Postgres can store neither NUL nor unpaired surrogates, but
# paths may have both.

_INVISIBLE = frozenset("\u115f\u1160\u3164\uffa0")
"""Zero-width letters (Hangul fillers)."""


def storable(text: str | None) -> str | None:
    """Return `text` with escapes for what Postgres cannot store: an error must be stored, whatever it quotes."""
    if text is None:
        return None
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def require_said(table: str, **said: str) -> None:
    """Raise BadInput for texts in `said` without content: they have no visible letter or digit."""
    for name, value in said.items():
        if not any(each.isalnum() and each not in _INVISIBLE for each in unicodedata.normalize("NFKC", value)):
            raise BadInput(
                f"This needs {name.replace('_', ' ')}, and none is given",
                table=table,
                hint="provide it; it is recorded",
            )
