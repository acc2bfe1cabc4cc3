"""Work for operators: taking over a catalog, and deleting old records."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Literal

from sqlalchemy import Engine, text

from artemis_lifecycle.catalogs.deployments import DeploymentRecord, DeploymentRecords, places_of
from artemis_lifecycle.catalogs.deployments import take_over as record_take_over
from artemis_lifecycle.catalogs.guard import ensure_guard, is_guarded
from artemis_lifecycle.catalogs.settings import require_uri, without_secrets
from artemis_lifecycle.catalogs.sql import ensure_tables, has_tables
from artemis_lifecycle.commits.gate import Gate
from artemis_lifecycle.config.deployment import Catalog, OtherCatalog
from artemis_lifecycle.deletion.records import Forgotten, forget, has_root_alone
from artemis_lifecycle.expiration.plan import trim_plan
from artemis_lifecycle.operations.database import connected
from artemis_lifecycle.operations.decisions import paused
from artemis_lifecycle.operations.roles import ANALYST, APPROVER, INGEST, LIFECYCLE
from artemis_lifecycle.operations.tables import require_said
from artemis_lifecycle.session.progress import observed
from artemis_lifecycle.session.resources import Resources

State = Literal["there", "made", "to make", "left out"]


@dataclass(frozen=True)
class Part:
    """Something that the product has in a database: where, what, which right making it needs, and its state."""

    where: str
    what: str
    needs: str
    state: State


def prepare(resources: Resources, *, dry_run: bool) -> list[Part]:
    """See `Lifecycle.prepare`."""
    catalogs, operations, found = resources.config.catalogs, resources.unchecked_operations, list[Part]()
    live, cold = catalogs.live, catalogs.cold

    def part(
        tier: Catalog | OtherCatalog | None, what: str, needs: str, has: Callable[[], bool], make: Callable[[], object]
    ) -> None:
        of = resources.config.operations if tier is None else tier
        there = has()
        if not there and not dry_run:
            make()
        where = without_secrets(of.uri) if of.uri else str((tier or live).warehouse)
        made: State = "to make" if dry_run else "made" if has() else "left out"
        found.append(Part(where, what, needs, "there" if there else made))

    with ExitStack() as stack:
        schema = "schema lifecycle: plans, holds, leases, decisions and records; triggers on its own tables"
        part(None, schema, "CREATE ON DATABASE", lambda: operations.exists, operations.make)
        part(None, f"roles {', '.join(_ROLES)}", "CREATEROLE", partial(_has_roles, operations.engine), lambda: None)
        sql = {
            tier.name: stack.enter_context(connected(require_uri(tier)))
            for tier in (*catalogs.iceberg, cold)
            if tier.type == "sql"
        }
        for tier in (each for each in (*catalogs.iceberg, cold) if each.name in sql):
            what = f"{tier.name}: iceberg_tables with iceberg_type, and iceberg_namespace_properties"
            ready = partial(has_tables, sql[tier.name]), partial(ensure_tables, sql[tier.name], upgrade=True)
            part(tier, what, "CREATE ON SCHEMA, or to own them", *ready)
        recorded: list[tuple[str, Catalog | OtherCatalog]] = [(each.name, each) for each in catalogs.iceberg]
        for name, each in (*recorded, *catalogs.others.items()):
            there = partial(_is_recorded, resources.records_of(name))
            what = f"{name}: the record of its deployment (of a SQL catalog in schema artemis_live, and a property)"
            claim = partial(resources.require_deployment, resources.prefix_of(name))
            part(each, what, "CREATE ON DATABASE", there, claim)
        if cold.name in sql:
            what = f"{cold.name}: schema artemis_cold; triggers artemis_cold and artemis_cold_all on its two tables"
            guard = (
                partial(is_guarded, sql[cold.name], cold.name),
                partial(ensure_guard, sql[cold.name], cold.name, live.name),
            )
            part(cold, what, "CREATE ON DATABASE, and to own the tables", *guard)
    return found


def _is_recorded(records: DeploymentRecords) -> bool:
    return all(each.newest() for each in places_of(records))


_ROLES = (LIFECYCLE, APPROVER, INGEST, ANALYST)


def _has_roles(engine: Engine) -> bool:
    query = text("SELECT count(*) FROM pg_roles WHERE rolname = ANY(:names)")
    with engine.connect() as connection:
        return bool(connection.execute(query, {"names": list(_ROLES)}).scalar_one() == len(_ROLES))


def take_over(resources: Resources, *, who: str, why: str) -> list[DeploymentRecord]:
    """See `Lifecycle.take_over`."""
    names = (*resources.catalogs.names, *resources.config.catalogs.others)
    require_said(f"catalog {names[0]}", who=who, why=why)
    # This accepts a database that was restored to an earlier time.
    anew, found = resources.progress().accept(), list[DeploymentRecord]()
    for name in names:
        records = resources.records_of(name)
        taken = record_take_over(records, resources.deployment, who=who, why=why, anew=anew)
        # A REST catalog without properties of namespaces has a record on each table.
        for table in () if taken else resources.catalogs.reader(name).tables():
            records = resources.records_of(name, table, destructive=True)
            if records.newest():
                taken += record_take_over(records, resources.deployment, who=who, why=why, anew=anew)
        found += taken
        # What an operations database has forgotten of its own attempts lies on top of no pointer.
        resources.unchecked_operations.known_tables.looked(name)
        # Another deployment may be taking it over at the same time.
        resources.require_deployment(resources.prefix_of(name))
    return found


def forget_records(resources: Resources, gate: Gate, *, dry_run: bool) -> Forgotten:
    """See `Lifecycle.forget_records`."""
    # Reports are judged by the times of their store.
    resources.require_clocks()
    now, keep = resources.operations.clock.now(), resources.config.records

    def require_no_pause() -> None:
        for pause in resources.operations.pauses.in_force():
            if pause.table_uuid is None:
                raise paused("all tables", str(pause))

    done = forget(
        resources.live_stores,
        resources.operations,
        resources.root,
        observed=observed(resources.root, resources.deployment.operations_id),
        records_before=now - keep.keep,
        listings_before=now - keep.listings,
        trim=partial(trim_plan, resources.live_stores, resources.operations),
        dry_run=dry_run,
        check=require_no_pause,
    )
    old_sets = _forget_live_sets(resources, now - keep.live_sets, require_no_pause, dry_run=dry_run)
    in_catalog = gate.forget_attempts(now - keep.keep, dry_run=dry_run)
    return replace(done, counts={**done.counts, "catalog_gate_attempts": in_catalog, "live_sets": old_sets})


def _forget_live_sets(resources: Resources, before: datetime, check: Callable[[], None], *, dry_run: bool) -> int:
    """Delete old live-contents sets, and merged metadata files that no table of a catalog has as its last one. Return
    how many sets."""
    operations, stores = resources.operations, resources.live_stores
    old = operations.live_sets.old(before)
    for live_set_id in () if dry_run else old:
        check()
        operations.live_sets.delete(live_set_id)
    names = resources.config.catalogs.others
    used = {known.metadata_location for name in names for known in operations.known_tables.of_catalog(name)}
    merged = [
        file.path
        for file in (stores.list(f"{resources.root}/live-sets") if has_root_alone(stores, resources.root) else ())
        if file.last_modified is not None and file.last_modified < before and file.path not in used
    ]
    if merged and not dry_run:
        check()
        stores.delete(merged)
    return len(old)
