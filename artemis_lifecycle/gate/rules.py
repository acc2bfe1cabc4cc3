"""Which tables are gated, and what is wrong with a change to one: lifecycle.yaml applied to what a request would do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from urllib.parse import unquote

from artemis_lifecycle.catalogs.identifier import dotted
from artemis_lifecycle.catalogs.results import NAMESPACE
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.contracts import LineageRequirements, lineage_problems
from artemis_lifecycle.gate.bodies import Change
from artemis_lifecycle.gate.routes import SEPARATOR, TableName, UnclearError

_MOST_READINGS = 16


@dataclass(frozen=True)
class Finding:
    """A snapshot, or another change, that a table's requirements do not allow. `refused`: the table's mode is
    `reject`."""

    table: str
    problems: tuple[str, ...]
    refused: bool
    summary: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Rules:
    """The gate's rules in one lifecycle.yaml. The project's own namespace is never gated."""

    config: LifecycleConfig

    def findings(self, change: Change) -> tuple[Finding, ...]:
        """Return what is wrong with the change; empty if it may pass. Raises UnclearError."""
        gated = self._gated(change.table).items()
        return tuple(finding for entry, table in gated for finding in self._judged(entry, table, change))

    def _judged(self, entry: str, table: str, change: Change) -> Iterator[Finding]:
        refused, requirements = self._refuses(entry), self._requirements[entry]
        if change.unclear is not None:
            yield Finding(table, (f"its new snapshots cannot be validated: {change.unclear}",), refused)
        if change.source is not None and not self._as_strict(change.source, requirements):
            source = dotted((*change.source.levels, change.source.name))
            yield Finding(table, (f"{source} has snapshots that this table's requirements did not apply to",), refused)
        for summary in change.summaries:
            problems = lineage_problems(summary, requirements)
            if problems:
                yield Finding(table, problems, refused, summary)

    def _as_strict(self, source: TableName, requirements: LineageRequirements) -> bool:
        """Return whether every commit to `source` was held to the same requirements."""
        gated = self._gated(source)
        return any(self._requirements[entry] == requirements for entry in gated if self._refuses(entry))

    def _refuses(self, entry: str) -> bool:
        return self.config.policy(entry).lineage.mode == "reject"

    def _gated(self, table: TableName) -> dict[str, str]:
        """Return the entries of lifecycle.yaml that gate the table, each with a name of the table. Entries that match
        it equally well all do."""
        by_entry: dict[str, str] = {}
        for parts in _readings(table):
            for entry in () if parts[:-1] == (NAMESPACE,) else self.config.matching(dotted(parts)):
                by_entry.setdefault(entry, dotted(parts))
        return by_entry

    @cached_property
    def _requirements(self) -> Mapping[str, LineageRequirements]:
        return {
            entry: LineageRequirements.from_config(self.config.policy(entry).lineage) for entry in self.config.tables
        }


def _readings(table: TableName) -> list[tuple[str, ...]]:
    """Return the tables that servers could mean by a name: some decode it once more, with `+` for a space (as Iceberg's
    Java clients encode it), some split levels at dots too, and Nessie reads `name@branch` and `name#hash` as a version
    of `name`. Raises UnclearError."""
    levels = {
        tuple(part for part in re.split(separators, text) if part)
        for text in _decoded(SEPARATOR.join(table.levels))
        for separators in (SEPARATOR, f"[.{SEPARATOR}]")
    }
    names = {
        one for name in _decoded(table.name) for one in (name, name.partition("@")[0].partition("#")[0].strip("`"))
    }
    as_sent = (*table.levels, table.name)
    return [as_sent, *sorted({(*each, one) for each in levels for one in names} - {as_sent})]


def _decoded(text: str) -> set[str]:
    found, new = set[str](), {text}
    while new:
        found |= new
        if len(found) > _MOST_READINGS:
            raise UnclearError(f"its name {text[:80]} is encoded too many times")
        new = {one for each in new for one in (unquote(each), each.replace("+", " "))} - found
    return found
