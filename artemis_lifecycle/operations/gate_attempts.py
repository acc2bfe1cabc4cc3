"""Commits that the REST gate refused, or, where a table's mode is `report`, recorded and let pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Engine, Index

from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.tables import Filled, Serial, if_given, insert_record, records, table_of
from artemis_lifecycle.operations.texts import storable

_LONGEST = 1024
_MOST_KEYS = 100


@dataclass(frozen=True)
class GateAttempt:
    """One snapshot, or other change of a table, that lacked lineage. `who` is the client as the gate saw it: its
    address and program, no credentials. `summary` has the first keys of the snapshot's summary, and the beginning of
    each value."""

    attempt_id: Serial
    table: str
    who: str
    summary: Mapping[str, str]
    problems: tuple[str, ...]
    refused: bool
    at: Filled


gate_attempts = table_of(
    GateAttempt,
    "gate_attempts",
    Index("gate_attempts_of_table", "table_name", "attempt_id"),
)


class GateAttempts:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def record(
        self, table: str, who: str, summary: Mapping[str, str], problems: tuple[str, ...], *, refused: bool
    ) -> GateAttempt:
        kept = {_stored(key): _stored(value) for key, value in list(summary.items())[:_MOST_KEYS]}
        with around("gate_attempts.record"), self._engine.begin() as connection:
            return insert_record(
                connection,
                GateAttempt,
                table=_stored(table),
                who=_stored(who),
                summary=kept,
                problems=[_stored(each) for each in problems],
                refused=refused,
            )

    def of(self, table: str | None = None, limit: int | None = 100) -> tuple[GateAttempt, ...]:
        """Return attempts on `table`, or on all tables, newest first."""
        newest = (gate_attempts.c.attempt_id.desc(),)
        where = if_given(gate_attempts.c.table_name, table)
        return records(self._engine, GateAttempt, *where, order_by=newest, limit=limit)


def _stored(text: str) -> str:
    return storable(text[:_LONGEST]) or ""
