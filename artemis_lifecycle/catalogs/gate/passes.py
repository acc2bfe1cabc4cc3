"""What a Python client of a gated catalog asks of the gate in its database."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, text

from artemis_lifecycle.catalogs.gate.statements import SCHEMA
from artemis_lifecycle.catalogs.identifier import Identifier
from artemis_lifecycle.contracts.requirements import rejected
from artemis_lifecycle.operations.roles import INGEST, refusing

# Without a right to the schema, its functions are still listed.
_INSTALLED = text(
    "SELECT EXISTS (SELECT FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace "
    "WHERE n.nspname = :schema AND p.proname = 'request_pass')"
)
_REQUEST = text(
    f"SELECT {SCHEMA}.request_pass(CAST(:catalog AS TEXT), CAST(:namespace AS TEXT), CAST(:name AS TEXT), "
    "CAST(:base AS TEXT), CAST(:location AS TEXT), CAST(:summaries AS JSONB))"
)
_MODE = text(f"SELECT {SCHEMA}.mode_of(CAST(:catalog AS TEXT), CAST(:namespace AS TEXT), CAST(:name AS TEXT))")


@dataclass(frozen=True)
class GatedRow:
    """A table's row in a SQL catalog. `namespace` is as in the row: its levels are joined with dots."""

    catalog: str
    namespace: str
    name: str


def is_installed(connection: Connection) -> bool:
    """Return True if the database has a gate, for whatever catalogs."""
    return bool(connection.execute(_INSTALLED, {"schema": SCHEMA}).scalar_one())


def mode_of(connection: Connection, row: GatedRow) -> str:
    """Return `reject`, `report`, or `none` for a table that the gate does not govern. Needs an installed gate."""
    return str(connection.execute(_MODE, vars(row)).scalar_one())


def request_pass(
    connection: Connection,
    row: GatedRow,
    summaries: Sequence[Mapping[str, str]],
    *,
    base: str | None,
    location: str | None,
) -> tuple[str, ...]:
    """Return the problems that make the gate refuse a commit; empty if it may pass. Needs an installed gate.

    `summaries` are those of the new snapshots, each with its `operation`. With a `location`, the pass is granted for
    the swap from `base` (None: no row yet) to it, when the transaction commits. Without, the gate only checks. In both
    cases it records a refusal, which the caller must commit.
    """
    values = {**vars(row), "base": base, "location": location, "summaries": as_json(summaries)}
    return tuple(connection.execute(_REQUEST, values).scalar_one())


def require_pass(
    engine: Engine, row: GatedRow, summaries: Sequence[Mapping[str, str]], *, base: str | None, location: str
) -> None:
    """Request a pass for a swap, in a transaction of its own, so that a refusal is recorded. Does nothing without a
    gate. Raises LineageRejected; Refused for a login that may not request passes."""
    table = str(Identifier.of_row(row.namespace, row.name))
    refused = refusing(
        "This login of Postgres may not request a pass of the lineage gate",
        table=table,
        untouched="the table",
        hint=f"GRANT {INGEST} TO it (docs/roles.md)",
    )
    with refused, engine.begin() as connection:
        if not is_installed(connection):
            return
        problems = request_pass(connection, row, summaries, base=base, location=location)
    if problems:
        raise rejected(problems, table)


def as_json(summaries: Sequence[Mapping[str, str]]) -> str:
    """Return the summaries as a JSON array that Postgres can store.

    It stores neither the character 0 nor half of a surrogate pair. Other characters replace them, about which the rules
    say the same.
    """
    return json.dumps(
        [{_storable(key): _storable(value) for key, value in each.items()} for each in summaries], ensure_ascii=False
    )


def _storable(text: str) -> str:
    return text.replace("\0", "\1").encode("utf-8", "replace").decode()
