"""A Nessie catalog as a source of references, commits and contents.

Commits are read by their hash, not through a reference: a reference that is reassigned in between changes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

import requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from artemis_lifecycle.catalogs.identifier import dotted
from artemis_lifecycle.catalogs.references import TABLE, VIEW, Commit, Content, Reference
from artemis_lifecycle.catalogs.rest import bounded
from artemis_lifecycle.config.model import masked
from artemis_lifecycle.errors import BadInput, OperationsUnavailable, Refused, UnreadableMetadata

# --- client -----------------------------------------------------------------------------------------------------------
# A client of Nessie's REST API v2: pages of JSON, complete or an error.

_SECONDS = 60
_TRIES = 3


class NessieClient:
    """Reads `uri`, e.g. http://nessie:19120/api/v2. `token` is sent as the bearer. Safe for several threads.

    Raises BadInput for a token that cannot be sent, OperationsUnavailable if Nessie does not answer, Refused if it
    refuses, UnreadableMetadata for an answer that is not what the API promises, or for a reference or commit that
    Nessie does not have.
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
            # A refusal does not pass by itself, as an outage does.
            refuses = 400 <= answer.status_code < 500 and answer.status_code not in (408, 429)
            raise (Refused if refuses else OperationsUnavailable)(
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


_NAMESPACE = "NAMESPACE"
_PAGE = 250
_KINDS: Mapping[str, Any] = {"BRANCH": "branch", "TAG": "tag"}


class NessieReferences:
    """Implements `catalogs.references.ReferenceSource`.

    Raises OperationsUnavailable, Refused and UnreadableMetadata as `NessieClient` does; Refused, with key and type, for
    a content that is neither an Iceberg table nor an Iceberg view: nobody here knows which files it has.
    """

    def __init__(self, client: NessieClient) -> None:
        self._client = client

    def references(self) -> Sequence[Reference]:
        default = self._client.get("config").get("defaultBranch")
        found = [_reference(each) for each in self._client.pages("trees", "references")]
        if default not in {each.name for each in found}:
            # A login that may see only some references gets a shorter list, without a word.
            raise unexpected("trees", f"the default branch {default} is not among the references")
        return sorted(found, key=lambda each: (each.name != default, each.name))

    def commits(self, head: str) -> Iterator[Commit]:
        path = f"{at(head)}/history"
        for entry in self._client.pages(path, "logEntries", fetch="ALL", **{"max-records": _PAGE}):
            yield _commit(entry, path)

    def contents_at(self, commit: str) -> Iterator[Content]:
        path = f"{at(commit)}/entries"
        for entry in self._client.pages(path, "entries", content="true"):
            if entry.get("type") != _NAMESPACE:
                yield _content(entry.get("name"), entry.get("content"), path)


def _reference(found: Mapping[str, Any]) -> Reference:
    try:
        return Reference(str(found["name"]), _KINDS[found["type"]], str(found["hash"]))
    except KeyError as error:
        raise unexpected(
            "trees", f"reference {found.get('name')} lacks {error}, or is neither branch nor tag"
        ) from None


def _commit(entry: Mapping[str, Any], path: str) -> Commit:
    operations = entry.get("operations")
    try:
        meta = entry["commitMeta"]
        committed_at = datetime.fromisoformat(meta["commitTime"])
        if committed_at.tzinfo is None:
            raise ValueError(f"the time {committed_at} has no time zone")
        puts = [each for each in operations or () if each["type"] == "PUT"]
        contents = [
            _content(each["key"], each["content"], path) for each in puts if each["content"]["type"] != _NAMESPACE
        ]
        return Commit(str(meta["hash"]), committed_at, tuple(contents))
    except (KeyError, TypeError, ValueError) as error:
        raise unexpected(path, f"a commit is incomplete: {error!r}") from error


def _content(key: Any, content: Any, path: str) -> Content:
    try:
        elements = tuple(map(str, key["elements"]))
        kind = str(content["type"])
        if kind not in (TABLE, VIEW):
            raise Refused(
                f"Key {dotted(elements)} has a content of type {kind}: which files it needs is unknown",
                path=path,
                untouched="all files",
                hint="remove it from all references, or keep such contents in a catalog of their own",
            )
        snapshot = content.get("snapshotId")
        has_none = kind == VIEW or snapshot is None or snapshot < 0
        return Content(
            str(content["id"]), elements, kind, str(content["metadataLocation"]), None if has_none else int(snapshot)
        )
    except (KeyError, TypeError) as error:
        raise unexpected(path, f"a content is incomplete: {error!r}") from error
