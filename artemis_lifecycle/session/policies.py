"""What decides a table's retention where lifecycle.yaml is not the only source (`retention.from`): the safer value of
each setting wins, and each says where it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from artemis_lifecycle.catalogs.policies import MOST_DAYS, SNAPSHOT_EXPIRY, CatalogPolicy
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


_Stated = dict[str, dict[str, Any]]
"""By setting, the value that each source states."""


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
    policy, at = resources.config.policy(table), "lifecycle.yaml"
    sources, retention, disabled = policy.retention.sources, policy.retention, dict[str, str]()
    stated: _Stated = {WINDOW: {}, MIN_SNAPSHOTS: {}, MIN_AGE: {at: policy.orphans.min_age}}
    is_set = retention.rule != "iceberg" or resources.config.explicit_window(table) is not None
    if at in sources and is_set:
        stated[WINDOW][at] = retention.window
    if at in sources:
        stated[MIN_SNAPSHOTS][at] = retention.min_snapshots
    if "properties" in sources and resources.other(table) is None:
        _add_properties(resources, table, stated)
    if "catalog" in sources and resources.other(table) is None:
        for each in resources.catalogs.of(table).policies(table):
            _add(each, stated, disabled)
    if not stated[WINDOW] and is_set:
        stated[WINDOW][at] = retention.window
    stated[MIN_SNAPSHOTS] = stated[MIN_SNAPSHOTS] or {at: retention.min_snapshots}
    alone, safest = sources == (at,), {setting: max(found.values()) for setting, found in stated.items() if found}
    values = [_value(setting, found) for setting, found in stated.items() if found]
    values += [PolicyValue(work, "disabled", f"catalog: {name}", {}) for work, name in disabled.items()]
    window, most = (None if alone else safest.get(setting) for setting in (WINDOW, MIN_SNAPSHOTS))
    found = PolicyExplanation(table, sources, tuple(values))
    return EffectivePolicy(window, most, safest[MIN_AGE], disabled, found)


def _value(setting: str, found: Mapping[str, Any]) -> PolicyValue:
    shown = {each: format_duration(said) if isinstance(said, timedelta) else str(said) for each, said in found.items()}
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
        stated[WINDOW]["properties"] = timedelta(milliseconds=min(int(given[MAX_SNAPSHOT_AGE]), longest))
    if MIN_SNAPSHOTS_TO_KEEP in given:
        stated[MIN_SNAPSHOTS]["properties"] = max(1, int(given[MIN_SNAPSHOTS_TO_KEEP]))


def _add(policy: CatalogPolicy, stated: _Stated, disabled: dict[str, str]) -> None:
    if not policy.enabled:
        disabled[EXPIRY if policy.type == SNAPSHOT_EXPIRY else REMOVAL] = policy.name
    for setting, value in ((WINDOW, policy.window), (MIN_SNAPSHOTS, policy.min_snapshots), (MIN_AGE, policy.min_age)):
        if value is not None:
            stated[setting][f"catalog: {policy.name}"] = value
