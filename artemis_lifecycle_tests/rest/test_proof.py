"""The proof's rule against a model of a server: whatever others do before and after, and whichever files are gone, it
names the refs that were lost, or says that it does not know."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artemis_lifecycle.catalogs.commit import Change
from artemis_lifecycle.catalogs.rest import (
    MARKER,
    Attempt,
    MetadataFile,
    Proof,
    Verdict,
    new_marker,
    prove,
    put_back,
    request_of,
    require_provable,
)
from artemis_lifecycle.errors import ReferencedSnapshot, Refused

MINE = "mine"
Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "tag", "untag", "prolong", "stage", "property", "other"]), st.integers(0, 5))
)


@dataclass
class Model:
    """A server: metadata files, each after the one in its log. It checks requirements as servers do."""

    versions: int = 100
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    newest: str = ""

    def __post_init__(self) -> None:
        snapshots = [_snapshot(number) for number in range(1, 6)]
        refs = {"main": _ref(5), "old": {**_ref(2), "type": "tag", "max-ref-age-ms": 9}}
        self.write({"table-uuid": "u", "snapshots": snapshots, "refs": refs, "properties": {}})

    def write(self, node: dict[str, Any]) -> None:
        log = [*self.files[self.newest]["metadata-log"], {"metadata-file": self.newest}] if self.newest else []
        self.newest = f"v{len(self.files)}"
        sequence = max(each["sequence-number"] for each in node["snapshots"])
        numbers = {"format-version": 3, "last-sequence-number": sequence, "next-row-id": 100, "last-updated-ms": 50}
        self.files[self.newest] = {**numbers, **node, "metadata-log": log[-self.versions :]}

    @property
    def now(self) -> dict[str, Any]:
        return self.files[self.newest]

    def step(self, kind: str, number: int) -> None:
        node = {
            key: value for key, value in self.now.items() if key in ("table-uuid", "snapshots", "refs", "properties")
        }
        present = [each["snapshot-id"] for each in node["snapshots"]]
        if kind in ("append", "stage"):
            made = _snapshot(max(self.now["last-sequence-number"], *present) + 1)
            node["snapshots"] = [*node["snapshots"], made]
            if kind == "append":
                node["refs"] = {**node["refs"], "main": _ref(made["snapshot-id"])}
        elif kind == "tag":
            node["refs"] = {f"t{number}": _ref(present[number % len(present)]), **node["refs"]}
        elif kind == "untag":
            node["refs"] = {name: ref for name, ref in node["refs"].items() if name != f"t{number}"}
        elif kind == "prolong":
            held = {"old": {**node["refs"]["old"], "max-ref-age-ms": number}} if "old" in node["refs"] else {}
            node["refs"] = {**node["refs"], **held}
        else:
            key = MARKER if kind == "other" else "p"
            node["properties"] = {**node["properties"], key: f"{kind}{number}"}
        self.write(node)

    def commit(self, requirements: list[dict[str, Any]], updates: list[dict[str, Any]]) -> bool:
        """Apply updates as Iceberg's builder does: a ref goes with its snapshot."""
        refs, properties = dict(self.now["refs"]), dict(self.now["properties"])
        snapshots = {each["snapshot-id"]: each for each in self.now["snapshots"]}
        for each in requirements:
            if each["type"] == "assert-ref-snapshot-id":
                found = refs.get(each["ref"])
                if (None if found is None else found["snapshot-id"]) != each["snapshot-id"]:
                    return False
        for each in updates:
            if each["action"] == "remove-snapshot-ref":
                refs.pop(each["ref-name"], None)
            elif each["action"] == "remove-snapshots":
                for gone in each["snapshot-ids"]:
                    snapshots.pop(gone, None)
                refs = {name: ref for name, ref in refs.items() if ref["snapshot-id"] in snapshots}
            elif each["action"] == "add-snapshot":
                assert each["snapshot"]["sequence-number"] > self.now["last-sequence-number"]
                snapshots[each["snapshot"]["snapshot-id"]] = each["snapshot"]
            elif each["action"] == "set-snapshot-ref":
                assert each["snapshot-id"] in snapshots
                refs[each["ref-name"]] = {key: each[key] for key in each if key not in ("action", "ref-name")}
            elif each["action"] == "set-properties":
                properties |= each["updates"]
        node = {"table-uuid": "u", "snapshots": list(snapshots.values()), "refs": refs, "properties": properties}
        self.write(node)
        return True

    def file(self, location: str) -> MetadataFile | None:
        node = self.files.get(location)
        return None if node is None else MetadataFile(location, node)


