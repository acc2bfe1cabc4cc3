"""The fleet page and the pages of tables: HTML files without external resources."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from rich.filesize import decimal

from artemis_lifecycle.config.deployment import Alerts, Dagster
from artemis_lifecycle.config.durations import format_duration
from artemis_lifecycle.config.policies import TablePolicy
from artemis_lifecycle.config.schemes import S3_SCHEMES
from artemis_lifecycle.escaping import html, partition_key
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.fleet import DayScan, planned_since, scan_shares
from artemis_lifecycle.storage.instants import if_in_calendar

if TYPE_CHECKING:
    from artemis_lifecycle.expiration.curve import RetentionCurve
    from artemis_lifecycle.metadata.types import SnapshotHistory
    from artemis_lifecycle.operations.holds import Hold
    from artemis_lifecycle.operations.journal import JobRecord
    from artemis_lifecycle.operations.plans import PlanRecord
    from artemis_lifecycle.upkeep.costs import TableCosts
    from artemis_lifecycle.upkeep.score import HealthHistory

# --- links ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Links:
    """The addresses of Dagster's pages: None without `ui`, the address of its web server."""

    ui: str | None = None
    code_location: str = ""
    key_prefix: tuple[str, ...] = ()

    @classmethod
    def of(cls, alerts: Alerts, dagster: Dagster) -> Links:
        return cls(alerts.ui, dagster.code_location, tuple(dagster.key_prefix))

    def at(self, path: str) -> str | None:
        return None if self.ui is None else f"{self.ui.rstrip('/')}/{path}"

    def asset(self, name: str, table: str) -> str | None:
        """Return the page of a table's partition of an asset."""
        path = "/".join(quote(part, safe="") for part in (*self.key_prefix, name))
        return self.at(f"assets/{path}?view=partitions&partition={quote(partition_key(table), safe='')}")


NO_LINKS = Links()


def address(location: str) -> str | None:
    """Return where a browser opens a file or folder: itself if it is local, the console's page if it is on S3."""
    scheme, _, rest = location.partition(":")
    if scheme in S3_SCHEMES:
        bucket, key = (quote(part, errors="surrogatepass") for part in rest.lstrip("/").partition("/")[::2])
        return f"https://s3.console.aws.amazon.com/s3/object/{bucket}?prefix={key}"
    return f"file:///{quote(rest.lstrip('/'), errors='surrogatepass')}" if scheme == "file" else None


def _anchors(addresses: Mapping[str, str | None]) -> str:
    """Return the links, by what they say, as HTML."""
    known = ((text, url) for text, url in addresses.items() if url is not None)
    return " ".join(f"<a href='{html(url)}'>{html(text)}</a>" for text, url in known)


_WIDTH, _HEIGHT, _TOP, _LEFT, _FOOT = 360, 150, 14, 62, 18
_INNER, _TALL = _WIDTH - _LEFT - 8, _HEIGHT - _TOP - _FOOT

# --- fleet plots ------------------------------------------------------------------------------------------------------
# The plots of the fleet page, as SVG without scripts, fonts or addresses. Pure.

_ROW, _LABEL = 22, 44


def bars(title: str, names: Sequence[str], values: Sequence[float], shown: Callable[[float], str]) -> str:
    """Return a plot of one bar per name, from left to right."""
    most = max(values, default=0)
    step = _INNER / max(1, len(values))
    marks = []
    for place, (name, value) in enumerate(zip(names, values, strict=True)):
        height = _TALL * value / most if most else 0
        left, top = _LEFT + place * step, _TOP + _TALL - height
        # The whole column shows its value under the pointer, however low its bar is.
        marks.append(
            f"<g><title>{html(name)}: {html(shown(value))}</title>"
            f"<rect x='{left:.1f}' y='{_TOP}' width='{step:.1f}' height='{_TALL}' fill='transparent'/>"
            f"<rect class=mark x='{left + 1:.1f}' y='{top:.1f}' width='{max(1.0, step - 2):.1f}' "
            f"height='{height:.1f}'/></g>"
        )
    return _figure(title, _axes(names, most, shown) + "".join(marks), _HEIGHT)


