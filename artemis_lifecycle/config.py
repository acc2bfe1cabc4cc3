"""lifecycle.yaml as typed models. Belongs here: what a user may configure, its defaults, and which policy a table has.
Does not belong: opening a connection or starting anything (`local/` fills the addresses that are left empty).
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from artemis_lifecycle.errors import ConfigError

_UNIT_MS = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 7 * 86_400_000,
    "y": 365 * 86_400_000,
}
_DURATION = re.compile(r"(\d+)(ms|s|m|h|d|w|y)")


def parse_duration(text: object) -> timedelta:
    """A duration written `<int><unit>`, the unit one of ms, s, m, h, d, w, y (365 d).

    Raises ValueError for anything else, a bare number included: it would not say its unit.
    """
    if isinstance(text, timedelta):
        return text
    match = _DURATION.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is no duration; write an integer and one of ms, s, m, h, d, w, y, such as 30d")
    try:
        return timedelta(milliseconds=int(match[1]) * _UNIT_MS[match[2]])
    except OverflowError as error:
        raise ValueError(f"{text!r} is longer than any calendar") from error


def format_duration(duration: timedelta) -> str:
    """The shortest text that `parse_duration` reads back as `duration` (whole milliseconds)."""
    total = duration // timedelta(milliseconds=1)
    for unit in ("y", "w", "d", "h", "m", "s"):
        if total and total % _UNIT_MS[unit] == 0:
            return f"{total // _UNIT_MS[unit]}{unit}"
    return f"{total}ms"


Duration = Annotated[timedelta, BeforeValidator(parse_duration), PlainSerializer(format_duration, return_type=str)]


SECRET = re.compile(r"password|secret|token|access[-_.]?key|credential|sessionkey", re.IGNORECASE)
"""What is in the name of a setting whose value nobody is to see."""

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.*`-]{0,60}")

_HIDDEN = "***"

_Place = tuple[int | str, ...]
"""Where pydantic found something: the keys, from the outside in."""


def masked(name: str, value: Any) -> Any:
    """A setting's value as it may be shown: without what it logs in with."""
    if isinstance(value, Mapping):
        return {key: masked(str(key), each) for key, each in value.items()}
    if not isinstance(value, str):
        return value
    if SECRET.search(name):
        return _HIDDEN
    scheme, between, rest = value.partition("://")
    address, asked, _ = rest.partition("?")
    if between and "@" in address:
        # libpq takes a password in the query, too.
        return f"{scheme}://{_HIDDEN}@{address.rpartition('@')[2]}{f'?{_HIDDEN}' if asked else ''}"
    return value


def _address(value: str | None) -> str | None:
    """Refuse an address whose parts would be taken for others, without saying it."""
    if value is not None and "://" in value:
        login, _, _ = value.partition("://")[2].partition("?")[0].rpartition("@")
        if "@" in login:
            raise ValueError("the user or the password of the address has an @: write it as %40")
        if login.count(":") > 1:
            raise ValueError("the user or the password of the address has a colon: write it as %3A")
        if "/" in login:
            raise ValueError("the user or the password of the address has a slash: write it as %2F")
    return value


class _Model(BaseModel):
    # Inputs have passwords in them, and an error is shown with what led to it.
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, hide_input_in_errors=True)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return [(name, masked(name or "", value)) for name, value in super().__repr_args__()]


class Catalog(_Model):
    """One Iceberg catalog, for pyiceberg and Spark. `name` keys its rows in Postgres and is its name in Spark SQL.

    `expected_latency` is what people are told to expect of an answer from this tier; nothing waits or fails by it.
    `roots`: where orphans may be collected besides the warehouse. `isolated`: patterns of tables that read no files of
    other tables; one of them that cannot be read stops no other table's deletions.
    """

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    type: str = "sql"
    uri: str | None = None
    warehouse: str | None = None
    storage_class: str | None = None
    expected_latency: Duration | None = None
    properties: dict[str, str] = {}
    roots: tuple[str, ...] = ()
    isolated: tuple[str, ...] = ()

    _plain_address = field_validator("uri")(_address)

    def is_isolated(self, table: str) -> bool:
        """Whether a person vouches that the table reads no files of other tables."""
        return any(fnmatchcase(table, pattern) for pattern in self.isolated)

    @field_validator("warehouse")
    @classmethod
    def _no_trailing_slash(cls, value: str | None) -> str | None:
        return value.rstrip("/") if value else value

    @model_validator(mode="after")
    def _has_an_address(self) -> Self:
        if self.type in ("rest", "hive") and not self.uri:
            raise ValueError(f"a catalog of type {self.type} needs its uri")
        return self


