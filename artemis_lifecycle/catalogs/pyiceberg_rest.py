"""pyiceberg's REST catalog, with bounded answers. Imports pyiceberg when it is loaded, by `py-catalog-impl`."""

from __future__ import annotations

from pyiceberg.catalog.rest import RestCatalog
from requests import Session
from typing_extensions import override
from urllib3.util import Retry

from artemis_lifecycle.catalogs.rest import bounded


class BoundedRestCatalog(RestCatalog):
    """A REST catalog whose server can neither exhaust the memory nor keep a step waiting for ever."""

    @override
    def _create_session(self) -> Session:
        session = bounded(super()._create_session())
        for adapter in session.adapters.values():
            # The one for SigV4 would send again; a commit is sent once.
            adapter.max_retries = Retry(0, read=False)  # type: ignore[attr-defined]
        return session
