"""The sections of lifecycle.yaml that each table can override, and the resulting policy."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, field_validator, model_validator

from artemis_lifecycle.config.calendar_units import Every
from artemis_lifecycle.config.durations import Duration, format_duration
from artemis_lifecycle.config.model import Model
from artemis_lifecycle.config.schemes import KINDS


class Thin(Model):
    """Beyond the window, keep the newest snapshot of each calendar unit (UTC) for this long."""

    keep: Every
    lasting: Literal["forever"] | Duration = Field(alias="for")


Rule = Literal["as-of", "iceberg", "paimon"]
"""The retention rules: see `retention.rules`."""


Source = Literal["catalog", "properties", "lifecycle.yaml"]
"""Where a table's policy may stand: in the catalog's own policies, in its properties, here."""


class Retention(Model):
    """`from`: the sources of the window, the count and the age of orphans. Of several values, the safest applies."""

    sources: tuple[Source, ...] = Field(default=("lifecycle.yaml",), alias="from", min_length=1)
    rule: Rule = "as-of"
    window: Duration = timedelta(days=30)
    min_snapshots: int = Field(default=1, ge=1)
    max_snapshots: int | None = Field(default=None, ge=1)
    expire_limit: int | None = Field(default=None, ge=1)
    next_timestamp: bool = False
    thin: tuple[Thin, ...] = ()
    clean_metadata: bool = False

    @property
    def digest(self) -> str:
        """Return a short digest of these settings. A plan that was made with other settings is outdated."""
        own = {"sources"} if self.sources == ("lifecycle.yaml",) else None
        return hashlib.sha256(self.model_dump_json(exclude=own).encode()).hexdigest()[:16]

    @field_validator("thin")
    @classmethod
    def _one_tier_each(cls, tiers: tuple[Thin, ...]) -> tuple[Thin, ...]:
        kept = [tier.keep for tier in tiers]
        twice = next((keep for keep in kept if kept.count(keep) > 1), None)
        if twice is not None:
            raise ValueError(f"{twice} is there twice; give each calendar unit once")
        return tiers


class ColdSplit(Model):
    """A cold table with more than `above` snapshots moves past years or months (UTC) to separate cold tables, whose
    metadata later handoffs do not rewrite."""

    by: Literal["year", "month", "never"] = "year"
    above: int = Field(default=20_000, ge=1)


class ColdTier(Model):
    """`archive`: every expired snapshot, or the newest of each calendar unit (UTC) and every one that a ref names.
    Snapshots that were replaced `retain` ago move to the deep archive, or stay. Nothing is ever deleted from the cold
    tier. Each cold file is read once per `scrub_every` and compared with its checksum; 0 or never disables that."""

    enabled: bool = True
    archive: Literal["every"] | Every = "every"
    split: ColdSplit = ColdSplit()
    retain: Duration = timedelta(days=7 * 365)
    then: Literal["deep-archive", "keep"] = "deep-archive"
    scrub_every: Literal["never"] | Duration = timedelta(days=90)

    @property
    def scrubs(self) -> timedelta | None:
        """The duration of one rotation through the cold files; None if scrubbing is disabled."""
        return None if self.scrub_every == "never" or not self.scrub_every else self.scrub_every


class Deletion(Model):
    grace: Duration = timedelta(hours=24)
    max_files: int | None = Field(default=None, ge=0)
    max_bytes: int | None = Field(default=None, ge=0)
    max_share_of_table: float | None = Field(default=None, ge=0, le=1)
    requests_per_second: float | None = Field(default=None, gt=0)
    mode: Literal["delete", "quarantine"] = "delete"
    remove_empty_folders: bool = False


class ScanEvery(Model):
    """A scheduled scan runs when, at the observed leak rate, orphans will be `target_share` of the table's files, but
    at least `least` and at most `most` after the last one."""

    least: Duration = timedelta(hours=20)
    most: Duration = timedelta(days=7)
    target_share: float = Field(default=0.001, gt=0, le=1)

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.least > self.most:
            raise ValueError(f"least {format_duration(self.least)} is above most {format_duration(self.most)}")
        return self


class InFlight(Model):
    """A check warns when more than `max_share` of the listed files are skipped as in flight, `scans` times in a row."""

    max_share: float = Field(default=0.05, ge=0, le=1)
    scans: int = Field(default=3, ge=1)


class Orphans(Model):
    min_age: Duration = timedelta(days=7)
    min_age_floor: Duration = timedelta(hours=24)
    prefix_mismatch: Literal["error", "ignore", "delete"] = "error"
    missing_files: Literal["error", "ignore"] = "error"
    hidden: Literal["keep", "scan"] = "keep"
    max_share: float = Field(default=0.1, ge=0, le=1)
    equal_schemes: dict[str, str] = {",".join(kind[1:]): kind[0] for kind in KINDS if kind[1:]}
    equal_authorities: dict[str, str] = {}
    scan_every: ScanEvery = ScanEvery()
    in_flight: InFlight = InFlight()


class Dropped(Model):
    """Files of tables that were dropped from the catalog: kept for `keep` after the drop was noticed, then deleted with
    an approval (`required`), or within the guards of `deletion` (`guards`)."""

    keep: Duration = timedelta(days=30)
    approval: Literal["required", "guards"] = "required"


class Budgets(Model):
    read_share: float = Field(default=0.2, gt=0, le=1)
    object_store_iops: int = Field(default=5500, ge=1)
    write_share: float = Field(default=0.5, gt=0, le=1)
    object_store_writes: int = Field(default=3500, ge=1)
    object_store_bytes_per_second: int | None = Field(default=None, ge=1)
    compaction_bandwidth_share: float = Field(default=0.3, gt=0, le=1)


def _mebibytes(value: object) -> object:
    match = re.fullmatch(r"([1-9]\d*)(Mi|Gi)", value) if isinstance(value, str) else None
    if match is None and not isinstance(value, int):
        raise ValueError(f"{value!r} is not an amount of memory; write an integer and Mi or Gi, such as 16Gi")
    return value if match is None else int(match[1]) * (1024 if match[2] == "Gi" else 1)


Memory = Annotated[
    int, Field(ge=1), BeforeValidator(_mebibytes), PlainSerializer(lambda mebibytes: f"{mebibytes}Mi", return_type=str)
]
"""MiB, written as Kubernetes does."""


class Run(Model):
    """Resources of the runs of a table that a sensor or schedule requests: of the run's pod on Kubernetes, and of
    Spark's driver in it (None: half of `memory`). `kubernetes` has more of the tag `dagster-k8s/config`."""

    memory: Memory | None = None
    driver_memory: Memory | None = None
    cpu: float | None = Field(default=None, gt=0)
    kubernetes: dict[str, Any] = {}

    @property
    def driver(self) -> int | None:
        """The driver's memory in MiB; None if the session's settings decide."""
        return self.driver_memory or (None if self.memory is None else self.memory // 2)


def largest(runs: Collection[Run]) -> Run:
    """Return the resources of one run that does the work of all of them; `kubernetes` is that of the largest."""
    if not runs:
        return Run()
    return Run(
        memory=max(run.memory or 0 for run in runs) or None,
        driver_memory=max(run.driver or 0 for run in runs) or None,
        cpu=max(run.cpu or 0 for run in runs) or None,
        kubernetes=max(runs, key=lambda run: (run.memory or 0, run.cpu or 0)).kubernetes,
    )


Weekday = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]


