"""`LifecycleConfig`: one lifecycle.yaml."""

from __future__ import annotations

import posixpath
import re
from datetime import timedelta
from pathlib import Path
from typing import Self

from pydantic import PrivateAttr, ValidationError, model_validator

from artemis_lifecycle.config.deployment import (
    Alerts,
    Catalogs,
    Clocks,
    Dagster,
    DeepArchive,
    LineageEvents,
    Operations,
    Prices,
    Quarantine,
    Reachability,
    Reading,
    Records,
    Spark,
)
from artemis_lifecycle.config.model import Model
from artemis_lifecycle.config.names import fits, name_of, spelled
from artemis_lifecycle.config.policies import Run, TableOverrides, TablePolicy, largest, overlay
from artemis_lifecycle.config.schemes import EQUAL_SCHEMES, S3_SCHEMES, kind_of, one_authority
from artemis_lifecycle.errors import ConfigError


class LifecycleConfig(Model):
    """The content of one lifecycle.yaml.

    An address of None gets the embedded default. `home` is the folder of the embedded stack.
    """

    catalogs: Catalogs = Catalogs()
    operations: Operations = Operations()
    spark: Spark = Spark()
    reachability: Reachability = Reachability()
    reading: Reading = Reading()
    deep_archive: DeepArchive = DeepArchive()
    quarantine: Quarantine = Quarantine()
    records: Records = Records()
    clocks: Clocks = Clocks()
    alerts: Alerts = Alerts()
    dagster: Dagster = Dagster()
    lineage_events: LineageEvents = LineageEvents()
    prices: Prices = Prices()
    defaults: TablePolicy = TablePolicy()
    tables: dict[str, TableOverrides] = {}
    home: Path = Path(".artemis")

    _policies: dict[str, TablePolicy] = PrivateAttr(default_factory=dict)
    _spelled: dict[str, str] = PrivateAttr(default_factory=dict)
    _absent: str | None = PrivateAttr(default=None)

    @property
    def absent(self) -> str | None:
        """The reason that no file was read: it does not exist, or it is empty. None if one was read, if `home` is set
        elsewhere, and for a configuration that was made in Python."""
        return self._absent

    @model_validator(mode="after")
    def _check(self) -> Self:
        wrong = []
        if self.catalogs.live.name == self.catalogs.cold.name:
            wrong.append(f"catalogs.live and catalogs.cold have one name, {self.catalogs.live.name!r}")
        if self.catalogs.cold.type != "sql":
            wrong.append(f"catalogs.cold.type is {self.catalogs.cold.type}; the handoff publishes to sql, on Postgres")
        idle = [key for key in ("roots", "isolated") if getattr(self.catalogs.cold, key)]
        wrong += [f"catalogs.cold has no {key}: only the live catalog has" for key in idle]
        named = [(key, _root_form(root)) for key, root in self.roots().items() if root]
        for index, (key, root) in enumerate(named):
            for other_key, other in named[index + 1 :]:
                if {key, other_key} <= self.shared_roots:
                    continue
                if root == other or root.startswith(other + "/") or other.startswith(root + "/"):
                    wrong.append(f"{key} and {other_key} are equal or nested: {root}, {other}")
        for pattern, overrides in self.tables.items():
            other = self._spelled.setdefault(spelled(pattern), pattern)
            if other != pattern:
                wrong.append(f"tables.{pattern}: is another spelling of {other}")
            try:
                self._policies[pattern] = overlay(self.defaults, overrides)
            except ValidationError as error:
                wrong += (f"tables.{pattern}: {each['msg'].removeprefix('Value error, ')}" for each in error.errors())
        if kind_of(self.catalogs.cold.root or "") not in (None, S3_SCHEMES[0]):
            own = {f"tables.{key}": self._policies.get(key) for key, each in self.tables.items() if each.cold_tier}
            wrong += [
                f"{key}.cold_tier.then is deep-archive, but the cold warehouse is not on S3: no other store has an "
                "archive that is thawed for some days; set it to keep"
                for key, policy in {"defaults": self.defaults, **own}.items()
                if policy is not None and policy.cold_tier.enabled and policy.cold_tier.then == "deep-archive"
            ]
        if wrong:
            raise ValueError("\n".join(wrong))
        return self

    def roots(self) -> dict[str, str | None]:
        """Return the roots of the tiers by key. They must not overlap: names are checked here; links and mounts are
        checked when the configuration is opened, and before each step."""
        return {
            "catalogs.live.warehouse": self.catalogs.live.root,
            "catalogs.cold.warehouse": self.catalogs.cold.root,
            "operations.root": self.operations.root,
            "quarantine.root": self.quarantine.root,
            **{f"catalogs.others.{name}.warehouse": each.warehouse for name, each in self.catalogs.others.items()},
            **{f"catalogs.{name}.warehouse": each.root for name, each in self.catalogs.named.items()},
        }

    @property
    def shared_roots(self) -> frozenset[str]:
        """The keys of roots that may overlap one another: two live catalogs may have tables in one warehouse."""
        return frozenset({"catalogs.live.warehouse", *(f"catalogs.{name}.warehouse" for name in self.catalogs.named)})

    def matching(self, table: str) -> tuple[str, ...]:
        """Return the keys in `tables` that match `table` best: the exact one, or the pattern with the most literal
        characters. Empty if no entry matches; several if patterns match equally well."""
        table = name_of(table)
        exact = table if table in self.tables else self._spelled.get(table)
        if exact is not None:
            return (exact,)
        matches = [(len(pattern.replace("*", "")), pattern) for pattern in self.tables if fits(table, pattern)]
        most = max(matches, default=(0, ""))[0]
        return tuple(sorted(pattern for exactness, pattern in matches if exactness == most))

    def entry(self, table: str) -> str | None:
        """Return the key in `tables` that applies to `table`, or None. Raises ConfigError if patterns match it equally
        well: the policy is then ambiguous."""
        matches = self.matching(table)
        if matches[1:]:
            raise ConfigError(
                f"Entries of tables in lifecycle.yaml match this table equally well: {', '.join(matches)}",
                table=table,
                hint="give the table an entry of its own, or make one of the patterns more exact",
            )
        return matches[0] if matches else None

    def governs(self, table: str) -> bool:
        """Return True if exactly one entry applies to `table`; schedules and sensors then process it."""
        return len(self.matching(table)) == 1

    def policy(self, table: str) -> TablePolicy:
        """Return the policy of `table`: `defaults`, overridden by its entry. Raises ConfigError, as `entry` does."""
        entry = self.entry(table)
        return self.defaults if entry is None else self._policies[entry]

    def policies(self, table: str) -> tuple[TablePolicy, ...]:
        """Return every policy that may apply to `table`: one, or one for each entry that matches equally well."""
        return tuple(self._policies[entry] for entry in self.matching(table)) or (self.defaults,)

    def run(self, *tables: str) -> Run:
        """Return the resources of a run of these tables: the largest of each."""
        return largest([policy.run for table in tables for policy in self.policies(table)])

    def warnings(self) -> tuple[str, ...]:
        """Return the warnings to show at each start: delays that are zero, and their consequences."""
        delays_of = [("defaults", self.defaults.zero_delays())]
        for pattern, policy in self._policies.items():
            inherited = self.defaults.zero_delays()
            delays_of.append(
                (f"tables.{pattern}", {k: v for k, v in policy.zero_delays().items() if k not in inherited})
            )
        return tuple(f"{place}.{key} is 0: {what}" for place, delays in delays_of for key, what in delays.items())

    def explicit_window(self, table: str) -> timedelta | None:
        """Return the window that lifecycle.yaml sets for `table` itself; None if it comes from `defaults`.

        With rule `iceberg`, an explicit window overrides the table's own properties; the shipped default does not.
        """
        entry = self.entry(table)
        retention = self.tables[entry].retention if entry is not None else None
        if retention is not None and "window" in retention.model_fields_set:
            return retention.window
        return None


def _root_form(root: str) -> str:
    text = root if "://" in root or root.startswith("file:") else f"file://{root}"
    if text.startswith("file:"):
        text = "file:///" + text.removeprefix("file:").lstrip("/")
    scheme, _, rest = text.partition("://")
    scheme = EQUAL_SCHEMES.get(scheme.lower(), scheme.lower())
    rest = re.sub(r"(?<=.)/+", "/", rest).rstrip("/")
    if re.search(r"/\.\.?(?:/|\Z)", rest):
        # On S3 these are ordinary names, but clients may resolve them.
        authority, _, path = rest.partition("/")
        rest = authority + posixpath.normpath(f"/{path}").rstrip("/")
    authority, slash, path = rest.partition("/")
    return f"{scheme}://{one_authority(scheme, authority)}{slash}{path}"
