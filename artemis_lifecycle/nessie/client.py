"""A client of Nessie's REST API v2: pages of JSON, complete or an error. Belongs here: requests. Does not belong here:
what the JSON means (`references.py`)."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from artemis_lifecycle.catalogs.answers import bounded
from artemis_lifecycle.config.model import masked
from artemis_lifecycle.errors import BadInput, OperationsUnavailable, UnreadableMetadata

_SECONDS = 60
_TRIES = 3


class NessieClient:
    """Reads `uri`, e.g. http://nessie:19120/api/v2. `token` is sent as the bearer. Safe for several threads.

    Raises BadInput for a token that cannot be sent, OperationsUnavailable if Nessie does not answer or refuses,
    UnreadableMetadata for an answer that is not what the API promises, or for a reference or commit that Nessie does
    not have.
    """

    def __init__(self, uri: str, token: str | None = None) -> None:
        if token is not None and not (token.isascii() and token.isprintable() and token == token.strip()):
            # What refuses it otherwise shows it.
            raise BadInput(
                "The token of the Nessie catalog has characters that no HTTP header can have, such as a line break",
                hint="fix properties.token of the catalog; a file that it comes from may end in a line break",
            )
        self.uri = uri.rstrip("/")
        self._token = token
        self._of_thread = threading.local()

    def get(self, path: str, **asked: str | int) -> Mapping[str, Any]:
        """Return the JSON object at `path`."""
        url = f"{self.uri}/{path}"
        shown = masked("uri", url)
        try:
            answer = self._session.get(url, params=asked, timeout=_SECONDS)
        except requests.RequestException as error:
            raise OperationsUnavailable(
                f"Nessie does not answer ({type(error).__name__})",
                path=str(shown),
                untouched="all files",
                hint="start it, or fix the catalog's uri in lifecycle.yaml",
            ) from error
        if answer.status_code == requests.codes.not_found:
            raise UnreadableMetadata(
                f"Nessie does not have it: {answer.text[:200]}",
                path=str(shown),
                untouched="all files",
                hint="run the step again; if it stays, check the uri (it ends in /api/v2) and Nessie's version store",
            )
        if answer.status_code != requests.codes.ok:
            raise OperationsUnavailable(
                f"Nessie answers with status {answer.status_code}: {answer.text[:200]}",
                path=str(shown),
                untouched="all files",
                hint="check Nessie's log, and the credentials of the catalog in lifecycle.yaml",
            )
        try:
            found = answer.json()
        except ValueError as error:
            raise unexpected(str(shown), "it is not JSON") from error
        if not isinstance(found, Mapping):
            raise unexpected(str(shown), "it is not a JSON object")
        return found

    def pages(self, path: str, under: str, **asked: str | int) -> Iterator[Mapping[str, Any]]:
        """Yield the objects in list `under` of each page."""
        token: str | None = None
        seen: set[str] = set()
        while True:
            page = self.get(path, **asked, **({} if token is None else {"page-token": token}))
            rows = page.get(under)
            if not isinstance(rows, list):
                raise unexpected(path, f"it has no list {under}")
            yield from rows
            if not page.get("hasMore"):
                return
            if not page.get("token") or page["token"] in seen:
                # An answer that ends early would make live contents look dead.
                raise unexpected(path, "it promises another page without saying where")
            token = str(page["token"])
            seen.add(token)

    @property
    def _session(self) -> requests.Session:
        session: requests.Session | None = getattr(self._of_thread, "session", None)
        if session is None:
            session = bounded(requests.Session())
            retry = Retry(
                _TRIES,
                backoff_factor=0.2,
                status_forcelist=(429, 502, 503, 504),
                raise_on_status=False,
                # Nobody waits for hours because a server says so.
                respect_retry_after_header=False,
            )
            for scheme in ("http://", "https://"):
                session.mount(scheme, HTTPAdapter(max_retries=retry))
            if self._token is not None:
                session.headers["Authorization"] = f"Bearer {self._token}"
            self._of_thread.session = session
        return session


def at(commit: str) -> str:
    """Return the path of a commit, whatever reference has it."""
    return f"trees/{quote('@' + commit, safe='@')}"


def unexpected(path: str, why: str) -> UnreadableMetadata:
    return UnreadableMetadata(
        f"Nessie's answer cannot be used: {why}",
        path=path,
        untouched="all files",
        hint="check that the catalog's uri is that of Nessie's REST API, version 2",
    )
