"""How far an operations database has come, kept beside it and not in it. Belongs here: noticing that it was put back in
time, or that another copy of it went on. Does not belong: whose a catalog is (`catalogs/deployments.py`).

A server's backup, put back, forgets the holds and plans that came after it; a copy of a whole server (a disk snapshot)
has the original's identity in every part. Lease tokens only grow, and the greatest stands in a file under
`operations.root`: a database that has not given out that token yet is not the one that did.
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
        """Raise OtherDeployment when a lease was given out of which this database knows nothing."""
        # In this order: a lease that is taken meanwhile only raises what the database knows.
        recorded = self._recorded()
        known = self._leases.newest_token()
        if known >= recorded:
            return
        raise OtherDeployment(
            f"The operations database at {self._deployment.address} is behind what was done with it: its newest lease "
            f"is {known}, and lease {recorded} was given out. It was restored from a backup, or is a copy of a server "
            "that goes on elsewhere",
            path=self._path,
            hint="set operations.uri to the database that goes on. If this is the one from now on, place again the "
            "holds that it lost (artemis holds), then: artemis take-over --who … --why …",
        )

    def reached(self, token: int) -> None:
        """Write down that a lease was given out."""
        if token > self._recorded():
            self._write(token)

    def accept(self) -> bool:
        """Go on from what the database knows; whether it was behind."""
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
                "How far the operations database had come cannot be read",
                path=self._path,
                hint="if that database was not restored from a backup, remove the file",
            ) from error
