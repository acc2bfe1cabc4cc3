from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from artemis_lifecycle.config.policies import Orphans
from artemis_lifecycle.errors import ConfigError
from artemis_lifecycle.storage.location import (
    DEFAULT_RULES,
    ByFolder,
    LocationRules,
    ambiguity,
    folder_and_name,
    is_under,
    normalize,
    overlap,
    parent,
    relative_to,
    split,
)

OWN_RULES = LocationRules({"s3a,s3n": "s3", "wasb": "abfs", "s3x": "s3n"}, {"nn1,nn2:8020": "cluster", "old": "nn1"})
FILE_RULES = LocationRules({"hdfs": "file"}), LocationRules({"file": "hdfs"})
ALL_RULES = (DEFAULT_RULES, OWN_RULES, *FILE_RULES)

_segments = st.one_of(
    st.sampled_from(
        ["", ".", "..", "...", "a", "A", "a%20b", "a b", "_h", ".h", "é", "e\u0301", "ß", "İ", "x=1", "?", "#"]
    ),
    st.text(
        st.one_of(st.sampled_from("/.:%#?\\$\n\r\t\x85\u2028\u00a0'\""), st.characters(exclude_categories=["Cs"])),
        max_size=5,
    ).filter(lambda text: "\x00" not in text),
)
_prefixes = st.sampled_from(
    ["", "/", "//", "file:", "file:/", "file://", "FILE:///", "file:////", "file://localhost/", "s3://b/", "S3A://b/",
     "s3a://B/", "s3n:/", "s3x://old/", "wasb://nn1/", "hdfs://nn2:8020/", "hdfs:/", "İ:/", "1s://b/", "s3", "s3:"]
)  # fmt: skip
paths = st.builds(lambda prefix, segments: prefix + "/".join(segments), _prefixes, st.lists(_segments, max_size=6))


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("/w/t/x", "file:///w/t/x"),
        ("//w///t/x", "file:///w/t/x"),
        ("file:/w/t/x", "file:///w/t/x"),
        ("file:///w/t/x", "file:///w/t/x"),
        ("file:////w/t/x", "file:///w/t/x"),
        ("FILE:/w/t/x", "file:///w/t/x"),
        ("file://host/w/x", "file://host/w/x"),
        ("/w/./t/../x", "file:///w/x"),
        ("/../x", "file:///x"),
        ("s3a://b/t/x", "s3://b/t/x"),
        ("S3N://b//t///x", "s3://b/t/x"),
        ("s3://b/./t/../x", "s3://b/./t/../x"),
        ("s3://b", "s3://b"),
        ("s3://b/", "s3://b/"),
        ("hdfs:/w/x", "hdfs:///w/x"),
        ("w/t//x", "w/t//x"),
        ("", ""),
    ],
)
def test_a_path_has_this_location(path: str, location: str) -> None:
    assert normalize(path) == location


@pytest.mark.parametrize(
    "other",
    ["/w/a%20b", "/w/A b", "/w/a  b", "/w/a b ", "/w/a\u00a0b", "/w/a+b", "/W/a b", "s3://w/a b", "file://w/a b"],
)
def test_lookalike_names_are_different_files(other: str) -> None:
    assert normalize(other) != normalize("/w/a b")


def test_dots_in_what_stands_for_file_are_resolved() -> None:
    """Or a live file known as `file:/w/t/../x` would be another than the listed `/w/x`."""
    to_file, from_file = FILE_RULES
    assert normalize("hdfs:/w/t/../x", to_file) == normalize("/w/x", to_file) == "file:///w/x"
    assert normalize("file:/w/t/../x", from_file) == normalize("/w/x", from_file) == "hdfs:///w/x"
    assert normalize("hdfs:/w/t/../x", from_file) == "hdfs:///w/t/../x"


def test_unicode_forms_of_one_letter_are_different_files() -> None:
    assert normalize("s3://b/\u00e9") != normalize("s3://b/e\u0301")


@given(paths)
def test_normalizing_again_changes_nothing(path: str) -> None:
    for rules in ALL_RULES:
        location = normalize(path, rules)
        assert normalize(location, rules) == location


@given(paths, paths)
def test_what_is_under_a_root_is_the_root_and_the_rest(path: str, root: str) -> None:
    rest = relative_to(path, root)
    assert (rest is not None) == is_under(path, root)
    if rest is not None:
        base = normalize(root)
        assert normalize(path) in (f"{base}/{rest}", f"{base}{rest}")
        assert overlap(path, root)


def test_a_neighbor_that_shares_letters_is_not_under_a_root() -> None:
    assert not is_under("/w/table2/x", "/w/table")
    assert is_under("/w/table/x", "/w/table/")
    assert relative_to("s3a://b/t//data/x", "s3://b/t") == "data/x"


def test_a_root_is_not_under_itself_and_overlaps_itself() -> None:
    assert not is_under("/w/t", "/w/t")
    assert not is_under("/w/t/", "/w/t")
    assert overlap("/w/t", "file:/w/t/")
    assert overlap("s3a://b", "s3://b/t")
    assert not overlap("/w/t", "/w/t2")


