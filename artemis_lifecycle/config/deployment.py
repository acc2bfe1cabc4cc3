"""The sections of lifecycle.yaml that apply to the whole deployment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from artemis_lifecycle.config.durations import Duration
from artemis_lifecycle.config.model import Address, Model, Root
from artemis_lifecycle.config.names import fits


class SoleDeployment(Model):
    """Who says that no other deployment works on a catalog, and why that is so."""

    who: str = Field(min_length=1)
    why: str = Field(min_length=1)


class Catalog(Model):
    """One Iceberg catalog, for pyiceberg and Spark. `name` keys its rows in Postgres and is its name in Spark SQL.

    `expected_latency` is shown in messages; no step waits or fails because of it. `roots`: locations besides the
    warehouse where orphans may be collected. `isolated`: patterns of tables that read no files of other tables; if one
    of them cannot be read, deletions of other tables continue.

    The `warehouse` of a REST catalog may be a name, which only its server knows; `roots` then say where files are.
    `managed`: the store belongs to the catalog (S3 Tables), and nothing but files of its tables is written there.
    `sole_deployment` stands for the record of the catalog's deployment where the server keeps none.
    """

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    type: str = "sql"
    uri: Address = None
    warehouse: Root = None
    storage_class: str | None = None
    expected_latency: Duration | None = None
    properties: dict[str, str] = {}
    roots: tuple[str, ...] = ()
    isolated: tuple[str, ...] = ()
    managed: bool = False
    sole_deployment: SoleDeployment | None = None

    @property
    def has_named_warehouse(self) -> bool:
        """Whether the warehouse is a name, and no place in a store."""
        named = self.warehouse is not None and "://" not in self.warehouse
        return self.type == "rest" and named and not str(self.warehouse).startswith(("/", "file:"))

    @property
    def root(self) -> str | None:
        """Where the catalog's files are: its warehouse, or the first of `roots` if that is a name."""
        return next(iter(self.places), None)

    @property
    def places(self) -> tuple[str, ...]:
        """All places where orphans may be collected."""
        named = self.warehouse is None or self.has_named_warehouse
        return self.roots if named else (str(self.warehouse), *self.roots)

    def is_isolated(self, table: str) -> bool:
        """Return True if the configuration declares that the table reads no files of other tables."""
        return any(fits(table, pattern) for pattern in self.isolated)

    @property
    def is_signed(self) -> bool:
        """Whether requests to a REST catalog are signed (SigV4), as those to Glue and S3 Tables are."""
        return self.type == "rest" and self.properties.get("rest.sigv4-enabled", "").lower() == "true"

    @model_validator(mode="after")
    def _has_an_address(self) -> Self:
        if self.type in ("rest", "hive") and not self.uri:
            raise ValueError(f"a catalog of type {self.type} needs its uri")
        return self


_TIERS: Mapping[str, Mapping[str, object]] = {
    "live": {"name": "live", "expected_latency": "1s"},
    "cold": {"name": "cold", "storage_class": "GLACIER_IR", "expected_latency": "5s"},
}


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Mark(Model):
    """How a Nessie catalog is marked when a step needs a live-contents set. `policies`: a cutoff for each pattern of
    references, in order: a number of commits (10), a duration (30d), an instant, or none; references without a match
    keep their whole log. `snapshots`: all snapshots in the metadata of a live version keep their files, or only the
    referenced one. A set older than `max_age` is replaced. `unseen`: a sweep deletes the files of tables that no
    reference has, and those in locations no longer used, or only reports them; `dropped` sets the delay."""

    policies: dict[str, int | str] = {}
    snapshots: Literal["all", "referenced"] = "all"
    max_age: Duration = timedelta(days=1)
    unseen: Literal["report", "delete"] = "report"
    threads: int = Field(default=4, ge=1)


class PaimonExpire(Model):
    """Where Paimon's documentation and versions differ. `limit`: the default of snapshot.expire.limit, as documented
    (10) or as coded (50). `next_timestamp`: a snapshot has the age of its successor, as in Paimon 2."""

    limit: Literal["documented", "coded"] = "documented"
    next_timestamp: bool = False


_ONLY_OF_THE_OTHER: Mapping[str, frozenset[str]] = {
    "nessie": frozenset({"expire"}),
    "paimon": frozenset({"uri", "properties", "mark"}),
}


class OtherCatalog(Model):
    """Tables outside the live catalog that the same walk cleans: of a Nessie server, or of a Paimon warehouse. Their
    names are `<catalog>:<namespace.table>`. Their files are read with the live catalog's S3 settings.

    `uri` is the address of Nessie's API; the property `token` is sent as the bearer token. No file outside `warehouse`
    and `roots` is deleted.
    """

    type: Literal["nessie", "paimon"]
    uri: Address = None
    warehouse: Root = None
    properties: dict[str, str] = {}
    roots: tuple[str, ...] = ()
    mark: Mark = Mark()
    expire: PaimonExpire = PaimonExpire()

    @property
    def places(self) -> tuple[str, ...]:
        """All places where orphans may be collected."""
        return (str(self.warehouse), *self.roots)

    @model_validator(mode="after")
    def _has_an_address(self) -> Self:
        if self.type == "nessie" and not self.uri:
            raise ValueError("a catalog of type nessie needs its uri, such as http://localhost:19120/api/v2")
        if not self.warehouse:
            raise ValueError(f"a catalog of type {self.type} needs its warehouse: no file outside it is deleted")
        return self

    @model_validator(mode="after")
    def _every_setting_has_an_effect(self) -> Self:
        # Compared with the defaults, because a dumped configuration has every key and must load again.
        fields = type(self).model_fields
        idle = sorted(each for each in _ONLY_OF_THE_OTHER[self.type] if getattr(self, each) != fields[each].default)
        if idle:
            raise ValueError(f"a catalog of type {self.type} has no {', '.join(idle)}")
        unknown = sorted(self.properties.keys() - {"token"})
        if unknown:
            raise ValueError(f"the only property of a catalog of type nessie is token, not {', '.join(unknown)}")
        return self


_TYPES, _FORMATS = ("sql", "rest", "hive", "glue"), ("nessie", "paimon")
_RESERVED = frozenset({"live", "cold", "others", "named", "beside", "lifecycle", "spark_catalog"})


class Catalogs(Model):
    """The catalogs by name. Those beside `live` and `cold` are `named` (of Iceberg) or `others` (nessie, paimon), by
    `type`; lifecycle.yaml has them directly under `catalogs`. Keys of their tables are `<name>:<namespace.table>`."""

    live: Catalog = Catalog.model_validate(_TIERS["live"])
    cold: Catalog = Catalog.model_validate(_TIERS["cold"])
    others: dict[str, OtherCatalog] = {}
    named: dict[str, Catalog] = {}

    @property
    def results(self) -> str:
        """The name of the catalog that has the project's own result tables."""
        return self.live.name

    @property
    def iceberg(self) -> tuple[Catalog, ...]:
        """Every live catalog of Iceberg tables, `live` first."""
        return (self.live, *self.named.values())

    def of(self, table: str) -> Catalog:
        """Return the live catalog of a table, by its key; `live` for tables of other formats."""
        return self.named.get(table.partition(":")[0], self.live) if ":" in table else self.live

    def named_as(self, name: str) -> Catalog:
        """Return the live catalog of that name."""
        return self.named.get(name, self.live)

    def places(self, name: str) -> tuple[str, ...]:
        """Return the roots of a live catalog, or of one in `others`."""
        other = self.others.get(name)
        return self.named_as(name).places if other is None else other.places

    def prefix(self, catalog: Catalog) -> str:
        """Return what the keys of a live catalog's tables have before their names there."""
        return "" if catalog is self.live else f"{catalog.name}:"

    def is_isolated(self, table: str) -> bool:
        """Return True if the table's catalog declares that it reads no files of other tables."""
        catalog = self.of(table)
        return catalog.is_isolated(table.removeprefix(self.prefix(catalog)))

    @model_validator(mode="after")
    def _others_have_names(self) -> Self:
        for name in self.others:
            if _NAME.fullmatch(name) is None or name in (self.live.name, self.cold.name):
                raise ValueError(
                    f"others.{name}: not a name of letters, digits and _, or already the live or the cold catalog's"
                )
        for name, catalog in self.named.items():
            if catalog.name != name:
                raise ValueError(f"{name}: its name is {name}, which begins the keys of its tables, not {catalog.name}")
            if name in (self.live.name, self.cold.name, *self.others):
                raise ValueError(f"{name}: another catalog has this name")
        return self

    @model_validator(mode="before")
    @classmethod
    def _each_tier_has_its_defaults(cls, given: object) -> object:
        # A section that sets some keys of a catalog must keep the defaults of the others.
        if not isinstance(given, Mapping):
            return given
        found: dict[str, Any] = {"others": {}, "named": dict(given.get("named") or {})}
        others = given.get("others")
        if others is not None and not isinstance(others, Mapping):
            return given
        beside = {key: said for key, said in given.items() if key not in cls.model_fields}
        for name, said in [*(others or {}).items(), *beside.items()]:
            kind = said.get("type") if isinstance(said, Mapping) else getattr(said, "type", None)
            if name in beside and (kind is None or name in found["others"] or name in found["named"]):
                # A misspelled key, or one catalog twice.
                found[name] = said
            elif kind in _TYPES:
                found["named"][name] = {"name": name, **said} if isinstance(said, Mapping) else said
            elif kind in _FORMATS or name not in beside:
                found["others"][name] = said
            else:
                raise ValueError(f"{name}.type: one of {', '.join((*_TYPES, *_FORMATS))}, not {kind}")
        for name in sorted(found["named"].keys() & _RESERVED):
            raise ValueError(f"{name}: a reserved word, which names no catalog")
        tiers = {tier: given[tier] for tier in _TIERS if tier in given}
        return found | {
            tier: {**_TIERS[tier], **said} if isinstance(said, Mapping) else said for tier, said in tiers.items()
        }


