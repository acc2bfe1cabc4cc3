"""Commits through a REST catalog: load, validate, record, send once, prove, put lost refs back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Protocol

from tenacity import retry_if_exception_type

from artemis_lifecycle import escaping
from artemis_lifecycle.catalogs.commit import (
    UNRECORDED,
    BaseState,
    Change,
    CommitResult,
    LostAttempt,
    looking_up,
    until_accepted,
)
from artemis_lifecycle.catalogs.identifier import parse_in
from artemis_lifecycle.catalogs.rest import (
    MARKER,
    Answer,
    Attempt,
    MetadataFile,
    Proof,
    RestClient,
    Verdict,
    new_marker,
    numbers_of,
    prove,
    put_back,
    request_of,
)
from artemis_lifecycle.errors import (
    CommitConflict,
    CommitStateUnknown,
    LifecycleError,
    NoSuchTable,
    OperationsUnavailable,
    Refused,
    UnreadableMetadata,
    require_uuid,
)
from artemis_lifecycle.operations.crash_points import around, reach
from artemis_lifecycle.operations.known_tables import Swaps
from artemis_lifecycle.operations.rest_commits import PutBack, RestCommit, RestCommits, RestState

_LOG = escaping.logger(__name__)
_PUT_BACKS = 10
"""Attempts to set one lost ref again."""


class CommitTable(Protocol):
    """Commits a change to a table of the live catalog: `commit_with_retry`, or `RestCommitter`."""

    def __call__(
        self,
        table: str,
        change: Callable[[BaseState], Change | None],
        *,
        swaps: Swaps = ...,
        lineage: Mapping[str, str] = ...,
    ) -> CommitResult: ...


@dataclass(frozen=True)
class RestCommitter:
    """`read` returns a metadata file as JSON, or raises UnreadableMetadata; `who` is recorded with what is put back;
    `plan_id` with expirations."""

    client: RestClient
    records: RestCommits
    read: Callable[[str], Mapping[str, Any]]
    who: str
    plan_id: str | None = None
    attempts: int = 10
    longest_wait: float = 5.0

    def answer(self, table: str) -> dict[str, Any] | None:
        """As `RestClient.load`, by the table's key."""
        return self.client.load(parse_in(table, self.client.name))

    def of_plan(self, plan_id: str) -> RestCommitter:
        """Return a committer whose attempts are recorded as this plan's."""
        return replace(self, plan_id=plan_id)

    def __call__(
        self,
        table: str,
        change: Callable[[BaseState], Change | None],
        *,
        swaps: Swaps = UNRECORDED,
        lineage: Mapping[str, str] = MappingProxyType({}),
    ) -> CommitResult:
        """Do what `commit_with_retry` does. Each attempt loads the table, and `change` validates exactly the metadata
        file that was loaded.

        An attempt that removes snapshots, or a plan's refs, is recorded before it is sent. Raises CommitStateUnknown if
        it happened and cannot be proven to have lost no ref: then `settle` is to succeed before any file is deleted.
        """
        tried = 0

        def attempt() -> CommitResult:
            nonlocal tried
            tried += 1
            return self._attempt(table, change, tried, swaps.begin, lineage)

        def gave_up(lost: LostAttempt) -> CommitConflict:
            return CommitConflict(
                f"The catalog accepted none of {tried} attempts: {lost}",
                table=table,
                untouched="the table",
                hint="run the step again when the table is less busy",
            )

        return until_accepted(attempt, gave_up, swaps, self.attempts, self.longest_wait)

    def load(self, table: str) -> MetadataFile:
        """Return the table's current metadata file. Raises NoSuchTable; UnreadableMetadata if the catalog's answer is
        not what the file says."""
        answer = self.answer(table)
        if answer is None:
            raise NoSuchTable.of(self.client.name, table)
        location = str(answer.get("metadata-location") or "")
        file = MetadataFile(location, self.read(location))
        said = MetadataFile(location, answer.get("metadata") or {})
        if (said.table_uuid, said.heads, said.snapshots.keys()) != (file.table_uuid, file.heads, file.snapshots.keys()):
            raise UnreadableMetadata(
                f"Catalog {self.client.name} answers with other refs or snapshots than its metadata file has",
                table=table,
                path=location,
                untouched="the table",
                hint="see what the catalog's server does to metadata; expire the table's snapshots where it runs",
            )
        return file

    def settle(self, table: str, table_uuid: str, closed: Callable[[RestCommit], str | None]) -> list[RestCommit]:
        """Prove the table's attempts whose outcome is not settled, and put lost refs back; return those that are proven
        now. Raises CommitStateUnknown for one that happened and cannot be proven, unless its plan is `closed`: why a
        person closed that is recorded of it."""
        found = []
        for each in self.records.open(table_uuid):
            now = self.load(table)
            require_uuid(table, now.table_uuid, table_uuid)
            attempt = Attempt(each.marker, each.base_location, frozenset(each.snapshot_ids), frozenset(each.refs))
            proof = self._proof(attempt, now.location)
            why = closed(each)
            # One that is not there may still be under way.
            harmless = proof.result is None and (each.is_overtaken or why is not None)
            try:
                done = None if harmless else self._settled(table, attempt, proof)
            except CommitStateUnknown:
                if why is None:
                    raise
                self.records.settle(each.marker, RestState.CLOSED, why=why)
                continue
            if done is None:
                self.records.give_up(each.marker)
            else:
                found.append(done)
        return found

    def _attempt(
        self,
        table: str,
        change: Callable[[BaseState], Change | None],
        number: int,
        before_swap: Callable[[str, int], None],
        lineage: Mapping[str, str],
    ) -> CommitResult:
        base = self.load(table)
        reach("rest:loaded")
        wanted = change(BaseState(base.location, base.table_uuid))
        if wanted is None or wanted == Change():
            return CommitResult(base.location, base.location, number - 1, changed=False)
        marker = new_marker()
        request = request_of(base, wanted.with_lineage(lineage, base.location).noting({MARKER: marker}), table)
        doomed, refs = frozenset(wanted.expire_snapshot_ids), frozenset(wanted.remove_refs)
        attempt = Attempt(marker, base.location, doomed, refs)
        # The server decides when the next metadata is written, so its time is not known.
        before_swap(base.location, 0)
        # A person's own removal of a ref may come after whatever others did to it.
        removes = bool(doomed or (refs and self.plan_id is not None))
        if removes:
            self.records.begin(marker, base.table_uuid, table, self.plan_id, base.location, sorted(doomed), refs)
        reach("rest:recorded")
        with around("catalog.commit"):
            answer = self.client.commit(parse_in(table, self.client.name), request, marker)
        reach("rest:answered")
        if answer.location is not None and not removes:
            # Only a removal can lose a ref.
            self._require_refs(table, wanted, MetadataFile(answer.location, answer.node))
            return CommitResult(answer.location, base.location, number, changed=True)
        # Even a refusal is looked up: what passes requests on may have sent this one twice.
        proof = self._proof_of(table, attempt, answer)
        if proof.verdict is Verdict.ABSENT and answer.happened is False:
            if removes:
                self.records.settle(marker, RestState.REFUSED, why=answer.said)
            raise self._refusal(table, base, answer, wanted)
        if proof.verdict is Verdict.ABSENT:
            if answer.in_flight:
                raise self._unknown(table, base.location, f"the catalog did not answer ({answer.said})")
            raise LostAttempt(answer.said)
        if removes:
            self._settled(table, attempt, proof)
        elif proof.verdict is Verdict.UNKNOWN:
            raise self._unknown(table, base.location, proof.why)
        assert proof.result is not None
        self._require_refs(table, wanted, proof.result)
        used = base.location if proof.used is None else proof.used.location
        return CommitResult(proof.result.location, used, number, changed=True)

    def _require_refs(self, table: str, wanted: Change, result: MetadataFile) -> None:
        """Raise Refused if the server accepted a commit and left out its refs, as Nessie does."""
        asked = {each.name: each.snapshot_id for each in wanted.set_tags}
        asked |= {each.name: each.snapshot_id for each in wanted.set_branches}
        ignored = [name for name, snapshot_id in asked.items() if result.heads.get(name) != snapshot_id]
        if ignored:
            raise Refused(
                f"Catalog {self.client.name} accepted the commit and did not set {', '.join(ignored[:5])}: it keeps no "
                "such tags or branches in its tables",
                table=table,
                path=result.location,
                untouched="its snapshots and all files",
                hint="place a hold to keep a snapshot, or use the catalog's own tags",
            )

    def _proof_of(self, table: str, attempt: Attempt, answer: Answer) -> Proof:
        """Return the proof of an attempt that was answered with success, or not at all."""
        if answer.location is not None:
            proof = self._proof(attempt, answer.location)
            if proof.verdict in (Verdict.KEPT, Verdict.LOST):
                return proof
        try:
            newest = looking_up(retry_if_exception_type(OperationsUnavailable))(self.load, table).location
        except OperationsUnavailable as error:
            said = answer.said or "the answer was not clear"
            raise self._unknown(table, attempt.base_location, f"{said}; a look-up failed: {error.what}") from error
        return self._proof(attempt, newest)

    def _proof(self, attempt: Attempt, newest: str) -> Proof:
        return prove(attempt, newest, self._file)

    def _file(self, location: str) -> MetadataFile | None:
        try:
            return MetadataFile(location, self.read(location))
        except UnreadableMetadata as error:
            _LOG.warning("A metadata file of a commit's proof cannot be read: %s", error)
            return None

    def _settled(self, table: str, attempt: Attempt, proof: Proof) -> RestCommit | None:
        """Put back what was lost, and record the proof; return None for a commit that did not happen."""
        if proof.verdict is Verdict.ABSENT:
            return None
        reach("rest:proven")
        again: list[PutBack] = []
        why = proof.why
        for ref in (*proof.lost, *([None] if proof.again else [])):
            try:
                done, failed = self._put_back(table, proof, ref)
            except LifecycleError as error:
                done, failed = [], str(error)
            again += done
            if failed:
                assert proof.used is not None
                what = (
                    f"ref {ref} on snapshot {proof.used.heads[ref]} was" if ref else "snapshots that stay by now were"
                )
                why = f"{what} lost and cannot be put back: {failed}"
        places = {
            "metadata_location": None if proof.result is None else proof.result.location,
            "used_location": None if proof.used is None else proof.used.location,
        }
        state = RestState.UNPROVEN if why else RestState.PROVEN
        found = self.records.settle(attempt.marker, state, put_back=again, why=why or None, who=self.who, **places)
        if proof.used is not None and state is RestState.PROVEN:
            again_there = {*(proof.used.heads[ref] for ref in proof.lost), *proof.again}
            self.records.overtaken(found, attempt.snapshot_ids & proof.used.snapshots.keys() - again_there)
        for each in again:
            _LOG.warning("While %s expired, it was kept anew in %s: %s was put back", each.snapshot_id, table, each)
        if why:
            raise self._unknown(table, attempt.base_location, why)
        return found

    def _put_back(self, table: str, proof: Proof, ref: str | None) -> tuple[list[PutBack], str]:
        """Set a lost ref again, or add the lost snapshots again that no ref names. Return what was done, or why not. A
        ref whose name is another's by now gets another name: nobody decided that its snapshot goes."""
        assert proof.used is not None
        used, said, name = proof.used, "", ref or ""
        ids = list(proof.again) if ref is None else [used.heads[ref]]
        for number in range(_PUT_BACKS):
            now = self.load(table)
            if ref is not None and now.heads.get(name, ids[0]) != ids[0]:
                name = f"{ref}-{ids[0]}"
            request = put_back(now, used, ref, time.time_ns() // 1_000_000, ids, name)
            if request is None:
                return [_numbers(name, each, used, now) for each in ids], ""
            with around("catalog.put_back"):
                answer = self.client.commit(parse_in(table, self.client.name), request, new_marker())
            said = answer.said or said
            # Another commit may have taken the number, or the answer was lost: the next look says.
            time.sleep(0.0 if answer.happened else min(2.0, 0.05 * 2**number))
        return [], said or "other commits came first"

    def _refusal(self, table: str, base: MetadataFile, answer: Answer, wanted: Change) -> Exception:
        # A server reports some conflicts, such as a sequence number that is taken, as a bad request.
        if answer.conflict or self.load(table).location != base.location:
            return LostAttempt(answer.said)
        hint = "fix the cause in the message, and run the step again"
        if wanted.remove_schema_ids or wanted.remove_spec_ids:
            hint += "; if the server cannot remove schemas and specs, set retention.clean_metadata: false"
        return Refused(
            f"Catalog {self.client.name} refuses the commit: {answer.said}",
            table=table,
            path=base.location,
            untouched="the table",
            hint=hint,
        )

    def _unknown(self, table: str, path: str, why: str) -> CommitStateUnknown:
        return CommitStateUnknown(
            f"It is not proven that the commit lost no ref: {why}",
            table=table,
            path=path,
            untouched="all data files",
            hint="fix the cause, or set the ref again by hand, and run the step again: it looks again before anything "
            "is deleted. To give the plan up, close it: artemis close PLAN",
        )


def _numbers(ref: str, snapshot_id: int, used: MetadataFile, now: MetadataFile) -> PutBack:
    before, after = (file.snapshots[snapshot_id] for file in (used, now))
    old, new = (int(numbers_of(each).partition(":")[0]) for each in (before, after))
    return PutBack(ref, snapshot_id, old, new, int(after["timestamp-ms"]), after.get("first-row-id"))
