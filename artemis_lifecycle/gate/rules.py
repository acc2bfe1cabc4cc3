"""Which tables are gated, and what is wrong with a change to one: lifecycle.yaml applied to what a request would do."""

from __future__ import annotations

import re
from collections.abc import Mapping
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
_MOST_PROBLEMS = 20


@dataclass(frozen=True)
class Finding:
    """What a table's requirements do not allow of one request: the first problems of its snapshots or of another
    change, and the first summary with any. `refused`: the table's mode is `reject`."""

    table: str
    problems: tuple[str, ...]
    refused: bool
    summary: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Rules:
    """The gate's rules in one lifecycle.yaml. The project's own namespace is never gated."""

    config: LifecycleConfig

    def findings(self, change: Change) -> tuple[Finding, ...]:
        """Return what is wrong with the change, one finding for each entry that gates the table; empty if it may pass.
        Raises UnclearError."""
        gated = self._gated(change.table).items()
        found = [(entry, table, *self._problems(entry, table, change)) for entry, table in gated]
        return tuple(
            Finding(table, problems, self._rejects(entry), summary)
            for entry, table, problems, summary in found
            if problems
        )

    def gates(self, change: Change) -> bool:
        """Return True if a problem of the change would refuse it."""
        return any(map(self._rejects, self._gated(change.table)))

    def _rejects(self, entry: str) -> bool:
        return self.config.policy(entry).lineage.mode == "reject"

    def _problems(self, entry: str, table: str, change: Change) -> tuple[tuple[str, ...], Mapping[str, str]]:
        requirements = self._requirements[entry]
        if change.unclear is not None:
            return (f"its new snapshots cannot be validated: {change.unclear}",), {}
        if change.source is not None and not self._as_strict(change.source, requirements):
            source = dotted((*change.source.levels, change.source.name))
            return (f"{source} has snapshots that this table's requirements did not apply to",), {}
        problems, first, rest = dict[str, None](), dict[str, str](), iter(change.summaries)
        for summary in rest:
            found = lineage_problems(summary, requirements)
            problems |= dict.fromkeys(found)
            first = first or (dict(summary) if found else {})
            if len(problems) >= _MOST_PROBLEMS:
                # One request has one bounded record and one bounded answer.
                return (*list(problems)[:_MOST_PROBLEMS], f"and more; {len(list(rest)):,} snapshots not read"), first
        return tuple(problems), first

    def _as_strict(self, source: TableName, requirements: LineageRequirements) -> bool:
        """Return whether every commit to `source` was held to the same requirements."""
        gated = filter(self._rejects, self._gated(source))
        return any(self._requirements[entry] == requirements for entry in gated)

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
