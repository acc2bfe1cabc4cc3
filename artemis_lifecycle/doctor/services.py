"""Checks of what the configuration names: catalogs, the operations database, roles, the cold guard, stores, clocks.

They read. Only `probed_store`, and `clocks` of stores, write one probe file per root, which they remove. No schema is
made or changed, and no catalog taken.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.deployments import of_other, require_deployment
from artemis_lifecycle.catalogs.gate.installation import gate_state
from artemis_lifecycle.catalogs.guard import guard_state
from artemis_lifecycle.catalogs.identifier import parse_in
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.catalogs.rest import require_provable
from artemis_lifecycle.catalogs.settings import catalog_conf, require_uri
from artemis_lifecycle.catalogs.sql import is_v0
from artemis_lifecycle.commits.gate import status_of
from artemis_lifecycle.config.deployment import Catalog
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.config.names import fits
from artemis_lifecycle.embedded.jars import java_version, needed, require_java, require_user_name, resolve
from artemis_lifecycle.errors import ConfigError, LifecycleError
from artemis_lifecycle.fleet.fleet import unread_readers
from artemis_lifecycle.operations.database import NOT_MADE, Clock, connected, read_deployment, schema_state
from artemis_lifecycle.operations.roles import ANALYST, APPROVER, INGEST, LIFECYCLE
from artemis_lifecycle.session.progress import Progress
from artemis_lifecycle.session.resources import Folder, Resources, require_agreement
from artemis_lifecycle.spark.executors import local_cores, require_executors
from artemis_lifecycle.spark.session import open_session, session_conf
from artemis_lifecycle.storage.local.store import local_path
from artemis_lifecycle.storage.location import normalize
from artemis_lifecycle.storage.stores import Stores, StoreSettings, is_local

# --- results ----------------------------------------------------------------------------------------------------------
# What a check returns, and how an error becomes one.

Status = Literal["ok", "warning", "failed", "skipped"]


@dataclass(frozen=True)
class Check:
    """One thing that was checked: what was found, and how to fix it where it is wrong."""

    name: str
    status: Status
    detail: str
    fix: str = ""


def checked(name: str, check: Callable[[], Check]) -> Check:
    """The result of `check`; its error as one, so that no check keeps the others from being made."""
    try:
        return check()
    except LifecycleError as error:
        where = f" [{error.path}]" if error.path else ""
        return Check(name, "failed", f"{error.what.rstrip('.')}{where}", error.hint or "")
    except DBAPIError as error:
        return Check(name, "failed", str(error.orig).partition("\n")[0], "check the rights of the role")
    except Exception as error:
        # What it says may repeat what it was given.
        return Check(name, "failed", type(error).__name__, "run the step that needs it, which says more")


# --- machine ----------------------------------------------------------------------------------------------------------
# Checks of this machine: Java, the executors' Python, free space, versions of libraries.

_LOCK = Path(__file__).parents[2] / "requirements.lock"
_GIB = 2**30
_FREE = 5 * _GIB
"""Below it a warning, below a fifth of it an error: a compaction or a handoff of one table writes that much."""


def java() -> Check:
    """A Java that Spark runs on."""
    found, user = require_java(), require_user_name()
    return Check("java", "ok", f"{java_version(found)} ({found}), as user {user}")


def compiled_loops() -> Check:
    """Whether the machine code of the loops over metadata is kept, which otherwise each process compiles."""
    from artemis_lifecycle.metadata.avro.scan_kernels import walk_records

    if walk_records.stats.cache_path is None:
        fix = "make one of them writable, or name a folder with what `make setup` compiled in NUMBA_CACHE_DIR"
        places = f"neither {Path(walk_records.py_func.__code__.co_filename).parent} nor the user's cache can be written"
        return Check("compiled loops", "warning", f"{places}: each process compiles them, for seconds", fix)
    return Check("compiled loops", "ok", f"kept in {walk_records.stats.cache_path}")


def versions() -> Check:
    """The installed libraries against what the package requires, and against requirements.lock where that is there."""
    try:
        required = [Requirement(each) for each in requires("artemis-lifecycle") or ()]
    except PackageNotFoundError:
        return Check("versions", "skipped", "artemis-lifecycle is not installed as a package")
    wrong, other = [], []
    for each in required:
        if each.marker is not None and not each.marker.evaluate({"extra": ""}):
            continue
        found = _installed(each.name)
        if found is None or not each.specifier.contains(found, prereleases=True):
            wrong.append(f"{each.name} {found or 'is missing'}, required: {str(each.specifier) or 'any'}")
    for name, pinned in _locked().items():
        found = _installed(name)
        if found is not None and found != pinned:
            other.append(f"{name} {found}, locked: {pinned}")
    if wrong:
        return Check("versions", "failed", "; ".join(wrong), "pip install artemis-lifecycle again, or `make setup`")
    if other:
        return Check("versions", "warning", "; ".join(other), "`make setup` installs what requirements.lock names")
    locked = ", and as locked" if _LOCK.exists() else ""
    return Check("versions", "ok", f"{len(required)} libraries as required{locked}")


def free_space(config: LifecycleConfig) -> Check:
    """Room on each disk that the configuration writes to."""
    local = [Path(local_path(root)) for root in config.roots().values() if root is not None and is_local(root)]
    least: dict[int, tuple[int, Path]] = {}
    for place in (config.home, Path(tempfile.gettempdir()), *local):
        existing = next(each for each in (place, *place.parents) if each.exists())
        least[existing.stat().st_dev] = (shutil.disk_usage(existing).free, existing)
    summary = "; ".join(f"{existing}: {free / _GIB:.1f} GiB" for free, existing in least.values())
    smallest = min(free for free, _ in least.values())
    if smallest >= _FREE:
        return Check("free space", "ok", summary)
    status: Status = "failed" if smallest < _FREE // 5 else "warning"
    return Check("free space", status, summary, f"free {_FREE // _GIB} GiB on each, or move home and warehouses")


def executors(config: LifecycleConfig) -> Check:
    """The Python of Spark's workers. Starts a session on a cluster: only its executors know."""
    if local_cores(config.spark.master) is not None:
        python = config.spark.python or sys.executable
        if shutil.which(python) is None:
            return Check("executors' Python", "failed", f"there is no {python}", "set or unset spark.python")
        return Check("executors' Python", "ok", f"{python}, of local master {config.spark.master}")
    session = open_session(session_conf(config, {}, resolve(config.home, needed(config))))
    try:
        found = require_executors(session)
    finally:
        session.stop()
    if not found:
        return Check("executors' Python", "warning", "no executor was free to answer", "see the cluster's own pages")
    summary = "; ".join(f"{each.host}: {each.version} ({each.executable})" for each in found)
    return Check("executors' Python", "ok", summary)


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _locked() -> dict[str, str]:
    """The versions that requirements.lock names for this Python and system."""
    text = _LOCK.read_text() if _LOCK.exists() else ""
    lines = (Requirement(line) for line in re.findall(r"(?m)^([A-Za-z0-9][^\n\\]*==[^\n\\]*)", text))
    return {
        each.name: str(each.specifier).removeprefix("==")
        for each in lines
        if each.marker is None or each.marker.evaluate()
    }


