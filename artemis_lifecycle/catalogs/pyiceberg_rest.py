"""pyiceberg's REST catalog, with bounded answers. Imports pyiceberg when it is loaded, by `py-catalog-impl`."""

from __future__ import annotations

from pyiceberg.catalog.rest import RestCatalog
from requests import Session
from typing_extensions import override

from artemis_lifecycle.catalogs.answers import bounded


class BoundedRestCatalog(RestCatalog):
    """A REST catalog whose server can neither exhaust the memory nor keep a step waiting for ever."""

    @override
    def _create_session(self) -> Session:
        return bounded(super()._create_session())
