"""The cold catalog is read-only in the database: a trigger on the catalog's rows, which only a handoff passes, in the
transaction in which its publication is recorded.

It stands where the cold catalog's rows stand, in schema `artemis_cold`: `catalogs` names what is guarded,
`publications` has a row for every commit of a handoff. A row of `publications` opens the way for its own transaction
and its own location alone. It guards the owner of the database against accidents, not against malice: whoever may
drop a trigger may drop this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection, Engine, func, select, text

from artemis_lifecycle.catalogs.cold import publish
from artemis_lifecycle.catalogs.entry import CatalogEntry
from artemis_lifecycle.catalogs.identifier import parse
from artemis_lifecycle.operations.locks import lock_key
from artemis_lifecycle.operations.roles import ANALYST, INGEST, LIFECYCLE, role_statements

VERSION = 2
"""Of the statements below; a catalog that is guarded by an older one is brought up to them."""

_CATALOG_ROWS = "ON TABLE iceberg_tables, iceberg_namespace_properties"
_GRANTS = {
    # Who writes tables writes rows of the live catalog; those of the cold one the triggers keep.
    INGEST: (f"SELECT, INSERT, UPDATE, DELETE {_CATALOG_ROWS}",),
    LIFECYCLE: (
        f"SELECT, INSERT, UPDATE, DELETE {_CATALOG_ROWS}",
        "USAGE ON SCHEMA artemis_cold",
        "SELECT ON TABLE artemis_cold.catalogs",
        "SELECT, INSERT ON TABLE artemis_cold.publications",
    ),
    ANALYST: (f"SELECT {_CATALOG_ROWS}",),
}
_STATEMENTS = (
    "CREATE SCHEMA IF NOT EXISTS artemis_cold",
    "CREATE TABLE IF NOT EXISTS artemis_cold.catalogs "
    "(catalog_name TEXT PRIMARY KEY, live_catalog TEXT NOT NULL, version INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS artemis_cold.publications (publication_id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY "
    "KEY, catalog_name TEXT NOT NULL, table_identifier TEXT NOT NULL, plan_id TEXT NOT NULL, expected_location TEXT, "
    "new_location TEXT NOT NULL, published_by TEXT NOT NULL DEFAULT session_user, "
    "published_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(), transaction XID8 NOT NULL DEFAULT "
    "pg_current_xact_id())",
    "CREATE INDEX IF NOT EXISTS publications_of_a_transaction ON artemis_cold.publications (transaction)",
    # As their owner: who is refused need not have a right to read why.
    """
    CREATE OR REPLACE FUNCTION artemis_cold.refuse(refused TEXT, what TEXT) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = artemis_cold, pg_temp AS $$
    BEGIN
        RAISE EXCEPTION USING
            ERRCODE = 'insufficient_privilege',
            MESSAGE = 'catalog ' || refused || ' is the cold tier, which only a handoff writes to: ' || what
                || ' is refused',
            HINT = 'write to catalog ' || (SELECT live_catalog FROM catalogs WHERE catalog_name = refused);
    END $$
    """,
    """
    CREATE OR REPLACE FUNCTION artemis_cold.guard_tables() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = artemis_cold, pg_temp AS $$
    BEGIN
        IF TG_OP <> 'INSERT' AND EXISTS (SELECT FROM catalogs WHERE catalog_name = OLD.catalog_name)
           AND (TG_OP = 'DELETE' OR (OLD.catalog_name, OLD.table_namespace, OLD.table_name)
                IS DISTINCT FROM (NEW.catalog_name, NEW.table_namespace, NEW.table_name)) THEN
            PERFORM refuse(OLD.catalog_name, CASE TG_OP WHEN 'DELETE' THEN 'dropping' ELSE 'renaming' END
                || ' table ' || OLD.table_namespace || '.' || OLD.table_name);
        END IF;
        IF TG_OP <> 'DELETE' AND EXISTS (SELECT FROM catalogs WHERE catalog_name = NEW.catalog_name)
           AND NOT EXISTS (
               SELECT FROM publications AS p
               WHERE p.transaction = pg_current_xact_id() AND p.catalog_name = NEW.catalog_name
                 AND p.table_identifier = NEW.table_namespace || '.' || NEW.table_name
                 AND p.new_location = NEW.metadata_location
           ) THEN
            PERFORM refuse(NEW.catalog_name, 'a commit to table ' || NEW.table_namespace || '.' || NEW.table_name);
        END IF;
        RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
    END $$
    """,
    """
    CREATE OR REPLACE FUNCTION artemis_cold.guard_namespaces() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = artemis_cold, pg_temp AS $$
    BEGIN
        IF TG_OP <> 'INSERT' AND EXISTS (SELECT FROM catalogs WHERE catalog_name = OLD.catalog_name) THEN
            PERFORM refuse(OLD.catalog_name, 'a change of namespace ' || OLD.namespace);
        END IF;
        IF TG_OP <> 'DELETE' AND EXISTS (SELECT FROM catalogs WHERE catalog_name = NEW.catalog_name)
           AND NOT EXISTS (
               SELECT FROM publications AS p
               WHERE p.transaction = pg_current_xact_id() AND p.catalog_name = NEW.catalog_name
                 AND starts_with(p.table_identifier, NEW.namespace || '.')
           ) THEN
            PERFORM refuse(NEW.catalog_name, 'a change of namespace ' || NEW.namespace);
        END IF;
        RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
    END $$
    """,
    """
    CREATE OR REPLACE FUNCTION artemis_cold.guard_all() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = artemis_cold, pg_temp AS $$
    BEGIN
        PERFORM refuse((SELECT min(catalog_name) FROM catalogs), 'emptying ' || TG_TABLE_NAME);
        RETURN NULL;
    END $$
    """,
    "CREATE OR REPLACE TRIGGER artemis_cold BEFORE INSERT OR UPDATE OR DELETE ON iceberg_tables "
    "FOR EACH ROW EXECUTE FUNCTION artemis_cold.guard_tables()",
    "CREATE OR REPLACE TRIGGER artemis_cold BEFORE INSERT OR UPDATE OR DELETE ON iceberg_namespace_properties "
    "FOR EACH ROW EXECUTE FUNCTION artemis_cold.guard_namespaces()",
    "CREATE OR REPLACE TRIGGER artemis_cold_all BEFORE TRUNCATE ON iceberg_tables "
    "FOR EACH STATEMENT EXECUTE FUNCTION artemis_cold.guard_all()",
    "CREATE OR REPLACE TRIGGER artemis_cold_all BEFORE TRUNCATE ON iceberg_namespace_properties "
    "FOR EACH STATEMENT EXECUTE FUNCTION artemis_cold.guard_all()",
    *role_statements(_GRANTS),
)


@dataclass(frozen=True)
class GuardState:
    """How the guard of one cold catalog stands. `in_use`: the catalog has rows, or had a handoff."""

    in_use: bool
    problems: tuple[str, ...] = ()

    @property
    def condition(self) -> Literal["present", "missing"]:
        """Whether every trigger is there and fires."""
        return "missing" if self.problems else "present"

    def __str__(self) -> str:
        return "; ".join(self.problems) or "present"


def guard_state(connection: Connection, catalog: str) -> GuardState:
    """How the guard of `catalog` stands, as of now. Changes nothing."""
    named = {"catalog": catalog}
    rows = text("SELECT to_regclass('iceberg_tables') IS NOT NULL")
    used = text("SELECT EXISTS (SELECT FROM iceberg_tables WHERE catalog_name = :catalog)")
    if not connection.execute(rows).scalar_one() or not connection.execute(used, named).scalar_one():
        return GuardState(in_use=False)
    firing = set(
        connection.execute(
            text(
                "SELECT tgrelid::regclass::text || ': ' || tgname FROM pg_trigger WHERE tgenabled IN ('O', 'A') AND "
                "tgrelid IN (to_regclass('iceberg_tables'), to_regclass('iceberg_namespace_properties'))"
            )
        ).scalars()
    )
    wanted = [
        f"{table}: {trigger}"
        for table in ("iceberg_tables", "iceberg_namespace_properties")
        for trigger in ("artemis_cold", "artemis_cold_all")
    ]
    problems = [f"trigger {each} is missing or disabled" for each in wanted if each not in firing]
    return GuardState(in_use=True, problems=tuple(problems))


def ensure_guard(engine: Engine, catalog: str, live_catalog: str) -> None:
    """Have the rows of `catalog` refuse everybody but handoffs; errors name `live_catalog` as the place to write to.

    `engine` is of the database that has the catalog's rows, whose tables must be there. Where the guard stands already
    nothing is written, and no right to make one is needed.
    """
    known = text("SELECT version FROM artemis_cold.catalogs WHERE catalog_name = :catalog AND live_catalog = :live")
    names = {"catalog": catalog, "live": live_catalog}
    with engine.connect() as connection:
        there = connection.execute(text("SELECT to_regclass('artemis_cold.catalogs') IS NOT NULL")).scalar_one()
        if there and (connection.execute(known, names).scalar_one_or_none() or 0) >= VERSION:
            return
    with engine.begin() as connection:
        connection.execute(select(func.pg_advisory_xact_lock(lock_key("artemis-cold-guard"))))
        for statement in _STATEMENTS:
            connection.exec_driver_sql(statement)
        connection.execute(
            text(
                "INSERT INTO artemis_cold.catalogs VALUES (:catalog, :live, :version) ON CONFLICT (catalog_name) "
                "DO UPDATE SET live_catalog = excluded.live_catalog, version = excluded.version"
            ),
            {**names, "version": VERSION},
        )


def lift_guard(connection: Connection, catalog: str) -> None:
    """Let everybody write to `catalog` again: for who takes a whole cold tier down. No-op where no guard stands."""
    if connection.execute(text("SELECT to_regclass('artemis_cold.catalogs') IS NOT NULL")).scalar_one():
        connection.execute(
            text("DELETE FROM artemis_cold.catalogs WHERE catalog_name = :catalog"), {"catalog": catalog}
        )


def publish_guarded(
    connection: Connection,
    catalog: str,
    table: str,
    *,
    plan_id: str,
    expected_location: str | None,
    new_location: str,
) -> CatalogEntry:
    """As `publish`, past the guard: the publication is recorded in the same transaction, and stands or falls with it.

    Raises what `publish` raises.
    """
    # As the triggers put the columns of a row together.
    as_row = ".".join(parse(table).row)
    connection.execute(
        text(
            "INSERT INTO artemis_cold.publications (catalog_name, table_identifier, plan_id, expected_location, "
            "new_location) VALUES (:catalog, :table, :plan, :expected, :new)"
        ),
        {"catalog": catalog, "table": as_row, "plan": plan_id, "expected": expected_location, "new": new_location},
    )
    return publish(connection, catalog, table, expected_location=expected_location, new_location=new_location)