PROBE = ".artemis-doctor-"
"""How the name of a probe begins: hidden, so that nothing takes one that a kill left behind for a table's file."""

_ATTEMPTS = 2
"""A person waits for the answer: a store that fails twice counts as failed."""


def catalog(tier: str, of: Catalog) -> Check:
    """The catalog answers to pyiceberg, its settings are valid for Spark, and its rows can be read."""
    name = f"catalogs.{tier}"
    catalog_conf(of)
    if of.type != "sql":
        with CatalogReader(of) as reader:
            return Check(name, "ok", f"{of.type}, {len(reader.namespaces())} namespaces")
    with connected(require_uri(of)) as engine, engine.connect() as connection:
        version = connection.execute(text("SHOW server_version")).scalar_one()
        if not connection.execute(text("SELECT to_regclass('iceberg_tables') IS NOT NULL")).scalar_one():
            may = connection.execute(text("SELECT has_schema_privilege(current_schema(), 'CREATE')")).scalar_one()
            if may:
                return Check(name, "ok", f"Postgres {version}; its tables are made by the first step that writes")
            return Check(name, "failed", f"Postgres {version}; no tables, and this login may not make them", _INIT)
        login = connection.execute(text("SELECT session_user")).scalar_one()
        lacking = [
            right
            for right in ("SELECT", "INSERT", "UPDATE", "DELETE")
            if not connection.execute(_HAS_RIGHT, {"right": right}).scalar_one()
        ]
        grant = (
            f"their owner says: GRANT {', '.join(lacking)} ON iceberg_tables, iceberg_namespace_properties TO {login}"
        )
        if "SELECT" in lacking:
            return Check(name, "failed", f"Postgres {version}; login {login} may not read the catalog's tables", grant)
        old = "; schema version V0, which is read as it is" if is_v0(connection) else ""
        count = connection.execute(
            text("SELECT count(*) FROM iceberg_tables WHERE catalog_name = :name"), {"name": of.name}
        ).scalar_one()
    if tier == "live" and not count:
        fix = f"if it should have some, check catalogs.live.uri and catalogs.live.name ({of.name})"
        return Check(name, "warning", f"Postgres {version}, no table", fix)
    if lacking:
        return Check(name, "warning", f"Postgres {version}, {count} tables{old}; login {login} can only look", grant)
    return Check(name, "ok", f"Postgres {version}, {count} tables{old}")


