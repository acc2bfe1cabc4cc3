"""Reading a table at an instant, a snapshot or a tag, from the tier that has it. Routing uses the snapshot log: the
cold table keeps the live table's complete log. So if neither tier has the snapshot of an instant, the read fails
instead of returning an older snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain
from shlex import quote
from typing import TYPE_CHECKING, Literal

from artemis_lifecycle.catalogs.identifier import parse_in
from artemis_lifecycle.cold_tier.cold_metadata import Refs, at, entry_at, last, line_of, refs_of, whole_log
from artemis_lifecycle.cold_tier.cold_tables import ColdTables
from artemis_lifecycle.errors import BadInput, NaiveDatetime, NoSuchSnapshot
from artemis_lifecycle.metadata.lines import Line, went_back
from artemis_lifecycle.metadata.types import Snapshot, TableMetadata
from artemis_lifecycle.storage.instants import milliseconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Selector:
    """The requested state of a table: at most one of the three; none means the current live table. A tag with `as_of`
    means the snapshot that the tag pointed to at that instant.

    Raises BadInput for two others at once, and NaiveDatetime for an instant without a time zone.
    """

    as_of: datetime | None = None
    snapshot_id: int | None = None
    tag: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("as_of", "snapshot_id", "tag") if getattr(self, name) is not None]
        if len(given) > 1 and given != ["as_of", "tag"]:
            raise BadInput(f"Two selectors at once: {' and '.join(given)}", hint="use one of them")
        NaiveDatetime.refuse("as_of", self.as_of)

    def __str__(self) -> str:
        given = {"tag": self.tag and repr(self.tag), "snapshot_id": self.snapshot_id, "as_of": self.as_of}
        return " ".join(f"{name} {value}" for name, value in given.items() if value is not None) or "now"


@dataclass(frozen=True)
class Route:
    """Where the answer is. `snapshot_id` is None for a live table without snapshots. `cold_table` is the name, in the
    cold catalog, of the table that has it; None in the live tier. `ref` is the requested live ref; engines may read it
    with another schema than its snapshot's. The tier's storage class and response time come from the configuration.

    Nothing in the deep archive is readable before a thaw. `readable_in` is the expected time from the thaw's approval,
    or the rest of it; None if it is readable now. `thaw` describes a thaw under way.
    """

    tier: Literal["live", "cold", "deep-archive"]
    snapshot_id: int | None
    cold_table: str | None = field(default=None, compare=False)
    ref: str | None = field(default=None, compare=False)
    storage_class: str | None = field(default=None, compare=False)
    expected_latency: timedelta | None = field(default=None, compare=False)
    readable_in: timedelta | None = field(default=None, compare=False)
    thaw: str | None = field(default=None, compare=False)

    @property
    def hours_until_readable(self) -> float:
        """`readable_in` in hours; 0 if it is readable now."""
        return 0.0 if self.readable_in is None else self.readable_in / timedelta(hours=1)


States = Callable[[int], Iterable[tuple[int, Refs | None]]]
"""`tags.former_states` of the live table."""

CurrentAt = Callable[[int], int | None]
"""Which snapshot was current at an instant (epoch ms)."""


def route(
    table: str,
    live: TableMetadata,
    cold: ColdTables | None,
    selector: Selector,
    states: States = lambda after: (),
    current_at: CurrentAt | None = None,
    is_gone: Callable[[Snapshot], bool] = lambda snapshot: False,
) -> Route:
    """Return the tier and the snapshot that answer `selector`; the live tier if both can.

    `is_gone` says whether a live snapshot's files are gone: the metadata of a catalog that was put back may name them.
    It is only asked about snapshots that are in cold. `cold` is None for a table without a cold table. `states` returns
    the refs since the last handoff. `current_at` answers for instants; by default, the logs of both tiers do. Raises
    NoSuchSnapshot if neither tier has the snapshot; the error has the id of the current or tagged snapshot, if it is
    known.
    """
    if selector.tag is not None:
        ref = live.refs.get(selector.tag)
        if selector.as_of is not None and ref is not None and ref.is_branch:
            raise BadInput(
                f"{selector.tag!r} is a branch: its past states are not recorded",
                table=table,
                hint="omit as_of, or select a snapshot of the branch by its id",
            )
        if selector.as_of is None and ref is not None:
            return Route("live", live.refs[selector.tag].snapshot_id, ref=selector.tag)
        wanted: int | None = _meant(live, cold, selector, states)
        former = None if wanted is not None or cold is None or selector.as_of is not None else cold.tagged(selector.tag)
        if former is not None:
            return Route("cold", *former)
    elif selector.snapshot_id is not None:
        wanted = selector.snapshot_id
    elif selector.as_of is not None:
        instant = milliseconds(selector.as_of)
        wanted = (current_entry(live, cold, instant) or (0, None))[1] if current_at is None else current_at(instant)
    else:
        return Route("live", live.current_snapshot_id)
    here = None if wanted is None else live.snapshot(wanted)
    found = None if wanted is None or cold is None else cold.holding(wanted)
    if here is not None and (found is None or not is_gone(here)):
        return Route("live", wanted)
    if found is not None:
        return Route("cold", wanted, found.name)
    known = ""
    if wanted and selector.tag is not None:
        known = f"; it meant snapshot {wanted}"
    elif wanted and selector.as_of is not None:
        known = f"; snapshot {wanted} was current then"
    raise NoSuchSnapshot(
        f"Neither tier has {'a' if selector.tag and not known else 'the table'} {selector}{known}",
        table=table,
        hint=f"list the snapshots with: artemis history {quote(table)}",
    )


def current_entry(live: TableMetadata, cold: ColdTables | None, at_ms: int, left_ms: int = 0) -> tuple[int, int] | None:
    """Return since when (epoch ms) which snapshot was current at an instant, by the logs of both tiers:
    UNKNOWN_SNAPSHOT in a period of which neither knows, None before both begin. `left_ms` is as in `Line`."""
    if cold is None:
        return entry_at(((entry.timestamp_ms, entry.snapshot_id) for entry in live.snapshot_log), at_ms)
    closed = cold.closed_log(at_ms)
    if closed is not None:
        return entry_at(((entry.timestamp_ms, entry.snapshot_id) for entry in closed), at_ms)
    newest = cold.newest.metadata
    log = [{"timestamp-ms": entry.timestamp_ms, "snapshot-id": entry.snapshot_id} for entry in newest.snapshot_log]
    former = {"snapshot-log": log, "properties": newest.properties}
    snapshots = (*newest.snapshots, *live.snapshots)
    reset = went_back(Line.of(live, left_ms), line_of(newest))
    return entry_at(whole_log(live, former, snapshots, reset=reset), at_ms)


def _meant(live: TableMetadata, cold: ColdTables | None, selector: Selector, states: States) -> int | None:
    """Return the snapshot that a tag pointed to at its end, or at an instant. Back to the last handoff, the live
    table's metadata files are used; before that, the history in cold."""
    tag, at_ms = str(selector.tag), None if selector.as_of is None else milliseconds(selector.as_of)
    known_until = 0 if cold is None else cold.tags_known_until
    if at_ms is None or at_ms > known_until:
        for begins, refs in chain([(live.last_updated_ms, refs_of(live))], states(known_until)):
            if at_ms is None and refs is not None and tag in refs:
                return refs[tag]
            if at_ms is not None and begins <= at_ms:
                return None if refs is None else refs.get(tag)
    history = () if cold is None else cold.tags
    return last(history, tag) if at_ms is None else at(history, tag, at_ms)


def read(spark: SparkSession, catalog: str, table: str, found: Route) -> DataFrame:
    """Return the rows of `catalog`'s `table` (its name in the tier of `found`) at the snapshot of the route `found`."""
    if found.snapshot_id is None:
        return spark.table(parse_in(table, catalog).sql(catalog))
    # Since Spark 4, Iceberg's own option `snapshot-id` is refused.
    return spark.read.option("versionAsOf", found.snapshot_id).table(parse_in(table, catalog).sql(catalog))