def _snapshot(number: int) -> dict[str, Any]:
    return {"snapshot-id": number, "sequence-number": number, "timestamp-ms": number, "manifest-list": f"m{number}"}


def _ref(snapshot_id: int) -> dict[str, Any]:
    return {"snapshot-id": snapshot_id, "type": "branch"}


@given(STEPS, STEPS, st.booleans(), st.sets(st.integers(0, 30)), st.sampled_from([1, 2, 100]))
def test_whatever_others_do_every_lost_ref_is_named(
    before: list[Step], after: list[Step], lands: bool, gone: set[int], versions: int
) -> None:
    model = Model(versions)
    base = model.file(model.newest)
    assert base is not None
    change = Change(expire_snapshot_ids=(1, 2, 3), remove_refs=("old",), set_properties={MARKER: MINE})
    request = request_of(base, change, "ns.t")
    for step in before:
        model.step(*step)
    used = model.newest
    lands = lands and model.commit(*request)
    mine = model.newest
    if lands:
        held = {name for name, ref in model.files[used]["refs"].items() if ref["snapshot-id"] in (1, 2, 3)} - {"old"}
        olds = [model.files[each]["refs"].get("old") for each in (base.location, used)]
    for step in after:
        model.step(*step)
    lost = {f"v{number}" for number in gone} - {model.newest}
    for each in lost:
        model.files.pop(each, None)
    proof = prove(Attempt(MINE, base.location, frozenset({1, 2, 3}), frozenset({"old"})), model.newest, model.file)
    # What nobody can compare any more may have been prolonged.
    if lands and olds[1] is not None and (olds[0] != olds[1] or (base.location in lost and base.location != used)):
        held |= {"old"}
    whole = not {f"v{number}" for number in range(int(model.newest[1:]) + 1)} & lost
    if proof.verdict in (Verdict.KEPT, Verdict.LOST):
        assert lands and proof.result is not None and proof.result.location == mine
        assert proof.used is not None and proof.used.location == used and set(proof.lost) == held
        assert (proof.verdict is Verdict.LOST) is bool(held)
    elif proof.verdict is Verdict.ABSENT:
        assert not lands
    else:
        assert not whole and proof.why


@given(STEPS)
def test_what_is_put_back_is_what_was_there(before: list[Step]) -> None:
    model = Model()
    base = model.file(model.newest)
    assert base is not None
    for step in [("tag", 0), *before]:
        model.step(*step)
    used = model.file(model.newest)
    change = Change(expire_snapshot_ids=(1, 2, 3), remove_refs=("old",), set_properties={MARKER: MINE})
    assert used is not None
    if not model.commit(*request_of(base, change, "ns.t")):
        return
    attempt = Attempt(MINE, base.location, frozenset({1, 2, 3}), frozenset({"old"}))
    proof = prove(attempt, model.newest, model.file)
    assert proof.used == used
    for ref in proof.lost:
        now = model.file(model.newest)
        assert now is not None
        request = put_back(now, used, ref, 70)
        assert request is not None and model.commit(*request)
    after = model.file(model.newest)
    assert after is not None
    prolonged = used.refs.get("old") != base.refs.get("old")
    expected = {name: head for name, head in used.heads.items() if name != "old" or prolonged}
    assert after.heads == expected
    for ref in proof.lost:
        again, was = after.snapshots[after.heads[ref]], used.snapshots[used.heads[ref]]
        changed = ("sequence-number", "timestamp-ms", "first-row-id", "added-rows")
        assert {k: v for k, v in again.items() if k not in changed} == {
            k: v for k, v in was.items() if k not in changed
        }
        assert put_back(after, used, ref, 80) is None