_INIT = "run as a login that may: artemis init"
_HAS_RIGHT = text(
    "SELECT bool_and(has_table_privilege(to_regclass(name), :right)) FROM unnest(ARRAY['iceberg_tables', "
    "'iceberg_namespace_properties']) AS name WHERE to_regclass(name) IS NOT NULL"
)


def operations(uri: str) -> Check:
    """The operations database answers, with the schema of this version."""
    with connected(uri) as engine:
        found, known, newest = schema_state(engine)
        with engine.connect() as connection:
            may = connection.execute(text("SELECT has_database_privilege(current_database(), 'CREATE')")).scalar_one()
    if found is None and not may:
        return Check("operations", "warning", "no schema lifecycle yet, and this login may not make it", _INIT)
    if found is None:
        return Check("operations", "ok", "answers; its schema is made by the first step that writes")
    if not known:
        do = "use the version of artemis-lifecycle that made it, or a newer one"
        return Check("operations", "failed", f"schema revision {found} is of another version", do)
    if found != newest:
        do = "the next start by its owner brings it up to date; back it up before"
        return Check("operations", "warning", f"schema revision {found}, and this version has {newest}", do)
    return Check("operations", "ok", f"schema revision {found}")


def entries(config: LifecycleConfig) -> Iterator[Check]:
    """Every entry of `tables` matches a table, and no table has two that match it equally well."""
    with Lifecycle(Resources(config, restores_guard=False)) as lifecycle:
        tables, errors = lifecycle.answering_tables()
    names = [config.catalogs.live.name, config.catalogs.cold.name, *config.catalogs.others]
    for table in tables:
        if len(config.matching(table)) > 1:
            try:
                config.entry(table)
            except ConfigError as error:
                yield Check("tables", "failed", f"{table}: {error.what}", error.hint or "")
    idle = [entry for entry in config.tables if not any(entry in config.matching(table) for table in tables)]
    idle = [entry for entry in idle if not errors or ":" not in entry]
    for entry in idle:
        if any(fits(table, entry) for table in tables):
            yield Check("tables", "ok", f"{entry} matches only tables that a more exact entry governs")
            continue
        near = near_tables(entry, tables, names)
        said = f"; near: {', '.join(near)}" if near else ""
        do = f"write {near[0]}" if near else "remove it, or correct the name: artemis tables lists them"
        yield Check("tables", "warning", f"entry {entry!r} of lifecycle.yaml matches no table{said}", do)
    if not idle:
        yield Check("tables", "ok", f"{len(config.tables)} entries, each with a table")


def near_tables(entry: str, tables: Sequence[str], catalogs: Sequence[str]) -> list[str]:
    """Return tables that the entry may mean: but for case, blanks, a catalog's name before it, or a slip of the pen."""
    plain = {"".join(table.replace("`", "").casefold().split()): table for table in tables}
    meant = "".join(entry.replace("`", "").casefold().split())
    texts = [meant, *(meant.removeprefix(f"{name.casefold()}.") for name in catalogs)]
    same = [table for text, table in plain.items() if any(fits(text, each) for each in texts)]
    return same[:3] or [plain[each] for each in get_close_matches(meant, plain, 3, 0.8)]


def roles(uri: str) -> Check:
    """The four group roles exist, and this login may work with the operations schema."""
    with connected(uri) as engine, engine.connect() as connection:
        login = connection.execute(text("SELECT session_user")).scalar_one()
        query = text("SELECT rolname FROM pg_roles WHERE rolname = ANY(:names)")
        names = [LIFECYCLE, APPROVER, INGEST, ANALYST]
        existing = set(connection.execute(query, {"names": names}).scalars())
        rights = text("SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = 'lifecycle'")
        may = connection.execute(rights).scalar_one_or_none()
    if may is False:
        do = f"GRANT {LIFECYCLE} TO {login} (docs/roles.md)"
        return Check("roles", "failed", f"login {login} may not use schema lifecycle", do)
    lacking = [each for each in names if each not in existing]
    if lacking and may is not None:
        do = "create the roles before the schema is made, or grant them by hand (docs/roles.md)"
        return Check("roles", "warning", f"no {', '.join(lacking)}: every login has all rights or none", do)
    return Check("roles", "ok", f"login {login}; {', '.join(sorted(existing)) or 'roles are made at first use'}")


