"""The protocol of commits through a REST catalog: pure rules over the JSON of metadata files, and the requests.

The server applies updates to the base that it has then. Requirements detect a ref that moved or is gone, but none
detects a ref that is new: the server drops it silently together with its snapshot. So each commit sets a property of
its own, and afterwards `prove` finds the metadata file that has it, and the one before it, which is the base that the
server used. A ref that this base has and the result lacks is lost, and `put_back` sets it again
(docs/decisions/0030-expirations-over-rest.md).

Nothing passes through models: they drop fields that they do not know, and what is put back must be what was there.
"""

from __future__ import annotations

import io
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

from artemis_lifecycle.catalogs.commit import BranchChange, Change, TagChange, require_possible
from artemis_lifecycle.catalogs.identifier import Identifier
from artemis_lifecycle.errors import NewerFormat, OperationsUnavailable, Refused
from artemis_lifecycle.format_versions import resolve_node
from artemis_lifecycle.storage.bounded import ReadLimits, bounded_json, require_bounded_json

if TYPE_CHECKING:
    import requests

MARKER = "artemis.commit-id"
"""The table property with the id of the newest commit of this project through a REST catalog."""

PUT_BACK = "artemis.put-back."
"""The prefix of a table property for a snapshot that was put back: all numbers that it has had (`numbers_of`)."""

LEAST_VERSIONS = 10
"""Fewer previous metadata files than this may be deleted before the base of a commit is read."""

_CLEANED_ON = (
    ("current-schema-id", "current-schema-id"),
    ("default-spec-id", "default-spec-id"),
    ("last-assigned-field-id", "last-column-id"),
)
"""What the removal of schemas and specs depends on besides refs: the number that a requirement asserts, and the field
of the metadata file that has it."""

_MAIN = "main"
_MAX_REF_AGE = "history.expire.max-ref-age-ms"
_KEEPING = (_MAX_REF_AGE, "history.expire.max-snapshot-age-ms", "history.expire.min-snapshots-to-keep", "gc.enabled")
_RETENTION = ("max-ref-age-ms", "max-snapshot-age-ms", "min-snapshots-to-keep")
_EXPIRED_LOGIN = (401, 419)
_SESSION = "_session"
"""The attribute of pyiceberg's catalog, which has no public way to its session."""


@dataclass(frozen=True)
class MetadataFile:
    """One metadata file, as JSON."""

    location: str
    node: Mapping[str, Any]

    @property
    def table_uuid(self) -> str:
        """The table's uuid."""
        return str(self.node.get("table-uuid")).lower()

    @cached_property
    def snapshots(self) -> dict[int, Mapping[str, Any]]:
        """Every snapshot, by id."""
        return {int(each["snapshot-id"]): each for each in self.node.get("snapshots") or ()}

    @cached_property
    def refs(self) -> dict[str, Mapping[str, Any]]:
        """Every ref, by name; with main, which old files leave out."""
        found = dict(self.node.get("refs") or {})
        current = self.node.get("current-snapshot-id")
        if _MAIN not in found and current not in (None, -1):
            found[_MAIN] = {"snapshot-id": current, "type": "branch"}
        return found

    @cached_property
    def heads(self) -> dict[str, int]:
        """The snapshot of each ref."""
        return {name: int(ref["snapshot-id"]) for name, ref in self.refs.items()}

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        return self.node.get("properties") or {}

    @property
    def previous(self) -> str | None:
        """The metadata file before this one; None for the first."""
        log = self.node.get("metadata-log") or ()
        return str(log[-1]["metadata-file"]) if log else None

    def number(self, key: str) -> int:
        """Return a number of the table; 0 if its format has none."""
        return int(self.node.get(key) or 0)


# --- the proof --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attempt:
    """What one commit asked for: its marker, the base that its guards read, and the snapshots and refs to remove."""

    marker: str
    base_location: str
    snapshot_ids: frozenset[int] = frozenset()
    refs: frozenset[str] = frozenset()


class Verdict(StrEnum):
    """`absent`: not in the line that leads from the base to the newest file. `kept`: it happened, and removed only what
    it asked for. `lost`: refs are lost. `unknown`: none of these can be proven."""

    ABSENT = "absent"
    KEPT = "kept"
    LOST = "lost"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Proof:
    """`result` is the file that the commit wrote, `used` the base that the server used, `lost` the refs of `used` that
    `result` lacks. `again` are the snapshots that went while somebody changed what keeps snapshots."""

    verdict: Verdict
    result: MetadataFile | None = None
    used: MetadataFile | None = None
    lost: tuple[str, ...] = ()
    why: str = ""
    again: tuple[int, ...] = ()


