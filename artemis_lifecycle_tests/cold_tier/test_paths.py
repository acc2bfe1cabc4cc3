"""Where live paths go: mirrored where they can be, never onto each other, never out of the cold tier."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from artemis_lifecycle.cold_tier.paths import OWNER, ColdIdentity, PathMapping, claim, place, read_identity, settle
from artemis_lifecycle.errors import HandoffFailed
from artemis_lifecycle.storage.location import LocationRules, is_under, normalize
from artemis_lifecycle.storage.stores import Stores

UUID = "0a1b2c3d-0000-4000-8000-000000000000"


def identity(**more: object) -> ColdIdentity:
    values = {
        "table": "ns.t",
        "table_uuid": UUID,
        "live_location": "s3://live/wh/ns/t",
        "live_warehouse": "s3://live/wh",
        "cold_warehouse": "s3://cold/archive",
        "rules": LocationRules(),
        "is_taken": lambda _: False,
        "cold_locations": (),
    }
    return place(**{**values, **more})  # type: ignore[arg-type]


CASES = {
    "s3://live/wh/ns/t/data/a b/ü%2F.parquet": "s3://cold/archive/ns/t/data/a b/ü%2F.parquet",
    "s3a://live/wh/ns/t/x": "s3://cold/archive/ns/t/_spelled/*/s3/live/wh/ns/t/x",
    "s3://live/wh/ns/t//x": "s3://cold/archive/ns/t//x",
    "s3://live/wh/other/x": "s3://cold/archive/ns/t/_outside/s3/live/wh/other/x",
    "s3://live/whale/x": "s3://cold/archive/ns/t/_outside/s3/live/whale/x",
    "s3://else/x/y": "s3://cold/archive/ns/t/_outside/s3/else/x/y",
    "s3a://else/x/y": "s3://cold/archive/ns/t/_spelled/*/s3/else/x/y",
    "s3://live/wh/ns/t/../t/x": "s3://cold/archive/ns/t/_spelled/*/s3/live/wh/ns/t/%2E/t/x",
    "hdfs://host:8020/x": "s3://cold/archive/ns/t/_outside/hdfs/host:8020/x",
    "file:///var/x": "s3://cold/archive/ns/t/_outside/file/_/var/x",
    "/var/x": "s3://cold/archive/ns/t/_spelled/*/file/_/var/x",
    "file:/var//x": "s3://cold/archive/ns/t/_spelled/*/file/_/var/x",
    "s3://live/wh/ns/t/_outside/s3/else/x/y": "s3://cold/archive/ns/t/_outside/s3/live/wh/ns/t/_outside/s3/else/x/y",
}


@pytest.mark.parametrize("path", CASES)
def test_paths_keep_their_place_under_the_warehouse_or_go_outside(path: str) -> None:
    assert fnmatch(PathMapping(identity())(path), CASES[path])


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/data/wh/ns/t/x", "ns/t/x"),
        ("/data/wh/ns/t/.hidden", "ns/t/.hidden"),
        ("file:///data/wh/other/x", "ns/t/_outside/file/_/data/wh/other/x"),
        ("file:///data/wh/ns/t/x", "ns/t/_spelled/*/file/_/data/wh/ns/t/x"),
        ("file:/data/wh/ns/t/./x", "ns/t/_spelled/*/file/_/data/wh/ns/t/x"),
        ("/data//wh/ns/t/a//x", "ns/t/_spelled/*/file/_/data/wh/ns/t/a/x"),
        ("/data/wh/../x", "ns/t/_spelled/*/file/_/data/x"),
        ("file:///data/x", "ns/t/_outside/file/_/data/x"),
    ],
)
def test_files_are_mirrored_as_the_table_spells_its_location(path: str, expected: str) -> None:
    local = identity(
        live_location="/data/wh/ns/t", live_warehouse="file:///data/wh", cold_warehouse="file:///data/cold"
    )
    assert fnmatch(PathMapping(local)(path), f"file:///data/cold/{expected}")


@pytest.mark.parametrize("path", ["data/x", "s3://b"])
def test_a_path_that_names_no_file_is_refused(path: str) -> None:
    with pytest.raises(HandoffFailed):
        PathMapping(identity())(path)


def test_the_name_of_another_table_gets_a_suffix_and_a_place_of_its_own() -> None:
    second = identity(is_taken={"ns.t"}.__contains__, cold_locations=["s3://cold/archive/ns/t"])
    assert second.cold_table == "ns.t__0a1b2c3d"
    assert PathMapping(second)("s3://live/wh/ns/t/data/x") == f"{second.cold_location}/data/x"


def test_tables_made_in_one_minute_have_names_of_their_own() -> None:
    """A uuid of version 7 begins with its time."""
    found = identity(is_taken={"ns.t", "ns.t__0a1b2c3d"}.__contains__)
    assert found.cold_table == f"ns.t__{UUID}" and found.cold_location.endswith(f"/ns/t__{UUID}")


def test_a_file_where_a_disk_keeps_its_archive_has_no_place_there() -> None:
    """Archived later, `data/x` would go to `data/.deep-archive/x`."""
    path = "s3://live/wh/ns/t/data/.deep-archive/x"
    with pytest.raises(HandoffFailed, match="archive"):
        PathMapping(identity(cold_warehouse="file:///cold"))(path)
    assert PathMapping(identity())(path) == "s3://cold/archive/ns/t/data/.deep-archive/x"


@pytest.mark.parametrize(
    "more",
    [{"live_location": "s3://elsewhere/t"}, {"cold_locations": ["s3://cold/archive/ns"]}],
)
def test_a_table_without_a_place_of_its_name_is_placed_by_its_uuid(more: dict[str, object]) -> None:
    found = identity(**more)
    assert found.cold_location == f"s3://cold/archive/_tables/{UUID}"
    assert found.cold_table == "ns.t"
    assert PathMapping(found)(f"{found.live_location}/data/x") == f"{found.cold_location}/data/x"


NAMES = st.text(st.sampled_from("ab/._~ %é-"), min_size=1, max_size=12)
ROOTS = (
    "s3://live/wh/ns/t/",
    "s3a://live/wh/",
    "S3://live/wh/",
    "s3://live/",
    "file:///",
    "file:/",
    "/",
    "s3://other/wh/",
)
PATHS = st.one_of(st.tuples(st.sampled_from(ROOTS), NAMES).map("".join))


@given(
    PATHS,
    st.one_of(PATHS, st.sampled_from(ROOTS)),
    st.sampled_from(("s3", "s3a", "file")),
    st.booleans(),
    st.sampled_from(("s3://cold/archive", "file:///cold/archive")),
)
@example("s3://live/wh/ns/t/a/b", "s3://live/wh/ns/t/a//b", "s3", False, "file:///cold/archive")
@example("s3://other/wh/a/b", "s3://other/wh/a//b", "s3", False, "file:///cold/archive")
def test_paths_never_meet_and_never_leave_the_cold_warehouse(
    one: str, other: str, scheme: str, taken: bool, cold: str
) -> None:
    """Not even two spellings of one path: what deletes rows of one of them must not delete them of the other. Nor two
    objects whose names are one on a disk."""
    live = f"{scheme}://live/wh/ns/t" if scheme != "file" else "file:/wh/ns/t"
    mapping = PathMapping(
        identity(
            is_taken=lambda _: taken,
            live_location=live,
            live_warehouse=normalize(live).removesuffix("/ns/t"),
            cold_warehouse=cold,
        )
    )
    if other in ROOTS:
        known = next(root for root in ROOTS if one.startswith(root))
        other += one.removeprefix(known)
    identity_of = replace(mapping.identity, reused=((one, 7, 3), (other, 8, 4)))
    again = PathMapping(identity_of)
    try:
        first, second = mapping(one), mapping(other)
        plain = mapping.plain(one)
    except HandoffFailed:
        return
    places = [*again.places(one), *(again.places(other) if one != other else ())]
    for each in places:
        # No two tables share a copy: each rewrites delete files and manifests by its own paths.
        assert is_under(each, mapping.identity.cold_location)
        if each.startswith(mapping.spelled):
            dotted = any(name in (".", "..") for path in (one, other) for name in path.split("/"))
            assert dotted or mapping.spelled_location(each) in (normalize(one), normalize(other))
        assert each.startswith(mapping.spelled) or each in again.places(plain) or each in again.places(other)
    assert len({normalize(each) for each in places}) == len(places)
    assert normalize(plain) == normalize(one) and mapping.plain(plain) == plain
    if normalize(one) != normalize(other):
        assert normalize(first) != normalize(second)
    elif one != other:
        assert first != second


def test_a_mapping_travels_to_workers() -> None:
    mapping = pickle.loads(pickle.dumps(PathMapping(identity())))
    for path, expected in CASES.items():
        assert fnmatch(mapping(path), expected)


def test_a_place_is_the_first_one_s_or_that_of_the_archive_which_is_there(tmp_path: Path) -> None:
    stores, cold = Stores(), f"file://{tmp_path}/cold/ns/t"
    own = replace(identity(), cold_location=cold)
    clone = replace(own, live_location="s3://staging/wh/ns/t")
    other = replace(own, table_uuid="ffffffff-0000-4000-8000-000000000000")
    metadata = f"{cold}/metadata/00000-a.metadata.json"
    stores.write(metadata, json.dumps({"table-uuid": other.table_uuid}).encode())
    assert not claim(stores, own) and not (tmp_path / "cold/ns/t" / OWNER).exists()
    stores.write(f"{cold}/metadata/00001-b.metadata.json", json.dumps({"table-uuid": UUID}).encode())
    assert claim(stores, own, dry_run=True) and not (tmp_path / "cold/ns/t" / OWNER).exists()
    assert claim(stores, own) and claim(stores, replace(own, live_location="s3a://live/wh/ns/t"))
    assert not any(claim(stores, each, dry_run=dry) for each in (clone, other) for dry in (False, True))


def test_a_place_is_settled_once(tmp_path: Path) -> None:
    stores, root = Stores(), f"file://{tmp_path}/state"
    assert read_identity(stores, root, UUID) is None
    first = settle(stores, root, UUID, lambda taken: identity(cold_locations=taken))
    assert settle(stores, root, UUID, lambda taken: pytest.fail("it is settled")) == first
    assert read_identity(stores, root, UUID) == first
    other = "ffffffff-0000-4000-8000-000000000000"
    seen: list[list[str]] = []

    def choose(taken: list[str]) -> ColdIdentity:
        seen.append(taken)
        # Another process is faster.
        settle(stores, root, other, lambda _: replace(first, table_uuid=other, cold_table="ns.first"))
        return replace(first, table_uuid=other, cold_table="ns.second")

    assert settle(stores, root, other, choose).cold_table == "ns.first"
    assert seen == [["s3://cold/archive/ns/t"]]
