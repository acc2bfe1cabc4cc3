"""Counts that a test run prints at its end, also if all tests passed. A run in several processes merges the counts of
all."""

from __future__ import annotations

from collections.abc import Iterable

TABLES: dict[str, list[tuple[str, ...]]] = {}
"""Rows by title."""


def add_row(title: str, head: tuple[str, ...], row: tuple[str, ...]) -> None:
    """Add a row to the table of that title."""
    TABLES.setdefault(title, [head]).append(row)


def add_lines(title: str, lines: Iterable[str]) -> None:
    """Add lines under that title."""
    TABLES.setdefault(title, []).extend((line,) for line in lines)


def merge(tables: dict[str, list[tuple[str, ...]]]) -> None:
    """Merge the tables of another process of the run. A table that both have keeps one head."""
    for title, rows in tables.items():
        known = TABLES.setdefault(title, [])
        rows = [tuple(row) for row in rows]
        known.extend(rows[1:] if known and rows[:1] == known[:1] else rows)


def lines() -> Iterable[tuple[str, list[str]]]:
    """Each title with its lines, columns below each other."""
    for title, rows in TABLES.items():
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        yield (
            title,
            ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows],
        )