_TIERS: Mapping[str, Mapping[str, object]] = {
    "live": {"name": "live", "expected_latency": "1s"},
    "cold": {"name": "cold", "storage_class": "GLACIER_IR", "expected_latency": "5s"},
}


class Catalogs(_Model):
    live: Catalog = Catalog.model_validate(_TIERS["live"])
    cold: Catalog = Catalog.model_validate(_TIERS["cold"])

    @model_validator(mode="before")
    @classmethod
    def _each_tier_has_its_defaults(cls, given: object) -> object:
        # A section that says something of a catalog must not take away what it does not speak of.
        if not isinstance(given, Mapping):
            return given
        return {
            tier: {**_TIERS[tier], **said} if tier in _TIERS and isinstance(said, Mapping) else said
            for tier, said in given.items()
        }


class Operations(_Model):
    """Postgres for plans, journal, leases and heartbeats; `root` holds sealed plans, listings and handoff batches."""

    uri: str | None = None
    root: str | None = None

    _plain_address = field_validator("uri")(_address)

    @field_validator("root")
    @classmethod
    def _no_trailing_slash(cls, value: str | None) -> str | None:
        return value.rstrip("/") if value else value


class Spark(_Model):
    """`python`: the interpreter of the executors, which has this package; of a local master it is this one."""

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


class Reachability(_Model):
    """How metadata is read: threads of this process, Spark tasks at once (null: as many as there are cores), and a
    Redis
    in front of the manifest index (redis://…)."""

    threads: int = Field(default=8, ge=1)
    concurrency: int | None = Field(default=None, ge=1)
    cache: str | None = None


class Reading(_Model):
    """What one file of a table, or of a listing, may come to when it is read: so many bytes, stored or with its codec
    undone, and above `ratio_above` bytes no more than `max_ratio` times its stored size."""

    max_bytes: int = Field(default=4 << 30, ge=1 << 20)
    max_ratio: int = Field(default=500, ge=1)
    ratio_above: int = Field(default=64 << 20, ge=1 << 20)


class Thin(_Model):
    """Beyond the window, the newest snapshot of each calendar hour, day, week, month or year (UTC) stays so long."""

    keep: Literal["hourly", "daily", "weekly", "monthly", "yearly"]
    lasting: Literal["forever"] | Duration = Field(alias="for")


class Retention(_Model):
    rule: Literal["as-of", "iceberg", "paimon"] = "as-of"
    window: Duration = timedelta(days=30)
    min_snapshots: int = Field(default=1, ge=1)
    max_snapshots: int | None = Field(default=None, ge=1)
    expire_limit: int | None = Field(default=None, ge=1)
    next_timestamp: bool = False
    thin: tuple[Thin, ...] = ()

    @field_validator("thin")
    @classmethod
    def _one_tier_each(cls, tiers: tuple[Thin, ...]) -> tuple[Thin, ...]:
        kept = [tier.keep for tier in tiers]
        twice = next((keep for keep in kept if kept.count(keep) > 1), None)
        if twice is not None:
            raise ValueError(f"{twice} is there twice; give each calendar unit once")
        return tiers


class ColdSplit(_Model):
    """A cold table with more than `above` snapshots gives its past years or months (UTC) to cold tables of their
    own, whose metadata no later handoff writes again."""

    by: Literal["year", "month", "never"] = "year"
    above: int = Field(default=20_000, ge=1)


class ColdTier(_Model):
    """`archive`: every expired snapshot, or the newest of each calendar unit (UTC) and whatever a ref names. Snapshots
    that were overtaken `retain` ago go on to the deep archive, or stay. Nothing is ever deleted from the cold tier.
    Each cold file is read once in `scrub_every` and compared with its checksum; 0 or never turns that off."""

    enabled: bool = True
    archive: Literal["every", "hourly", "daily", "weekly", "monthly", "yearly"] = "every"
    split: ColdSplit = ColdSplit()
    retain: Duration = timedelta(days=7 * 365)
    then: Literal["deep-archive", "keep"] = "deep-archive"
    scrub_every: Literal["never"] | Duration = timedelta(days=90)

    @property
    def scrubs(self) -> timedelta | None:
        """The time of one rotation through the cold files; None when they are not read again."""
        return None if self.scrub_every == "never" or not self.scrub_every else self.scrub_every


class DeepArchive(_Model):
    """The archive behind the cold tier: its storage class on S3, how a thaw is asked for there, and what people are
    told to expect of one. Thawed files stay readable for `days`; a request that nobody approves within
    `approve_within` lapses."""

    storage_class: Literal["DEEP_ARCHIVE", "GLACIER"] = "DEEP_ARCHIVE"
    retrieval: Literal["Bulk", "Standard"] = "Bulk"
    expected_latency: Duration = timedelta(hours=48)
    days: int = Field(default=7, ge=1)
    approve_within: Duration = timedelta(hours=72)


class ClassPrices(_Model):
    """What a storage class costs, in the price table's currency: storage a month and reading by GB (2^30 bytes, as
    stores bill it), requests by the thousand. `thaw_per_1000` is for requests to thaw, in the class that they are made
    in. What is left out is not known, and nothing that needs it is told."""

    gb_month: float | None = Field(default=None, ge=0)
    put_per_1000: float | None = Field(default=None, ge=0)
    get_per_1000: float | None = Field(default=None, ge=0)
    thaw_per_1000: float | None = Field(default=None, ge=0)
    read_per_gb: float | None = Field(default=None, ge=0)


class Prices(_Model):
    """The price table: by storage class, as the store names them. Empty unless it is given: prices change."""

    currency: str = "USD"
    classes: dict[str, ClassPrices] = {}

    def storage(self, storage_class: str, size_in_bytes: int) -> float | None:
        """A month's storage of so many bytes; None without a price."""
        price = self._of(storage_class).gb_month
        return None if price is None else price * size_in_bytes / 2**30

    def requests(self, storage_class: str, requests: Mapping[str, int]) -> float | None:
        """The price of so many requests of each kind (put, get, thaw); None where one of them has none."""
        prices = self._of(storage_class)
        known = {kind: getattr(prices, f"{kind}_per_1000") for kind, number in requests.items() if number}
        if any(price is None for price in known.values()):
            return None
        return sum((price * requests[kind] / 1000 for kind, price in known.items()), 0.0)

    def reading(self, storage_class: str, files: int, size_in_bytes: int) -> float | None:
        """The price of reading so many files and bytes once, a thaw included; None without a price."""
        prices = self._of(storage_class)
        if prices.get_per_1000 is None or prices.read_per_gb is None:
            return None
        each = prices.get_per_1000 + (prices.thaw_per_1000 or 0.0)
        return each * files / 1000 + prices.read_per_gb * size_in_bytes / 2**30

    def _of(self, storage_class: str) -> ClassPrices:
        return self.classes.get(storage_class, ClassPrices())


class Deletion(_Model):
    grace: Duration = timedelta(hours=24)
    max_files: int | None = Field(default=None, ge=0)
    max_bytes: int | None = Field(default=None, ge=0)
    max_share_of_table: float | None = Field(default=None, ge=0, le=1)
    requests_per_second: float | None = Field(default=None, gt=0)
    mode: Literal["delete", "quarantine"] = "delete"
    remove_empty_folders: bool = False


class Quarantine(_Model):
    """Where `deletion.mode: quarantine` moves files, and how long they stay after the deletion is over."""

    root: str | None = None
    retain: Duration = timedelta(days=30)

    @field_validator("root")
    @classmethod
    def _no_trailing_slash(cls, value: str | None) -> str | None:
        return value.rstrip("/") if value else value


class Records(_Model):
    """How long the detail of what is over is kept: batches, steps and leases in Postgres, listings under
    `operations.root`. Who decided what is kept for good, and so are receipts."""

    keep: Duration = timedelta(days=400)
    listings: Duration = timedelta(days=30)


class Clocks(_Model):
    """Nothing is judged by age while the clocks of Postgres, this host and the object stores differ by more."""

    max_difference: Duration = timedelta(minutes=5)


class ScanEvery(_Model):
    """Scheduled scans come when, at the observed leak rate, orphans will be `target_share` of the table's files; no
    sooner than `least` after the last one and no later than `most`."""

    least: Duration = timedelta(hours=20)
    most: Duration = timedelta(days=7)
    target_share: float = Field(default=0.001, gt=0, le=1)

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.least > self.most:
            raise ValueError(f"least {format_duration(self.least)} is above most {format_duration(self.most)}")
        return self


class InFlight(_Model):
    """A check warns when more than `max_share` of the listed files are skipped as in flight, `scans` times in a row."""

    max_share: float = Field(default=0.05, ge=0, le=1)
    scans: int = Field(default=3, ge=1)


class Orphans(_Model):
    min_age: Duration = timedelta(days=7)
    min_age_floor: Duration = timedelta(hours=24)
    prefix_mismatch: Literal["error", "ignore", "delete"] = "error"
    missing_files: Literal["error", "ignore"] = "error"
    hidden: Literal["keep", "scan"] = "keep"
    max_share: float = Field(default=0.1, ge=0, le=1)
    equal_schemes: dict[str, str] = {"s3a,s3n": "s3"}
    equal_authorities: dict[str, str] = {}
    scan_every: ScanEvery = ScanEvery()
    in_flight: InFlight = InFlight()


class Dropped(_Model):
    """What becomes of the files of tables that were dropped from the catalog: kept for so long after that was noticed,
    then deleted, when a person has approved it (`required`), or within the guards of `deletion` (`guards`)."""

    keep: Duration = timedelta(days=30)
    approval: Literal["required", "guards"] = "required"


class Budgets(_Model):
    read_share: float = Field(default=0.2, gt=0, le=1)
    object_store_iops: int = Field(default=5500, ge=1)
    object_store_bytes_per_second: int | None = Field(default=None, ge=1)
    compaction_bandwidth_share: float = Field(default=0.3, gt=0, le=1)


class QuietWindow(_Model):
    start: str = Field(default="00:00", alias="from", pattern=r"^([01]\d|2[0-3]):[0-5]\d$")
    end: str = Field(default="08:00", alias="to", pattern=r"^([01]\d|2[0-3]):[0-5]\d$")
    timezone: str = "UTC"

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise ValueError(f"{value!r} is no time zone name") from error
        return value

    def night(self, now: datetime) -> date:
        """The night that `now` belongs to, named by the date on which its window opened (in the window's time zone)."""
        opened = timedelta(hours=int(self.start[:2]), minutes=int(self.start[3:]))
        return (now.astimezone(ZoneInfo(self.timezone)).replace(tzinfo=None) - opened).date()


class OverwritePermissions(_Model):
    writers: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()


class Lineage(_Model):
    required: tuple[str, ...] = (
        "operation",
        "writer.id",
        "writer.host",
        "writer.commit_hash",
        "writer.invocation_id",
        "input.row_count",
        "input.bytes_compressed",
        "trigger.type",
    )
    mode: Literal["reject", "report"] = "reject"
    overwrite: OverwritePermissions = OverwritePermissions()


_AT_ZERO = {
    "retention.window": "history expires as soon as a commit follows it",
    "deletion.grace": "files go right after the commit, under queries that still read them",
    "orphans.min_age": "files of commits in flight count as orphans",
    "orphans.min_age_floor": "a call may ask for orphans of any age, those of commits in flight included",
}
"""The delays that leave time to notice a mistake, and what happens without them."""


class TablePolicy(_Model):
    """All that a table's life is governed by; `defaults` of lifecycle.yaml, overlaid by the entry that matches best."""

    retention: Retention = Retention()
    cold_tier: ColdTier = ColdTier()
    deletion: Deletion = Deletion()
    orphans: Orphans = Orphans()
    dropped: Dropped = Dropped()
    budgets: Budgets = Budgets()
    quiet_window: QuietWindow = QuietWindow()
    lineage: Lineage = Lineage()

    @model_validator(mode="after")
    def _age_above_floor(self) -> Self:
        # A table may lower min_age alone: whether that is under the floor is known only of the merged policy.
        orphans = self.orphans
        if orphans.min_age < orphans.min_age_floor:
            raise ValueError(
                f"orphans.min_age {format_duration(orphans.min_age)} is under min_age_floor "
                f"{format_duration(orphans.min_age_floor)}: files of commits in flight would be taken for orphans"
            )
        return self

    @model_validator(mode="after")
    def _some_keys_are_paimon(self) -> Self:
        retention = self.retention
        if retention.rule == "paimon":
            if retention.max_snapshots is not None and retention.max_snapshots < retention.min_snapshots:
                raise ValueError("retention.max_snapshots must not be less than min_snapshots")
            return self
        for key, given in (
            ("max_snapshots", retention.max_snapshots is not None),
            ("expire_limit", retention.expire_limit is not None),
            ("next_timestamp", retention.next_timestamp),
        ):
            if given:
                raise ValueError(f"retention.{key} has a meaning only under rule paimon")
        return self

    def zero_delays(self) -> dict[str, str]:
        """What happens without each of the delays that are zero, by its key."""
        sections = {key: key.split(".") for key in _AT_ZERO}
        return {
            key: _AT_ZERO[key] for key, (section, name) in sections.items() if not getattr(getattr(self, section), name)
        }


class TableOverrides(_Model):
    """One entry of `tables`: the sections, and in them the keys, that differ from `defaults`."""

    retention: Retention | None = None
    cold_tier: ColdTier | None = None
    deletion: Deletion | None = None
    orphans: Orphans | None = None
    dropped: Dropped | None = None
    budgets: Budgets | None = None
    quiet_window: QuietWindow | None = None
    lineage: Lineage | None = None


def _overlay(policy: TablePolicy, overrides: TableOverrides) -> TablePolicy:
    sections: dict[str, Any] = {}
    for name in TablePolicy.model_fields:
        base = getattr(policy, name)
        override = getattr(overrides, name)
        if override is not None:
            explicit = {field: getattr(override, field) for field in override.model_fields_set}
            merged = {field: getattr(base, field) for field in type(base).model_fields} | explicit
            sections[name] = type(base).model_validate(merged)
        else:
            sections[name] = base
    return TablePolicy.model_validate(sections)