def line(title: str, names: Sequence[str], values: Sequence[float | None], shown: Callable[[float], str]) -> str:
    """Return a plot of a line through the known values, from left to right. A value of None leaves a gap."""
    most = max((value for value in values if value is not None), default=0)
    step = _INNER / max(1, len(values))
    marks, path, is_down = [], "", False
    for place, (name, value) in enumerate(zip(names, values, strict=True)):
        if value is None:
            is_down = False
            continue
        x, y = _LEFT + (place + 0.5) * step, _TOP + _TALL * (1 - value / most if most else 1)
        path += f"{'L' if is_down else 'M'}{x:.1f} {y:.1f}"
        is_down = True
        label = f"<title>{html(name)}: {html(shown(value))}</title>"
        marks.append(f"<circle class=mark cx='{x:.1f}' cy='{y:.1f}' r='2.5'>{label}</circle>")
    return _figure(title, _axes(names, most, shown) + f"<path class=line d='{path}'/>" + "".join(marks), _HEIGHT)


def ranks(title: str, names: Sequence[str], values: Sequence[float], shown: Callable[[float], str]) -> str:
    """Return a plot of one bar per name, from top to bottom."""
    most = max(values, default=0)
    marks = []
    for place, (name, value) in enumerate(zip(names, values, strict=True)):
        width, top = (_WIDTH - 8) * value / most if most else 0, _TOP + place * _ROW
        marks.append(
            f"<text x='0' y='{top - 2}'>{html(name if len(name) <= _LABEL else name[: _LABEL - 1] + '…')}</text>"
            f"<text x='{_WIDTH - 8}' y='{top - 2}' text-anchor='end'>{html(shown(value))}</text>"
            f"<rect class=mark x='0' y='{top + 1}' width='{width:.1f}' height='5'/>"
        )
    return _figure(title, "".join(marks), max(_HEIGHT, _TOP + len(values) * _ROW))


def _axes(names: Sequence[str], most: float, shown: Callable[[float], str]) -> str:
    foot = _TOP + _TALL
    ends = [(_LEFT, "start", names[0]), (_WIDTH - 8, "end", names[-1])] if names else []
    return (
        f"<path class=axis d='M{_LEFT} {_TOP}H{_WIDTH - 8}M{_LEFT} {foot}H{_WIDTH - 8}'/>"
        f"<text x='{_LEFT - 5}' y='{_TOP + 4}' text-anchor='end'>{html(shown(most)) if most else ''}</text>"
        f"<text x='{_LEFT - 5}' y='{foot + 4}' text-anchor='end'>0</text>"
        + "".join(
            f"<text x='{x}' y='{foot + 14}' text-anchor='{anchor}'>{html(name)}</text>" for x, anchor, name in ends
        )
    )


def _figure(title: str, body: str, height: int) -> str:
    name = html(title)
    return (
        f"<figure><figcaption>{name}</figcaption>"
        f"<svg viewBox='0 0 {_WIDTH} {height}' role='img' aria-label='{name}'>{body}</svg></figure>"
    )


# --- fleet history ----------------------------------------------------------------------------------------------------
# The fleet day by day: bytes freed, the share of orphans and overdue tables, from records in Postgres.

_SCANNED_WITHIN = timedelta(days=60)
"""How long before the first day a table's last scan still counts on it."""


@dataclass(frozen=True)
class FleetDay:
    """The fleet at the end of one day in UTC, or now. `orphan_share` is that of all tables by their last scans, from 0
    to 1; None before the first scan. `overdue` tables are counted by the current thresholds."""

    day: date
    freed_bytes: int
    orphan_share: float | None
    overdue: int


