"""The progress of an operations database, stored outside it. Belongs here: detecting that the database was restored to
an earlier state, or that another copy of it continued. Does not belong here: who owns a catalog
(`catalogs/deployments.py`).

A restored server backup lacks all later holds and plans. A copy of a whole server (a disk snapshot) has the identity of
the original. Lease tokens only increase, and the greatest is stored in a file under `operations.root`. A database that
has not issued that token yet is not the one that did.
"""

from __future__ import annotations

import json

from artemis_lifecycle.errors import OtherDeployment, UnreadableMetadata
from artemis_lifecycle.operations.deployment import Deployment
from artemis_lifecycle.operations.leases import Leases
from artemis_lifecycle.storage.stores import Stores


class Progress:
    """The file of one deployment."""

    def __init__(self, stores: Stores, deployment: Deployment, leases: Leases) -> None:
        self._stores = stores
        self._deployment = deployment
        self._leases = leases
        self._path = f"{deployment.root}/deployment/{deployment.operations_id}.json"

    def require(self) -> None:
        """Raise OtherDeployment if a lease was issued that this database does not know."""
        # In this order: a lease that is taken in the meantime only raises the token that the database knows.
        recorded = self._recorded()
        known = self._leases.newest_token()
        if known >= recorded:
            return
        raise OtherDeployment(
            f"The operations database at {self._deployment.address} is behind its recorded progress: its newest lease "
            f"is {known}, but lease {recorded} was issued. It was restored from a backup, or is a copy of a server "
            "that continues elsewhere",
            path=self._path,
            hint="set operations.uri to the database that continues. If this is the one from now on, place again the "
            "holds that it lost (artemis holds), then: artemis take-over --who … --why …",
        )

    def reached(self, token: int) -> None:
        """Record that a lease was issued."""
        if token > self._recorded():
            self._write(token)

    def accept(self) -> bool:
        """Accept what the database knows. Return whether it was behind."""
        known = self._leases.newest_token()
        if known >= self._recorded():
            return False
        self._write(known)
        return True

    def _write(self, token: int) -> None:
        self._stores.write(self._path, json.dumps({"newest_lease": token}).encode(), overwrite=True)

    def _recorded(self) -> int:
        if self._stores.head(self._path) is None:
            return 0
        try:
            return int(json.loads(self._stores.read(self._path))["newest_lease"])
        except (ValueError, KeyError, TypeError) as error:
            raise UnreadableMetadata(
                "The recorded progress of the operations database cannot be read",
                path=self._path,
                hint="if that database was not restored from a backup, remove the file",
            ) from error