class LifecycleConfig(_Model):
    """What one lifecycle.yaml says.

    An address that is None is the embedded default's to fill. `home` is the folder of the embedded parts.
    """

    catalogs: Catalogs = Catalogs()
    operations: Operations = Operations()
    spark: Spark = Spark()
    reachability: Reachability = Reachability()
    reading: Reading = Reading()
    deep_archive: DeepArchive = DeepArchive()
    quarantine: Quarantine = Quarantine()
    records: Records = Records()
    clocks: Clocks = Clocks()
    prices: Prices = Prices()
    defaults: TablePolicy = TablePolicy()
    tables: dict[str, TableOverrides] = {}
    home: Path = Path(".artemis")

    _policies: dict[str, TablePolicy] = PrivateAttr(default_factory=dict)
    _absent: str | None = PrivateAttr(default=None)

    @property
    def absent(self) -> str | None:
        """What is wrong with the file that was to say all this, in words: it does not exist, or it is empty. None where
        one was read, where `home` is set elsewhere, and for a configuration that was made in Python."""
        return self._absent

    @model_validator(mode="after")
    def _check(self) -> Self:
        wrong = []
        if self.catalogs.live.name == self.catalogs.cold.name:
            wrong.append(f"catalogs.live and catalogs.cold have one name, {self.catalogs.live.name!r}")
        if self.catalogs.cold.type != "sql":
            wrong.append(f"catalogs.cold.type is {self.catalogs.cold.type}; the handoff publishes to sql, on Postgres")
        named = [(key, _root_form(root)) for key, root in self.roots().items() if root]
        for index, (key, root) in enumerate(named):
            for other_key, other in named[index + 1 :]:
                if root == other or root.startswith(other + "/") or other.startswith(root + "/"):
                    wrong.append(f"{key} and {other_key} are equal or nested: {root}, {other}")
        for pattern, overrides in self.tables.items():
            try:
                self._policies[pattern] = _overlay(self.defaults, overrides)
            except ValidationError as error:
                wrong += (f"tables.{pattern}: {each['msg'].removeprefix('Value error, ')}" for each in error.errors())
        if wrong:
            raise ValueError("\n".join(wrong))
        return self

    def roots(self) -> dict[str, str | None]:
        """The roots of the tiers, which must be apart, by their keys. By their names that is checked here; links and
        mounts are checked when the configuration is opened, and before each step."""
        return {
            "catalogs.live.warehouse": self.catalogs.live.warehouse,
            "catalogs.cold.warehouse": self.catalogs.cold.warehouse,
            "operations.root": self.operations.root,
            "quarantine.root": self.quarantine.root,
        }

    def entry(self, table: str) -> str | None:
        """The key in `tables` that governs `table`: an exact one, or the longest pattern that matches; None if none."""
        if table in self.tables:
            return table
        matches = [pattern for pattern in self.tables if fnmatchcase(table, pattern)]
        # The most exact pattern is the one that leaves least to its wildcards.
        return max(matches, key=lambda pattern: (len(pattern.replace("*", "")), pattern), default=None)

    def policy(self, table: str) -> TablePolicy:
        """The policy of `table`: `defaults`, overlaid by its entry."""
        entry = self.entry(table)
        return self.defaults if entry is None else self._policies[entry]

    def warnings(self) -> tuple[str, ...]:
        """What a person has to know at each start: the delays that are zero, and what happens without them."""
        told = [("defaults", self.defaults.zero_delays())]
        for pattern, policy in self._policies.items():
            inherited = self.defaults.zero_delays()
            told.append((f"tables.{pattern}", {k: v for k, v in policy.zero_delays().items() if k not in inherited}))
        return tuple(f"{place}.{key} is 0: {what}" for place, delays in told for key, what in delays.items())

    def explicit_window(self, table: str) -> timedelta | None:
        """The window that lifecycle.yaml sets for `table` itself; None when only `defaults` speak.

        Under rule iceberg an explicit window beats the table's own properties, and the shipped default does not.
        """
        entry = self.entry(table)
        retention = self.tables[entry].retention if entry is not None else None
        if retention is not None and "window" in retention.model_fields_set:
            return retention.window
        return None


def _root_form(root: str) -> str:
    text = root if "://" in root or root.startswith("file:") else f"file://{root}"
    if text.startswith("file:"):
        text = "file:///" + text.removeprefix("file:").lstrip("/")
    scheme, _, rest = text.partition("://")
    scheme = {"s3a": "s3", "s3n": "s3"}.get(scheme.lower(), scheme.lower())
    rest = re.sub(r"(?<=.)/+", "/", rest).rstrip("/")
    if re.search(r"/\.\.?(?:/|\Z)", rest):
        # On S3 these are ordinary names, but a reader in between may resolve them.
        authority, _, path = rest.partition("/")
        rest = authority + posixpath.normpath(f"/{path}").rstrip("/")
    return f"{scheme}://{rest}"