def prove(attempt: Attempt, newest: str, read: Callable[[str], MetadataFile | None]) -> Proof:
    """Return what became of a commit, from the metadata file `newest` back. `read` returns None for a file that is gone
    or damaged.

    Later commits inherit the marker, so only a file that follows one without it is the commit's own. The base that the
    server used is the last entry of that file's log; it need not be the one that the guards read.
    """
    marked: MetadataFile | None = None
    for location, file in _line(newest, read):
        if file is None:
            return Proof(Verdict.UNKNOWN, marked, why=f"the metadata file {location} cannot be read")
        if file.properties.get(MARKER) == attempt.marker:
            marked = file
        elif marked is not None:
            base = file if location == attempt.base_location else read(attempt.base_location)
            return _compared(attempt, marked, file, base)
        elif location == attempt.base_location:
            return Proof(Verdict.ABSENT)
    return Proof(
        Verdict.UNKNOWN,
        marked,
        why=f"no metadata file without its marker {attempt.marker} precedes it"
        if marked is not None
        else f"neither its marker {attempt.marker} nor its base is in the table's metadata log",
    )


def _line(newest: str, read: Callable[[str], MetadataFile | None]) -> Iterator[tuple[str, MetadataFile | None]]:
    """Yield the metadata files from the newest back, each found in the log of the one after it."""
    seen, location = set[str](), newest
    while location not in seen:
        seen.add(location)
        file = read(location)
        yield location, file
        if file is None or file.previous is None:
            return
        location = file.previous


def _compared(attempt: Attempt, result: MetadataFile, used: MetadataFile, base: MetadataFile | None) -> Proof:
    """Compare the result with the base that the server used. Anything but the removal means that this file is not that
    base, or that the server did something else.

    A ref to remove is lost, too, if its retention, or the table's, is not what `base` has: somebody prolonged it, and
    the server compares only its snapshot. So are all snapshots, if that of a ref that stays, or of the table, is not.
    """
    gone = used.snapshots.keys() - result.snapshots.keys()
    others = used.heads.keys() - result.heads.keys() - attempt.refs
    prolonged = {
        each
        for each in attempt.refs & used.heads.keys()
        if base is None or _kept_as(base, each) != _kept_as(used, each)
    }
    lost = tuple(sorted(others | (prolonged - result.heads.keys())))
    kept = used.heads.keys() - attempt.refs
    loosened = base is not None and (
        any(base.properties.get(each) != used.properties.get(each) for each in _KEEPING)
        or any(_kept_as(base, each)[1:] != _kept_as(used, each)[1:] for each in kept & base.heads.keys())
    )
    alone = (gone & attempt.snapshot_ids).difference(map(used.heads.__getitem__, lost))
    again = tuple(sorted(alone, key=lambda each: used.snapshots[each].get("sequence-number", 0)))
    other = [
        *(["it is another table"] if used.table_uuid != result.table_uuid else []),
        *(f"snapshot {each} is gone, too" for each in sorted(gone - attempt.snapshot_ids)),
        *(f"snapshot {each} is still there" for each in sorted(attempt.snapshot_ids & result.snapshots.keys())),
        *(f"ref {each} is still there" for each in sorted(attempt.refs & result.heads.keys())),
        *(
            f"ref {name} moved from {used.heads.get(name)} to {head}"
            for name, head in sorted(result.heads.items())
            if used.heads.get(name) != head
        ),
        *(f"ref {each} is gone, but not its snapshot" for each in sorted(others) if used.heads[each] not in gone),
    ]
    if other and attempt.snapshot_ids:
        why = f"{result.location} does not follow {used.location} by what was asked for: {'; '.join(other[:3])}"
        return Proof(Verdict.UNKNOWN, result, used, why=why)
    found = Verdict.LOST if lost or (loosened and again) else Verdict.KEPT
    return Proof(found, result, used, lost, again=again if loosened else ())


def _kept_as(file: MetadataFile, ref: str) -> tuple[object, ...]:
    """Return what decides how long a ref stays."""
    found = file.refs.get(ref, {})
    return found.get("snapshot-id"), *map(found.get, _RETENTION), file.properties.get(_MAX_REF_AGE)


