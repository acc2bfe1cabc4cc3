"""Metadata values for the Dagster UI: column schemas, tables, links. Numbers keep their keys, so the UI plots
them."""

import base64
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import dagster as dg

from artemis_lifecycle.cli.output import readable
from artemis_lifecycle.deletion.report import DeletionReport
from artemis_lifecycle.errors import EnvironmentMissing
from artemis_lifecycle.escaping import markdown, terminal
from artemis_lifecycle.fleet.page import address
from artemis_lifecycle.storage.instants import if_in_calendar

if TYPE_CHECKING:
    import pandas as pd

PLAN_FILES = {
    "path": ("string", "as the metadata records it"),
    "kind": ("string", "data, position_deletes, …, manifest, manifest_list, statistics, partition_statistics"),
    "size_in_bytes": ("bigint", ""),
    "reason": ("string", "which expired snapshots reach it"),
}
REACHABLE_FILES = {"path": ("string", "as the metadata records it"), "kind": ("string", "")}
LISTED_FILES = {
    "path": ("string", "as the store spells it"),
    "last_modified": ("timestamp", "null where the store does not report it"),
    "size_in_bytes": ("bigint", ""),
}
ORPHAN_FILES = {
    "path": ("string", "as the store spells it"),
    "kind": ("string", "a guess by name"),
    "size_in_bytes": ("bigint", ""),
    "last_modified": ("timestamp", ""),
    "reason": ("string", ""),
    "origin": ("string", "a guess by name"),
}
DELETED_FILES = {
    "path": ("string", "as the plan or the listing spells it"),
    "kind": ("string", ""),
    "size_in_bytes": ("bigint", ""),
    "outcome": ("string", "deleted, absent, kept, failed; would_delete in a dry run"),
    "reason": ("string", "why it was kept, or how it failed"),
}

_ROWS = 100
_CELL = 500
"""Maximum characters per cell: a snapshot may have 100,000 tags."""

PICTURE_CHARACTERS = 40_000
"""Maximum size of a picture in the event log."""

_EXACT = 2**53
"""Above it, a browser rounds numbers. Snapshot ids are larger."""


def figures_first(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata in a reader's order: what a step waits for, its figures in one readable line, each figure by its
    key, other facts, tables, Dagster's own keys."""
    figures = {name: it for name, it in said.items() if type(it) in (int, float) and not name.startswith("dagster/")}
    read = {name.replace("_", " "): readable(name, it) for name, it in figures.items() if it}
    line = "; ".join(f"{name}: {it:,}" if isinstance(it, int) else f"{name}: {it}" for name, it in read.items())

    def place(name: str) -> int:
        if name in first:
            return first.index(name)
        wide = isinstance(said[name], dg.TableMetadataValue | dg.MarkdownMetadataValue)
        return 99 if name.startswith("dagster/") else 98 if wide else 97

    first = [*("waits_for", "why", "next")[: 3 * ("waits_for" in said)], "summary", *figures]
    shown = {"summary": dg.MetadataValue.text(line or "nothing"), **said} if figures else said
    return {name: shown[name] for name in sorted(shown, key=place)}


def column_schema(columns: Mapping[str, tuple[str, str]]) -> dg.MetadataValue:
    """Return a `dagster/column_schema` value from type and description by column."""
    return dg.MetadataValue.table_schema(
        dg.TableSchema(
            [dg.TableColumn(terminal(name), kind, description=text or None) for name, (kind, text) in columns.items()]
        )
    )


def frame_schema(frame: "pd.DataFrame") -> dg.MetadataValue:
    """The same from a pandas DataFrame."""
    return column_schema({str(name): (str(frame[name].dtype), "") for name in frame.columns})


def ddl_schema(columns: str) -> dg.MetadataValue:
    """The same from Spark DDL with one column per line: `name type COMMENT 'text',`."""
    parsed = (re.fullmatch(r"(\w+) (.+?)(?: COMMENT '(.*)')?,?", line.strip()) for line in columns.strip().splitlines())
    return column_schema({match[1]: (match[2], match[3] or "") for match in parsed if match is not None})


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> dg.MetadataValue:
    """Return a table of the first rows, without columns that are empty. If rows are omitted, the last one says how
    many. The UI shows it in place; Markdown of this size would be behind a link."""
    every = [[_known(value) for value in row] for row in rows]
    if not every:
        return dg.MetadataValue.text("none")
    used = [place for place in range(len(headers)) if any(row[place] not in (None, "") for row in every)] or [0]
    names = [terminal(headers[place]) for place in used]
    measured = {place for place in used if {"bytes", "seconds"} & {*re.split("[_ ]", headers[place])}}
    shown = [
        [_cell(readable(headers[place], row[place]) if place in measured else row[place]) for place in used]
        for row in every[:_ROWS]
    ]
    if len(every) > _ROWS:
        shown.append([f"… and {len(every) - _ROWS:,} more", *[None] * (len(names) - 1)])
    kinds = [_kind(cells) for cells in zip(*shown, strict=True)]
    records = [
        # A column of numbers and texts is one of texts.
        dg.TableRecord({name: str(cell) if kind == "string" and cell is not None else cell for name, kind, cell in row})
        for row in (zip(names, kinds, cells, strict=True) for cells in shown)
    ]
    return dg.MetadataValue.table(
        records, dg.TableSchema([dg.TableColumn(*each) for each in zip(names, kinds, strict=True)])
    )


_Cell = str | int | float | bool | None


def _known(value: object) -> object:
    """Return None for the NA of a pandas column of nullable integers, which cannot be compared."""
    return None if type(value).__name__ == "NAType" else value


def _cell(value: Any) -> _Cell:
    if hasattr(value, "item"):
        value = value.item()  # numpy's numbers
    if value is None or isinstance(value, bool) or (isinstance(value, int) and abs(value) < _EXACT):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime):
        try:
            # A pandas NaT is a datetime that equals nothing.
            return f"{value:%Y-%m-%d %H:%M:%S}" if value == value else None
        except (ValueError, NotImplementedError):
            return str(value)  # A year of pandas that Python's calendar does not have.
    text = terminal(str(value))
    return text if len(text) <= _CELL else f"{text[:_CELL]} … ({len(text):,} characters)"


