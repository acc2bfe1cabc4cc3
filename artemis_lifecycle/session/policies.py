"""What decides a table's retention where lifecycle.yaml is not the only source (`retention.from`): the safer value of
each setting wins, and each says where it came from. Does not belong here: the rules (`retention/`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from artemis_lifecycle.catalogs.policies import MOST_DAYS, ORPHAN_FILE_REMOVAL, SNAPSHOT_EXPIRY, CatalogPolicy
from artemis_lifecycle.config.durations import format_duration
from artemis_lifecycle.errors import Refused
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.retention.rules import MAX_SNAPSHOT_AGE, MIN_SNAPSHOTS_TO_KEEP
from artemis_lifecycle.session.resources import Resources

WINDOW, MIN_SNAPSHOTS, MIN_AGE = "retention.window", "retention.min_snapshots", "orphans.min_age"
EXPIRY, REMOVAL = "snapshot expiry", "orphan file removal"


@dataclass(frozen=True)
class PolicyValue:
    """One setting of a table: its value, the source that it came from, and what each source states."""

    setting: str
    value: str
    source: str
    stated: Mapping[str, str]


@dataclass(frozen=True)
class PolicyExplanation:
    """A table's settings, by where they came from."""

    table: str
    sources: tuple[str, ...]
    values: tuple[PolicyValue, ...]


@dataclass
class _Stated:
    windows: dict[str, timedelta] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    ages: dict[str, timedelta] = field(default_factory=dict)
    disabled: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class EffectivePolicy:
    """What the sources of a table's policy decide together. `window` and `min_snapshots` are None if lifecycle.yaml
    alone decides. `disabled` has the policies that forbid a kind of work, by its name."""

    window: timedelta | None
    min_snapshots: int | None
    min_age: timedelta
    disabled: Mapping[str, str]
    explanation: PolicyExplanation

    def require(self, work: str) -> None:
        """Raise Refused if a policy of the catalog forbids this kind of work."""
        if work in self.disabled:
            raise Refused(
                f"Policy {self.disabled[work]} of the catalog disables {work}",
                table=self.explanation.table,
                untouched="the table",
                hint="enable the policy in the catalog; or leave `catalog` out of retention.from",
            )


def effective_policy(resources: Resources, table: str) -> EffectivePolicy:
    """Return what the sources in `retention.from` decide for a table. Raises OperationsUnavailable if a source does not
    answer, Refused for a policy that cannot be understood: it may be the safer one."""
    policy = resources.config.policy(table)
    sources, stated = policy.retention.sources, _Stated(ages={"lifecycle.yaml": policy.orphans.min_age})
    is_set = policy.retention.rule != "iceberg" or resources.config.explicit_window(table) is not None
    if "lifecycle.yaml" in sources and is_set:
        stated.windows["lifecycle.yaml"] = policy.retention.window
    if "lifecycle.yaml" in sources:
        stated.counts["lifecycle.yaml"] = policy.retention.min_snapshots
    if "properties" in sources and resources.other(table) is None:
        _add_properties(resources, table, stated)
    if "catalog" in sources and resources.other(table) is None:
        for each in resources.catalogs.of(table).policies(table):
            _add(each, stated)
    if not stated.windows and is_set:
        stated.windows["lifecycle.yaml"] = policy.retention.window
    alone = sources == ("lifecycle.yaml",)
    window = None if alone or not stated.windows else max(stated.windows.values())
    counts = stated.counts or {"lifecycle.yaml": policy.retention.min_snapshots}
    values = [
        _value(WINDOW, {source: format_duration(each) for source, each in stated.windows.items()}, stated.windows),
        _value(MIN_SNAPSHOTS, {source: str(each) for source, each in counts.items()}, counts),
        _value(MIN_AGE, {source: format_duration(each) for source, each in stated.ages.items()}, stated.ages),
        *(PolicyValue(work, "disabled", f"catalog: {name}", {}) for work, name in stated.disabled.items()),
    ]
    found = PolicyExplanation(table, sources, tuple(each for each in values if each is not None))
    most = None if alone else max(counts.values())
    return EffectivePolicy(window, most, max(stated.ages.values()), stated.disabled, found)


def _value(
    setting: str, shown: Mapping[str, str], found: Mapping[str, timedelta] | Mapping[str, int]
) -> PolicyValue | None:
    if not found:
        return None
    source = max(found, key=lambda each: found[each])
    return PolicyValue(setting, shown[source], source, shown)


def _add_properties(resources: Resources, table: str, stated: _Stated) -> None:
    at = resources.catalogs.entry(table).metadata_location
    properties = read_table_metadata(resources.live_stores, at).properties
    given = {key: properties[key] for key in (MAX_SNAPSHOT_AGE, MIN_SNAPSHOTS_TO_KEEP) if key in properties}
    wrong = next((key for key, value in given.items() if not value.isdecimal()), None)
    if wrong is not None:
        raise Refused(
            f"The table's property {wrong} is {given[wrong]!r}, which is not a number",
            table=table,
            untouched="the table",
            hint="correct the property; or leave `properties` out of retention.from",
        )
    if MAX_SNAPSHOT_AGE in given:
        # People write "never" as 2**63 - 1.
        longest = timedelta(days=MOST_DAYS) // timedelta(milliseconds=1)
        stated.windows["properties"] = timedelta(milliseconds=min(int(given[MAX_SNAPSHOT_AGE]), longest))
    if MIN_SNAPSHOTS_TO_KEEP in given:
        stated.counts["properties"] = max(1, int(given[MIN_SNAPSHOTS_TO_KEEP]))


def _add(policy: CatalogPolicy, stated: _Stated) -> None:
    source = f"catalog: {policy.name}"
    if not policy.enabled:
        stated.disabled[EXPIRY if policy.type == SNAPSHOT_EXPIRY else REMOVAL] = policy.name
    if policy.window is not None:
        stated.windows[source] = policy.window
    if policy.min_snapshots is not None:
        stated.counts[source] = policy.min_snapshots
    if policy.type == ORPHAN_FILE_REMOVAL and policy.min_age is not None:
        stated.ages[source] = policy.min_age