def test_a_server_that_does_something_else_proves_nothing() -> None:
    """A log that names another file than the base that was used, or a removal of more or less than was asked for."""
    model = Model()
    base = model.newest
    attempt = Attempt(MINE, base, frozenset({1, 2, 3}), frozenset({"old"}))

    def after(snapshots: list[int], refs: dict[str, int], table: str = "u") -> Proof:
        node = {"table-uuid": table, "snapshots": [_snapshot(each) for each in snapshots], "properties": {MARKER: MINE}}
        one = MetadataFile(
            "r", {**node, "refs": {n: _ref(s) for n, s in refs.items()}, "metadata-log": [{"metadata-file": base}]}
        )
        return prove(attempt, "r", lambda location: one if location == "r" else model.file(location))

    assert after([4, 5], {"main": 5}).verdict is Verdict.KEPT
    for proof in (
        after([5], {"main": 5}),
        after([3, 4, 5], {"main": 5}),
        after([4, 5], {"main": 4}),
        after([4, 5], {"main": 5}, "another"),
        after([2, 4, 5], {"main": 5, "old": 2}),
    ):
        assert proof.verdict is Verdict.UNKNOWN and "by what was asked for" in proof.why
    # The log of the first file ends, or goes in a circle.
    assert prove(attempt, "r", {"r": MetadataFile("r", {"properties": {MARKER: MINE}})}.get).verdict is Verdict.UNKNOWN
    circle = MetadataFile("r", {"properties": {}, "metadata-log": [{"metadata-file": "r"}]})
    assert prove(attempt, "r", {"r": circle}.get).verdict is Verdict.UNKNOWN


def test_a_request_never_removes_what_a_ref_that_stays_holds() -> None:
    model = Model()
    base = model.file(model.newest)
    assert base is not None
    with pytest.raises(ReferencedSnapshot, match="old"):
        request_of(base, Change(expire_snapshot_ids=(1, 2)), "ns.t")
    with pytest.raises(Refused, match="main branch"):
        request_of(base, Change(remove_refs=("main",)), "ns.t")
    for whole in (Change(remove_order_ids=(1,)), Change(add_specs=("{}",)), Change(raise_to={"next-row-id": 1})):
        with pytest.raises(Refused, match="whole metadata"):
            request_of(base, whole, "ns.t")
    requirements, _ = request_of(base, Change(expire_snapshot_ids=(1,)), "ns.t")
    asserted = {each["ref"]: each["snapshot-id"] for each in requirements if each["type"] == "assert-ref-snapshot-id"}
    assert asserted == {"main": 5, "old": 2} and requirements[0] == {"type": "assert-table-uuid", "uuid": "u"}
    # So that no writer of any ref, and no ALTER, takes up what leaves.
    node = {**base.node, "current-schema-id": 3, "default-spec-id": 2, "last-column-id": 9}
    clean = Change(remove_schema_ids=(1, 0), remove_spec_ids=(0,))
    requirements, updates = request_of(MetadataFile(base.location, node), clean, "ns.t")
    assert {each.get("ref") for each in requirements} == {None, "main", "old"}
    assert requirements[-3:] == [
        {"type": "assert-current-schema-id", "current-schema-id": 3},
        {"type": "assert-default-spec-id", "default-spec-id": 2},
        {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 9},
    ]
    assert updates == [
        {"action": "remove-schemas", "schema-ids": [0, 1]},
        {"action": "remove-partition-specs", "spec-ids": [0]},
    ]


def test_a_table_whose_expiration_could_not_be_proven_is_refused() -> None:
    trimmed = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "9"}
    day = timedelta(days=1)

    def answer(location: str | None, log: list[int] | None, snapshots: int, properties: dict[str, str]) -> Any:
        found = {"metadata-log": log, "snapshots": [1] * snapshots, "properties": properties}
        return {"metadata-location": location, "metadata": found}

    require_provable(answer("m", [1], 5, {**trimmed, "write.metadata.previous-versions-max": "10"}), day, "ns.t")
    require_provable(answer("m", [], 1, {}), day, "ns.t")
    require_provable(None, day, "ns.t")
    for asked, grace, why in (
        (answer(None, [1], 5, {}), day, "which metadata file"),
        (answer("m", None, 5, {}), day, "no metadata log"),
        (answer("m", [1], 5, trimmed), day, "keeps 9 previous"),
        (answer("m", [1], 5, {}), timedelta(0), "no grace"),
    ):
        with pytest.raises(Refused, match=why):
            require_provable(asked, grace, "ns.t")


def test_markers_are_uuids_of_version_7_in_order() -> None:
    made = [new_marker() for _ in range(3)]
    assert len(set(made)) == 3 and {uuid.UUID(each).version for each in made} == {7}
    assert {uuid.UUID(each).variant for each in made} == {uuid.RFC_4122}