ENVIRONMENT: dict[str, tuple[tuple[str, ...], ...]] = {
    "ARTEMIS_POSTGRES_URI": (
        ("catalogs", "live", "uri"),
        ("catalogs", "cold", "uri"),
        ("operations", "uri"),
    ),
    "ARTEMIS_LIVE_WAREHOUSE": (("catalogs", "live", "warehouse"),),
    "ARTEMIS_COLD_WAREHOUSE": (("catalogs", "cold", "warehouse"),),
    "ARTEMIS_OPERATIONS_ROOT": (("operations", "root"),),
    "ARTEMIS_SPARK_MASTER": (("spark", "master"),),
    "ARTEMIS_HOME": (("home",),),
}
"""Each variable beats the keys of lifecycle.yaml beside it."""


def load_config(path: str | Path | None = None, environment: Mapping[str, str] | None = None) -> LifecycleConfig:
    """Read lifecycle.yaml.

    `path` None means `$ARTEMIS_CONFIG`, then `lifecycle.yaml` in the working folder. Where that does not exist, or is
    empty, all defaults hold, and `absent` says so: no embedded stack is started for it. Relative paths in the file are
    taken from the file's own folder.

    Raises ConfigError, naming file, line and key of each problem, when a file that was named is missing, or the file is
    not YAML, has unknown keys or values of the wrong kind.
    """
    document = _read(path, os.environ if environment is None else environment)
    try:
        return document.validated()
    except ValidationError as error:
        problems = _problems(error.errors(), document)
        count = f" has {len(problems)} problems," if problems[1:] else ""
        raise ConfigError(
            f"{document.name}{count} {'; '.join(problems)}",
            problems=problems,
            hint=f"correct {'each' if count else 'it'}; docs/configuration.md has the keys and their defaults",
        ) from error


def load_what_is_right(path: str | Path | None = None) -> LifecycleConfig | None:
    """What a lifecycle.yaml with problems says without them, to report on the rest; nothing may work by it. None where
    that is no configuration either. Raises ConfigError for a file that cannot be read."""
    document = _read(path, os.environ)
    _problems(_errors(document.values), document)
    try:
        return document.validated()
    except ValidationError:
        return None


@dataclass(frozen=True)
class _Document:
    """A file that was read: `values` with those of the environment laid over them, and the lines in `node`."""

    name: str
    folder: Path
    values: dict[str, Any]
    node: yaml.Node | None = None
    absent: str | None = None

    def validated(self) -> LifecycleConfig:
        config = LifecycleConfig.model_validate(self.values)
        home = (self.folder / config.home).resolve()
        config = config.model_copy(update={"home": home, **_absolute(config, self.folder)})
        config._absent = None if "home" in self.values else self.absent
        return config


def _read(path: str | Path | None, env: Mapping[str, str]) -> _Document:
    if path is None:
        path = env.get("ARTEMIS_CONFIG")
    file = Path(path or "lifecycle.yaml").absolute()
    if path is None and not file.exists():
        return _Document("The environment", file.parent, _with_environment({}, env), absent=f"There is no {file}")
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"The configuration cannot be read: {error}",
            path=str(file),
            hint="name a readable lifecycle.yaml with --config or ARTEMIS_CONFIG",
        ) from error
    try:
        if len(text) > _MOST_TEXT:
            raise ValueError(f"it has {len(text):,} characters")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        raw = yaml.safe_load(text)
        _require_few(raw)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"The configuration cannot be read: {error}",
            path=str(file),
            hint="see docs/configuration.md for the keys and their values",
        ) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark else ""
        raise ConfigError(
            f"{file}{line} is not YAML: {getattr(error, 'problem', error)}", hint="mend that line"
        ) from error
    if raw is not None and not isinstance(raw, dict):
        raise ConfigError(f"{file} line 1: expected a mapping of sections", hint="see docs/configuration.md")
    absent = None if raw else f"{file} is empty"
    return _Document(str(file), file.resolve().parent, _with_environment(raw or {}, env), node, absent)


_MOST_TEXT = 4 << 20
_MOST_VALUES = 1_000_000


def _require_few(raw: object) -> None:
    """Raise ValueError for aliases in aliases, which a few lines can make more of than memory holds."""
    seen, left = 0, [raw]
    while left:
        value = left.pop()
        seen += 1
        if seen + len(left) > _MOST_VALUES:
            raise ValueError(f"it has more than {_MOST_VALUES:,} values, or names itself")
        if isinstance(value, Mapping):
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)