def deployment(name: str, config: LifecycleConfig, catalog: str) -> Check:
    """A live catalog, or one in `catalogs.others`, belongs to this deployment, or to none yet."""
    assert config.operations.uri is not None and config.operations.root is not None
    other, live = config.catalogs.others.get(catalog), config.catalogs.named_as(catalog)
    with ExitStack() as stack:
        engine = stack.enter_context(connected(config.operations.uri))
        is_made = schema_state(engine)[0] is not None
        ours = read_deployment(engine, normalize(config.operations.root)) if is_made else NOT_MADE
        if other is None:
            records = stack.enter_context(CatalogReader(live)).deployments(_stores(live))
            if live.sole_deployment is not None and not records.newest():
                who, why = live.sole_deployment.who, live.sole_deployment.why
                said = f"no record; {who} says that no other deployment works on the catalog: {why}"
                return Check(name, "warning", said, "make sure that this is still so")
        else:
            records = of_other(_stores(live), catalog, other)
        require_deployment(records, catalog, ours, who="doctor", record=False)
        if not is_made:
            return Check(name, "ok", "no operations schema yet: the catalog is taken at first use")
        Progress(_stores(live), ours, engine).require(recall=False)
        return Check(name, "ok", "ours" if records.newest() else "free: the first use takes it")


def over_rest(config: LifecycleConfig, of: Catalog) -> list[Check]:
    """What works through a REST catalog, and which tables' expirations will be refused."""
    name, refused = "expirations over REST", dict[str, str]()
    with CatalogReader(of, prefix=config.catalogs.prefix(of)) as catalog:
        client, tables = catalog.rest_client(), catalog.tables()
        lacking = [each for each in _ENDPOINTS if each not in client.endpoints] if client.endpoints else []
        for table in tables[:_ASKED]:
            try:
                require_provable(client.load(parse_in(table, of.name)), config.policy(table).deletion.grace, table)
            except LifecycleError as error:
                refused[table] = f"{error.what} ({error.hint})"
    works = "expirations, tags, restores to a branch and compaction work; sort orders stay"
    found = [Check("commits over REST", "ok", works)]
    if lacking:
        do = "use a server that has them, or expire where the catalog runs"
        found = [Check("commits over REST", "failed", f"the server lacks: {', '.join(lacking)}", do)]
    asked = f"{len(tables[:_ASKED]):,} of {len(tables):,} tables"
    if not refused:
        return [*found, Check(name, "ok", f"none will be refused, of {asked}")]
    some = "; ".join(f"{table}: {why}" for table, why in list(refused.items())[:3])
    said = f"refused for {len(refused):,}, of {asked}: {some}"
    return [*found, Check(name, "warning", said, "change these tables, or leave them out of lifecycle.yaml")]


_ASKED = 200
"""Tables that are loaded: a person waits for the answer."""
_ENDPOINTS = tuple(f"{method} /v1/{{prefix}}/namespaces/{{namespace}}/tables/{{table}}" for method in ("GET", "POST"))


def guard(cold: Catalog) -> Check:
    """The cold catalog refuses writes."""
    with connected(require_uri(cold)) as engine, engine.connect() as connection:
        state = guard_state(connection, cold.name)
    if not state.in_use:
        return Check("cold guard", "ok", "nothing to guard before the first handoff")
    if state.condition == "present":
        return Check("cold guard", "ok", "triggers refuse every writer but the handoff")
    do = f"have a login with {LIFECYCLE} and the tables' owner's rights open it; see who removed it"
    return Check("cold guard", "failed", str(state), do)


def gate(config: LifecycleConfig) -> Check:
    """The lineage gate refuses commits without lineage, with the rules of lifecycle.yaml."""
    live = config.catalogs.live
    with connected(require_uri(live)) as engine, engine.connect() as connection:
        status = status_of(config, gate_state(connection, live.name))
    if status.enabled is False:
        return Check("lineage gate", "ok", "not enabled: commits are watched, and not refused")
    if status.problems:
        do = "artemis gate enable, by the owner of iceberg_tables; see who changed it"
        return Check("lineage gate", "failed", "; ".join(status.problems), do)
    return Check("lineage gate", "ok", f"refuses commits without lineage to: {', '.join(status.rejecting) or 'none'}")