def fleet_history(
    operations: Operations,
    catalog: str,
    policies: Mapping[str, TablePolicy],
    freed: Mapping[str, Mapping[date, int]],
    now: datetime,
    over: timedelta,
    overdue: int,
) -> tuple[FleetDay, ...]:
    """Return the days of the last `over`, today last, of the tables with these policies. `overdue` is today's number.
    `freed` is by table and day."""
    today = now.astimezone(UTC).date()
    days = [today - timedelta(days=each) for each in reversed(range(over.days))]
    limits = {table: overdue_after(policy) for table, policy in policies.items()}
    watched = {table: limit for table, limit in limits.items() if limit is not None}
    first = _end(days[0])
    planned = planned_since(operations.engine, first - max(watched.values(), default=timedelta()))
    known = {each.table: each.first_seen for each in operations.known_tables.of_catalog(catalog)}
    shares = _shares(scan_shares(operations.engine, first - _SCANNED_WITHIN), policies, days)

    def late(table: str, allowed: timedelta, at: datetime) -> bool:
        if known.get(table, now) > at - allowed:
            return False
        plans = planned.get(table, [])
        before = bisect_right(plans, at)
        return before == 0 or at - plans[before - 1] > allowed

    return tuple(
        FleetDay(
            day=day,
            freed_bytes=sum(by_day.get(day, 0) for table, by_day in freed.items() if table in policies),
            orphan_share=shares[day],
            overdue=overdue
            if day == today
            else sum(late(table, allowed, _end(day)) for table, allowed in watched.items()),
        )
        for day in days
    )


def overdue_after(policy: TablePolicy) -> timedelta | None:
    """Return how long after its last plan a table is overdue; None if its plans do not run by themselves."""
    return policy.checks.overdue_after if "plan" in policy.quiet_window.steps else None


def _end(day: date) -> datetime:
    return datetime.combine(day + timedelta(days=1), time_of_day(), UTC)


def _shares(scans: list[DayScan], policies: Mapping[str, TablePolicy], days: list[date]) -> dict[date, float | None]:
    """Return the share of orphans among the files of all tables, by day: of each table, its last scan until then."""
    last: dict[str, DayScan] = {}
    found: dict[date, float | None] = {}
    rest = iter(scans)
    each = next(rest, None)
    for day in days:
        while each is not None and each.day <= day:
            if each.table in policies:
                last[each.table] = each
            each = next(rest, None)
        listed = sum(scan.listed for scan in last.values())
        found[day] = sum(scan.orphans for scan in last.values()) / listed if listed else None
    return found


_STATE = (
    "table; overdue; health score=health_score; waits for=waits_for; red checks=red_checks; holds; paused; "
    "plan=plan_status; open; cost a month=cost_per_month; stored=stored_bytes; freeable=freeable_bytes; "
    "freed, 30 days=freed_bytes; orphan share=orphan_share"
)
_AGES = (
    "table; plan=planned_at; handoff=handed_off_at; commit=committed_at; deletion=deleted_at; orphan scan=scanned_at; "
    "orphan deletion=orphans_deleted_at; lineage=lineage_at; health=health_at; costs=costed_at; "
    "data compaction=data_compacted_at; manifest compaction=manifests_compacted_at; "
    "history compaction=history_compacted_at; scrub=scrubbed_at; deep archive=deep_archived_at"
)
_BYTES = ("freeable_bytes", "freed_bytes", "stored_bytes")
_FORMATS = {"cost_per_month": "{:,.2f}", "orphan_share": "{:.2%}", "health_score": "{:.0f}"}
_RANKED = 6
_STYLE = """
body { font: 12px/1.4 system-ui, sans-serif; margin: 1rem; color: #1d2433; background: #fff }
h1 { font-size: 1.3rem; margin: 0 0 .2rem } h2 { font-size: 1rem; margin: 1.5rem 0 .3rem }
a { color: #2f5ca8 } p { margin: 0 0 1rem; color: #5b6472 }
dl { display: flex; flex-wrap: wrap; gap: 1rem; margin: 0 0 1.5rem }
dl div { border: 1px solid #dde1e8; border-radius: 6px; padding: .5rem .9rem; min-width: 6rem }
dt { color: #5b6472; font-size: 12px } dd { margin: 0; font-size: 1.2rem; font-weight: 600 }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .3rem .45rem; border-bottom: 1px solid #eceff3; vertical-align: top }
thead { position: sticky; top: 0; background: #f6f7f9 }
th { cursor: pointer; vertical-align: bottom }
td.number { text-align: right; white-space: nowrap } tr.bad td:first-child { border-left: 4px solid #c4320a }
tbody td:first-child, td.alarm { overflow-wrap: anywhere; min-width: 8rem; max-width: 15rem }
td.open { min-width: 7rem }
.bar { display: block; height: 4px; background: #4873c4; border-radius: 2px; margin: 2px 0 0 auto }
.alarm { color: #b42318; font-weight: 600 } td.overdue.alarm { min-width: 0 } .unknown { color: #5b6472 }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(260px, 1fr)); gap: 1rem; margin: 0 0 1.5rem }
figure { margin: 0; border: 1px solid #dde1e8; border-radius: 6px; padding: .5rem .7rem; max-width: 32rem }
figcaption { color: #5b6472; font-size: 12px } svg { width: 100%; height: auto; display: block }
svg text { font: 10px system-ui, sans-serif; fill: #5b6472 } .mark { fill: #4873c4 }
.axis { stroke: #dde1e8; fill: none } .line { stroke: #4873c4; stroke-width: 1.5; fill: none }
"""
_SCRIPT = """
document.querySelectorAll('table').forEach(table => {
const heads = table.querySelectorAll('th');
heads.forEach((head, column) => head.addEventListener('click', () => {
  const body = table.tBodies[0], up = head.dataset.up !== 'yes';
  heads.forEach(other => delete other.dataset.up);
  head.dataset.up = up ? 'yes' : 'no';
  const key = row => { const value = row.children[column].dataset.key; return isNaN(value) ? value : Number(value); };
  const before = (a, b) => a < b ? -1 : a > b ? 1 : 0;
  [...body.rows].sort((a, b) => (up ? 1 : -1) * before(key(a), key(b))).forEach(row => body.append(row));
}));
});
"""