def _with_environment(raw: dict[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = _deep_copy(raw)
    for variable, places in ENVIRONMENT.items():
        if env.get(variable):
            for place in places:
                _put(values, place, env[variable])
    return values


def _problems(errors: list[ErrorDetails], document: _Document) -> tuple[str, ...]:
    """Every problem of a document, by line. Removes what is wrong from its values and validates the rest again:
    pydantic checks how parts fit together only once each part is right."""
    found: set[tuple[int, str]] = set()
    removed: list[_Place] = []
    while errors:
        before = tuple(removed)
        for each in errors:
            found.update(_told(each, before, document.node))
            if not any(each["loc"][: len(place)] == place for place in removed):
                removed += filter(None, [_remove(document.values, each["loc"])])
        errors = [] if len(removed) == len(before) else _errors(document.values)
    return tuple(f"line {line}: {what}" if line else what for line, what in sorted(found))


def _errors(values: dict[str, Any]) -> list[ErrorDetails]:
    try:
        LifecycleConfig.model_validate(values)
    except ValidationError as error:
        return error.errors()
    return []


def _remove(values: Any, place: _Place) -> _Place:
    """Remove the innermost key on the way to `place` that `values` has; its own place, empty if it has none."""
    if not isinstance(values, dict) or not place or place[0] not in values:
        return ()
    inner = _remove(values[place[0]], place[1:])
    if not inner:
        del values[place[0]]
    return (place[0], *inner)


def _told(error: ErrorDetails, removed: Sequence[_Place], node: yaml.Node | None) -> Iterator[tuple[int, str]]:
    """(Line, or 0; key and what is wrong with it). Nothing about a key that was removed as wrong itself."""
    where, message = [str(part) for part in error["loc"]], str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        message = "unknown key" + (f" {where[-1]!r}" if _KEY.fullmatch(where[-1]) else "")
    # What stands in the place of a key may be what belongs behind it.
    key = ".".join(part if _KEY.fullmatch(part) else "…" for part in where)
    # Of the whole there may be several, as `LifecycleConfig._check` writes them.
    for said in message.splitlines():
        if not any(re.search(rf"\b{re.escape(str(gone[-1]))}\b", said) for gone in removed):
            table, _, named = said.partition(": ") if said.startswith("tables.") else ("", "", said)
            keys = [*where, *(table.split(".", 1) if table else ()), *named.split(" ", 1)[0].split(".")]
            yield _line_of(node, keys) or 0, f"{key + ': ' if key else ''}{said}"


def _absolute(config: LifecycleConfig, folder: Path) -> dict[str, Any]:
    def place(root: str | None) -> str | None:
        if root is None or "://" in root or root.startswith("file:"):
            return root
        # Not as_uri(): a location is the string itself, and %20 would name another folder.
        return f"file://{(folder / root).resolve()}"

    live, cold = config.catalogs.live, config.catalogs.cold
    return {
        "catalogs": Catalogs(
            live=live.model_copy(update={"warehouse": place(live.warehouse)}),
            cold=cold.model_copy(update={"warehouse": place(cold.warehouse)}),
        ),
        "operations": config.operations.model_copy(update={"root": place(config.operations.root)}),
    }


def _deep_copy(value: Any) -> Any:
    return {key: _deep_copy(item) for key, item in value.items()} if isinstance(value, dict) else value


def _put(values: dict[str, Any], key: tuple[str, ...], value: str) -> None:
    for part in key[:-1]:
        section = values.setdefault(part, {})
        if not isinstance(section, dict):
            return
        values = section
    values[key[-1]] = value
    if key[0] == "catalogs":
        values.setdefault("name", key[1])


def _line_of(node: yaml.Node | None, keys: list[str]) -> int | None:
    line: int | None = None
    for key in keys:
        if not isinstance(node, yaml.MappingNode):
            break
        for key_node, value_node in node.value:
            if key_node.value == key:
                line, node = key_node.start_mark.line + 1, value_node
                break
        else:
            break
    return line
