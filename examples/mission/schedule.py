"""What happened to each table, and when: more than 400 days of commits, and what other hands left behind. Pure: `now`
in, events out. Sparse long ago and dense in the last days, as a user finds a table today.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

HISTORY_DAYS = 420

REGISTRY = "artemis.orbital_object_registry"
TELEMETRY = "artemis.ground_station_telemetry"
ARCHIVE = "artemis.mission_archive_config"
TABLES = (REGISTRY, TELEMETRY, ARCHIVE)

INCIDENT = "incident-2024-03-15-conjunction-alert"


class Action(StrEnum):
    """One thing that happens to a table. The last five leave files that no snapshot has."""

    CREATE = "create"
    APPEND = "append"
    OVERWRITE = "overwrite"
    DELETE = "delete"
    COMPACT = "compact"
    REWRITE_MANIFESTS = "rewrite manifests"
    COMPUTE_STATISTICS = "compute statistics"
    ADD_COLUMN = "add column"
    ROLL_BACK = "roll back"
    TAG = "tag"
    MARK = "mark"
    BRANCH = "branch"
    APPEND_TO_BRANCH = "append to branch"
    CRASHED_WRITER = "crashed writer"
    LOST_COMMIT = "lost commit"
    INTERRUPTED_COMPACTION = "interrupted compaction"
    WRITER_IN_FLIGHT = "writer in flight"
    YOUNG_FILE = "young file"


@dataclass(frozen=True)
class Event:
    """An action at a time. `since`: the rows are those from then on, up to `at` or to the end of that day.

    `name` is that of the tag, branch or column; of a MARK, a snapshot to be tagged forever once the history stands.
    `retain_days` None leaves a tag's age to the table. `where` is a predicate of Spark SQL; `sections` are those of the
    configuration.
    """

    at: datetime
    action: Action
    name: str = ""
    since: datetime | None = None
    retain_days: int | None = None
    where: str = ""
    sections: tuple[str, ...] = ()


def mission_start(now: datetime) -> datetime:
    """Midnight (UTC) of the day on which the mission began."""
    return _midnight(now) - timedelta(days=HISTORY_DAYS)


def events(table: str, now: datetime) -> tuple[Event, ...]:
    """The table's events in their order, all before `now`, at least a minute apart."""
    made = {REGISTRY: _registry, TELEMETRY: _telemetry, ARCHIVE: _archive}[table](now)
    past: list[Event] = []
    for event in sorted(made, key=lambda event: event.at):
        at = max(event.at, past[-1].at + timedelta(minutes=1)) if past else event.at
        if at < now - timedelta(minutes=10):
            past.append(replace(event, at=at))
    return tuple(past)


def _midnight(now: datetime) -> datetime:
    return now.replace(hour=0, minute=0, second=0, microsecond=0)


def _ago(now: datetime, days: float, hour: float = 0.0) -> datetime:
    """`hour` of the day that is `days` ago."""
    return _midnight(now) - timedelta(days=days) + timedelta(hours=hour)


def _registry(now: datetime) -> Iterator[Event]:
    yield Event(_ago(now, HISTORY_DAYS, 0.1), Action.CREATE)
    for day in [*range(HISTORY_DAYS - 1, 45, -12), *range(45, 10, -2), *range(10, -1, -1)]:
        yield Event(_ago(now, day, 1), Action.APPEND)
    for day in [*range(HISTORY_DAYS - 25, 45, -45), *range(43, 0, -7)]:
        yield Event(_ago(now, day, 3), Action.COMPACT)
    # Entries that turned out wrong, struck out where they stand.
    for index, day in enumerate([380, 310, 250, 190, 130, 70, 44, 28, 14, 4]):
        number = (28350, 22312, 28872, 29141)[index % 4]
        since, until = _ago(now, day + 30), _ago(now, day)
        where = f"catalog_number IN ({number}, 29238) AND catalogued_at >= {_literal(since)} AND "
        yield Event(_ago(now, day, 5), Action.DELETE, where=f"{where}catalogued_at < {_literal(until)}")
    yield Event(_ago(now, 300, 6), Action.TAG, "element-sets-baseline")
    yield Event(_ago(now, 101, 6), Action.TAG, "before-altitude", retain_days=60)
    yield Event(_ago(now, 100, 6), Action.ADD_COLUMN, "altitude_km")
    yield Event(_ago(now, 20, 6), Action.TAG, "solar-storm-review", retain_days=90)
    yield Event(_ago(now, 250, 7), Action.MARK, INCIDENT)
    yield Event(_ago(now, 60, 7), Action.BRANCH, "reprocessing")
    yield Event(_ago(now, 59, 7), Action.APPEND_TO_BRANCH, "reprocessing")
    yield Event(_ago(now, 40, 7), Action.APPEND_TO_BRANCH, "reprocessing")
    # A wrong catalog was ingested twice, and rolled back: off the main line, but once current.
    for day in (80, 12):
        yield Event(_ago(now, day, 9), Action.APPEND)
        yield Event(_ago(now, day, 10), Action.ROLL_BACK)
    yield Event(_ago(now, 50, 8), Action.REWRITE_MANIFESTS)
    yield Event(_ago(now, 50, 9), Action.COMPUTE_STATISTICS)
    yield Event(_ago(now, 2, 9), Action.COMPUTE_STATISTICS)
    yield Event(_ago(now, 45, 11), Action.LOST_COMMIT)
    yield Event(now - timedelta(hours=2), Action.YOUNG_FILE)