def page(
    at: datetime,
    summary: Mapping[str, int],
    said: Sequence[str],
    tables: Sequence[Mapping[str, Any]],
    history: Sequence[FleetDay],
    currency: str,
    links: Links,
) -> str:
    """Return the fleet as HTML. `said` are sentences. Tables that need a person come first, then overdue ones."""
    most = {name: max((table[name] or 0 for table in tables), default=0) for name in _BYTES}
    rows = sorted(tables, key=lambda table: (not _bad(table), not table["overdue"], table["table"]))
    costs = [table["cost_per_month"] for table in tables if table["cost_per_month"] is not None]
    shown = {name.replace("_", " "): _size(value) if name in _BYTES else str(value) for name, value in summary.items()}
    shown["cost a month"] = f"{sum(costs):,.2f} {currency}" if costs else "unknown"
    rows = [
        {**each, "open": _open(each, links), "plan_status": (each["plan_status"] or "").replace("_", " ")}
        for each in rows
    ]
    state, ages = (
        listing([*columns.values()], [_row(row, columns, at, most) for row in rows])
        for columns in map(_columns, (_STATE, _AGES))
    )
    ages = f"<h2>Time since the last</h2>{ages}"
    return document("Fleet", at, shown, said, _plots(tables, history, currency), state, ages)


def _open(table: Mapping[str, Any], links: Links) -> str:
    """Return the links of a table: its page, its partition in Dagster, its plan, its newest receipt."""
    name, location = table["table"], quote(links.code_location, safe="")
    return _anchors(
        {
            "page": table["page"],
            "Dagster": links.asset("snapshot_history", name),
            "plan": links.asset("expiration_plan", name) if table["plan_status"] else None,
            "approve": links.at(f"locations/{location}/jobs/approve/playground") if table["waits_for"] else None,
            "receipt": address(table["receipt"] or ""),
        }
    )


def listing(heads: Sequence[str], rows: Sequence[str]) -> str:
    """Return a table that can be sorted. `rows` are HTML."""
    columns, body = "".join(f"<th>{html(head)}</th>" for head in heads), "\n".join(rows)
    return f"<table><thead><tr>{columns}</tr></thead><tbody>{body}</tbody></table>"


