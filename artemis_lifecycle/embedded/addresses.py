"""Embedded defaults of the addresses that lifecycle.yaml does not set."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import ValidationError

from artemis_lifecycle.config.deployment import Catalog, Catalogs, Operations
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.embedded.postgres import CATALOGS, DAGSTER, EmbeddedPostgres
from artemis_lifecycle.errors import ConfigError

EMBEDDED_VARIABLE = "ARTEMIS_EMBEDDED"
"""`never` forbids the embedded Postgres to every command."""

DAGSTER_VARIABLE = "ARTEMIS_DAGSTER_POSTGRES"
"""The variable from which dagster.yaml reads the address of Dagster's storage."""


def fill(config: LifecycleConfig, *, set_up: bool = False) -> LifecycleConfig:
    """Return `config` with every address. Starts the embedded Postgres if one of them needs it and it is allowed: see
    `embedded_postgres`.

    A missing warehouse is placed under `home`. If the live warehouse is set, the cold one, `operations.root` and
    `quarantine.root` are placed beside it: `<live>-cold`, `<live>-lifecycle` and `<live>-quarantine`. Raises
    ConfigError if there is no such location or locations are nested, and what `embedded_postgres` and `start` raise.
    """
    live, cold, operations = config.catalogs.live, config.catalogs.cold, config.operations
    quarantine = config.quarantine
    home = config.home.resolve()
    # A name has no place beside it. A REST catalog without a warehouse has one that only its server knows.
    beside = None if live.has_named_warehouse or live.managed else live.warehouse
    if live.warehouse is None and live.type != "rest":
        live = live.model_copy(update={"warehouse": _folder(home / "warehouse" / "live")})
    if cold.warehouse is None:
        default = _sibling(beside, "cold") if beside else _folder(home / "warehouse" / "cold")
        cold = cold.model_copy(update={"warehouse": default})
    if operations.root is None:
        default = _sibling(beside, "lifecycle") if beside else _folder(home / "state")
        operations = operations.model_copy(update={"root": default})
    if quarantine.root is None:
        default = _sibling(beside, "quarantine") if beside else _folder(home / "quarantine")
        quarantine = quarantine.model_copy(update={"root": default})

    if needs_embedded(config):
        uri = embedded_postgres(config, set_up=set_up).uri(CATALOGS)
        live, cold = (
            each.model_copy(update={"uri": uri}) if each.type == "sql" and each.uri is None else each
            for each in (live, cold)
        )
        operations = Operations(uri=operations.uri or uri, root=operations.root)
    try:
        # Validated again, not copied: the rules on roots apply to the defaults too.
        sections = {name: getattr(config, name) for name in LifecycleConfig.model_fields}
        filled = {
            "catalogs": Catalogs(live=live, cold=cold, others=config.catalogs.others, named=addressed(config, live)),
            "operations": operations,
            "quarantine": quarantine,
            "home": home,
        }
        return LifecycleConfig.model_validate(sections | filled)
    except ValidationError as error:
        raise ConfigError(
            str(error.errors()[0]["msg"]).removeprefix("Value error, "),
            hint="name the warehouses, operations.root and quarantine.root in lifecycle.yaml, apart from each other",
        ) from error


def addressed(config: LifecycleConfig, live: Catalog) -> dict[str, Catalog]:
    """Return the named catalogs. One in SQL without an address is in the live catalog's database."""
    uri = {"uri": live.uri} if live.type == "sql" else {}
    named = config.catalogs.named.items()
    return {name: each if each.type != "sql" or each.uri else each.model_copy(update=uri) for name, each in named}


def needs_embedded(config: LifecycleConfig) -> bool:
    """Return True if a missing address needs the embedded Postgres."""
    catalogs = (config.catalogs.live, config.catalogs.cold)
    return config.operations.uri is None or any(each.type == "sql" and each.uri is None for each in catalogs)


def embedded_postgres(config: LifecycleConfig, *, set_up: bool = False) -> EmbeddedPostgres:
    """Return the embedded Postgres of `config`, if starting it is allowed.

    Raises ConfigError with `ARTEMIS_EMBEDDED=never`; and, unless `set_up`, if lifecycle.yaml is missing or empty: an
    empty catalog in a wrong folder, or behind a missing mount, looks like one that lost all its tables.
    """
    embedded = os.environ.get(EMBEDDED_VARIABLE, "")
    if embedded not in ("", "never"):
        raise ConfigError(f"{EMBEDDED_VARIABLE} is {embedded!r}", hint="set it to never, or unset it")
    if embedded:
        raise ConfigError(
            f"An address of Postgres is missing, and {EMBEDDED_VARIABLE}=never forbids the embedded one",
            hint="set catalogs.live.uri, catalogs.cold.uri, operations.uri in lifecycle.yaml, or ARTEMIS_POSTGRES_URI",
        )
    if config.absent is not None and not set_up:
        raise ConfigError(
            f"{config.absent}, so no catalog is named",
            hint="run this in the folder of your lifecycle.yaml, or name it with --config or ARTEMIS_CONFIG; for the "
            "embedded Postgres write `home: .artemis` into it",
        )
    return EmbeddedPostgres(config.home)


def dagster_postgres_url(config: LifecycleConfig) -> str:
    """Return the address of Dagster's own storage: `$ARTEMIS_DAGSTER_POSTGRES`, or a database of the embedded Postgres.

    If `operations.uri` is set, it is that database, in a schema `dagster`, which is created. Raises
    OperationsUnavailable if that fails.
    """
    named = os.environ.get(DAGSTER_VARIABLE)
    if named:
        # Dagster passes it to SQLAlchemy, whose 2.1 reads a bare postgresql:// as a driver that is not installed here.
        return named.replace("postgresql://", "postgresql+psycopg2://", 1)
    if config.operations.uri is None or config.operations.uri == _embedded_uri(config):
        return embedded_postgres(config).uri(DAGSTER)
    return _in_schema(config.operations.uri, "dagster")


def _embedded_uri(config: LifecycleConfig) -> str | None:
    server = EmbeddedPostgres(config.home)
    return server.uri(CATALOGS) if server.status().running else None


def _in_schema(uri: str, schema: str) -> str:
    from sqlalchemy import make_url
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.schema import CreateSchema

    from artemis_lifecycle.errors import OperationsUnavailable
    from artemis_lifecycle.postgres import engine_for

    address = make_url(uri)
    engine = engine_for(address)
    try:
        with engine.begin() as connection:
            connection.execute(CreateSchema(schema, if_not_exists=True))
    except SQLAlchemyError as error:
        raise OperationsUnavailable(
            f"No schema for Dagster's storage can be made at {address.render_as_string(hide_password=True)}: "
            f"{getattr(error, 'orig', None) or type(error).__name__}",
            hint=f"give the role CREATE on that database, or name another address in {DAGSTER_VARIABLE}",
        ) from error
    finally:
        engine.dispose()
    scoped = address.update_query_dict({"options": f"-csearch_path={schema}"})
    return scoped.render_as_string(hide_password=False)


def _folder(path: Path) -> str:
    # Not Path.as_uri(): a location is the string itself, and %20 would name another folder.
    return f"file://{path}"


def _sibling(warehouse: str, suffix: str) -> str:
    path = urlsplit(warehouse).path
    if not path.strip("/"):
        raise ConfigError(
            f"catalogs.live.warehouse {warehouse} is a whole bucket, so nothing can stand beside it",
            hint="name catalogs.cold.warehouse, operations.root and quarantine.root in lifecycle.yaml as well",
        )
    return f"{warehouse}-{suffix}"
