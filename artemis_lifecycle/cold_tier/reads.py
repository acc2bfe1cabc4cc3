"""Reading a table at an instant, a snapshot or a tag, from the tier that has it. Routing goes by the snapshot log: the
cold table keeps the live table's whole log, so that an instant whose snapshot neither tier has fails, and is never
answered by an older snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

from artemis_lifecycle.cold_tier.cold_metadata import COMPLETE_UNTIL, merge_logs, snapshot_at
from artemis_lifecycle.cold_tier.paths import read_identity
from artemis_lifecycle.errors import BadInput, NaiveDatetime, NoSuchSnapshot
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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
    """Where the answer is. `snapshot_id` is None for a live table that has no snapshot yet. What the configuration says
    of the tier, its storage class and how soon it answers, comes with it.

    In the deep archive nothing can be read before a thaw: `readable_in` is how long that is expected to take from its
    approval, or what is left of it; None where it can be read now. `thaw` says what is under way.
    """

    tier: Literal["live", "cold", "deep-archive"]
    snapshot_id: int | None
    storage_class: str | None = field(default=None, compare=False)
    expected_latency: timedelta | None = field(default=None, compare=False)
    readable_in: timedelta | None = field(default=None, compare=False)
    thaw: str | None = field(default=None, compare=False)


def route(table: str, live: TableMetadata, cold: TableMetadata | None, selector: Selector) -> Route:
    """The tier and the snapshot that answer `selector`; the live tier where both could.

    `cold` is the table's cold metadata, None when it has none. Raises NoSuchSnapshot when neither tier has the
    snapshot, naming the snapshot that was current where the log knows it.
    """
    if selector.tag is not None:
        return _of_tag(table, live, cold, selector.tag)
    if selector.snapshot_id is not None:
        wanted: int | None = selector.snapshot_id
    elif selector.as_of is not None:
        wanted = snapshot_at(_whole_log(live, cold), (selector.as_of - _EPOCH) // timedelta(milliseconds=1))
    else:
        return Route("live", live.current_snapshot_id)
    if wanted is not None and live.snapshot(wanted) is not None:
        return Route("live", wanted)
    if wanted is not None and cold is not None and cold.snapshot(wanted) is not None:
        return Route("cold", wanted)
    known = f"; snapshot {wanted} was current then" if selector.as_of is not None and wanted else ""
    raise NoSuchSnapshot(
        f"Neither tier has the table {selector}{known}",
        table=table,
        untouched="everything",
        do=f"see what there is with: artemis history {table}",
    )


def _whole_log(live: TableMetadata, cold: TableMetadata | None) -> list[tuple[int, int]]:
    mine = [{"timestamp-ms": entry.timestamp_ms, "snapshot-id": entry.snapshot_id} for entry in live.snapshot_log]
    if cold is not None:
        former = [{"timestamp-ms": entry.timestamp_ms, "snapshot-id": entry.snapshot_id} for entry in cold.snapshot_log]
        mine = merge_logs(former, mine, int(cold.properties.get(COMPLETE_UNTIL, 0)))
    return [(entry["timestamp-ms"], entry["snapshot-id"]) for entry in mine]


def _of_tag(table: str, live: TableMetadata, cold: TableMetadata | None, tag: str) -> Route:
    if tag in live.refs:
        return Route("live", live.refs[tag].snapshot_id)
    if cold is not None and tag in cold.refs and not cold.refs[tag].is_branch:
        return Route("cold", cold.refs[tag].snapshot_id)
    raise NoSuchSnapshot(
        f"Neither tier has a tag {tag!r}",
        table=table,
        untouched="everything",
        do=f"see what there is with: artemis history {table}",
    )


def cold_table_of(stores: Stores, root: str, table_uuid: str) -> str | None:
    """The name in the cold catalog of the table with that uuid; None before its first handoff."""
    identity = read_identity(stores, root, table_uuid)
    return None if identity is None else identity.cold_table


def read(spark: SparkSession, catalog: str, table: str, found: Route) -> DataFrame:
    """The rows of `catalog`'s `table` (its name in the tier of `found`) at the snapshot that `route` found."""
    if found.snapshot_id is None:
        return spark.table(quoted(catalog, table))
    # Iceberg's own option `snapshot-id` is refused since Spark 4.
    return spark.read.option("versionAsOf", found.snapshot_id).table(quoted(catalog, table))


def quoted(catalog: str, table: str) -> str:
    """`catalog.namespace.table` for Spark SQL, whatever characters the names have."""
    parts = (catalog, *table.split("."))
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)