@pytest.mark.parametrize(
    ("path", "root"),
    [("/w/t/../other/x", "/w/t"), ("s3://b/t/../other/x", "s3://b/t"), ("file:///w/t/a/../../x", "/w/t")],
)
def test_a_path_that_climbs_out_is_not_under_its_root(path: str, root: str) -> None:
    assert not is_under(path, root)


def test_everything_local_is_under_the_root_folder() -> None:
    assert relative_to("/x/y", "/") == "x/y"
    assert relative_to("s3://b/x", "s3://b") == "x"
    assert relative_to("s3://b/x", "/") is None


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("s3://b/a/x", "s3://b/a"),
        ("s3a://b/x", "s3a://b"),
        ("s3://b", "s3://b"),
        ("/a/b", "/a"),
        ("/a", "/"),
        ("file:/a/b/", "file:/a"),
        ("file:///a", "file:///"),
        ("a/b", "a"),
        ("a", ""),
    ],
)
def test_a_parent_keeps_the_spelling(path: str, folder: str) -> None:
    assert parent(path) == folder


def test_parts_keep_the_spelling() -> None:
    parts = split("S3A://Bucket//k")
    assert (parts.scheme, parts.authority, parts.path) == ("s3a", "Bucket", "//k")


def test_equalities_of_the_configuration_override_icebergs_own() -> None:
    rules = LocationRules.from_config(Orphans(equal_schemes={"wasb,wasbs": "abfs"}, equal_authorities={"a,b": "c"}))
    assert normalize("wasbs://a/x", rules) == "abfss://c/x"
    assert normalize("s3a://k/x", rules) == "s3://k/x"
    apart = LocationRules.from_config(Orphans(equal_schemes={"s3a": "s3a"}))
    assert normalize("s3a://k/x", apart) == "s3a://k/x"


def test_the_two_hosts_of_an_azure_account_are_one_place() -> None:
    one = "abfss://c@a.dfs.core.windows.net/t/x"
    for path in ("wasbs://c@a.blob.core.windows.net/t/x", "WASB://c@a.blob.core.windows.net//t/x", one):
        assert normalize(path) == one and normalize(normalize(path)) == one
    for other in ("abfss://c@a.blob.core.example/t/x", "abfss://d@a.dfs.core.windows.net/t/x", "abfss://blob.a/t/x"):
        assert normalize(other) != one
    rules = LocationRules(equal_authorities={"c@a.blob.core.windows.net": "c@b.blob.core.windows.net"})
    assert normalize(one, rules) == normalize(normalize(one, rules), rules) == one.replace("@a", "@b")


def test_chains_of_equal_schemes_are_followed_and_circles_refused() -> None:
    assert normalize("s3x://b/x", LocationRules({"s3x": "s3n", "s3n": "s3"})) == "s3://b/x"
    with pytest.raises(ConfigError, match="circle"):
        LocationRules({"a": "b", "b": "a"})
    with pytest.raises(ConfigError, match="not a scheme"):
        LocationRules({"s3/": "s3"})
    with pytest.raises(ConfigError, match="slash"):
        LocationRules({}, {"a": "b/c"})


def test_rules_travel_and_compare() -> None:
    again = pickle.loads(pickle.dumps(OWN_RULES))
    assert again == OWN_RULES
    assert hash(again) == hash(OWN_RULES)
    assert again.fingerprint() == OWN_RULES.fingerprint() != DEFAULT_RULES.fingerprint()


def test_paths_that_engines_read_differently_are_reported() -> None:
    assert ambiguity("s3://b/t/x") is None
    assert ambiguity("/w/./x?y") is None
    assert ambiguity("s3a://b/t/x?y") is not None
    assert ambiguity("s3a://b/t/x#y") is not None
    assert ambiguity("s3://b/t/../x") is not None
    assert ambiguity("t/x") is not None


@given(st.lists(paths | st.sampled_from(["/a/b", "/a/c", "/a/c?x", "/a/.x", "/a/..x", "/a/\n"]), max_size=8))
def test_paths_have_the_same_folders_together_as_each_alone(several: list[str]) -> None:
    for texts in (pa.array(several, pa.string()), pa.array(["s3://b/x", *several], pa.large_string())[1:]):
        files, alone = ByFolder.of(texts), [folder_and_name(path) for path in several]
        assert [files.folder(row) for row in range(len(several))] == [parts and parts[0] for parts in alone]
        starts = {row for row, parts in enumerate(alone) if not (row and parts and alone[row - 1])}
        starts |= {row for row, parts in enumerate(alone) if row and (parts or "x")[0] != (alone[row - 1] or "y")[0]}
        assert files.starts.tolist() == sorted(starts)
        assert [bool(each) for each in files.cut] == [bool({*"?#"} & {*path.rpartition("/")[2]}) for path in several]