def overwrites(config: LifecycleConfig) -> Iterator[Check]:
    """Where overwrites are for a few, deletes are, too. No row where they are for everybody."""
    policies = {"defaults": config.defaults, **{entry: config.policy(entry) for entry in config.tables}}
    restricted = {
        name: policy.lineage.overwrite
        for name, policy in policies.items()
        if policy.lineage.overwrite.writers or policy.lineage.overwrite.operators
    }
    opened = [name for name, overwrite in restricted.items() if overwrite.leaves_deletes_open]
    if opened:
        found = f"any writer can overwrite by delete and append, as pyiceberg does: {', '.join(opened)}"
        do = "add delete to lineage.overwrite.operations there, or leave it out: delete is in its default"
        yield Check("overwrites", "warning", found, do)
    elif restricted:
        said = "overwrite and delete (the default where lineage.overwrite lists writers or operators)"
        yield Check("overwrites", "ok", f"only by who is listed, {said}: {', '.join(restricted)}")


def readers(config: LifecycleConfig, of: Catalog) -> list[Check]:
    """Tables that cannot be read, and folders with the log of another table format; nothing if there are none."""
    with CatalogReader(of, prefix=config.catalogs.prefix(of)) as catalog:
        found = unread_readers(config, catalog, _stores(of))
    place = f"catalogs.{found.catalog}"
    do = f"repair or drop them; or, if they read no other table's files, set under {place}: {found.lines}"
    apart = "keep each format in a folder of its own"
    unread = [Check("readers", "failed", each, do) for each in found.tables]
    return unread + [Check("other formats", "warning", each, apart) for each in found.folders]


def store(key: str, root: str, of: Catalog) -> Check:
    """A root can be listed; on a disk, the rights to write there are known, too."""
    tried = "not tried: writing and deleting (artemis doctor --write-probe)"
    if not is_local(root):
        next(iter(_stores(of).list(root)), None)
        return Check(key, "ok", f"{root}: lists; {tried}")
    place = Path(local_path(root))
    existing = next(each for each in (place, *place.parents) if each.exists())
    if not existing.is_dir():
        return Check(key, "failed", f"{root}: {existing} is not a folder", f"move it, or set {key} to another folder")
    if not os.access(existing, os.R_OK | os.W_OK | os.X_OK):
        do = f"let this account read, write and search {existing}"
        return Check(key, "failed", f"{root}: this account may not read and write {existing}", do)
    made = "" if existing == place else "; made by the first step that writes"
    return Check(key, "ok", f"{root}: this account may read, write and delete there{made}; {tried}")


def probed_store(key: str, root: str, of: Catalog) -> Check:
    """A root can be written, read, and cleared again."""
    stores, probe, content = _stores(of), f"{root}/{PROBE}{uuid.uuid4().hex}", b"artemis doctor"
    stores.write(probe, content, storage_class="STANDARD")
    try:
        read = stores.read(probe)
    finally:
        left = [each for each in stores.delete([probe]) if each.outcome == "failed"]
    if read != content:
        return Check(key, "failed", f"{root}: what was written reads back as something else", "see the store")
    if left:
        do = "allow deletes there (on S3: s3:DeleteObject) if anything is to be deleted, and remove the probe"
        return Check(key, "warning", f"{root}: reads and writes, but {probe} cannot be deleted", do)
    return Check(key, "ok", f"{root}: writes, reads, deletes")


def clocks(config: LifecycleConfig, roots: Sequence[tuple[str, Catalog]]) -> Check:
    """Postgres, this host and every store of `roots` agree on the time."""
    assert config.operations.uri is not None
    folders = {folder.clock: folder for folder in (Folder(root, _stores(of)) for root, of in roots)}
    with connected(config.operations.uri) as engine:
        require_agreement(Clock(engine).now, folders.values(), config.clocks.max_difference)
    if not folders:
        return Check("clocks", "ok", "this host and Postgres agree; not tried: stores (artemis doctor --write-probe)")
    return Check("clocks", "ok", f"this host, Postgres and {len(folders)} stores agree")


def _stores(of: Catalog) -> Stores:
    return Stores(replace(StoreSettings.from_catalog(of), attempts=_ATTEMPTS))
