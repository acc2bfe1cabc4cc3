"""What became of a plan's snapshots when it was handed off, as a file under `operations.root`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.storage.stores import Stores

NOTHING_ARCHIVED = ""
"""In the place of a metadata location: the handoff is done, and all its snapshots were lost or overtaken."""


@dataclass(frozen=True)
class HandoffOutcome:
    """What became of each snapshot of a plan that was handed off."""

    archived: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    overtaken: tuple[int, ...] = ()
    thinned: tuple[int, ...] = ()


def record_outcome(stores: Stores, root: str, plan_id: str, outcome: HandoffOutcome) -> None:
    data = json.dumps(asdict(outcome)).encode()
    with around("handoff.outcome"):
        stores.write(_outcome_path(root, plan_id), data, overwrite=True)


def read_outcome(stores: Stores, root: str, plan_id: str) -> HandoffOutcome | None:
    """What a finished handoff recorded; None when it is not finished. Raises StorageError if damaged."""
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
            hint=f"run the handoff again, which writes it anew: artemis hand-off {plan_id}",
        ) from error


def _outcome_path(root: str, plan_id: str) -> str:
    return f"{root}/handoffs/{plan_id}/outcome.json"
