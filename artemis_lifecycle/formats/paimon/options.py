"""The options of a table's expiration, with Paimon's defaults. Source: Paimon's CoreOptions, ExpireConfig,
ProcedureUtils and TimeUtils, and the page "Manage Snapshots"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from artemis_lifecycle.errors import BadInput
from artemis_lifecycle.retention.rules import RetentionSettings
from artemis_lifecycle.storage.instants import milliseconds

LimitSource = Literal["documented", "coded"]

LIMITS: Mapping[LimitSource, int] = {"documented": 10, "coded": 50}
"""The default of snapshot.expire.limit: what Paimon's documentation says, and what its code has."""

_MAX = 2**31 - 1
_HOUR_MS = 3_600_000
_UNITS_MS: Mapping[str, float] = {
    **dict.fromkeys(("", "ms", "milli", "millis", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), _HOUR_MS),
    **dict.fromkeys(("d", "day", "days"), 24 * _HOUR_MS),
    **dict.fromkeys(("\u00b5s", "micro", "micros", "microsecond", "microseconds"), 1e-3),
    **dict.fromkeys(("ns", "nano", "nanos", "nanosecond", "nanoseconds"), 1e-6),
}


def produces_changelog(options: Mapping[str, str]) -> bool:
    """Return True if the table has a changelog producer, whose files are the changelog."""
    return options.get("changelog-producer", "none").lower() != "none"


def follows_deltas(options: Mapping[str, str]) -> bool:
    """Return True if the appended files of expired snapshots stay as a changelog: it lives longer than snapshots, and
    the table has no changelog producer."""
    return changelog_outlives(options) and not produces_changelog(options)


def changelog_outlives(options: Mapping[str, str]) -> bool:
    """Return True if the changelog of the table lives longer than its snapshots ("decoupled")."""
    read = _Options(options)
    return (
        read.changelog_max > read.retain_max
        or read.changelog_min > read.retain_min
        or read.changelog_ms > read.time_retained_ms
    )


def expires_by_itself(options: Mapping[str, str]) -> bool:
    """Return True if each commit of a writer expires snapshots."""
    return not _flag(options, "write-only", "write.compaction-skip")


def is_async(options: Mapping[str, str]) -> bool:
    """Return True if the table's expirations do not wait for the deletion of files. Raises BadInput."""
    mode = options.get("snapshot.expire.execution-mode", "sync").lower()
    if mode not in ("sync", "async"):
        raise _bad("snapshot.expire.execution-mode", mode, "sync or async")
    return mode == "async"


def cleans_empty_folders(options: Mapping[str, str]) -> bool:
    """Return True if expirations remove the bucket and partition folders that they emptied."""
    return _flag(options, "snapshot.clean-empty-directories", "snapshot.expire.clean-empty-directories")


@dataclass(frozen=True)
class ExpireOptions:
    """What decides an expiration. `consumers_hold` says that consumers keep snapshots, not only changelogs."""

    settings: RetentionSettings
    consumers_hold: bool
    decoupled: bool
    changelog_max: int
    changelog_min: int
    changelog_ms: int


def expire_options(
    options: Mapping[str, str],
    *,
    limit_source: LimitSource = "documented",
    next_timestamp: bool = False,
    retain_max: int | None = None,
    retain_min: int | None = None,
    older_than: datetime | None = None,
    max_deletes: int | None = None,
) -> ExpireOptions:
    """Return the options of a table, which arguments of the call override. Raises BadInput, before anything is
    touched, unless 1 <= min <= max and the limit is at least 1."""
    read = _Options(options)
    most = read.retain_max if retain_max is None else retain_max
    least = read.retain_min if retain_min is None else retain_min
    limit = read.limit(LIMITS[limit_source]) if max_deletes is None else max_deletes
    _require_order("snapshot", least, most)
    if changelog_outlives(options):
        _require_order("changelog", read.changelog_min, read.changelog_max)
    if limit < 1:
        raise _bad("snapshot.expire.limit (max_deletes)", str(limit), "at least 1")
    settings = RetentionSettings(
        rule="paimon",
        window_ms=read.time_retained_ms,
        min_snapshots=least,
        max_snapshots=None if most >= _MAX else most,
        older_than_ms=None if older_than is None else milliseconds(older_than),
        expire_limit=limit,
        next_timestamp=next_timestamp,
        explicit_window=True,
    )
    return ExpireOptions(
        settings,
        not _flag(options, "consumer.changelog-only"),
        changelog_outlives(options),
        read.changelog_max,
        read.changelog_min,
        read.changelog_ms,
    )


def parse_options(text: str | None) -> dict[str, str]:
    """Return the pairs of the argument `options`, such as `snapshot.expire.limit=1`. Raises BadInput."""
    found = {}
    for pair in (text or "").split(","):
        if not pair.strip():
            continue
        key, equals, value = pair.partition("=")
        if not equals:
            raise _bad("options", pair, "key=value pairs, separated by commas")
        found[key.strip()] = value.strip()
    return found


class _Options:
    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options
        self.retain_min = self._whole("snapshot.num-retained.min", 10)
        self.retain_max = self._whole("snapshot.num-retained.max", _MAX)
        self.time_retained_ms = self._duration("snapshot.time-retained", _HOUR_MS)
        self.changelog_min = self._whole("changelog.num-retained.min", self.retain_min)
        self.changelog_max = self._whole("changelog.num-retained.max", self.retain_max)
        self.changelog_ms = self._duration("changelog.time-retained", self.time_retained_ms)

    def limit(self, default: int) -> int:
        return self._whole("snapshot.expire.limit", default)

    def _whole(self, key: str, default: int) -> int:
        text = self._options.get(key)
        if text is None:
            return default
        if not re.fullmatch(r"[+-]?\d{1,10}", text.strip()):
            raise _bad(key, text, "a whole number")
        return int(text)

    def _duration(self, key: str, default: int) -> int:
        text = self._options.get(key)
        if text is None:
            return default
        match = re.fullmatch(r"(\d{1,18})\s*(\D*)", text.strip())
        unit = None if match is None else _UNITS_MS.get(match[2].strip().lower())
        if match is None or unit is None:
            raise _bad(key, text, "a duration such as 1 h")
        return int(int(match[1]) * unit)


def _flag(options: Mapping[str, str], *keys: str) -> bool:
    found = next((options[key] for key in keys if key in options), "false").lower()
    if found not in ("true", "false"):
        raise _bad(keys[0], found, "true or false")
    return found == "true"


def _require_order(what: str, least: int, most: int) -> None:
    if least < 1:
        raise _bad(f"{what}.num-retained.min (retain_min)", str(least), "at least 1")
    if most < least:
        raise _bad(f"{what}.num-retained.max (retain_max)", str(most), f"at least {what}.num-retained.min ({least})")


def _bad(key: str, value: str, wanted: str) -> BadInput:
    return BadInput(f"{key} is {value!r}, and must be {wanted}", untouched="the table", hint=f"correct {key}")