class Compaction(Model):
    """When a compaction pays. Data files: at least `min_rewritable_share` of them are small and share a partition, or
    there are `min_delete_file_ratio` delete files per data file. Manifests: there are at least `min_manifests`, and
    more than twice as many as necessary, or a query of one partition reads more than `max_mixed_manifests` of several
    partitions; scheduled rewrites run on the days of `manifests_on` (in the quiet window's time zone).

    About `batch_bytes` are rewritten per commit, at the store's full speed, before throttling applies. A run stops
    after the partition that reaches `max_run_bytes` (None: no limit), and the next run continues. NDV statistics are
    recomputed when the share `statistics_after` of the rows has changed (None: never)."""

    min_rewritable_share: float = Field(default=0.2, gt=0, le=1)
    min_delete_file_ratio: float = Field(default=0.5, gt=0)
    min_manifests: int = Field(default=8, ge=2)
    max_mixed_manifests: int = Field(default=4, ge=2)
    manifests_on: tuple[Weekday, ...] = ("sunday",)
    batch_bytes: int = Field(default=1 << 30, ge=1)
    max_run_bytes: int | None = Field(default=None, ge=1)
    statistics_after: float | None = Field(default=None, gt=0)


class Report(Model):
    """Whether outcomes of steps are reported back as `properties` of the table. Those of a deletion get a commit of
    their own only if nobody has committed to the table for `quiet`."""

    properties: bool = False
    quiet: Duration = timedelta(minutes=10)