def document(
    title: str, at: datetime, figures: Mapping[str, str], said: Sequence[str], plots: Sequence[str], *tables: str
) -> str:
    """Return a page: figures, sentences, plots, and `tables`, which are HTML."""
    shown = "".join(f"<div><dt>{html(name)}</dt><dd>{html(value)}</dd></div>" for name, value in figures.items())
    sentences = "".join(f"<p>{html(text[0].upper() + text[1:])}.</p>" for text in said)
    name = html(title)
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{name}</title>"
        f"<style>{_STYLE}</style></head><body><h1>{name}</h1><p>As of {at.astimezone(UTC):%Y-%m-%d %H:%M} UTC. "
        f"Click a column to sort by it.</p><dl>{shown}</dl>{sentences}<div class=plots>{''.join(plots)}</div>"
        f"{''.join(tables)}<script>{_SCRIPT}</script></body></html>"
    )


def _plots(tables: Sequence[Mapping[str, Any]], history: Sequence[FleetDay], currency: str) -> list[str]:
    found = []
    if history:
        days = [f"{each.day:%b %d}" for each in history]
        found = [
            bars("Bytes freed per day (UTC)", days, [each.freed_bytes for each in history], _size),
            line("Orphan share of all tables", days, [each.orphan_share for each in history], "{:.2%}".format),
            bars("Overdue tables at the end of each day", days, [each.overdue for each in history], "{:,.0f}".format),
        ]
    priced = [table for table in tables if table["cost_per_month"]]
    name = "cost_per_month" if priced else "stored_bytes"
    ranked = sorted((table for table in tables if table[name]), key=lambda table: -table[name])[:_RANKED]
    if ranked:
        title = f"The most expensive tables, {currency} a month" if priced else "The largest tables, all tiers"
        shown = "{:,.2f}".format if priced else _size
        found.append(ranks(title, [table["table"] for table in ranked], [table[name] for table in ranked], shown))
    return found


def _bad(table: Mapping[str, Any]) -> bool:
    return bool(table["waits_for"] or table["red_checks"])


def _row(table: Mapping[str, Any], columns: Iterable[str], at: datetime, most: Mapping[str, int]) -> str:
    cells = "".join(_cell(name, table[name], at, most) for name in columns)
    return f"<tr{' class=bad' if _bad(table) else ''}>{cells}</tr>"


def _cell(name: str, value: Any, at: datetime, most: Mapping[str, int]) -> str:
    if name == "open":
        return f"<td class=open>{value}</td>"
    if name in _BYTES or name in _FORMATS:
        shown = "unknown" if name in _BYTES or name == "cost_per_month" else ""
        if value is None:
            return f"<td class='number unknown' data-key='-1'>{shown}</td>"
        width = round(100 * value / most[name]) if most.get(name) else 0
        bar = f"<span class=bar style='width:{width}%'></span>" if width else ""
        text = _size(value) if name in _BYTES else _FORMATS[name].format(value)
        return f"<td class=number data-key='{value}'>{text}{bar}</td>"
    if name.endswith("_at"):
        hours = -1.0 if value is None else (at - value).total_seconds() / 3600
        shown = "never" if value is None else f"{hours:.0f} h" if hours < 72 else f"{hours / 24:.0f} d"
        missing = " unknown" if value is None else ""
        return f"<td class='number{missing}' data-key='{1e9 if value is None else hours}'>{shown}</td>"
    if isinstance(value, int):
        kind = "overdue alarm" if value and name == "overdue" else "" if isinstance(value, bool) else "number"
        return f"<td class='{kind}' data-key='{int(value)}'>{'yes' if value is True else value or ''}</td>"
    said = "<br>".join(html(each) for each in ([value or ""] if isinstance(value, str | None) else value))
    alarm = f" class='{name} alarm'" if said and name in ("waits_for", "red_checks") else ""
    return f"<td data-key='{html(said)}'{alarm}>{said}</td>"


def _size(value: float) -> str:
    return decimal(round(value))


# --- the page of a table ----------------------------------------------------------------------------------------------

_NEWEST = 200


