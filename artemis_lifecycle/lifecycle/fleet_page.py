"""The fleet page: one HTML file without external resources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from artemis_lifecycle.escaping import terminal
from artemis_lifecycle.lifecycle.fleet_history import FleetDay
from artemis_lifecycle.lifecycle.fleet_plots import bars, line, ranks

_GROUPS: Mapping[str, Mapping[str, str]] = {
    "state": {
        "table": "table",
        "overdue": "overdue",
        "health_score": "health score",
        "waits_for": "waits for",
        "red_checks": "red checks",
        "holds": "holds",
        "paused": "paused",
        "plan_status": "plan",
    },
    "storage": {
        "cost_per_month": "cost a month",
        "stored_bytes": "stored",
        "freeable_bytes": "freeable",
        "freed_bytes": "freed, 30 days",
        "orphan_share": "orphan share",
    },
    "time since the last": {
        "planned_at": "plan",
        "handed_off_at": "handoff",
        "committed_at": "commit",
        "deleted_at": "deletion",
        "scanned_at": "orphan scan",
        "orphans_deleted_at": "orphan deletion",
        "lineage_at": "lineage",
        "health_at": "health",
        "costed_at": "costs",
        "data_compacted_at": "data compaction",
        "manifests_compacted_at": "manifest compaction",
        "history_compacted_at": "history compaction",
        "scrubbed_at": "scrub",
        "deep_archived_at": "deep archive",
    },
}
_COLUMNS = {name: text for group in _GROUPS.values() for name, text in group.items()}
_BYTES = ("freeable_bytes", "freed_bytes", "stored_bytes")
_RANKED = 6
_STYLE = """
body { font: 13px/1.4 system-ui, sans-serif; margin: 1.5rem; color: #1d2433; background: #fff }
h1 { font-size: 1.3rem; margin: 0 0 .2rem } p { margin: 0 0 1rem; color: #5b6472 }
dl { display: flex; flex-wrap: wrap; gap: 1rem; margin: 0 0 1.5rem }
dl div { border: 1px solid #dde1e8; border-radius: 6px; padding: .5rem .9rem; min-width: 6rem }
dt { color: #5b6472; font-size: 12px } dd { margin: 0; font-size: 1.2rem; font-weight: 600 }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .3rem .45rem; border-bottom: 1px solid #eceff3; vertical-align: top }
thead { position: sticky; top: 0; background: #f6f7f9 }
thead tr:first-child th { color: #5b6472; font-weight: 400; border-left: 1px solid #dde1e8 }
thead tr:last-child th { cursor: pointer; vertical-align: bottom }
td.number { text-align: right; white-space: nowrap } tr.bad td:first-child { border-left: 4px solid #c4320a }
tbody td:first-child { position: sticky; left: 0; background: #fff }
.bar { display: block; height: 4px; background: #4873c4; border-radius: 2px; margin: 2px 0 0 auto }
.alarm { color: #b42318; font-weight: 600 } td.waits_for.alarm { min-width: 16rem } .unknown { color: #5b6472 }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 1rem; margin: 0 0 1.5rem }
figure { margin: 0; border: 1px solid #dde1e8; border-radius: 6px; padding: .5rem .7rem; max-width: 32rem }
figcaption { color: #5b6472; font-size: 12px } svg { width: 100%; height: auto; display: block }
svg text { font: 10px system-ui, sans-serif; fill: #5b6472 } .mark { fill: #4873c4 }
.axis { stroke: #dde1e8; fill: none } .line { stroke: #4873c4; stroke-width: 1.5; fill: none }
"""
_SCRIPT = """
const heads = document.querySelectorAll('thead tr:last-child th');
heads.forEach((head, column) => head.addEventListener('click', () => {
  const body = document.querySelector('tbody'), up = head.dataset.up !== 'yes';
  heads.forEach(other => delete other.dataset.up);
  head.dataset.up = up ? 'yes' : 'no';
  const key = row => { const value = row.children[column].dataset.key; return isNaN(value) ? value : Number(value); };
  const before = (a, b) => a < b ? -1 : a > b ? 1 : 0;
  [...body.rows].sort((a, b) => (up ? 1 : -1) * before(key(a), key(b))).forEach(row => body.append(row));
}));
"""


def page(
    at: datetime,
    summary: Mapping[str, int],
    said: Sequence[str],
    tables: Sequence[Mapping[str, Any]],
    history: Sequence[FleetDay],
    currency: str,
) -> str:
    """Return the fleet as HTML. `said` are sentences. Tables that need a person come first, then overdue ones."""
    most = {name: max((table[name] or 0 for table in tables), default=0) for name in _BYTES}
    rows = sorted(tables, key=lambda table: (not _bad(table), not table["overdue"], table["table"]))
    groups = "".join(f"<th colspan={len(group)}>{name}</th>" for name, group in _GROUPS.items())
    heads = "".join(f"<th>{escape(text)}</th>" for text in _COLUMNS.values())
    costs = [table["cost_per_month"] for table in tables if table["cost_per_month"] is not None]
    shown = {name.replace("_", " "): _size(value) if name in _BYTES else str(value) for name, value in summary.items()}
    shown["cost a month"] = f"{sum(costs):,.2f} {currency}" if costs else "unknown"
    figures = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in shown.items())
    sentences = "".join(f"<p>{escape(terminal(text[0].upper() + text[1:]))}.</p>" for text in said)
    body = "\n".join(_row(table, at, most) for table in rows)
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Fleet</title>"
        f"<style>{_STYLE}</style></head><body><h1>Fleet</h1><p>As of {at.astimezone(UTC):%Y-%m-%d %H:%M} UTC. "
        f"Click a column to sort by it.</p><dl>{figures}</dl>{sentences}"
        f"<div class=plots>{''.join(_plots(tables, history, currency))}</div>"
        f"<table><thead><tr>{groups}</tr><tr>{heads}</tr></thead>"
        f"<tbody>{body}</tbody></table><script>{_SCRIPT}</script></body></html>"
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


def _row(table: Mapping[str, Any], at: datetime, most: Mapping[str, int]) -> str:
    cells = "".join(_cell(name, table[name], at, most) for name in _COLUMNS)
    return f"<tr{' class=bad' if _bad(table) else ''}>{cells}</tr>"


def _cell(name: str, value: Any, at: datetime, most: Mapping[str, int]) -> str:
    if name in ("cost_per_month", "stored_bytes") and value is None:
        return "<td class='number unknown' data-key='-1'>unknown</td>"
    if name == "cost_per_month":
        return f"<td class=number data-key='{value}'>{value:,.2f}</td>"
    if name in _BYTES:
        width = round(100 * value / most[name]) if most[name] else 0
        bar = f"<span class=bar style='width:{width}%'></span>" if value else ""
        return f"<td class=number data-key='{value}'>{_size(value)}{bar}</td>"
    if name in ("orphan_share", "health_score"):
        shown = "" if value is None else f"{value:.2%}" if name == "orphan_share" else f"{value:.0f}"
        return f"<td class=number data-key='{-1 if value is None else value}'>{shown}</td>"
    if isinstance(value, datetime) or (value is None and name.endswith("_at")):
        hours = -1.0 if value is None else (at - value).total_seconds() / 3600
        shown = "never" if value is None else f"{hours:.0f} h" if hours < 72 else f"{hours / 24:.0f} d"
        missing = " unknown" if value is None else ""
        return f"<td class='number{missing}' data-key='{1e9 if value is None else hours}'>{shown}</td>"
    if isinstance(value, bool):
        alarm = " class=alarm" if value and name == "overdue" else ""
        return f"<td data-key='{int(value)}'{alarm}>{'yes' if value else ''}</td>"
    if isinstance(value, int):
        return f"<td class=number data-key='{value}'>{value or ''}</td>"
    text = "<br>".join(escape(terminal(each)) for each in value) if isinstance(value, list | tuple) else None
    if text is None:
        text = escape(terminal(value or ""))
    alarm = f" class='{name} alarm'" if text and name in ("waits_for", "red_checks") else ""
    return f"<td data-key='{escape(text, quote=True)}'{alarm}>{text}</td>"


def _size(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if value < 1000 or unit == "PB":
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1000
    raise AssertionError