class QuietWindow(Model):
    start: str = Field(default="00:00", alias="from", pattern=r"^([01]\d|2[0-3]):[0-5]\d$")
    end: str = Field(default="08:00", alias="to", pattern=r"^([01]\d|2[0-3]):[0-5]\d$")
    timezone: str = "UTC"
    steps: tuple[Literal["plan", "handoff", "commit", "deletion", "orphans"], ...] = (
        "plan",
        "handoff",
        "commit",
        "deletion",
        "orphans",
    )
    """The steps that run unattended in the window."""
    runs: Literal["one_per_step", "one_per_table"] = "one_per_step"
    """How the sensor starts them: a run for each step at its hour, or the whole walk of a table in one run when the
    window opens, and what is left step by step."""

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise ValueError(f"{value!r} is not a time zone name") from error
        return value

    def day(self, now: datetime) -> date:
        """Return the day on which the window of `now` opened, in its own time zone."""
        opened = timedelta(hours=int(self.start[:2]), minutes=int(self.start[3:]))
        return (now.astimezone(ZoneInfo(self.timezone)).replace(tzinfo=None) - opened).date()


_WHOLE_DAY = timedelta(hours=23)
"""The shortest day, on which clocks go forward."""


@dataclass(frozen=True)
class MaintenanceWindow:
    """One quiet window: named by the `day` on which it opens in its own time zone; `opens` and `closes` in UTC."""

    day: date
    opens: datetime
    closes: datetime

    def excludes(self, now: datetime) -> bool:
        """Return True if work other than the walk must wait at `now` until the window is over. A window of a whole day
        excludes nothing: that work would never run."""
        return self.opens <= now < self.closes and self.closes - self.opens < _WHOLE_DAY


def window_of(now: datetime, quiet: QuietWindow) -> MaintenanceWindow:
    """The window that `now` belongs to; outside of windows, the last one that opened."""
    return _window_on(quiet.day(now), quiet)


def coming_window(now: datetime, quiet: QuietWindow) -> MaintenanceWindow:
    """The window that is open at `now`; outside of windows, the next one."""
    window = window_of(now, quiet)
    return window if now < window.closes else _window_on(window.day + timedelta(days=1), quiet)


def _window_on(day: date, quiet: QuietWindow) -> MaintenanceWindow:
    zone = ZoneInfo(quiet.timezone)
    start, end = (time_of_day(int(text[:2]), int(text[3:])) for text in (quiet.start, quiet.end))
    closing_day = day if end > start else day + timedelta(days=1)
    utc = ZoneInfo("UTC")
    return MaintenanceWindow(
        day=day,
        opens=datetime.combine(day, start, zone).astimezone(utc),
        closes=datetime.combine(closing_day, end, zone).astimezone(utc),
    )


def _portable(pattern: str) -> str:
    """Reject a pattern that Python and Postgres may interpret differently; the lineage gate runs it in Postgres."""
    outside = re.sub(r"\\.|\[\^?\]?(?:[^\]\\]|\\.)*\]", "", pattern)
    for what, found in (
        ("an escape other than of punctuation", re.search(r"\\[\w\s]", pattern)),
        ("(?", re.search(r"\(\?(?!:)", outside)),
        ("an anchor: it matches the whole value", re.search(r"[$^]", outside)),
        ("a repeated repetition", re.search(r"[*+?}][*+?{]", outside)),
        (
            r"a brace that does not bound a repetition (write \{ for a brace)",
            re.search(r"\{(?!\d+(?:,\d*)?\})", outside),
        ),
        ("a class of classes", re.search(r"\[[.:=]", pattern)),
        ("a bound above 255", any(int(bound) > 255 for bound in re.findall(r"\d+(?=[,}])", outside))),
    ):
        if found:
            raise ValueError(f"{pattern!r} has {what}, which is not portable between Python and Postgres")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a pattern: {error}") from error
    return pattern


class OverwritePermissions(Model):
    """The keys that commits with one of `counted` need, and the only allowed writers and operators (empty: all)."""

    operations: tuple[Literal["append", "replace", "overwrite", "delete"], ...] = ("overwrite",)
    needs: tuple[str, ...] = ("trigger.operator", "trigger.ticket")
    writers: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()

    @property
    def counted(self) -> tuple[str, ...]:
        """The operations that count as overwrites. If overwrites are restricted, a `delete` counts too, unless
        `operations` is set: pyiceberg overwrites with a `delete` and an `append`."""
        restricted = bool(self.writers or self.operators) and "operations" not in self.model_fields_set
        return (*self.operations, "delete") if restricted else self.operations

    @property
    def leaves_deletes_open(self) -> bool:
        return bool(self.writers or self.operators) and "delete" not in self.counted


class Lineage(Model):
    """The keys that a commit's summary needs. `triggers`: the trigger types, and the keys that each requires.
    `patterns`: for each key, a regular expression that must match its whole value."""

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
    operations: tuple[Literal["append", "replace", "overwrite", "delete"], ...] = (
        "append",
        "replace",
        "overwrite",
        "delete",
    )
    triggers: dict[str, tuple[str, ...]] = {
        "schedule": (),
        "manual": ("trigger.operator",),
        "incident-response": ("trigger.ticket",),
        "replay": ("input.snapshot_ids",),
    }
    patterns: dict[str, Annotated[str, AfterValidator(_portable)]] = {}
    overwrite: OverwritePermissions = OverwritePermissions()


