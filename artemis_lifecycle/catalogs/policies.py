"""Policies that a REST catalog keeps for its tables, by the policy API of Apache Polaris.

Source: spec/polaris-catalog-apis/policy-apis.yaml (getApplicablePolicies) and the schemas of `system.snapshot-expiry`
and `system.orphan-file-removal`. Names in the free `config` are those of Polaris' own examples.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import quote

from artemis_lifecycle.catalogs.identifier import Identifier
from artemis_lifecycle.errors import OperationsUnavailable, Refused

SNAPSHOT_EXPIRY = "system.snapshot-expiry"
ORPHAN_FILE_REMOVAL = "system.orphan-file-removal"
_VERSION = "2025-02-03"
MOST_DAYS = 365_000
"""A longer time is never."""


@dataclass(frozen=True)
class CatalogPolicy:
    """A policy that applies to a table: `enabled`, and the values of its type (None: not stated)."""

    name: str
    type: str
    enabled: bool
    window: timedelta | None = None
    min_snapshots: int | None = None
    min_age: timedelta | None = None


def applicable_policies(catalog: Any, session: Any, table: Identifier) -> list[CatalogPolicy]:
    """Return the policies of a table that this release acts on, inherited ones included. `catalog` is pyiceberg's, and
    `session` its HTTP session. Raises OperationsUnavailable if the server does not tell; Refused for a policy that is
    not of the known schema."""
    prefix = quote(str(catalog.properties.get("prefix", "")))
    url = f"{catalog.uri.rstrip('/')}/polaris/v1/{f'{prefix}/' if prefix else ''}applicable-policies"
    query = {"namespace": "\x1f".join(table.namespace), "target-name": table.name}
    found: list[CatalogPolicy] = []
    while True:
        answer = session.get(url, params=query)
        if answer.status_code != 200:
            raise OperationsUnavailable(
                f"Catalog {catalog.name} does not tell the policies of a table: status {answer.status_code}",
                table=str(table),
                untouched="the table",
                hint="see whether it has Polaris' policy API; or leave `catalog` out of retention.from",
            )
        said = answer.json()
        found += filter(None, (_parsed(each, table) for each in said["applicable-policies"]))
        if not said.get("next-page-token"):
            return found
        query["pageToken"] = said["next-page-token"]


def _parsed(said: Mapping[str, Any], table: Identifier) -> CatalogPolicy | None:
    kind, name = said["policy-type"], said["name"]
    if kind not in (SNAPSHOT_EXPIRY, ORPHAN_FILE_REMOVAL):
        return None
    try:
        content = json.loads(said["content"])
        config = content.get("config", {})
        if content.get("version", _VERSION) != _VERSION or not isinstance(content["enable"], bool):
            raise ValueError(f"version {content.get('version')}, enable {content['enable']!r}")
        if kind == ORPHAN_FILE_REMOVAL:
            return CatalogPolicy(name, kind, content["enable"], min_age=_days(content, "max_orphan_file_age_in_days"))
        snapshots = config.get("min_snapshot_to_keep")
        return CatalogPolicy(
            name,
            kind,
            content["enable"],
            window=_days(config, "max_snapshot_age_days"),
            min_snapshots=None if snapshots is None else max(1, int(snapshots)),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Refused(
            f"Policy {name} of the catalog is not of a schema that this release knows ({_VERSION}): {error}",
            table=str(table),
            untouched="the table",
            hint="correct the policy; or leave `catalog` out of retention.from",
        ) from error


def _days(values: Mapping[str, Any], name: str) -> timedelta | None:
    given = values.get(name)
    if given is None:
        return None
    if isinstance(given, bool) or float(given) < 0:
        raise ValueError(f"{name} is {given!r}")
    return timedelta(days=min(float(given), MOST_DAYS))
