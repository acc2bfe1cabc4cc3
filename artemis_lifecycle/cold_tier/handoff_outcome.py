"""What happened to a plan's snapshots in its handoff, as a file under `operations.root`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.storage.stores import Stores

NOTHING_ARCHIVED = ""
"""Replaces the metadata location if the handoff is done and all its snapshots were lost or overtaken."""


@dataclass(frozen=True)
class HandoffOutcome:
    """What happened to each snapshot of a plan in its handoff."""

    archived: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    overtaken: tuple[int, ...] = ()
    thinned: tuple[int, ...] = ()


def record_outcome(stores: Stores, root: str, plan_id: str, outcome: HandoffOutcome) -> None:
    data = json.dumps(asdict(outcome)).encode()
    with around("handoff.outcome"):
        stores.write(_outcome_path(root, plan_id), data, overwrite=True)


def read_outcome(stores: Stores, root: str, plan_id: str) -> HandoffOutcome | None:
    """Return what a finished handoff recorded; None if it is not finished. Raises StorageError if it is damaged."""
    path = _outcome_path(root, plan_id)
    if stores.head(path) is None:
        return None
    try:
        return HandoffOutcome(**{key: tuple(ids) for key, ids in json.loads(stores.read(path)).items()})
    except (ValueError, TypeError, AttributeError) as error:
        raise StorageError(
            f"The record of a handoff is damaged: {error}",
            path=path,
            untouched="both tiers",
            hint=f"run the handoff again, which writes it again: artemis hand-off {plan_id}",
        ) from error


def _outcome_path(root: str, plan_id: str) -> str:
    return f"{root}/handoffs/{plan_id}/outcome.json"
