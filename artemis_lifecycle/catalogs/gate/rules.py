"""The gate's rules: the entries of `tables` in lifecycle.yaml, in an order in which the first match wins."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import sqlalchemy as sa

from artemis_lifecycle.catalogs.gate.statements import SCHEMA
from artemis_lifecycle.catalogs.identifier import NAMESPACE, Identifier
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.config.names import regular_expression, spelled
from artemis_lifecycle.contracts import LineageRequirements
from artemis_lifecycle.contracts.requirements import rejected
from artemis_lifecycle.operations.roles import INGEST, refusing

Mode = Literal["reject", "report", "none"]


@dataclass(frozen=True)
class Rule:
    """What `entry` of lifecycle.yaml says of commits to tables whose identifier is `pattern` (`exact`), or matches it
    as a whole as a regular expression of Postgres. `requirements` is the JSON object of LineageRequirements. Mode
    `none`: the tables are not governed."""

    entry: str
    pattern: str
    exact: bool
    mode: Mode
    requirements: str


def rules_of(config: LifecycleConfig) -> tuple[Rule, ...]:
    """Return the rules of lifecycle.yaml: the first one that matches a table is that of `LifecycleConfig.entry`."""
    return tuple(_rules(config))


def _rules(config: LifecycleConfig) -> Iterator[Rule]:
    yield Rule(
        f"{NAMESPACE}.*",
        rf"{NAMESPACE}\..*",
        False,
        "none",
        _json(LineageRequirements.from_config(config.defaults.lineage)),
    )
    # As LifecycleConfig.entry: an exact key first, then the pattern that leaves least to its wildcards.
    keys = sorted(config.tables, key=lambda key: (len(key.replace("*", "")), key), reverse=True)
    for key in keys:
        yield _rule(config, key, spelled(key), exact=True)
    for key in keys:
        if "*" in key:
            yield _rule(config, key, regular_expression(key), exact=False)


def _rule(config: LifecycleConfig, key: str, pattern: str, *, exact: bool) -> Rule:
    lineage = config.policy(key).lineage
    return Rule(key, pattern, exact, lineage.mode, _json(LineageRequirements.from_config(lineage)))


def _json(requirements: LineageRequirements) -> str:
    # In the form in which the database returns it, so that both can be compared.
    return json.dumps(json.loads(requirements.as_json()), ensure_ascii=False, sort_keys=True)


def governed_mode(config: LifecycleConfig, table: str) -> Mode:
    """Return what applies to a commit to `table`; `none` if no entry of lifecycle.yaml governs it."""
    if table.startswith(f"{NAMESPACE}.") or config.entry(table) is None:
        return "none"
    return config.policy(table).lineage.mode


# --- passes -----------------------------------------------------------------------------------------------------------
# What a Python client of a gated catalog asks of the gate in its database.

# Without a right to the schema, its functions are still listed.
_INSTALLED = sa.text(
    "SELECT EXISTS (SELECT FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace "
    "WHERE n.nspname = :schema AND p.proname = 'request_pass')"
)
_REQUEST = sa.text(
    f"SELECT {SCHEMA}.request_pass(CAST(:catalog AS TEXT), CAST(:namespace AS TEXT), CAST(:name AS TEXT), "
    "CAST(:base AS TEXT), CAST(:location AS TEXT), CAST(:summaries AS JSONB))"
)
_MODE = sa.text(f"SELECT {SCHEMA}.mode_of(CAST(:catalog AS TEXT), CAST(:namespace AS TEXT), CAST(:name AS TEXT))")


@dataclass(frozen=True)
class GatedRow:
    """A table's row in a SQL catalog. `namespace` is as in the row: its levels are joined with dots."""

    catalog: str
    namespace: str
    name: str


def is_installed(connection: sa.Connection) -> bool:
    """Return True if the database has a gate, for whatever catalogs."""
    return bool(connection.execute(_INSTALLED, {"schema": SCHEMA}).scalar_one())


def mode_of(connection: sa.Connection, row: GatedRow) -> str:
    """Return `reject`, `report`, or `none` for a table that the gate does not govern. Needs an installed gate."""
    return str(connection.execute(_MODE, vars(row)).scalar_one())


def request_pass(
    connection: sa.Connection,
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
    engine: sa.Engine, row: GatedRow, summaries: Sequence[Mapping[str, str]], *, base: str | None, location: str
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