class OrphanShare(Model):
    """The share of orphans among the listed files, 0 to 1. The check of a scan fails above `error`, and warns if the
    last `scans` scans were all above `warn`: a table in a steady state stays below it."""

    error: float = Field(default=0.1, ge=0, le=1)
    warn: float = Field(default=0.001, ge=0, le=1)
    scans: int = Field(default=3, ge=1)


class ScoreLimits(Model):
    """The check of a part of a table's health warns if the part's score is below `warn`, and fails below `error`. At 50
    the part doubles the cost of its work compared with a healthy table; at 10 the cost is ten times as high."""

    warn: float = Field(default=50, ge=0, le=100)
    error: float = Field(default=10, ge=0, le=100)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.error > self.warn:
            raise ValueError(f"error {self.error:g} is above warn {self.warn:g}")
        return self


class HealthLimits(Model):
    """The limits of each part's score. A part that costs less than `seconds`, or wastes less than `wasted_bytes`,
    always passes."""

    seconds: float = Field(default=10, ge=0)
    wasted_bytes: int = Field(default=1 << 30, ge=0)
    small_files: ScoreLimits = ScoreLimits()
    deletes: ScoreLimits = ScoreLimits()
    manifests: ScoreLimits = ScoreLimits()
    snapshots: ScoreLimits = ScoreLimits()
    metadata_size: ScoreLimits = ScoreLimits()
    orphan_share: ScoreLimits = ScoreLimits()
    lineage: ScoreLimits = ScoreLimits()
    staleness: ScoreLimits = ScoreLimits()


class Checks(Model):
    """Limits of the checks in Dagster.

    Ages: of the recorded history and ledger of a changed table, of an open plan beyond its grace, of a listing; and
    `overdue_after`, of the last plan of a table that is planned automatically. `health`: the parts of a table's score.
    `incomplete_snapshots`: how many snapshots may lack keys of `lineage.required`; None: any number.
    """

    metadata_age: Duration = timedelta(hours=24)
    plan_age: Duration = timedelta(days=7)
    listing_age: Duration = timedelta(days=8)
    overdue_after: Duration = timedelta(hours=36)
    orphan_share: OrphanShare = OrphanShare()
    health: HealthLimits = HealthLimits()
    incomplete_snapshots: int | None = Field(default=None, ge=0)


_AT_ZERO = {
    "retention.window": "history expires as soon as a commit follows it",
    "deletion.grace": "files go right after the commit, under queries that still read them",
    "orphans.min_age": "files of commits in flight count as orphans",
    "orphans.min_age_floor": "a call may ask for orphans of any age, those of commits in flight included",
}
"""Delays that leave time to notice a mistake, and the consequence of setting each to zero."""


class TablePolicy(Model):
    """The policy of one table: `defaults` of lifecycle.yaml, overridden by the entry that matches best."""

    retention: Retention = Retention()
    cold_tier: ColdTier = ColdTier()
    deletion: Deletion = Deletion()
    orphans: Orphans = Orphans()
    dropped: Dropped = Dropped()
    budgets: Budgets = Budgets()
    compaction: Compaction = Compaction()
    report: Report = Report()
    quiet_window: QuietWindow = QuietWindow()
    lineage: Lineage = Lineage()
    checks: Checks = Checks()
    run: Run = Run()

    @model_validator(mode="after")
    def _driver_fits(self) -> Self:
        run = self.run
        if run.driver is not None and run.driver + 1024 > (run.memory or 0):
            raise ValueError(
                f"run.memory must be at least 1Gi more than the driver's {run.driver}Mi, for Python and Java itself"
            )
        return self

    @model_validator(mode="after")
    def _age_above_floor(self) -> Self:
        # A table may set min_age without min_age_floor, so only the merged policy can be checked.
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
        """Return the consequence of each delay that is zero, by key."""
        sections = {key: key.split(".") for key in _AT_ZERO}
        return {
            key: _AT_ZERO[key] for key, (section, name) in sections.items() if not getattr(getattr(self, section), name)
        }


class TableOverrides(Model):
    """One entry of `tables`: the sections and keys that differ from `defaults`."""

    retention: Retention | None = None
    cold_tier: ColdTier | None = None
    deletion: Deletion | None = None
    orphans: Orphans | None = None
    dropped: Dropped | None = None
    budgets: Budgets | None = None
    compaction: Compaction | None = None
    report: Report | None = None
    quiet_window: QuietWindow | None = None
    lineage: Lineage | None = None
    checks: Checks | None = None
    run: Run | None = None


def overlay(policy: TablePolicy, overrides: TableOverrides) -> TablePolicy:
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