def _telemetry(now: datetime) -> Iterator[Event]:
    yield Event(_ago(now, HISTORY_DAYS, 0.1), Action.CREATE)
    for day in [*range(HISTORY_DAYS - 1, 30, -10), *range(30, 8, -1)]:
        yield Event(_ago(now, day, 0.5), Action.APPEND, since=_ago(now, day + 1))
    for quarter in range(4 * 9):
        begin = _ago(now, 8) + timedelta(hours=6 * (quarter - 4))
        yield Event(begin + timedelta(hours=6, minutes=12), Action.APPEND, since=begin)
    for day in [*range(HISTORY_DAYS - 20, 30, -40), 25, 20, 15, *range(7, -1, -1)]:
        yield Event(_ago(now, day, 3), Action.COMPACT)
    # An antenna that was found to point wrongly: its contacts are taken back.
    for index, day in enumerate([400, 340, 280, 220, 160, 100, 40, 22, 12, 6.5, 5.5, 3.5, 1.5]):
        station = ("kiruna", "malargue", "svalbard")[index % 3]
        where = f"station = '{station}' AND max_elevation_deg < 12 AND acquired_at >= {_literal(_ago(now, day + 40))}"
        yield Event(_ago(now, day, 5), Action.DELETE, where=where)
    # A day that was replayed from the recorders replaces what had come in live.
    for day in (200, 18, 2):
        yield Event(_ago(now, day, 7), Action.OVERWRITE, since=_ago(now, day + 1))
    yield Event(_ago(now, 120, 8), Action.MARK, "incident-2025-signal-loss-canberra")
    yield Event(_ago(now, 60, 8), Action.TAG, "calibration-reference", retain_days=14)
    yield Event(_ago(now, 3, 8), Action.TAG, "shift-handover", retain_days=30)
    yield Event(_ago(now, 16, 9), Action.CRASHED_WRITER, since=_ago(now, 17))
    yield Event(_ago(now, 9, 9), Action.WRITER_IN_FLIGHT, since=_ago(now, 39))


def _archive(now: datetime) -> Iterator[Event]:
    every = ("station", "tracking", "calibration")
    yield Event(_ago(now, HISTORY_DAYS, 0.1), Action.CREATE)
    yield Event(_ago(now, HISTORY_DAYS - 1, 2), Action.APPEND, sections=every)
    for day in [*range(HISTORY_DAYS - 8, 14, -16), *range(14, 0, -2)]:
        yield Event(_ago(now, day, 2), Action.APPEND, sections=("calibration",))
    for index, day in enumerate(range(HISTORY_DAYS - 16, 0, -20)):
        yield Event(_ago(now, day, 4), Action.OVERWRITE, sections=(every[index % 2],))
    for day in [*range(HISTORY_DAYS - 40, 0, -60)]:
        yield Event(_ago(now, day, 3), Action.COMPACT)
    # A station is taken out of service: this table rewrites the files that had it.
    for day, station in ((350, "kourou"), (180, "malargue"), (33, "new-norcia")):
        yield Event(_ago(now, day, 6), Action.DELETE, where=f"name LIKE '{station}.%' AND section = 'calibration'")
    yield Event(_ago(now, HISTORY_DAYS - 2, 8), Action.MARK, "launch-configuration")
    yield Event(_ago(now, 400, 8), Action.TAG, "first-audit", retain_days=180)
    yield Event(_ago(now, 200, 8), Action.TAG, "yearly-audit", retain_days=730)
    yield Event(_ago(now, 26, 9), Action.INTERRUPTED_COMPACTION)


def _literal(at: datetime) -> str:
    return f"TIMESTAMP '{at:%Y-%m-%d %H:%M:%S}'"
