"""The progress of an operations database, stored outside it.

A restored server backup lacks all later holds and plans. A copy of a whole server (a disk snapshot) has the identity of
the original. Leases, decisions and holds only become more, and how far they have come is stored in a file under
`operations.root`. A database that has not come as far is not the one that did. Their rows say it: a sequence is up to
32 ahead in a server that was copied while it ran. Where the tables were seen, and the holds, are stored there, too, and
read back: the catalog may have been put back with the database, and nothing else then tells which commits it lost.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from sqlalchemy.exc import DataError, IntegrityError

from artemis_lifecycle import escaping
from artemis_lifecycle.errors import OtherDeployment, UnreadableMetadata
from artemis_lifecycle.operations.database import Deployment
from artemis_lifecycle.operations.decisions import decisions
from artemis_lifecycle.operations.holds import holds
from artemis_lifecycle.operations.leases import Leases
from artemis_lifecycle.operations.outbox import Outbox
from artemis_lifecycle.operations.tables import Reached, reached
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    from sqlalchemy import Engine

_JSON = ".json"
_log = escaping.logger(__name__)


def observed(root: str, operations_id: str) -> str:
    """Return the folder of what a deployment observed."""
    return f"{root}/observed/{operations_id}"


@dataclass(frozen=True)
class _Mark:
    lease: int
    decisions: Reached
    holds: Reached
    sent: str = ""


class Progress:
    """What one deployment has recorded of its database under `operations.root`."""

    def __init__(self, stores: Stores, deployment: Deployment, engine: Engine) -> None:
        self._stores = stores
        self._deployment = deployment
        self._engine = engine
        self._path = f"{deployment.root}/deployment/{deployment.operations_id}.json"
        self._observed = observed(deployment.root, deployment.operations_id)
        self._outbox = Outbox(engine)

    def require(self, *, recall: bool = True) -> None:
        """Raise OtherDeployment if a lease was issued, a hold placed, or something decided, that this database does not
        know. What it does not know of the tables, and of holds, it first reads back, unless `recall` is False."""
        # In this order: a lease that is taken in the meantime only raises the token that the database knows.
        recorded = self._recorded()
        if recall:
            self._recall_until(recorded)
        unknown = self._unknown(recorded)
        if unknown is not None:
            raise OtherDeployment(
                f"The operations database at {self._deployment.address} is behind its recorded progress: {unknown}. "
                "It was restored from a backup, or is a copy of a server that continues elsewhere",
                path=self._path,
                hint="set operations.uri to the database that continues. If this is the one from now on, decide again "
                "what was decided since (artemis holds; artemis dropped), then: artemis take-over --who … --why …",
            )

    def send(self) -> None:
        """Store outside of the database what was observed."""

        def write(name: str, content: bytes) -> None:
            self._stores.write(f"{self._observed}/{name}{_JSON}", content)

        self._outbox.send(write)

    def reached(self) -> None:
        """Record how far the database has come, unless it was behind before that."""
        # Another process may write meanwhile, and know less: who writes reads again.
        while (now := self.known()) != (recorded := self._recorded()) and self._unknown(recorded) is None:
            # Before a newer file hides those of which the database knows nothing.
            self._recall_until(recorded)
            self._write(now)

    def accept(self) -> bool:
        """Accept what the database knows, and what was observed. Return whether it was behind."""
        was_behind = self._unknown(self._recorded()) is not None
        self._recall()
        if was_behind:
            self._write(self.known())
        return was_behind

    def known(self, until: _Mark | None = None) -> _Mark:
        """Return how far the database has come; with `until`, how far it had come then."""
        at = ("", "") if until is None else (until.decisions.at, until.holds.at)
        decided, held = (
            reached(self._engine, *of) for of in zip((decisions.c.decided_at, holds.c.created_at), at, strict=True)
        )
        return _Mark(Leases(self._engine).newest_token(), decided, held, self._outbox.newest())

    def _recall_until(self, recorded: _Mark) -> None:
        if recorded.sent and self._outbox.unknown([recorded.sent]):
            self._recall()

    def _recall(self) -> None:
        """Read back what was observed, of which the database knows nothing."""
        paths = {
            file.path.rpartition("/")[2].removesuffix(_JSON): file.path
            for file in self._stores.children(self._observed)[1]
        }
        unknown = {name: self._stores.read(paths[name]) for name in self._outbox.unknown(paths)}
        if not unknown:
            return
        try:
            self._outbox.recall(unknown)
        except (ValueError, KeyError, TypeError, DataError, IntegrityError) as error:
            raise UnreadableMetadata(
                "What was observed of the tables, and is not in the operations database, cannot be read",
                path=self._observed,
                hint="restore the files below it; or remove the one that is not JSON: what it says is forgotten then",
            ) from error
        _log.warning("What was observed since the backup of %s was read back", self._deployment.address)

    def _unknown(self, recorded: _Mark) -> str | None:
        """Return what of this the database does not know."""
        found = self.known(recorded)
        if found.lease < recorded.lease:
            return f"its newest lease is {found.lease}, but lease {recorded.lease} was issued"
        for what in ("decisions", "holds"):
            there, then = getattr(found, what), getattr(recorded, what)
            if then.at and (there.at != then.at or there.count < then.count):
                return f"it lacks {what} of which the newest was made at {then.at}"
        return None

    def _write(self, mark: _Mark) -> None:
        at = {"decisions": asdict(mark.decisions), "holds": asdict(mark.holds)}
        said = {"newest_lease": mark.lease, **at, "sent": mark.sent}
        self._stores.write(self._path, json.dumps(said).encode(), overwrite=True)

    def _recorded(self) -> _Mark:
        if self._stores.head(self._path) is None:
            return _Mark(0, Reached(), Reached())
        try:
            said = json.loads(self._stores.read(self._path))
            decided, held = (Reached(**said.get(what, {})) for what in ("decisions", "holds"))
            return _Mark(int(said["newest_lease"]), decided, held, said.get("sent", ""))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnreadableMetadata(
                "The recorded progress of the operations database cannot be read",
                path=self._path,
                hint="if that database was not restored from a backup, remove the file",
            ) from error
