"""Reading a table at an instant, a snapshot or a tag, from the tier that has it. Routing goes by the snapshot log: the
cold table keeps the live table's whole log, so that an instant whose snapshot neither tier has fails, and is never
answered by an older snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from shlex import quote
from typing import TYPE_CHECKING, Literal

from artemis_lifecycle.catalogs.identifier import parse
from artemis_lifecycle.cold_tier.cold_metadata import continued_log, snapshot_at
from artemis_lifecycle.cold_tier.cold_tables import ColdTables
from artemis_lifecycle.errors import BadInput, NaiveDatetime, NoSuchSnapshot
from artemis_lifecycle.metadata.types import LogEntry, TableMetadata
from artemis_lifecycle.storage.instants import milliseconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Selector:
    """Which state of a table is asked for: one of three, or none for the live table as it is now.

    Raises BadInput for two at once, NaiveDatetime for an instant without a time zone.
    """

    as_of: datetime | None = None
    snapshot_id: int | None = None
    tag: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("as_of", "snapshot_id", "tag") if getattr(self, name) is not None]
        if len(given) > 1:
            raise BadInput(
                f"Two selectors at once: {' and '.join(given)}", untouched="everything", do="give one of them"
            )
        if self.as_of is not None and self.as_of.tzinfo is None:
            raise NaiveDatetime(
                f"as_of={self.as_of} has no time zone",
                untouched="everything",
                do="pass a datetime with tzinfo, e.g. UTC",
            )

    def __str__(self) -> str:
        for name in ("as_of", "snapshot_id", "tag"):
            value = getattr(self, name)
            if value is not None:
                return f"{name} {value}"
        return "now"


@dataclass(frozen=True)
class Route:
    """Where the answer is. `snapshot_id` is None for a live table that has no snapshot yet; `cold_table` is the name in
    the cold catalog of the table that has it, None in the live tier. What the configuration says of the tier, its
    storage class and how soon it answers, comes with it.

    In the deep archive nothing can be read before a thaw: `readable_in` is how long that is expected to take from its
    approval, or what is left of it; None where it can be read now. `thaw` says what is under way.
    """

    tier: Literal["live", "cold", "deep-archive"]
    snapshot_id: int | None
    cold_table: str | None = field(default=None, compare=False)
    storage_class: str | None = field(default=None, compare=False)
    expected_latency: timedelta | None = field(default=None, compare=False)
    readable_in: timedelta | None = field(default=None, compare=False)
    thaw: str | None = field(default=None, compare=False)

    @property
    def hours_until_readable(self) -> float:
        """`readable_in`, in hours; 0 where it can be read now."""
        return 0.0 if self.readable_in is None else self.readable_in / timedelta(hours=1)


def route(table: str, live: TableMetadata, cold: ColdTables | None, selector: Selector) -> Route:
    """The tier and the snapshot that answer `selector`; the live tier where both could.

    `cold` is None for a table that has no cold one. Raises NoSuchSnapshot when neither tier has the
    snapshot, naming the snapshot that was current where the log knows it.
    """
    if selector.tag is not None:
        return _of_tag(table, live, cold, selector.tag)
    if selector.snapshot_id is not None:
        wanted: int | None = selector.snapshot_id
    elif selector.as_of is not None:
        wanted = _current_at(live, cold, milliseconds(selector.as_of))
    else:
        return Route("live", live.current_snapshot_id)
    if wanted is not None and live.snapshot(wanted) is not None:
        return Route("live", wanted)
    found = None if wanted is None or cold is None else cold.holding(wanted)
    if found is not None:
        return Route("cold", wanted, found.name)
    known = f"; snapshot {wanted} was current then" if selector.as_of is not None and wanted else ""
    raise NoSuchSnapshot(
        f"Neither tier has the table {selector}{known}",
        table=table,
        untouched="everything",
        do=f"see what there is with: artemis history {quote(table)}",
    )


def _current_at(live: TableMetadata, cold: ColdTables | None, at_ms: int) -> int | None:
    """The snapshot that was current at an instant, by the log of both tiers; None before it begins."""
    if cold is None:
        return snapshot_at([(entry.timestamp_ms, entry.snapshot_id) for entry in live.snapshot_log], at_ms)
    closed = cold.closed_log(at_ms)
    if closed is not None:
        return snapshot_at([(entry.timestamp_ms, entry.snapshot_id) for entry in closed], at_ms)
    newest = cold.newest.metadata
    former = {"snapshot-log": _entries(newest.snapshot_log), "properties": newest.properties}
    log = continued_log(former, _entries(live.snapshot_log))
    return snapshot_at([(entry["timestamp-ms"], entry["snapshot-id"]) for entry in log], at_ms)


def _entries(log: Sequence[LogEntry]) -> list[dict[str, int]]:
    return [{"timestamp-ms": entry.timestamp_ms, "snapshot-id": entry.snapshot_id} for entry in log]


def _of_tag(table: str, live: TableMetadata, cold: ColdTables | None, tag: str) -> Route:
    if tag in live.refs:
        return Route("live", live.refs[tag].snapshot_id)
    found = None if cold is None else cold.tagged(tag)
    if found is not None:
        return Route("cold", *found)
    raise NoSuchSnapshot(
        f"Neither tier has a tag {tag!r}",
        table=table,
        untouched="everything",
        do=f"see what there is with: artemis history {quote(table)}",
    )


def read(spark: SparkSession, catalog: str, table: str, found: Route) -> DataFrame:
    """The rows of `catalog`'s `table` (its name in the tier of `found`) at the snapshot that `route` found."""
    if found.snapshot_id is None:
        return spark.table(parse(table).sql(catalog))
    # Iceberg's own option `snapshot-id` is refused since Spark 4.
    return spark.read.option("versionAsOf", found.snapshot_id).table(parse(table).sql(catalog))
