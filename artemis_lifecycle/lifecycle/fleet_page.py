"""The fleet page: one HTML file without external resources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from artemis_lifecycle.escaping import terminal

_COLUMNS = {
    "table": "table",
    "overdue": "overdue",
    "waits_for": "waits for",
    "red_checks": "red checks",
    "holds": "holds",
    "paused": "paused",
    "plan_status": "plan",
    "freeable_bytes": "freeable",
    "freed_bytes": "freed, 30 days",
    "orphan_share": "orphan share",
    "planned_at": "planned",
    "committed_at": "committed",
    "deleted_at": "deleted",
    "scanned_at": "scanned",
}
_BYTES = ("freeable_bytes", "freed_bytes")
_STYLE = """
body { font: 13px/1.4 system-ui, sans-serif; margin: 1.5rem; color: #1d2433; background: #fff }
h1 { font-size: 1.3rem; margin: 0 0 .2rem } p { margin: 0 0 1rem; color: #5b6472 }
dl { display: flex; flex-wrap: wrap; gap: 1rem; margin: 0 0 1.5rem }
dl div { border: 1px solid #dde1e8; border-radius: 6px; padding: .5rem .9rem; min-width: 6rem }
dt { color: #5b6472; font-size: 12px } dd { margin: 0; font-size: 1.2rem; font-weight: 600 }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .3rem .45rem; border-bottom: 1px solid #eceff3; vertical-align: top }
th { cursor: pointer; white-space: nowrap; position: sticky; top: 0; background: #f6f7f9 }
td.number { text-align: right; white-space: nowrap } tr.bad td:first-child { border-left: 4px solid #c4320a }
.bar { display: block; height: 4px; background: #4873c4; border-radius: 2px; margin: 2px 0 0 auto }
.alarm { color: #b42318; font-weight: 600 } td.waits_for.alarm { min-width: 16rem }
"""
_SCRIPT = """
document.querySelectorAll('th').forEach((head, column) => head.addEventListener('click', () => {
  const body = document.querySelector('tbody'), up = head.dataset.up !== 'yes';
  document.querySelectorAll('th').forEach(other => delete other.dataset.up);
  head.dataset.up = up ? 'yes' : 'no';
  const key = row => { const value = row.children[column].dataset.key; return isNaN(value) ? value : Number(value); };
  const before = (a, b) => a < b ? -1 : a > b ? 1 : 0;
  [...body.rows].sort((a, b) => (up ? 1 : -1) * before(key(a), key(b))).forEach(row => body.append(row));
}));
"""


def page(at: datetime, summary: Mapping[str, int], windows: Sequence[str], tables: Sequence[Mapping[str, Any]]) -> str:
    """Return the fleet as HTML. `windows` are sentences. Tables that need a person come first, then overdue ones."""
    most = {name: max((table[name] for table in tables), default=0) for name in _BYTES}
    rows = sorted(tables, key=lambda table: (not _bad(table), not table["overdue"], table["table"]))
    heads = "".join(f"<th>{escape(text)}</th>" for text in _COLUMNS.values())
    figures = "".join(
        f"<div><dt>{escape(name.replace('_', ' '))}</dt><dd>{_size(value) if name in _BYTES else value}</dd></div>"
        for name, value in summary.items()
    )
    nights = "".join(f"<p>{escape(terminal(text[0].upper() + text[1:]))}.</p>" for text in windows)
    body = "\n".join(_row(table, at, most) for table in rows)
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Fleet</title>"
        f"<style>{_STYLE}</style></head><body><h1>Fleet</h1><p>As of {at.astimezone(UTC):%Y-%m-%d %H:%M} UTC. "
        f"Click a column to sort by it.</p><dl>{figures}</dl>{nights}<table><thead><tr>{heads}</tr></thead>"
        f"<tbody>{body}</tbody></table><script>{_SCRIPT}</script></body></html>"
    )


def _bad(table: Mapping[str, Any]) -> bool:
    return bool(table["waits_for"] or table["red_checks"])


def _row(table: Mapping[str, Any], at: datetime, most: Mapping[str, int]) -> str:
    cells = "".join(_cell(name, table[name], at, most) for name in _COLUMNS)
    return f"<tr{' class=bad' if _bad(table) else ''}>{cells}</tr>"


def _cell(name: str, value: Any, at: datetime, most: Mapping[str, int]) -> str:
    if name in _BYTES:
        width = round(100 * value / most[name]) if most[name] else 0
        bar = f"<span class=bar style='width:{width}%'></span>" if value else ""
        return f"<td class=number data-key='{value}'>{_size(value)}{bar}</td>"
    if name == "orphan_share":
        shown = "" if value is None else f"{value:.2%}"
        return f"<td class=number data-key='{-1 if value is None else value}'>{shown}</td>"
    if isinstance(value, datetime) or (value is None and name.endswith("_at")):
        hours = -1.0 if value is None else (at - value).total_seconds() / 3600
        shown = "never" if value is None else f"{hours:.0f} h ago" if hours < 72 else f"{hours / 24:.0f} d ago"
        return f"<td class=number data-key='{1e9 if value is None else hours}'>{shown}</td>"
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
