"""The order of the checks, and which of them a partial configuration allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import unquote

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from artemis_lifecycle.config.deployment import Catalog
from artemis_lifecycle.config.loading import load_config, load_what_is_right
from artemis_lifecycle.config.model import SECRET, hidden
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.doctor import services
from artemis_lifecycle.doctor.services import Check, checked
from artemis_lifecycle.embedded.addresses import fill
from artemis_lifecycle.errors import ConfigError, LifecycleError
from artemis_lifecycle.storage.local.store import local_path
from artemis_lifecycle.storage.location import LocationRules
from artemis_lifecycle.storage.roots import require_apart
from artemis_lifecycle.storage.stores import is_local


def diagnose(path: Path | None = None, *, write_probe: bool = False) -> tuple[Check, ...]:
    """Check the configuration at `path` (None: as every command finds it) and all that it names; writes nothing. Only
    with `write_probe`, a small file is written into each root and removed again: it shows the store's clock, too.

    The embedded Postgres is started where every other command would start it. What a broken part leaves unknown is
    skipped, and says why. No result has a password or a key in it.
    """
    checks, config = _configuration(path)
    machine = (("java", services.java), ("versions", services.versions), ("compiled loops", services.compiled_loops))
    checks += [checked(*each) for each in machine]
    if config is None:
        return (*checks, Check("all that it names", "skipped", "the configuration cannot be used"))
    for warning in config.warnings():
        checks.append(Check("delays", "warning", warning, "set it above zero in lifecycle.yaml"))
    checks += services.overwrites(config)
    checks.append(checked("free space", partial(services.free_space, config)))
    checks += _of_the_services(config, write_probe)
    checks.append(checked("executors' Python", partial(services.executors, config)))
    secrets = _secrets(config)
    return tuple(_without(secrets, each) for each in checks)


def _configuration(path: Path | None) -> tuple[list[Check], LifecycleConfig | None]:
    """What is wrong with the file, and what can be checked of the rest: with every address where nothing is wrong."""
    config: LifecycleConfig | None = None
    try:
        config = load_config(path)
        filled = fill(config)
    except ConfigError as error:
        wrong = [Check("configuration", "failed", each, error.hint or "") for each in error.problems or (error.what,)]
        return wrong, load_what_is_right(path) if error.problems else config
    except LifecycleError as error:
        return [Check("configuration", "failed", error.what, error.hint or "")], config
    return [Check("configuration", "ok", config.absent or "read, and every address is known")], filled


def _of_the_services(config: LifecycleConfig, write_probe: bool) -> Iterator[Check]:
    live, cold, uri = config.catalogs.live, config.catalogs.cold, config.operations.uri
    found_live, has_tables = uri is not None and config.operations.root is not None, False
    has_rows = {tier: of.type == "sql" and of.uri is not None for tier, of in (("live", live), ("cold", cold))}
    for tier, of in {"live": live, "cold": cold, **config.catalogs.named}.items():
        known = of.uri is not None or of.type != "sql"
        read = _if(known, f"catalogs.{tier}", partial(services.catalog, tier, of), f"catalogs.{tier}.uri")
        has_tables = read.status == "ok" if tier == "live" else has_tables
        found_live = found_live and (read.status in ("ok", "warning") or tier in config.catalogs.named)
        yield read
    for each in config.catalogs.iceberg if found_live and config.operations.root is not None else ():
        yield from _rows("readers", partial(services.readers, of=each), config)
    if config.tables and found_live:
        yield from _rows("tables", services.entries, config)
    yield _if(uri is not None, "operations", partial(services.operations, uri or ""), "operations.uri")
    yield _if(uri is not None, "roles", partial(services.roles, uri or ""), "operations.uri")
    yield _if(has_rows["cold"], "cold guard", partial(services.guard, cold), "catalogs.cold.uri")
    if live.type == "sql":
        yield _if(has_rows["live"], "lineage gate", partial(services.gate, config), "catalogs.live.uri")
    for each in config.catalogs.iceberg:
        known = (each.uri is not None or each.type != "sql") and uri is not None and config.operations.root is not None
        name = "deployment" if each is live else f"deployment of catalog {each.name}"
        yield _if(known, name, partial(services.deployment, name, config, each.name), "an address")
        if each.type == "rest" and (found_live or each is not live):
            yield from _rows("commits over REST", partial(services.over_rest, of=each), config)
    for other in config.catalogs.others if found_live and config.operations.root is not None else ():
        name = f"deployment of catalog {other}"
        yield checked(name, partial(services.deployment, name, config, other))
    yield checked("roots", partial(_apart, config))
    roots: list[tuple[str, Catalog]] = []
    for key, root in config.roots().items():
        of = cold if key == "catalogs.cold.warehouse" else config.catalogs.named_as(key.split(".")[1])
        # Nothing is written into a managed store.
        managed = of.managed and key in config.shared_roots
        check = services.probed_store if write_probe and not managed else services.store
        found = _if(root is not None, key, partial(check, key, root or "", of), key)
        is_absent = root is not None and is_local(root) and not Path(local_path(root)).exists()
        if key == "catalogs.live.warehouse" and has_tables and is_absent:
            do = f"set {key} to the folder above its tables: without, none of their orphans is deleted"
            found = Check(key, "warning", f"{root} does not exist, and the catalog has tables elsewhere", do)
        yield found
        if root is not None and found.status in ("ok", "warning") and not managed:
            roots.append((root, of))
    asked = roots if write_probe else []
    yield _if(uri is not None, "clocks", partial(services.clocks, config, asked), "operations.uri")


def _rows(name: str, check: Callable[[LifecycleConfig], Iterable[Check]], config: LifecycleConfig) -> Iterator[Check]:
    try:
        yield from check(config)
    except LifecycleError as error:
        yield Check(name, "failed", error.what, error.hint or "")
    except DBAPIError as error:
        yield Check(name, "failed", str(error).partition("\n")[0], "check the rights of the role")


def _apart(config: LifecycleConfig) -> Check:
    require_apart(config.roots(), LocationRules.from_config(config.defaults.orphans), config.shared_roots)
    return Check("roots", "ok", "apart, by name and on the disk")


def _if(known: bool, name: str, check: partial[Check], missing: str) -> Check:
    return checked(name, check) if known else Check(name, "skipped", f"{missing} is not known")


def _secrets(config: LifecycleConfig) -> tuple[str, ...]:
    """Whatever of the configuration must not be repeated, in every spelling that a message may have."""
    catalogs = (*config.catalogs.iceberg, config.catalogs.cold)
    found = {
        value
        for settings in (*(of.properties for of in catalogs), config.spark.conf)
        for key, value in settings.items()
        if SECRET.search(key)
    }
    for uri in (*(of.uri for of in catalogs), config.operations.uri, config.reachability.cache):
        try:
            password = None if uri is None else make_url(uri).password
        except ArgumentError:
            continue
        if password:
            found |= {str(password), unquote(str(password))}
    # Longest first: one may be a part of another.
    return tuple(sorted((each for each in found if len(each) > 2), key=len, reverse=True))


def _without(secrets: tuple[str, ...], check: Check) -> Check:
    detail, fix = hidden(check.detail), hidden(check.fix)
    for secret in secrets:
        detail, fix = detail.replace(secret, "***"), fix.replace(secret, "***")
    return replace(check, detail=detail, fix=fix)