def table_page(
    at: datetime,
    history: SnapshotHistory,
    scores: HealthHistory,
    curve: RetentionCurve,
    costs: TableCosts,
    holds: Sequence[Hold],
    plans: Sequence[PlanRecord],
    deletions: Sequence[JobRecord],
    links: Links,
) -> str:
    """Return the page of one table as HTML. The `files_location` of a deletion is that of its receipt."""
    table, live = history.table, history.snapshots
    money = costs.per_month
    figures = {
        "health score": f"{scores.points[-1].score:.0f}" if scores.points else "unknown",
        "snapshots": f"{len(live):,}",
        **{tier.tier: _size(tier.size_in_bytes) for tier in costs.tiers},
        "cost a month": "unknown" if money is None else f"{money:,.2f} {costs.currency}",
        "freed": _size(sum(job.deleted_bytes for job in deletions)),
        "holds": f"{len(holds):,}",
    }
    past = scores.points[-_NEWEST:]
    spans = [format_duration(timedelta(milliseconds=point.window_ms)) for point in curve.points]
    kept = [tier for tier in costs.tiers if tier.size_in_bytes]
    when, score = [f"{each.scored_at:%b %d}" for each in past], [each.score for each in past]
    plots = [
        line("Health score", when, score, "{:.0f}".format),
        bars("Held by retention window", spans, [point.size_in_bytes for point in curve.points], _size),
        ranks("Held by tier", [tier.tier for tier in kept], [tier.size_in_bytes for tier in kept], _size),
    ]
    sections = [
        _section(
            "Snapshots",
            live[::-1],
            "snapshot=snapshot_id; committed=timestamp_ms; operation=summary.operation; "
            "data files=summary.total_data_files; bytes=summary.total_files_size; records=summary.total_records",
        ),
        _section("Held by one ref alone", curve.refs, "ref; type; snapshot=snapshot_id; files; bytes=size_in_bytes"),
        _section("Holds", holds, "hold=hold_id; kind; owner; reason; snapshots=snapshot_ids; until"),
        _section(
            "Plans",
            plans,
            "plan=plan_id; status; planned=planned_at; snapshots=expired_snapshots; files; bytes; due=due_at",
        ),
        _section(
            "Deleted",
            deletions,
            "plan or scan=job_id; kind; started=started_at; finished=finished_at; bytes freed=deleted_bytes; "
            "receipt=files_location",
        ),
        _section(
            "Tiers", costs.tiers, "tier; class=storage_class; snapshots; files; bytes=size_in_bytes; price=per_month"
        ),
    ]
    assets = ("snapshot_history", "expiration_plan", "physical_deletion", "cold_tier_snapshots", "table_health")
    anchors = _anchors({"all tables": "../index.html"} | {name: links.asset(name, table) for name in assets})
    return document(table, at, figures, (), plots, f"<p>{anchors}</p>", *sections)


def _columns(text: str) -> dict[str, str]:
    """Return the headings of fields. `text` has `heading=field` for each, or the field alone."""
    named = (each.partition("=")[::2] for each in text.split("; "))
    return {field or head: head for head, field in named}


def _section(name: str, records: Sequence[object], columns: str) -> str:
    """Return the first records as a table."""
    read = [(head, attrgetter(field)) for field, head in _columns(columns).items()]
    shown = [f"<tr>{''.join(_td(head, get(each)) for head, get in read)}</tr>" for each in records[:_NEWEST]]
    left = f"<p>… and {len(records) - _NEWEST:,} more.</p>" if len(records) > _NEWEST else ""
    return f"<h2>{name}</h2>{listing([head for head, _ in read], shown) if shown else '<p>None.</p>'}{left}"


def _td(name: str, value: Any) -> str:
    if name == "receipt":
        return f"<td>{_anchors({'receipt': address(value)})}</td>"
    if name == "committed":
        value = if_in_calendar(value)
    if isinstance(value, int | float) and name != "snapshot":
        shown = _size(value) if "bytes" in name else f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"
        return f"<td class=number data-key='{value}'>{shown}</td>"
    if isinstance(value, datetime):
        return f"<td data-key='{value.isoformat()}'>{value.astimezone(UTC):%Y-%m-%d %H:%M}</td>"
    text = html(str(len(value) or "all" if isinstance(value, tuple) else "" if value is None else value))
    return f"<td data-key='{text}'>{text}</td>"