class Operations(Model):
    """Postgres for plans, journal, leases and heartbeats; `root` holds sealed plans, listings and handoff batches."""

    uri: Address = None
    root: Root = None


class Spark(Model):
    """`python`: the interpreter of the executors, which needs this package; a local master uses this process's."""

    master: str = "local[*]"
    python: str | None = None
    conf: dict[str, str] = {}

    @model_validator(mode="after")
    def _classic(self) -> Self:
        if self.conf.get("spark.master", self.master).startswith("sc://") or "spark.remote" in self.conf:
            raise ValueError(
                "master: Spark Connect has no JVM for Iceberg's core; name a master, such as spark://HOST:7077"
            )
        return self


class Reachability(Model):
    """How metadata is read: threads of this process, concurrent tasks (null: one for each core), and a Redis
    cache of the manifest index (redis://…)."""

    threads: int = Field(default=8, ge=1)
    concurrency: int | None = Field(default=None, ge=1)
    cache: str | None = None


class Reading(Model):
    """Limits on reading one file of a table or a listing: `max_bytes`, stored or decompressed, and above `ratio_above`
    bytes at most `max_ratio` times its stored size."""

    max_bytes: int = Field(default=4 << 30, ge=1 << 20)
    max_ratio: int = Field(default=500, ge=1)
    ratio_above: int = Field(default=64 << 20, ge=1 << 20)


class DeepArchive(Model):
    """The archive behind the cold tier: its storage class on S3, the retrieval tier of a thaw, and the expected wait
    that is shown. Thawed files stay readable for `days`; a request expires if it is not approved within
    `approve_within`."""

    storage_class: Literal["DEEP_ARCHIVE", "GLACIER"] = "DEEP_ARCHIVE"
    retrieval: Literal["Bulk", "Standard"] = "Bulk"
    expected_latency: Duration = timedelta(hours=48)
    days: int = Field(default=7, ge=1)
    approve_within: Duration = timedelta(hours=72)


class ClassPrices(Model):
    """Prices of a storage class, in the price table's currency: storage per GB and month, reads per GB (2^30 bytes, as
    stores bill it), requests per thousand. `thaw_per_1000` is for requests to thaw files of this class. Missing prices
    are unknown; costs that depend on them are omitted.

    `request_seconds` and `bytes_per_second` are of one connection: the time to the first byte of a GET, and the
    transfer rate after it. The defaults are from Amazon's design patterns for S3 (100 to 200 ms; 85 to 90 MB/s)."""

    request_seconds: float = Field(default=0.1, gt=0)
    bytes_per_second: float = Field(default=85e6, gt=0)
    gb_month: float | None = Field(default=None, ge=0)
    put_per_1000: float | None = Field(default=None, ge=0)
    get_per_1000: float | None = Field(default=None, ge=0)
    thaw_per_1000: float | None = Field(default=None, ge=0)
    read_per_gb: float | None = Field(default=None, ge=0)