# --- requests ---------------------------------------------------------------------------------------------------------

Request = tuple[list[dict[str, Any]], list[dict[str, Any]]]
"""Requirements and updates of a commit."""


def new_marker() -> str:
    """Return the id of a commit: a UUID of version 7, as the spec wants for an Idempotency-Key."""
    noise = int.from_bytes(os.urandom(10), "big")
    number = (time.time_ns() // 1_000_000) << 80 | noise
    return str(uuid.UUID(int=number & ~(0xF << 76 | 0x3 << 62) | 0x7 << 76 | 0x2 << 62))


def request_of(base: MetadataFile, change: Change, table: str) -> Request:
    """Return the request for `change` on `base`. Raises ReferencedSnapshot, NoSuchSnapshot, BadInput, Refused."""
    doomed, removed = set(change.expire_snapshot_ids), set(change.remove_refs)
    refs = {name: (base.heads[name], str(ref["type"]).lower() == "branch") for name, ref in base.refs.items()}
    require_possible(change, refs, base.snapshots.__contains__, table, base.location)
    require_expressible(change, table, base.location)
    targets: list[TagChange | BranchChange] = [*change.set_tags, *change.set_branches]
    # A removal depends on every ref, anything else on the refs that it changes.
    cleans = bool(change.remove_schema_ids or change.remove_spec_ids)
    touched = {*base.heads, *removed} if doomed or cleans else {*removed, *(each.name for each in targets)}
    requirements: list[dict[str, Any]] = [{"type": "assert-table-uuid", "uuid": base.table_uuid}]
    requirements += [_assert_ref(name, base.heads.get(name)) for name in sorted(touched)]
    requirements += [{"type": f"assert-{name}", name: base.number(key)} for name, key in _CLEANED_ON if cleans]
    updates: list[dict[str, Any]] = [{"action": "remove-snapshot-ref", "ref-name": name} for name in change.remove_refs]
    if doomed:
        updates.append({"action": "remove-snapshots", "snapshot-ids": sorted(doomed)})
    if change.remove_schema_ids:
        updates.append({"action": "remove-schemas", "schema-ids": sorted(change.remove_schema_ids)})
    if change.remove_spec_ids:
        updates.append({"action": "remove-partition-specs", "spec-ids": sorted(change.remove_spec_ids)})
    updates += [{"action": "add-snapshot", "snapshot": json.loads(each)} for each in change.add_snapshots.values()]
    for tag in change.set_tags:
        age = {} if tag.max_ref_age_ms is None else {"max-ref-age-ms": tag.max_ref_age_ms}
        updates.append(_set_ref(tag.name, {"snapshot-id": tag.snapshot_id, "type": "tag", **age}))
    for branch in change.set_branches:
        known = {**base.refs.get(branch.name, {}), "snapshot-id": branch.snapshot_id, "type": "branch"}
        updates.append(_set_ref(branch.name, known))
    properties = {**change.set_properties, **change.notes}
    if properties:
        updates.append({"action": "set-properties", "updates": properties})
    if change.remove_properties:
        updates.append({"action": "remove-properties", "removals": list(change.remove_properties)})
    return requirements, updates


def require_expressible(change: Change, table: str, path: str) -> None:
    """Raise Refused for what REST's protocol cannot set or remove; `path` is the table's metadata."""
    if change.add_schemas or change.add_specs or change.raise_to or change.remove_order_ids:
        raise Refused(
            "The commit needs a catalog that takes whole metadata: REST's protocol raises no numbers of a table, "
            "removes no sort orders, and does not let a client choose the ids of schemas and partition specs",
            table=table,
            path=path,
            untouched="the table",
            hint="add the missing columns or specs to the table first; a table whose catalog was put back is restored "
            "in a SQL, Hive or Glue catalog",
        )


def put_back(
    now: MetadataFile,
    used: MetadataFile,
    ref: str | None,
    now_ms: int,
    snapshot_ids: Sequence[int] = (),
    name: str = "",
) -> Request | None:
    """Return the request that sets a lost ref of `used` again, by that name or another one, with its snapshot unless
    the table `now` has it; or that adds lost snapshots again, in that order. None if there is nothing to do, or a ref
    of that name."""
    name = name or ref or _MAIN
    if ref is not None and name in now.heads:
        return None
    wanted = snapshot_ids if ref is None else [used.heads[ref]]
    updates: list[dict[str, Any]] = []
    for number, snapshot_id in enumerate((each for each in wanted if each not in now.snapshots), 1):
        again = dict(used.snapshots[snapshot_id])
        before = numbers_of(again)
        # The spec allows a commit to be a minute earlier than the one before it, and no more.
        again["timestamp-ms"] = max(now_ms, now.number("last-updated-ms"))
        if now.number("format-version") > 1:
            again["sequence-number"] = now.number("last-sequence-number") + number
        if now.number("format-version") > 2:
            # Its manifests already have their row ids, so it takes none.
            again |= {"first-row-id": now.number("next-row-id"), "added-rows": 0}
        key = f"{PUT_BACK}{snapshot_id}"
        known = now.properties.get(key, before)
        updates.append({"action": "add-snapshot", "snapshot": again})
        updates.append({"action": "set-properties", "updates": {key: f"{known} {numbers_of(again)}"}})
    requirements = [{"type": "assert-table-uuid", "uuid": now.table_uuid}, _assert_ref(_MAIN, now.heads.get(_MAIN))]
    if ref is not None:
        updates.append(_set_ref(name, used.refs[ref]))
        requirements.insert(1, _assert_ref(name, None))
    return (requirements, updates) if updates else None


def numbers_of(snapshot: Mapping[str, Any]) -> str:
    """Return a snapshot's sequence number and time, which change when it is put back."""
    return f"{snapshot.get('sequence-number') or 0}:{snapshot['timestamp-ms']}"


def _assert_ref(name: str, snapshot_id: int | None) -> dict[str, Any]:
    return {"type": "assert-ref-snapshot-id", "ref": name, "snapshot-id": snapshot_id}


def _set_ref(name: str, ref: Mapping[str, Any]) -> dict[str, Any]:
    keep = {key: ref[key] for key in _RETENTION if ref.get(key) is not None}
    kind = str(ref["type"]).lower()
    return {"action": "set-snapshot-ref", "ref-name": name, "type": kind, "snapshot-id": ref["snapshot-id"], **keep}


# --- the client -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """The answer to a commit. `happened` None: nobody knows, and `in_flight` says if the server may still be at it.
    `conflict`: a requirement was not met. `location` is the metadata file that the server names, `node` its content as
    the server says."""

    happened: bool | None
    conflict: bool = False
    in_flight: bool = False
    location: str | None = None
    node: Mapping[str, Any] = field(default_factory=dict)
    said: str = ""


@dataclass(frozen=True)
class RestClient:
    """Requests through pyiceberg's session, which has the authentication (OAuth2, SigV4) and the catalog's prefix."""

    catalog: Any
    name: str

    @property
    def endpoints(self) -> frozenset[str]:
        """The endpoints that the server says it has; empty if it does not say."""
        return frozenset(map(str, self.catalog._supported_endpoints))

    def load(self, name: Identifier, kind: Literal["table", "view"] = "table") -> dict[str, Any] | None:
        """Return the answer to loading a table or a view, as JSON; None if there is none. Raises
        OperationsUnavailable."""
        import requests

        try:
            answer = self._send("GET", self._url(name, kind), params={"snapshots": "all"} if kind == "table" else None)
            if answer.status_code == 404:
                return None
            answer.raise_for_status()
            found: dict[str, Any] = bounded_json(answer.content, answer.url)
            with suppress(NewerFormat):  # Whoever reads the table says so.
                resolve_node(found.get("metadata") or {}, str(found.get("metadata-location")))
            return found
        except (requests.RequestException, ValueError) as error:
            response = getattr(error, "response", None)
            status = "" if response is None else f" (status {response.status_code})"
            raise OperationsUnavailable(
                f"Catalog {self.name} does not answer: {type(error).__name__}{status}",
                table=str(name),
                hint="check that it runs, and that its address and credentials in lifecycle.yaml are correct",
            ) from error

    def commit(self, name: Identifier, request: Request, marker: str) -> Answer:
        """Send a commit, once."""
        import requests

        requirements, updates = request
        identifier = {"namespace": list(name.namespace), "name": name.name}
        body = {"identifier": identifier, "requirements": requirements, "updates": updates}
        try:
            answer = self._send(
                "POST",
                self._url(name),
                data=json.dumps(body).encode(),
                headers={"Content-Type": "application/json", "Idempotency-Key": marker},
                allow_redirects=False,
            )
        except requests.ConnectTimeout as error:
            return Answer(False, said=type(error).__name__)
        except requests.RequestException as error:
            return Answer(None, in_flight=True, said=type(error).__name__)
        if answer.status_code == 200:
            return self._accepted(answer)
        said = f"status {answer.status_code}: {' '.join(answer.text.split())[:300]}"
        if answer.status_code >= 500:
            return Answer(None, said=said)
        return Answer(False, conflict=answer.status_code == 409, said=said)

    def _accepted(self, answer: requests.Response) -> Answer:
        try:
            said = bounded_json(answer.content, answer.url)
            location, node = said.get("metadata-location"), said.get("metadata")
        except (ValueError, AttributeError) as error:
            return Answer(None, said=f"the answer is cut: {type(error).__name__}")
        return Answer(True, location=location if isinstance(location, str) else None, node=node or {})

    def _send(self, method: str, url: str, **options: Any) -> requests.Response:
        from pyiceberg.exceptions import RESTError

        session = getattr(self.catalog, _SESSION)
        answer = session.request(method, url, **options)
        if answer.status_code in _EXPIRED_LOGIN:
            # A request that is refused for its login did nothing.
            with suppress(RESTError):
                self.catalog._refresh_token()
                answer = session.request(method, url, **options)
        found: requests.Response = answer
        return found

    def _url(self, name: Identifier, kind: Literal["table", "view"] = "table") -> str:
        from pyiceberg.catalog.rest import Endpoints, IdentifierKind

        route = Endpoints.load_view if kind == "view" else Endpoints.load_table
        parts = self.catalog._split_identifier_for_path(name.parts, IdentifierKind(kind))
        return str(self.catalog.url(route, **parts))


def require_provable(answer: Mapping[str, Any] | None, grace: timedelta, table: str) -> None:
    """Raise Refused for a table whose expiration could not be proven afterwards, or not be undone in time; from the
    catalog's answer to loading it."""
    found = (answer or {}).get("metadata") or {}
    properties = found.get("properties") or {}
    versions = properties.get("write.metadata.previous-versions-max", "100")
    trimmed = properties.get("write.metadata.delete-after-commit.enabled", "false").lower() == "true"
    hint = "use a catalog that does"
    if answer is None:
        return
    if not answer.get("metadata-location"):
        why = "the catalog does not say which metadata file is current"
    elif not found.get("metadata-log") and len(found.get("snapshots") or ()) > 1:
        why = "the catalog keeps no metadata log"
    elif trimmed and (not versions.isdecimal() or int(versions) < LEAST_VERSIONS):
        why = f"the table keeps {versions} previous metadata files, and deletes older ones"
        hint = f"set write.metadata.previous-versions-max to {LEAST_VERSIONS} or more"
    elif grace <= timedelta(0):
        why = "the table has no grace, in which a ref that a concurrent change lost is put back"
        hint = "set deletion.grace for the table to 1h or more"
    else:
        return
    raise Refused(
        f"An expiration through a REST catalog must prove afterwards that no ref was lost, and {why}",
        table=table,
        untouched="the table and all files",
        hint=hint,
    )


# --- answers ----------------------------------------------------------------------------------------------------------
# Answers of HTTP servers, bounded before they are parsed. Belongs here: what every client of `requests` needs.

_SECONDS = (10.0, 300.0)
"""To connect, and between two parts of an answer."""
_LIMITS = ReadLimits(max_bytes=512 << 20)
_PIECE = 64 << 10


def bounded(session: requests.Session) -> requests.Session:
    """Make `session` raise TooLarge for an answer of more than 512 MiB, or of too many or too deeply nested values, and
    time out where a request sets no time of its own. Return it."""
    session.hooks["response"].append(_bounded)
    session.request = partial(session.request, timeout=_SECONDS)  # type: ignore[method-assign]
    return session


def _bounded(response: requests.Response, *_: Any, **__: Any) -> None:
    # Called with the headers; what reads the content afterwards finds it here.
    content = bytearray()
    for piece in response.raw.stream(_PIECE, decode_content=True):
        content += piece
        _LIMITS.require(len(content), response.url)
    require_bounded_json(bytes(content), response.url)
    response.raw = io.BytesIO(content)