def _kind(cells: Sequence[_Cell]) -> str:
    kinds = {type(cell) for cell in cells if cell is not None}
    return {frozenset({int}): "int", frozenset({float}): "float", frozenset({bool}): "bool"}.get(
        frozenset(kinds), "string"
    )


def picture(plot: Callable[[], bytes], what: str) -> dg.MetadataValue:
    """Return a picture (PNG) in Markdown, with `what` as its text. Without the extra `ui`, say how to install it."""
    try:
        png = plot()
    except EnvironmentMissing as missing:
        return dg.MetadataValue.text(f"{what}: no picture. {missing}")
    return _picture(png, "png", what)


def drawing(svg: str, what: str) -> dg.MetadataValue:
    """Return a picture (SVG) in Markdown, with `what` as its text."""
    return _picture(svg.encode(), "svg+xml", what)


def _picture(data: bytes, kind: str, what: str) -> dg.MetadataValue:
    text = f"![{markdown(what)}](data:image/{kind};base64,{base64.b64encode(data).decode()})"
    # Each materialization stores its pictures in the event log.
    return (
        dg.MetadataValue.md(text)
        if len(text) <= PICTURE_CHARACTERS
        else dg.MetadataValue.text(f"{what}: too large to show here")
    )


def place(location: str) -> dg.MetadataValue:
    """Return the path of a file or folder, or a link to the console if it is on S3."""
    url = address(location)
    if url is not None and not url.startswith("file:"):
        return dg.MetadataValue.url(url)
    return dg.MetadataValue.path(terminal(location.removeprefix("file://")))


def uri(location: str) -> dg.MetadataValue:
    """Return the location as the value of `dagster/uri`."""
    return dg.MetadataValue.text(terminal(location))


def query(catalog: str, name: str, where: str) -> dg.MetadataValue:
    """Return the Spark SQL query that shows the rows."""
    return dg.MetadataValue.text(terminal(f"SELECT * FROM {catalog}.lifecycle.{name} WHERE {where}"))


def deletion(reports: Sequence[DeletionReport]) -> dict[str, int | str]:
    """Return the totals of the deletions. A dry run has only `would_…`, because a plot must not show its zeros."""
    if any(report.dry_run for report in reports):
        return {
            "would_delete": sum(report.would_delete for report in reports),
            "would_delete_bytes": sum(report.would_delete_bytes for report in reports),
            "would_keep": sum(report.kept for report in reports),
        }
    numbers: dict[str, int | str] = {
        "files_deleted": sum(report.deleted for report in reports),
        "bytes_deleted": sum(report.bytes for report in reports),
        "files_absent": sum(report.already_absent for report in reports),
        "files_kept": sum(report.kept for report in reports),
        "files_failed": sum(report.failed for report in reports),
        "files_pending": sum(report.pending for report in reports),
    }
    paused = [report.paused for report in reports if report.paused]
    return numbers | ({"paused": terminal("; ".join(paused))} if paused else {})


def instant(value: datetime | None) -> dg.MetadataValue:
    """Return a timestamp, or a text if there is no time."""
    return dg.MetadataValue.text("none") if value is None else dg.MetadataValue.timestamp(value)


def epoch(milliseconds: int | None) -> dg.MetadataValue:
    """Return a timestamp from Iceberg's milliseconds since the epoch; a text if a calendar cannot hold them."""
    found = if_in_calendar(milliseconds)
    return dg.MetadataValue.text(f"{milliseconds} ms") if found is None and milliseconds is not None else instant(found)