class Prices(Model):
    """Prices by storage class, as the store names them. There are no default prices, because prices change."""

    currency: str = "USD"
    classes: dict[str, ClassPrices] = {}

    def storage(self, storage_class: str, size_in_bytes: int) -> float | None:
        """Return the price of storing this many bytes for a month; None without a price."""
        price = self._of(storage_class).gb_month
        return None if price is None else price * size_in_bytes / 2**30

    def requests(self, storage_class: str, requests: Mapping[str, int]) -> float | None:
        """Return the price of requests by kind (put, get, thaw); None if one of them has no price."""
        prices = self._of(storage_class)
        known = {kind: getattr(prices, f"{kind}_per_1000") for kind, number in requests.items() if number}
        if any(price is None for price in known.values()):
            return None
        return sum((price * requests[kind] / 1000 for kind, price in known.items()), 0.0)

    def reading(self, storage_class: str, files: int, size_in_bytes: int) -> float | None:
        """Return the price of reading this many files and bytes once, including a thaw; None without a price."""
        prices = self._of(storage_class)
        if prices.get_per_1000 is None or prices.read_per_gb is None:
            return None
        each = prices.get_per_1000 + (prices.thaw_per_1000 or 0.0)
        return each * files / 1000 + prices.read_per_gb * size_in_bytes / 2**30

    def seconds(self, storage_class: str, files: int, size_in_bytes: int) -> float:
        """Return the seconds in which one connection reads this many files and bytes."""
        prices = self._of(storage_class)
        return files * prices.request_seconds + size_in_bytes / prices.bytes_per_second

    def bytes_per_request(self, storage_class: str) -> float:
        """Return the bytes that one connection transfers in the time of one request."""
        prices = self._of(storage_class)
        return prices.request_seconds * prices.bytes_per_second

    def _of(self, storage_class: str) -> ClassPrices:
        return self.classes.get(storage_class, ClassPrices())


class Quarantine(Model):
    """Where `deletion.mode: quarantine` moves files, and how long they stay after the deletion ends."""

    root: Root = None
    retain: Duration = timedelta(days=30)


class Records(Model):
    """How long details of finished work are kept: batches, steps and leases in Postgres, frames and listings under
    `operations.root`, runs and their events in Dagster's storage. Decisions and receipts are kept forever."""

    keep: Duration = timedelta(days=400)
    listings: Duration = timedelta(days=30)
    runs: Duration = timedelta(days=90)
    live_sets: Duration = timedelta(days=90)


class Alerts(Model):
    """Where the sensor `alerts` posts, in the format of Slack's incoming webhooks. `ui`: the address of Dagster's web
    server, for links in alerts and on the fleet's pages."""

    webhook: str | None = Field(default=None, pattern=r"^https?://")
    ui: str | None = Field(default=None, pattern=r"^https?://[^\s<>|]+$")


class Dagster(Model):
    """What Dagster shows: the owners of the assets, what precedes their names, and the name of the code location, as
    workspace.yaml has it. `pipes` is a command that runs the walk's steps as jobs, such as spark-submit's with the
    file of `artemis_lifecycle.pipes`: step and table follow."""

    owners: list[str] = ["team:artemis-data-platform"]
    key_prefix: list[str] = []
    code_location: str = "artemis_lifecycle.definitions"
    pipes: list[str] = []


class LineageEvents(Model):
    """Where OpenLineage events of recorded snapshots are sent: a local file, to which JSON lines are appended, or an
    HTTP address, such as https://marquez.example.org/api/v1/lineage. `token` is sent as the bearer token."""

    file: Path | None = None
    url: Address = Field(default=None, pattern=r"^https?://")
    token: str | None = None

    @property
    def receiver(self) -> str | None:
        """The file's path or the address; None without one."""
        return self.url if self.file is None else str(self.file)

    @model_validator(mode="after")
    def _one_receiver(self) -> Self:
        if self.file is not None and self.url is not None:
            raise ValueError("give either file or url")
        if self.token is not None and self.url is None:
            raise ValueError("a token is for a url")
        return self


class Clocks(Model):
    """Steps that depend on age stop if the clocks of Postgres, this host and the object stores differ by more."""

    max_difference: Duration = timedelta(minutes=5)
