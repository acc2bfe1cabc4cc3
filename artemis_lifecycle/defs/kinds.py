"""Which steps of the walk each kind of table has."""

from collections.abc import Mapping

from artemis_lifecycle.defs.tags import WALK
from artemis_lifecycle.lifecycle.formats import PLANNED, Kind

_ORPHANS = frozenset({"snapshot_history", "reachable_set", "object_listing", "orphan_scan", "orphan_deletion"})
_PLANS = frozenset({"expiration_plan", "expiration_commit", "physical_deletion"})
_OTHERS: tuple[Kind, ...] = ("nessie", "paimon")

ASSETS_OF: Mapping[Kind, frozenset[str]] = {
    "iceberg": frozenset(WALK),
    **{kind: _ORPHANS | (_PLANS if kind in PLANNED else frozenset()) for kind in _OTHERS},
}
"""Assets that a kind does not have are materialized with the outcome `not_applicable`. Their checks judge nothing."""


def lacks(kind: Kind, asset: str) -> str | None:
    """Return why a table of that kind does not have the asset; None if it has."""
    return None if asset in ASSETS_OF[kind] else f"A {kind.capitalize()} table has no {asset} (docs/formats.md)"
