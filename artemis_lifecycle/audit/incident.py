"""The report about one snapshot, to attach to a ticket: who wrote it, which data files, what it read, what read it, who
overwrote it, and where it is. Pure: facts in, Markdown and self-contained HTML out, with all texts escaped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from artemis_lifecycle.audit.answers import IngestedFile, Lineage, Overwrites
from artemis_lifecycle.audit.graph import Direction, LineageEdge, layered_svg, mermaid
from artemis_lifecycle.escaping import html, markdown

_MOST = 100
"""Rows of one table of the report; the rest is counted."""


@dataclass(frozen=True)
class IncidentFacts:
    """What is known about a snapshot. `lineage`: what its writer said, by key. `tiers`: live, cold, deep-archive.
    `files`: the data files that it added; None if its manifests cannot be read. `held_by`: refs, holds and plans that
    have it. `unreadable`: tables whose metadata could not be read."""

    table: str
    table_uuid: str
    snapshot_id: int
    made_at: datetime
    committed_at: datetime | None
    lineage: Mapping[str, str]
    problems: str | None
    tiers: tuple[str, ...]
    files: tuple[IngestedFile, ...] | None
    held_by: tuple[tuple[str, str], ...]
    downstream: Lineage
    upstream: Lineage
    overwrites: Overwrites
    unrecorded: int
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True)
class Incident:
    """The report about a snapshot. `unreadable` are tables whose metadata could not be read."""

    table: str
    snapshot_id: int
    markdown: str
    html: str
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Section:
    title: str
    text: str
    columns: tuple[str, ...] = ()
    rows: Sequence[Sequence[object]] = ()
    has_graph: bool = False


def incident(facts: IncidentFacts) -> Incident:
    """Write the report."""
    sections = tuple(_sections(facts))
    title = f"Snapshot {facts.snapshot_id} of {facts.table}"
    text = _as_markdown(title, sections, facts)
    return Incident(facts.table, facts.snapshot_id, text, _as_html(title, sections, facts), facts.unreadable)


def _sections(facts: IncidentFacts) -> Iterator[_Section]:
    down, up, over = facts.downstream, facts.upstream, facts.overwrites
    where = " and ".join(facts.tiers) or "no tier any more; only the ledger knows it"
    at = "at an unknown time" if facts.committed_at is None else f"at {facts.committed_at:%Y-%m-%d %H:%M:%S} UTC"
    readers, tables = len(down.snapshots), len({each.table for each in down.snapshots})
    yield _Section(
        "In short",
        f"Committed {at} by {facts.lineage.get('writer.id', 'an unnamed writer')}. It is in {where}. "
        f"Snapshots downstream of it: {readers:,}, in {tables:,} tables; upstream: {len(up.snapshots):,}. "
        f"Report of {facts.made_at:%Y-%m-%d %H:%M:%S} UTC; the table's uuid is {facts.table_uuid}.",
    )
    yield _Section(
        "Who wrote it, and how",
        f"Missing or wrong: {facts.problems}."
        if facts.problems
        else "It has all lineage that the table's policy requires.",
        ("key", "value"),
        sorted(facts.lineage.items()),
    )
    yield _ingested(facts, at)
    yield _Section(
        "Blast radius",
        f"What read it, directly or through others; up to {down.depth} steps."
        + (
            " Readers of later states of a table count, because these contain it."
            if down.states
            else f" Left out: {down.left_out:,} readers of later states of a table, which contain it."
        ),
        ("depth", "table", "snapshot", "read from"),
        [
            (depth, target.table, target.snapshot_id, f"{source.table} {source.snapshot_id}")
            for depth, source, target in down.edges
        ],
        has_graph=True,
    )
    yield _Section(
        "Upstream",
        "What it read, directly or through others.",
        ("depth", "table", "snapshot", "read by"),
        [
            (depth, source.table, source.snapshot_id, f"{target.table} {target.snapshot_id}")
            for depth, source, target in up.edges
        ],
    )
    yield _Section(
        "Overwrites of the table since",
        "They may have removed its rows. The snapshot itself is listed if it is an overwrite or a delete.",
        ("committed", "snapshot", "operation", "who", "writer", "why", "ticket", "missing"),
        [
            (
                f"{each.committed_at:%Y-%m-%d %H:%M:%S}",
                each.snapshot_id,
                each.operation,
                each.who,
                each.writer,
                each.why,
                each.ticket,
                ", ".join(each.missing),
            )
            for each in over.rows
        ],
    )
    yield _Section("What holds it", "Refs, holds and plans that have the snapshot.", ("kind", "which"), facts.held_by)
    if facts.unrecorded:
        yield _Section(
            "Not recorded yet",
            "Read from the metadata of tables, because the lineage ledger does not have them yet, and part of this "
            f"report: {facts.unrecorded:,} snapshots.",
        )
    if facts.unreadable:
        yield _Section(
            "Not read",
            "The metadata of these tables cannot be read. What the ledger does not have of them yet is missing here: "
            f"{', '.join(facts.unreadable)}.",
        )


def _ingested(facts: IncidentFacts, at: str) -> _Section:
    """Which data files the snapshot added, in which partitions."""
    title = "Data files that it added"
    if facts.files is None:
        return _Section(title, "Its manifests cannot be read.")
    partitions = sorted({each.partition for each in facts.files if each.partition})
    where = f", in {len(partitions):,} partitions" if partitions else ""
    by = f"{facts.lineage.get('writer.id', 'an unnamed writer')}, code {facts.lineage.get('writer.commit_hash', '?')}"
    of_moved = " It only moved rows: artemis ingested says who ingested them."
    return _Section(
        title,
        f"{len(facts.files):,} files{where}. Ingested {at} by {by}."
        + (of_moved if facts.lineage.get("operation") == "replace" else "")
        + ("" if facts.tiers else " No tier has the snapshot any more, so they are unknown."),
        ("partition", "path", "tier"),
        [(each.partition, each.path, each.tier) for each in sorted(facts.files, key=lambda f: (f.partition, f.path))],
    )


def _rows(section: _Section, escape: Callable[[str], str]) -> Iterator[list[str]]:
    for row in section.rows[:_MOST]:
        yield ["" if value is None else escape(str(value)) for value in row]
    if len(section.rows) > _MOST:
        yield [f"… and {len(section.rows) - _MOST:,} more", *[""] * (len(section.columns) - 1)]


def _graph(facts: IncidentFacts) -> Mapping[Direction, Sequence[LineageEdge]]:
    return {"upstream": facts.upstream.edges, "downstream": facts.downstream.edges}


def _as_markdown(title: str, sections: Sequence[_Section], facts: IncidentFacts) -> str:
    lines = [f"# {markdown(title)}", ""]
    for section in sections:
        lines += [f"## {section.title}", "", markdown(section.text), ""]
        if section.has_graph:
            lines += ["```mermaid", mermaid((facts.table, facts.snapshot_id), _graph(facts)), "```", ""]
        if section.rows:
            lines += [f"| {' | '.join(section.columns)} |", "|---" * len(section.columns) + "|"]
            lines += [f"| {' | '.join(row)} |" for row in _rows(section, markdown)]
            lines.append("")
        elif section.columns:
            lines += ["None.", ""]
    return "\n".join(lines)


_STYLE = (
    "body{font:14px/1.5 sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#263238}"
    "table{border-collapse:collapse;margin:.5em 0}td,th{border:1px solid #cfd8dc;padding:.25em .6em;text-align:left;"
    "overflow-wrap:anywhere}th{background:#eceff1;white-space:nowrap}h2{margin-top:1.6em}.graph{overflow-x:auto}"
)


def _as_html(title: str, sections: Sequence[_Section], facts: IncidentFacts) -> str:
    parts = [f"<h1>{html(title)}</h1>"]
    for section in sections:
        parts += [f"<h2>{section.title}</h2>", f"<p>{html(section.text)}</p>"]
        if section.has_graph:
            parts.append(f'<div class="graph">{layered_svg((facts.table, facts.snapshot_id), _graph(facts))}</div>')
        if section.rows:
            head = "".join(f"<th>{each}</th>" for each in section.columns)
            body = "".join(f"<tr>{''.join(f'<td>{each}</td>' for each in row)}</tr>" for row in _rows(section, html))
            parts.append(f"<table><tr>{head}</tr>{body}</table>")
        elif section.columns:
            parts.append("<p>None.</p>")
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{html(title)}</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )
