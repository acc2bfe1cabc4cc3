from __future__ import annotations

import hashlib
import logging
import os
import pickle
import threading
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from botocore.exceptions import ConnectionClosedError, ReadTimeoutError

from artemis_lifecycle.config.deployment import Catalog
from artemis_lifecycle.errors import ConfigError, CopyMismatch, ExistingFile, MissingFile, StorageError
from artemis_lifecycle.storage.instants import elapsed
from artemis_lifecycle.storage.s3 import S3Store, make_client, prepared
from artemis_lifecycle.storage.settings import MIB, StoreSettings
from artemis_lifecycle.storage.stores import DeleteOutcome, Stores
from artemis_lifecycle.storage.types import FAILED, REMOVED, FileIdentity, Removals
from artemis_lifecycle_tests.storage.s3_server import (
    ACCESS_KEY,
    SECRET_KEY,
    SESSION_TOKEN,
    Injected,
    S3Server,
    refusal,
    reply,
)

pytestmark = pytest.mark.seconds


@pytest.fixture
def stores(s3: S3Server) -> Stores:
    return s3.stores()


def _injected(s3: S3Server, **changes: Any) -> tuple[Stores, Injected]:
    settings = s3.settings(**changes)
    injected = Injected.around(settings)
    return Stores(settings, injected), injected


def _paths(stores: Stores, prefix: str) -> list[str]:
    return [file.path for file in stores.list(prefix)]


# --- listing --------------------------------------------------------------------------------------------------------


def test_a_listing_goes_on_past_a_thousand_keys(s3: S3Server, bucket: str) -> None:
    stores, injected = _injected(s3)
    s3.fill(bucket, [f"t/data/{number:05}" for number in range(2_345)])
    assert _paths(stores, f"s3://{bucket}/t") == [f"s3://{bucket}/t/data/{number:05}" for number in range(2_345)]
    assert injected.requests.count("ListObjectsV2") == 3


@pytest.mark.parametrize("operation", ["GetObject", "PutObject"])
def test_an_answer_without_an_etag_is_an_error_that_names_the_path(s3: S3Server, bucket: str, operation: str) -> None:
    stores, injected = _injected(s3)
    s3.fill(bucket, ["x"])
    injected.client.meta.events.register(f"after-call.s3.{operation}", lambda parsed, **_: parsed.pop("ETag"))
    with pytest.raises(StorageError, match=r"no ETag.*\n?.*s3://") as raised:
        stores.open(f"s3://{bucket}/x").read() if operation == "GetObject" else stores.write(f"s3://{bucket}/y", b"1")
    assert raised.value.path is not None and "proxy" in str(raised.value)


def test_a_neighboring_prefix_is_not_listed(s3: S3Server, stores: Stores, bucket: str) -> None:
    s3.fill(bucket, ["t/x", "t2/x", "t", "t.bak/x"])
    assert _paths(stores, f"s3://{bucket}/t") == [f"s3://{bucket}/t/x"]
    assert _paths(stores, f"s3://{bucket}/none") == []
    assert len(_paths(stores, f"s3://{bucket}")) == len(_paths(stores, f"s3://{bucket}/")) == 4


def test_folder_markers_are_not_files(s3: S3Server, stores: Stores, bucket: str) -> None:
    s3.client().put_object(Bucket=bucket, Key="t/", Body=b"")
    s3.client().put_object(Bucket=bucket, Key="t/a/", Body=b"")
    s3.fill(bucket, ["t/a/x", "t/b"])
    assert _paths(stores, f"s3://{bucket}/t") == [f"s3://{bucket}/t/a/x", f"s3://{bucket}/t/b"]
    folders, files = stores.children(f"s3://{bucket}/t")
    assert folders == [f"s3://{bucket}/t/a/"]
    assert [file.path for file in files] == [f"s3://{bucket}/t/b"]


def test_children_make_up_the_whole_listing_even_where_keys_have_double_slashes(
    s3: S3Server, stores: Stores, bucket: str
) -> None:
    keys = ["t/a/x", "t//y", "t///z", "t/b//c/w", "t/v", "t/b/u"]
    s3.fill(bucket, keys)

    def walk(prefix: str, depth: int = 0) -> list[str]:
        assert depth < 6
        folders, files = stores.children(prefix)
        return [file.path for file in files] + [path for folder in folders for path in walk(folder, depth + 1)]

    assert sorted(walk(f"s3://{bucket}/t")) == sorted(f"s3://{bucket}/{key}" for key in keys)
    assert sorted(walk(f"s3://{bucket}/t")) == sorted(_paths(stores, f"s3://{bucket}/t"))


def test_odd_keys_are_listed_read_and_deleted_by_their_own_name(s3: S3Server, bucket: str) -> None:
    stores, injected = _injected(s3)
    names = ["a b", "a%20b", "a+b", "é", "e\u0301", "q?x", "h#x", "p=1/x", "&<>\"'", "//x", "..", "a\tb",
             "cr\rhere", "bell\x07", " outer ", "日本"]  # fmt: skip
    paths = [f"s3://{bucket}/t/{name}" for name in names]
    for number, path in enumerate(paths):
        stores.write(path, str(number).encode())
    for number, path in enumerate(paths):
        assert stores.read(path) == str(number).encode()
    keep = f"s3://{bucket}/t/outer"
    stores.write(keep, b"not me")
    assert {outcome.outcome for outcome in stores.delete(paths)} == {"deleted"}
    assert _paths(stores, f"s3://{bucket}/t") == [keep]
    # What XML would garble goes alone, in an address.
    assert injected.requests.count("DeleteObject") == 3


def test_a_listing_that_fails_on_a_later_page_raises(s3: S3Server, bucket: str) -> None:
    stores, injected = _injected(s3, attempts=2)
    s3.fill(bucket, [f"t/{number:04}" for number in range(1_001)])
    pages: list[int] = []

    def second(_: Any) -> Any:
        pages.append(1)
        return refusal(403, "AccessDenied") if len(pages) > 1 else None

    injected.answer("ListObjectsV2", second)
    with pytest.raises(StorageError, match="cannot be listed: AccessDenied"):
        list(stores.list(f"s3://{bucket}/t"))


def test_one_level_is_listed_up_to_a_bound(s3: S3Server, bucket: str) -> None:
    stores, injected = _injected(s3)
    s3.fill(bucket, [*(f"t/{number:04}" for number in range(1_001)), "t/a/x", "t/z/x"])
    assert stores.children(f"s3://{bucket}/t", 1_001)[0] == [f"s3://{bucket}/t/a/", f"s3://{bucket}/t/z/"]
    assert injected.requests.count("ListObjectsV2") == 2
    folders, files = stores.children(f"s3://{bucket}/t", 1_000)
    assert injected.requests.count("ListObjectsV2") == 3 and (folders, len(files)) == ([], 1_000)


def test_a_server_that_repeats_its_page_does_not_list_for_ever(s3: S3Server, bucket: str) -> None:
    stores, injected = _injected(s3)

    def repeating(parsed: dict[str, Any]) -> None:
        parsed.update(IsTruncated=True, NextContinuationToken="same", Contents=[])

    injected.after("ListObjectsV2", repeating)
    with pytest.raises(StorageError, match="repeats its page"):
        list(stores.list(f"s3://{bucket}/t"))


def test_an_empty_page_that_goes_on_makes_no_object_absent(s3: S3Server, bucket: str) -> None:
    # As where many keys in a row were deleted (TileDB 1218).
    keys = [f"t/metadata/snap-{number:02}.avro" for number in range(20)]
    s3.fill(bucket, keys)
    settings = s3.settings()
    injected = Injected.around(settings)
    pages: list[int] = []

    def first_is_empty(parsed: dict[str, Any]) -> None:
        pages.append(1)
        if len(pages) == 1:
            parsed.update(IsTruncated=True, NextContinuationToken="behind", Contents=[], KeyCount=0)

    injected.after("ListObjectsV2", first_is_empty)
    found = Stores(settings, injected).heads([f"s3://{bucket}/{key}" for key in keys])
    assert [each.path.rpartition("/")[2] for each in found if each is not None] == [
        key.rpartition("/")[2] for key in keys
    ]


def test_an_absence_by_an_empty_page_without_the_guard_is_real(
    s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard of the test above, taken out: an empty page is the last one."""
    page = S3Store.page

    def last_if_empty(*asked: Any, **options: Any) -> Any:
        folders, items, following = page(*asked, **options)
        return folders, items, following if items else None

    monkeypatch.setattr(S3Store, "page", last_if_empty)
    with pytest.raises(AssertionError):
        test_an_empty_page_that_goes_on_makes_no_object_absent(s3, bucket)


_NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
_AT = "2024-03-01T10:00:00.250Z"
_ONE = f"<LastModified>{_AT}</LastModified><ETag>&quot;a-2&quot;</ETag><Size>7</Size>"
_PAGES = [
    f"<ListBucketResult {_NAMESPACE}>{text}</ListBucketResult>"
    for text in (
        "<KeyCount>0</KeyCount><IsTruncated>false</IsTruncated>",
        f"<IsTruncated>true</IsTruncated><Contents><Key>t/a</Key>{_ONE}</Contents>"
        f"<Contents>{_ONE}<Key>t/b</Key><Owner><ID>x</ID></Owner></Contents><CommonPrefixes><Prefix>t/c/</Prefix>"
        "</CommonPrefixes><NextContinuationToken>&amp;1</NextContinuationToken>",
        f"<Contents><Key>t/a</Key>{_ONE}<StorageClass>GLACIER</StorageClass></Contents>",
        f"<Contents><Name>t/a</Name>{_ONE}<StorageClass>GLACIER</StorageClass></Contents>",
        f"<EncodingType>url</EncodingType><Contents><Key>t/a%26%3D%0D+b</Key>{_ONE}</Contents>",
        f"<Contents><Key>t/&lt;&amp;amp;&#xe9;\t</Key>{_ONE}</Contents>",
        f"<Contents><Key><![CDATA[t/<&]]></Key>{_ONE}</Contents>",
        f'<Contents><Key a="b">t/a</Key>{_ONE}</Contents>',
        f"<Contents><Key>t/a</Key>{_ONE.replace(_AT, 'Fri, 01 Mar 2024 10:00:00 GMT')}</Contents>",
        f"<Contents><Key>t/a</Key>{_ONE.replace('.250Z', '+01:00')}</Contents>",
    )
]
_PAGES += [
    '<s:ListBucketResult xmlns:s="x"><s:Contents><s:Key>t</s:Key></s:Contents></s:ListBucketResult>',
    "<Error><Code>InternalError</Code><Message>later</Message></Error>",
    _PAGES[1][:-60],
]


@pytest.mark.parametrize("page", _PAGES)
def test_a_page_says_what_botocore_reads_in_it(s3: S3Server, page: str) -> None:
    def said(client: Any) -> Any:
        answer = reply(200, {"content-type": "application/xml"}, page.encode())
        client.meta.events.register_first("before-send.s3.ListObjectsV2", lambda **_: answer)
        try:
            parsed = client.list_objects_v2(Bucket="bucket", Prefix="t")
        except Exception as error:
            return repr(error)
        named = ("Key", "LastModified", "ETag", "Size", "StorageClass")
        objects = [[each.get(name) for name in named] for each in parsed.pop("Contents", [])]
        del parsed["ResponseMetadata"]
        return objects, parsed

    assert said(prepared(make_client(s3.settings()), s3.settings())) == said(make_client(s3.settings()))


def test_a_missing_bucket_is_an_error_and_not_an_empty_store(stores: Stores) -> None:
    path = "s3://no-such-bucket/t/x"
    attempts = (lambda: list(stores.list(path)), lambda: stores.head(path), lambda: stores.read(path))
    for attempt in (*attempts, lambda: stores.write(path, b"")):
        with pytest.raises(StorageError) as raised:
            attempt()
        assert not isinstance(raised.value, MissingFile)
    assert stores.delete([path])[0].outcome == "failed"


def test_a_bucket_that_is_gone_meanwhile_is_no_absent_file(s3: S3Server, bucket: str) -> None:
    stores, injected = _injected(s3)
    assert stores.head(f"s3://{bucket}/x") is None
    injected.answer("GetObject", lambda _: refusal(404, "NoSuchBucket"))
    for ask in (stores.read, stores.open, lambda path: stores.read_range(path, 0, 1)):
        with pytest.raises(StorageError, match="NoSuchBucket") as raised:
            ask(f"s3://{bucket}/x")
        assert not isinstance(raised.value, MissingFile)


# --- reading and writing --------------------------------------------------------------------------------------------


def test_a_bucket_is_no_object(stores: Stores, bucket: str) -> None:
    assert stores.head(f"s3://{bucket}") is None


@pytest.mark.parametrize("path", ["s3:///x", "s3:/x"])
def test_a_path_without_a_bucket_is_refused(stores: Stores, path: str) -> None:
    with pytest.raises(StorageError, match="no bucket"):
        stores.read(path)
    assert stores.delete([path])[0].outcome == "failed"


class _Breaking:
    """A body whose line breaks after `good` bytes."""

    def __init__(self, body: Any, good: int) -> None:
        self.body, self.left = body, good

    def read(self, amount: int | None = None) -> bytes:
        if self.left <= 0:
            raise ConnectionClosedError(endpoint_url="http://s3")
        data: bytes = self.body.read(self.left if amount is None else min(amount, self.left))
        self.left -= len(data)
        return data

    def close(self) -> None:
        self.body.close()


def test_a_stream_whose_line_breaks_is_taken_up_where_it_broke(s3: S3Server, bucket: str) -> None:
    stores, injected = _injected(s3)
    data = os.urandom(3 * MIB)
    stores.write(f"s3://{bucket}/x", data)

    def breaking(parsed: dict[str, Any]) -> None:
        parsed["Body"] = _Breaking(parsed["Body"], 700_000)

    injected.after("GetObject", breaking)
    with stores.open(f"s3://{bucket}/x") as file:
        assert file.read() == data
    assert injected.requests.count("GetObject") == 5


def test_an_object_that_changes_while_it_is_read_is_not_read_mixed(s3: S3Server, bucket: str) -> None:
    stores, injected = _injected(s3)
    path = f"s3://{bucket}/x"
    stores.write(path, b"a" * 3 * MIB)
    reads: list[int] = []

    def breaking(parsed: dict[str, Any]) -> None:
        reads.append(1)
        if len(reads) == 1:
            parsed["Body"] = _Breaking(parsed["Body"], 700_000)
            s3.client().put_object(Bucket=bucket, Key="x", Body=b"b" * 3 * MIB)

    injected.after("GetObject", breaking)
    with pytest.raises(StorageError, match="PreconditionFailed"), stores.open(path) as file:
        file.read()


def test_a_write_whose_answer_was_lost_knows_its_own_object(s3: S3Server, bucket: str) -> None:
    stores, injected = _injected(s3)
    lost: list[int] = []

    def lose(_: dict[str, Any]) -> None:
        lost.append(1)
        if len(lost) == 1:
            raise ReadTimeoutError(endpoint_url="http://s3")

    injected.after("PutObject", lose)
    stores.write(f"s3://{bucket}/x", b"mine")
    assert injected.requests.count("PutObject") == 2
    assert stores.read(f"s3://{bucket}/x") == b"mine"
    with pytest.raises(ExistingFile):
        stores.write(f"s3://{bucket}/x", b"mine")


def test_the_storage_class_is_set_at_write(s3: S3Server, bucket: str) -> None:
    cold = s3.stores(storage_class="GLACIER_IR")
    cold.write(f"s3://{bucket}/x", b"1")
    cold.write(f"s3://{bucket}/y", b"1", storage_class="STANDARD_IA")
    s3.stores().write(f"s3://{bucket}/z", b"1")
    cold.copy(f"s3://{bucket}/z", f"s3://{bucket}/z2")
    assert [_storage_class(s3, bucket, key) for key in ("x", "y", "z", "z2")] == [
        "GLACIER_IR", "STANDARD_IA", "STANDARD", "GLACIER_IR",
    ]  # fmt: skip


def _storage_class(s3: S3Server, bucket: str, key: str) -> str:
    return str(s3.client().head_object(Bucket=bucket, Key=key).get("StorageClass", "STANDARD"))


# --- a busy server, a bad line --------------------------------------------------------------------------------------


def test_a_busy_server_is_asked_again_with_jitter(s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stores, injected = _injected(s3, max_wait_seconds=3.0)
    stores.write(f"s3://{bucket}/x", b"1")
    waits: list[float] = []
    # In that module alone: other threads of the run sleep, too.
    monkeypatch.setattr("tenacity.nap.time", SimpleNamespace(sleep=waits.append))
    asked: list[int] = []

    def busy(_: Any) -> Any:
        asked.append(1)
        return refusal(503, "SlowDown", "Please reduce your request rate.") if len(asked) % 6 else None

    injected.answer("HeadObject", busy)
    for _ in range(20):
        assert stores.head(f"s3://{bucket}/x") is not None
    assert len(asked) == 120
    assert len(waits) == 100
    assert len({round(wait, 6) for wait in waits}) > 90  # Not a ladder that all workers climb together.
    assert max(waits[4::5]) > 1.0
    assert all(0 <= wait <= 3.0 for wait in waits)


def test_a_server_that_stays_busy_is_left_alone_after_a_bounded_number_of_attempts(s3: S3Server, bucket: str) -> None:
    stores, injected = _injected(s3, attempts=4)
    injected.answer("HeadObject", lambda _: refusal(503, "SlowDown", "Please reduce your request rate."))
    with pytest.raises(StorageError, match="SlowDown: Please reduce"):
        stores.head(f"s3://{bucket}/x")
    assert injected.requests.count("HeadObject") == 4


@pytest.mark.parametrize(
    "trouble",
    [
        lambda: refusal(500, "InternalError"),
        lambda: refusal(429, "TooManyRequests"),
        lambda: refusal(503, "ServiceUnavailable"),
        lambda: (_ for _ in ()).throw(ReadTimeoutError(endpoint_url="http://s3")),
        lambda: (_ for _ in ()).throw(ConnectionClosedError(endpoint_url="http://s3")),
    ],
    ids=["500", "429", "503", "timeout", "closed"],
)
def test_each_passing_trouble_is_ridden_out_by_each_call(s3: S3Server, bucket: str, trouble: Any) -> None:
    stores, injected = _injected(s3)
    seen: dict[str, int] = {}

    def every_other(operation: str) -> Any:
        def reply(_: Any) -> Any:
            seen[operation] = seen.get(operation, 0) + 1
            return trouble() if seen[operation] % 2 else None

        return reply

    for operation in ("PutObject", "GetObject", "HeadObject", "ListObjectsV2", "DeleteObjects", "CopyObject"):
        injected.answer(operation, every_other(operation))
    path = f"s3://{bucket}/x"
    stores.write(path, b"data")
    assert stores.read(path) == b"data"
    assert stores.head(path) is not None
    assert _paths(stores, f"s3://{bucket}") == [path]
    assert stores.copy(path, f"s3://{bucket}/y").size_in_bytes == 4
    assert stores.delete([path])[0].outcome == "deleted"
    assert stores.head(path) is None
    assert all(count >= 2 for count in seen.values())


def test_what_will_not_pass_is_not_asked_again(s3: S3Server, bucket: str) -> None:
    stores, injected = _injected(s3)
    injected.answer("GetObject", lambda _: refusal(403, "AccessDenied", "Access Denied"))
    with pytest.raises(StorageError, match=r"AccessDenied.*Next: check the catalog's S3 credentials"):
        stores.read(f"s3://{bucket}/x")
    assert injected.requests.count("GetObject") == 1


def test_an_unreachable_server_is_a_clear_error() -> None:
    settings = StoreSettings(
        s3_endpoint="http://127.0.0.1:9",
        s3_access_key_id="a",
        s3_secret_access_key="b",
        attempts=2,
        max_wait_seconds=0.01,
    )
    with pytest.raises(StorageError, match=r"cannot be read: Could not connect.*Next: check the S3 server"):
        Stores(settings).read("s3://b/x")
    assert Stores(settings).delete(["s3://b/x"])[0].outcome == "failed"


def test_an_archived_object_says_that_it_must_be_restored(s3: S3Server, bucket: str) -> None:
    stores, injected = _injected(s3)
    injected.answer("GetObject", lambda _: refusal(403, "InvalidObjectState", "not valid for the storage class"))
    with pytest.raises(StorageError, match="restored from its archive class"):
        stores.read(f"s3://{bucket}/x")


# --- deleting -------------------------------------------------------------------------------------------------------


def test_a_bulk_delete_takes_a_thousand_keys_at_a_time(s3: S3Server, bucket: str) -> None:
    stores, injected = _injected(s3)
    keys = [f"t/{number:04}" for number in range(2_100)]
    s3.fill(bucket, [*keys, "t/kept"])
    paths = [f"s3a://{bucket}/{key}" for key in keys]
    outcomes = stores.delete([*paths, f"s3://{bucket}/never-was"])
    assert [outcome.path for outcome in outcomes[:-1]] == paths
    assert {outcome.outcome for outcome in outcomes} == {"deleted"}
    assert injected.requests.count("DeleteObjects") == 3
    assert _paths(stores, f"s3://{bucket}") == [f"s3://{bucket}/t/kept"]


def test_paths_in_columns_meet_the_fate_that_each_of_them_has_alone(s3: S3Server, bucket: str) -> None:
    names = ["a b", " outer", "outer ", "a%20b", "é", "q?x", "&<>\"'", "//x", "tab\tin", "cr\rhere", "bell\x07", 
             "\u2003wide", "n" * 1024, "n" * 1025, "", "~", "!", "plain", "denied"]  # fmt: skip
    stems = [f"s3://{bucket}", f"s3a://{bucket}", f"S3N://{bucket}", "s3://no-such-bucket-of-ours", "s3:/"]
    paths = [f"{stem}/{name}" for name in names for stem in stems] + [f"s3://{bucket}", f"s3://{bucket}/plain"]
    written = [f"s3://{bucket}/{name}" for name in names if 0 < len(name) <= 1024]
    kept = f"s3://{bucket}/outer"
    stores, injected = _injected(s3, attempts=2)
    denied = {"Key": "denied", "Code": "AccessDenied", "Message": "no"}
    asked: list[str] = []
    injected.answer("DeleteObjects", lambda request: asked.append(request.body.decode()))
    injected.after("DeleteObjects", lambda parsed: parsed.update(Errors=[denied] * (">denied<" in asked[-1])))
    answers = []
    for in_columns in (False, True):
        for path in [*written, kept]:
            stores.write(path, b"", overwrite=True)
        removals = stores.remove(pa.array(paths)) if in_columns else Removals.of(stores.delete(paths))
        answers.append((removals.outcomes.tolist(), removals.errors))
        assert _paths(stores, f"s3://{bucket}") == [kept]
    assert answers[0] == answers[1]
    assert {reason for _, reason in answers[1][1].items() if "AccessDenied" in reason} == {"AccessDenied: no"}


def test_a_server_that_reports_every_deletion_is_not_asked_again(s3: S3Server, bucket: str) -> None:
    """Though asked to be quiet. What it could not delete is heard all the same, wherever it stands."""
    stores, injected = _injected(s3)
    body = (
        "<DeleteResult><Deleted><Key>a</Key></Deleted>"
        "<Error><Key>b</Key><Code>AccessDenied</Code><Message>not &lt;Deleted&gt;</Message></Error>"
        "<Deleted>\n<Key>c</Key>\n</Deleted></DeleteResult>"
    )
    reported: list[dict[str, Any]] = []
    injected.answer("DeleteObjects", lambda _: reply(200, {"content-type": "application/xml"}, body.encode()))
    injected.after("DeleteObjects", reported.append)
    removals = stores.remove(pa.array([f"s3://{bucket}/{key}" for key in "abc"]))
    assert removals.outcomes.tolist() == [REMOVED, FAILED, REMOVED]
    assert removals.errors == {1: "AccessDenied: not <Deleted>"}
    assert "Deleted" not in reported[0]


def test_a_delete_that_fails_for_some_keys_names_them(s3: S3Server, bucket: str) -> None:
    stores, injected = _injected(s3)
    s3.fill(bucket, ["a", "b", "c", "d"])
    denied = {"Key": "b", "Code": "AccessDenied", "Message": "Access Denied"}
    gone = {"Key": "c", "Code": "NoSuchKey", "Message": "gone"}
    injected.after("DeleteObjects", lambda parsed: parsed.update(Errors=[denied, gone]))
    outcomes = stores.delete([f"s3://{bucket}/{key}" for key in "abcd"])
    assert [outcome.outcome for outcome in outcomes] == ["deleted", "failed", "deleted", "deleted"]
    assert outcomes[1].error == "AccessDenied: Access Denied"


def test_only_the_keys_that_the_server_was_too_busy_for_are_asked_for_again(s3: S3Server, bucket: str) -> None:
    stores, injected = _injected(s3)
    s3.fill(bucket, list("abc"))
    asked: list[str] = []
    answers: list[int] = []
    injected.answer("DeleteObjects", lambda request: asked.append(request.body.decode()))

    def busy(parsed: dict[str, Any]) -> None:
        answers.append(1)
        slow = {"Key": "b", "Code": "SlowDown", "Message": "slow"}
        denied = {"Key": "c", "Code": "AccessDenied", "Message": "no"}
        parsed["Errors"] = [[slow, denied], [slow], []][len(answers) - 1]

    injected.after("DeleteObjects", busy)
    outcomes = stores.delete([f"s3://{bucket}/{key}" for key in "abc"])
    assert [outcome.outcome for outcome in outcomes] == ["deleted", "deleted", "failed"]
    assert [[key for key in "abc" if f"<Key>{key}</Key>" in body] for body in asked] == [["a", "b", "c"], ["b"], ["b"]]


def test_keys_that_the_server_stays_too_busy_for_are_failed(s3: S3Server, bucket: str) -> None:
    stores, injected = _injected(s3, attempts=3)
    s3.fill(bucket, list("ab"))
    slow = {"Key": "b", "Code": "SlowDown", "Message": "slow"}
    injected.after("DeleteObjects", lambda parsed: parsed.update(Errors=[slow]))
    outcomes = stores.delete([f"s3://{bucket}/{key}" for key in "ab"])
    assert outcomes[1] == DeleteOutcome(f"s3://{bucket}/b", "failed", "SlowDown: slow")
    assert injected.requests.count("DeleteObjects") == 3


def test_a_delete_refused_as_a_whole_fails_every_key(s3: S3Server, bucket: str) -> None:
    stores, injected = _injected(s3)
    injected.answer("DeleteObjects", lambda _: refusal(403, "AccessDenied", "Access Denied"))
    outcomes = stores.delete([f"s3://{bucket}/{key}" for key in "ab"])
    assert [outcome.outcome for outcome in outcomes] == ["failed", "failed"]
    assert all("AccessDenied" in (outcome.error or "") for outcome in outcomes)


def test_an_error_for_a_key_that_was_not_asked_for_puts_all_in_doubt(s3: S3Server, bucket: str) -> None:
    stores, injected = _injected(s3)
    strange = {"Key": "other", "Code": "AccessDenied", "Message": "no"}
    injected.after("DeleteObjects", lambda parsed: parsed.update(Errors=[strange]))
    assert {outcome.outcome for outcome in stores.delete([f"s3://{bucket}/{key}" for key in "ab"])} == {"failed"}


def test_hopeless_keys_are_refused_without_asking(s3: S3Server, bucket: str) -> None:
    stores, injected = _injected(s3)
    paths = [f"s3://{bucket}/{'n' * 1025}", f"s3://{bucket}", f"s3://{bucket}/", f"s3://{bucket}/\ud800"]
    assert [outcome.outcome for outcome in stores.delete(paths)] == ["absent", "failed", "failed", "failed"]
    assert stores.head(paths[0]) is None
    assert injected.requests == []


def test_one_key_in_two_spellings_is_deleted_once_and_reported_twice(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    stores, injected = _injected(s3)
    stores.write(f"s3://{bucket}/x", b"")
    stores.write(f"{tmp_path}/x", b"")
    paths = [f"s3a://{bucket}/x", f"{tmp_path}/x", f"s3://{bucket}/x", f"s3://{bucket}/x"]
    assert [outcome.path for outcome in stores.delete(paths)] == paths
    assert injected.requests.count("DeleteObjects") == 1


def test_a_delete_whose_time_is_over_tries_no_more(s3: S3Server, bucket: str) -> None:
    stores, injected = _injected(s3)
    (outcome,) = stores.delete([f"s3://{bucket}/x"], until=elapsed())
    assert outcome.outcome == "failed"
    assert injected.requests == []


@pytest.mark.parametrize("waits_for", ["the pace", "a busy server", "a server that is busy for one key"])
def test_no_request_goes_out_when_the_time_is_over_whatever_it_waited_for(
    s3: S3Server, bucket: str, waits_for: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may be stopped there, and what it was to delete may be alive when it goes on."""
    stores, injected = _injected(s3)
    s3.fill(bucket, list("ab"))
    late: list[float] = []
    # The time goes by during the wait, and not by it: no test waits.
    monkeypatch.setattr("artemis_lifecycle.storage.instants.elapsed", lambda: 100.0 if late else 0.0)
    if waits_for == "the pace":
        injected.answer("DeleteObjects", lambda _: late.append(1))
    elif waits_for == "a busy server":
        injected.answer("DeleteObjects", lambda _: late.append(1) or refusal(503, "SlowDown"))
    else:
        slow = {"Key": "b", "Code": "SlowDown", "Message": "slow"}
        injected.after("DeleteObjects", lambda parsed: late.append(1) or parsed.update(Errors=[slow]))
    removals = stores.remove(pa.array([f"s3://{bucket}/{key}" for key in "ab"]), until=50.0)
    assert len(late) == 1
    over = "not tried: the time for this call was over"
    both = [None, f"{over} (before: SlowDown: slow)"] if "one key" in waits_for else [over, over]
    assert [removals.errors.get(row) for row in range(2)] == both
    if waits_for == "the pace":
        assert _paths(s3.stores(), f"s3://{bucket}") == [f"s3://{bucket}/a", f"s3://{bucket}/b"]


# --- copying --------------------------------------------------------------------------------------------------------


def test_buckets_of_one_endpoint_copy_by_themselves(s3: S3Server, bucket: str) -> None:
    live, cold = s3.stores(), _injected(s3, storage_class="GLACIER_IR")
    other = s3.bucket()
    live.write(f"s3a://{bucket}/t/x", b"data")
    copied = cold[0].copy(f"s3a://{bucket}/t/x", f"s3://{other}/t/x", source_stores=live)
    assert copied.checksum == "sha256:" + hashlib.sha256(b"data").hexdigest()
    assert cold[0].read(f"s3://{other}/t/x") == b"data"
    assert "CopyObject" in cold[1].requests
    assert "PutObject" not in cold[1].requests
    assert _storage_class(s3, other, "t/x") == "GLACIER_IR"


def test_a_large_object_is_copied_in_parts_by_the_server(s3: S3Server, bucket: str) -> None:
    stores, injected = _injected(s3, multipart_bytes=5 * MIB, storage_class="GLACIER_IR")
    data = os.urandom(12 * MIB + 5)
    s3.client().put_object(Bucket=bucket, Key="x", Body=data)
    stores.copy(f"s3://{bucket}/x", f"s3://{bucket}/y")
    assert injected.requests.count("UploadPartCopy") == 3
    assert stores.read(f"s3://{bucket}/y") == data
    assert _storage_class(s3, bucket, "y") == "GLACIER_IR"


@pytest.mark.parametrize("size", [0, 1, 5 * MIB, 5 * MIB + 1, 12 * MIB])
def test_files_go_from_disk_to_s3_and_back(s3: S3Server, bucket: str, tmp_path: Path, size: int) -> None:
    stores, injected = _injected(s3, multipart_bytes=5 * MIB, storage_class="GLACIER_IR")
    data = os.urandom(size)
    stores.write(f"{tmp_path}/x", data)
    up = stores.copy(f"{tmp_path}/x", f"s3://{bucket}/x")
    assert injected.requests.count("UploadPart") == (0 if size <= 5 * MIB else -(-size // (5 * MIB)))
    assert _storage_class(s3, bucket, "x") == "GLACIER_IR"
    down = stores.copy(f"s3://{bucket}/x", f"{tmp_path}/back/x")
    assert up.checksum == down.checksum
    assert (tmp_path / "back" / "x").read_bytes() == data


def test_two_endpoints_exchange_objects(s3: S3Server, bucket: str) -> None:
    from artemis_lifecycle_tests.storage import s3_server

    # localhost is another name of the same server, so to a client another endpoint.
    elsewhere = s3_server.S3Server(s3.endpoint.replace("127.0.0.1", "localhost"))
    stores, injected = _injected(elsewhere)
    s3.stores().write(f"s3://{bucket}/x", b"data")
    stores.copy(f"s3://{bucket}/x", f"s3://{bucket}/y", source_stores=s3.stores())
    assert "CopyObject" not in injected.requests
    assert stores.read(f"s3://{bucket}/y") == b"data"


@pytest.mark.parametrize("size", [4, 12 * MIB])
@pytest.mark.parametrize("where", ["HeadObject", "copy"])
def test_a_server_that_will_not_copy_by_itself_has_the_bytes_carried(
    s3: S3Server, bucket: str, size: int, where: str
) -> None:
    stores, injected = _injected(s3, multipart_bytes=5 * MIB)
    live, data = s3.stores(), os.urandom(size)
    live.write(f"s3://{bucket}/x", data)
    if where == "copy":
        injected.answer("CopyObject", lambda _: refusal(403, "AccessDenied"))
        injected.answer("UploadPartCopy", lambda _: refusal(501, "NotImplemented"))
    else:
        injected.answer("HeadObject", lambda request: refusal(403, "403") if request.url.endswith("/x") else None)
    stores.copy(f"s3://{bucket}/x", f"s3://{bucket}/y", source_stores=live)
    assert live.read(f"s3://{bucket}/y") == data
    uploads = s3.client().list_multipart_uploads(Bucket=bucket).get("Uploads", [])
    assert uploads == []


@pytest.mark.parametrize("answers", ["a digest", "another digest", "no digest", "400", "501"])
def test_a_copy_within_a_server_asks_little_and_is_read_back_where_the_server_computes_no_digest(
    s3: S3Server, bucket: str, answers: str
) -> None:
    stores, injected = _injected(s3)
    source, copy = f"s3://{bucket}/x", f"s3://{bucket}/y"
    stores.write(source, b"data")
    found = stores.head(source)

    def refuse(request: Any) -> Any:
        return refusal(int(answers), "Odd") if "x-amz-checksum-algorithm" in request.headers else None

    def change(parsed: dict[str, Any]) -> None:
        if answers != "a digest":
            parsed.get("CopyObjectResult", {}).pop("ChecksumSHA256", None)
        if answers == "another digest":
            parsed["CopyObjectResult"]["ChecksumSHA256"] = "AAAA"

    if answers.isdigit():
        injected.answer("CopyObject", refuse)
    injected.after("CopyObject", change)
    for _ in range(2):
        injected.requests.clear()
        done = stores.copy(source, copy, found=found, absent=True)
        assert done.checksum == "sha256:" + hashlib.sha256(b"data").hexdigest()
    # With the two HEADs of who asked before, at most five requests, and four with a digest.
    assert injected.requests == ["GetObject", "CopyObject", *(["GetObject"] if answers != "a digest" else [])]


@pytest.mark.parametrize("size", [4, 6 * MIB])
@pytest.mark.parametrize("honors", [True, False])
def test_a_server_copies_onto_no_object_only_where_a_probe_was_refused_a_second_copy(
    s3: S3Server, bucket: str, honors: bool, size: int
) -> None:
    stores, injected = _injected(s3, multipart_bytes=5 * MIB)
    stores.write(f"s3://{bucket}/t/x", data := os.urandom(size))

    def refuse(request: Any) -> Any:
        key = request.url.partition(f"/{bucket}/")[2]
        is_there = s3.stores().head(f"s3://{bucket}/{key}") is not None
        return refusal(412, "PreconditionFailed") if is_there and "if-none-match" in request.headers else None

    if honors:
        injected.answer("CopyObject", refuse)
        injected.answer("CompleteMultipartUpload", refuse)
    for number in (1, 2):
        injected.requests.clear()
        stores.copy(f"s3://{bucket}/t/x", copy := f"s3://{bucket}/c/y{number}", overwrite=False)
        copies = [each for each in injected.requests if "Copy" in each]
        assert len(copies) == (2 if number == 1 else 0) + honors * (1 if size == 4 else 2)
        assert stores.read(copy) == data
    assert _paths(stores, f"s3://{bucket}/c") == [f"s3://{bucket}/c/y1", f"s3://{bucket}/c/y2"]
    # Another file comes to be there between the look and the copy.
    s3.stores().write(f"s3://{bucket}/c/theirs", b"theirs")
    with pytest.raises(ExistingFile):
        stores.copy(f"s3://{bucket}/t/x", f"s3://{bucket}/c/theirs", absent=True, overwrite=False)
    assert stores.read(f"s3://{bucket}/c/theirs") == b"theirs"


def test_a_thaw_takes_the_class_away_where_the_server_cannot_restore(s3: S3Server, bucket: str) -> None:
    """SeaweedFS in a versioned bucket: it names the class, and every GET is answered."""
    stores, injected = _injected(s3)
    stores.write(path := f"s3://{bucket}/x", b"data")
    written: list[str | None] = []

    def named(parsed: dict[str, Any]) -> None:
        parsed["StorageClass"] = written[-1] if written else "DEEP_ARCHIVE"

    def copied(request: Any) -> None:
        written.append(request.headers.get("x-amz-storage-class", b"").decode())

    injected.after("HeadObject", named)
    injected.answer("RestoreObject", lambda _: refusal(405, "MethodNotAllowed"))
    injected.answer("CopyObject", copied)
    before = stores.archive_state(path)
    assert before is not None and before.archived and not before.readable
    stores.thaw(path, days=3)
    after = stores.archive_state(path)
    assert written == ["STANDARD"] and (after is None or not after.archived) and stores.read(path) == b"data"


def test_a_file_replaced_by_a_copy_without_the_probe_is_real(
    s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard of the test above, taken out: the server is believed to replace nothing."""
    monkeypatch.setattr(S3Store, "keeps_existing", lambda *_: True)
    stores, _ = _injected(s3)
    stores.write(f"s3://{bucket}/t/x", b"ours")
    s3.stores().write(f"s3://{bucket}/c/theirs", b"theirs")
    stores.copy(f"s3://{bucket}/t/x", f"s3://{bucket}/c/theirs", absent=True, overwrite=False)
    assert stores.read(f"s3://{bucket}/c/theirs") == b"ours"


def test_an_identical_copy_is_not_written_again(s3: S3Server, bucket: str) -> None:
    stores, injected = _injected(s3)
    stores.write(f"s3://{bucket}/x", b"same")
    stores.write(f"s3://{bucket}/y", b"same")
    injected.requests.clear()
    stores.copy(f"s3://{bucket}/x", f"s3://{bucket}/y")
    assert not {"CopyObject", "PutObject"} & set(injected.requests)


@pytest.mark.parametrize(("times", "size"), [(1, 4), (99, 4), (1, 6 * MIB), (99, 6 * MIB)])
def test_a_corrupted_copy_is_done_again_or_refused_and_taken_away(
    s3: S3Server, bucket: str, tmp_path: Path, times: int, size: int
) -> None:
    stores, injected = _injected(s3, multipart_bytes=5 * MIB)
    data = os.urandom(size)
    stores.write(f"{tmp_path}/x", data)
    spoiled: list[int] = []

    def spoil(params: dict[str, Any], **_: Any) -> None:
        if params.get("PartNumber", 1) == 1 and len(spoiled) < times:
            spoiled.append(1)
            body = bytes(params["Body"])
            # As a bad cable would: after the client's own checksum was taken of what it means to send.
            params["Body"] = bytes([body[0] ^ 1]) + body[1:]
            params.pop("ContentMD5")

    for operation in ("PutObject", "UploadPart"):
        injected.client.meta.events.register(f"provide-client-params.s3.{operation}", spoil)
    if times == 1:
        stores.copy(f"{tmp_path}/x", f"s3://{bucket}/y")
        assert stores.read(f"s3://{bucket}/y") == data
    else:
        with pytest.raises(CopyMismatch, match="3 times"):
            stores.copy(f"{tmp_path}/x", f"s3://{bucket}/y")
        assert stores.head(f"s3://{bucket}/y") is None


def test_a_refused_copy_does_not_take_away_another_writers_object(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    stores, injected = _injected(s3, copy_attempts=1)
    stores.write(f"{tmp_path}/x", b"data")

    def overtake(_: dict[str, Any]) -> None:
        s3.client().put_object(Bucket=bucket, Key="y", Body=b"theirs")

    injected.after("PutObject", overtake)
    with pytest.raises(CopyMismatch):
        stores.copy(f"{tmp_path}/x", f"s3://{bucket}/y")
    assert s3.stores().read(f"s3://{bucket}/y") == b"theirs"


def test_a_server_copies_only_the_object_that_was_read(s3: S3Server, bucket: str) -> None:
    stores, injected = _injected(s3, copy_attempts=2)
    stores.write(f"s3://{bucket}/x", b"data")

    def overtake(_: Any) -> None:
        s3.client().put_object(Bucket=bucket, Key="x", Body=b"DATA")

    def confirm(checksum: str) -> None:
        if checksum != "sha256:" + hashlib.sha256(b"data").hexdigest():
            raise CopyMismatch("another file", path="x", untouched="all", hint="none")

    injected.answer("CopyObject", overtake)
    with pytest.raises(CopyMismatch):
        stores.copy(f"s3://{bucket}/x", f"s3://{bucket}/y", overwrite=False, confirm=confirm)
    assert stores.head(f"s3://{bucket}/y") is None


def test_a_broken_upload_leaves_no_parts_behind(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    stores, injected = _injected(s3, multipart_bytes=5 * MIB)
    stores.write(f"{tmp_path}/x", b"1" * (6 * MIB))
    injected.answer("CompleteMultipartUpload", lambda _: refusal(403, "AccessDenied"))
    with pytest.raises(StorageError, match="in parts: AccessDenied"):
        stores.copy(f"{tmp_path}/x", f"s3://{bucket}/y")
    assert s3.client().list_multipart_uploads(Bucket=bucket).get("Uploads", []) == []
    assert stores.head(f"s3://{bucket}/y") is None


def test_an_upload_whose_last_answer_was_lost_is_found_to_be_done(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    stores, injected = _injected(s3, multipart_bytes=5 * MIB)
    stores.write(f"{tmp_path}/x", b"1" * (6 * MIB))
    lost: list[int] = []

    def lose(_: dict[str, Any]) -> None:
        lost.append(1)
        if len(lost) == 1:
            raise ConnectionClosedError(endpoint_url="http://s3")

    injected.after("CompleteMultipartUpload", lose)
    assert stores.copy(f"{tmp_path}/x", f"s3://{bucket}/y").size_in_bytes == 6 * MIB


def test_a_refused_write_is_reported_as_the_server_says_it(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    stores, injected = _injected(s3, multipart_bytes=5 * MIB)
    stores.write(f"{tmp_path}/x", b"1" * (6 * MIB))
    injected.answer("CompleteMultipartUpload", lambda _: refusal(404, "NoSuchUpload"))
    injected.answer("PutObject", lambda _: refusal(412, "PreconditionFailed"))
    with pytest.raises(StorageError, match="in parts: NoSuchUpload") as raised:
        stores.copy(f"{tmp_path}/x", f"s3://{bucket}/y")
    assert not isinstance(raised.value, MissingFile)
    with pytest.raises(StorageError, match="PreconditionFailed"):
        stores.write(f"s3://{bucket}/y", b"1", overwrite=True)


@pytest.mark.parametrize("fails", ["DeleteObjects", "HeadObject"])
def test_a_probe_that_the_server_is_too_busy_for_proves_nothing(s3: S3Server, bucket: str, fails: str) -> None:
    stores, injected = _injected(s3, attempts=2)
    path, asked = f"s3://{bucket}/t/x", list[str]()
    stores.write(path, b"1")

    def busy(request: Any) -> Any:
        body = request.body.decode() if request.body else ""
        asked.append(body)
        return refusal(503, "SlowDown") if len(asked) <= 2 else None

    injected.answer(fails, busy)
    assert stores.delete([path], etags={0: '"another"'})[0].outcome == "deleted"
    assert _paths(stores, f"s3://{bucket}") == [] and not any("another" in body for body in asked)


@pytest.mark.slow
def test_a_copy_holds_one_part_in_memory(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    import tracemalloc

    # The parts go nowhere: the server shares this process, and would hold them in the memory that is measured.
    stores, injected = _injected(s3, multipart_bytes=5 * MIB)
    with open(tmp_path / "x", "wb") as file:
        file.truncate(60 * MIB)
    etags: list[str] = []

    def swallow(_: Any) -> Any:
        etags.append("e")
        return reply(200, {"etag": f'"{len(etags)}"'})

    injected.answer("UploadPart", swallow)
    injected.answer("CompleteMultipartUpload", lambda _: refusal(403, "AccessDenied"))
    tracemalloc.start()
    try:
        with pytest.raises(StorageError):
            stores.copy(f"{tmp_path}/x", f"s3://{bucket}/y")
        assert tracemalloc.get_traced_memory()[1] < 20 * MIB
    finally:
        tracemalloc.stop()
    assert len(etags) == 12


@pytest.mark.parametrize("storage_class", ["GLACIER", "DEEP_ARCHIVE"])
def test_a_copy_that_could_not_be_read_back_is_refused(stores: Stores, bucket: str, storage_class: str) -> None:
    stores.write(f"s3://{bucket}/x", b"1")
    with pytest.raises(StorageError, match="cannot be verified"):
        stores.copy(f"s3://{bucket}/x", f"s3://{bucket}/y", storage_class=storage_class)
    assert stores.head(f"s3://{bucket}/y") is None


# --- settings, secrets ----------------------------------------------------------------------------------------------


def test_settings_come_from_the_properties_that_pyiceberg_reads(s3: S3Server) -> None:
    properties = {
        "s3.endpoint": s3.endpoint,
        "s3.access-key-id": ACCESS_KEY,
        "s3.secret-access-key": SECRET_KEY,
        "s3.session-token": SESSION_TOKEN,
        "client.region": "eu-west-1",
        "s3.path-style-access": "false",
    }
    settings = StoreSettings.from_catalog(Catalog(name="cold", storage_class="GLACIER_IR", properties=properties))
    assert settings.secrets() == (ACCESS_KEY, SECRET_KEY, SESSION_TOKEN)
    assert (settings.s3_endpoint, settings.s3_region) == (s3.endpoint, "eu-west-1")
    assert settings.s3_path_style is False
    assert settings.storage_class == "GLACIER_IR"
    assert StoreSettings.from_catalog(Catalog(name="live")) == StoreSettings()
    with pytest.raises(ConfigError, match="neither true nor false"):
        StoreSettings.from_catalog(Catalog(name="live", properties={"s3.path-style-access": "perhaps"}))


def test_a_given_client_is_used_in_process_and_settings_on_executors(s3: S3Server, bucket: str) -> None:
    stores, injected = _injected(s3)
    stores.write(f"s3://{bucket}/x", b"1")
    assert injected.requests == ["PutObject"]
    assert pickle.loads(pickle.dumps(stores)).read(f"s3://{bucket}/x") == b"1"
    assert injected.requests == ["PutObject"]


def test_one_process_makes_one_client_for_equal_settings(s3: S3Server) -> None:
    first, second = Stores(s3.settings()), pickle.loads(pickle.dumps(Stores(s3.settings())))
    one, other = first._remote("s3://b"), second._remote("s3://b")
    assert isinstance(one, S3Store) and isinstance(other, S3Store) and one is not other
    assert one.s3.client is other.s3.client


def test_no_representation_shows_a_secret(s3: S3Server, stores: Stores, bucket: str) -> None:
    stores.head(f"s3://{bucket}/x")
    shown = [repr(stores), str(stores), repr(stores.settings), str(stores.settings), f"{stores.settings!s}"]
    for secret in (ACCESS_KEY, SECRET_KEY, SESSION_TOKEN):
        assert not any(secret in text for text in shown)


def test_no_error_shows_a_secret(s3: S3Server, bucket: str) -> None:
    stores, injected = _injected(s3, attempts=1)
    injected.answer(
        "GetObject", lambda _: refusal(403, "InvalidAccessKeyId", f"no key {ACCESS_KEY} {SECRET_KEY} {SESSION_TOKEN}")
    )
    with pytest.raises(StorageError) as raised:
        stores.read(f"s3://{bucket}/x")
    reported = "".join(traceback.format_exception(raised.value))
    for secret in (ACCESS_KEY, SECRET_KEY, SESSION_TOKEN):
        assert secret not in reported


def test_an_endpoint_with_a_password_is_refused_without_showing_it() -> None:
    with pytest.raises(ConfigError) as raised:
        StoreSettings(s3_endpoint="http://user:hunter2@host:9000")
    assert "hunter2" not in str(raised.value)


def test_no_log_shows_a_secret_even_at_debug(
    s3: S3Server, bucket: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        stores = Stores(s3.settings(s3_connect_timeout=4.0))  # Settings of its own, so that the client is made here.
        stores.write(f"s3://{bucket}/x", b"data")
        stores.copy(f"s3://{bucket}/x", f"{tmp_path}/x")
        stores.delete([f"s3://{bucket}/x"])
    assert len(caplog.records) > 50
    for secret in (SECRET_KEY, SESSION_TOKEN, ACCESS_KEY):
        telling = [record.name for record in caplog.records if secret in record.getMessage()]
        assert telling == []
    assert "Signature=" not in caplog.text


# --- one object at a path after another ------------------------------------------------------------------------------


def test_many_statuses_come_from_listings_and_scattered_ones_from_single_requests(s3: S3Server, bucket: str) -> None:
    stores, injected = _injected(s3)
    s3.fill(bucket, [f"t/data/{number:05}" for number in range(3_000)])
    dense = [f"s3://{bucket}/t/data/{number:05}" for number in range(0, 2_000, 2)]
    paths = pa.array([*dense, f"s3://{bucket}/t/data/none", f"s3a://{bucket}/t/data/00001"])
    found = stores.statuses(paths)
    assert found.found.tolist() == [*(True for _ in dense), False, True]
    assert (injected.requests.count("ListObjectsV2"), injected.requests.count("HeadObject")) == (2, 2)
    single = [stores.head(path) for path in dense[:3]]
    assert [each.identity for each in single if each] == [
        FileIdentity(int(found.sizes[row]), int(found.modified[row]), int(found.tags[row])) for row in range(3)
    ]
    # One page has too few of these to be worth another.
    injected.requests.clear()
    sparse = pa.array([f"s3://{bucket}/t/data/{number:05}" for number in range(0, 3_000, 150)])
    assert stores.statuses(sparse).found.all()
    assert injected.requests.count("ListObjectsV2") == 1 and injected.requests.count("HeadObject") <= 20


def test_the_pages_of_many_statuses_are_asked_for_at_once(s3: S3Server, bucket: str) -> None:
    stores, injected = _injected(s3)
    s3.fill(bucket, [f"t/{number:05}" for number in range(2_000)])
    both = threading.Barrier(2)

    def together(_: Any) -> None:
        both.wait(60)

    injected.answer("ListObjectsV2", together)
    found = stores.statuses(pa.array([f"s3://{bucket}/t/{number:05}" for number in range(2_000)]))
    assert found.found.all() and injected.requests == ["ListObjectsV2", "ListObjectsV2"]


def test_without_the_right_to_list_statuses_come_from_single_requests(s3: S3Server, bucket: str) -> None:
    stores, injected = _injected(s3)
    s3.fill(bucket, [f"t/{number:05}" for number in range(30)])
    injected.answer("ListObjectsV2", lambda request: refusal(403, "AccessDenied"))
    assert stores.statuses(pa.array([f"s3://{bucket}/t/{number:05}" for number in range(30)])).found.all()
    assert injected.requests.count("HeadObject") == 30


def _with_conditions(s3: S3Server, injected: Injected) -> None:
    """Let the server delete by ETag, which the one of the tests ignores."""

    def refuse(request: Any) -> Any:
        import re

        text = request.body if isinstance(request.body, str) else request.body.decode()
        bucket = request.url.partition("://")[2].split("/")[1].partition("?")[0]
        for key, etag in re.findall(r"<Key>([^<]*)</Key><ETag>([^<]*)</ETag>", text):
            now = s3.client().list_objects_v2(Bucket=bucket, Prefix=key).get("Contents", ())
            if now and now[0]["ETag"].strip('"') != etag.replace("&quot;", "").strip('"'):
                body = f"<Error><Key>{key}</Key><Code>PreconditionFailed</Code><Message>ETag</Message></Error>"
                return reply(200, {"content-type": "application/xml"}, f"<DeleteResult>{body}</DeleteResult>".encode())
        return None

    injected.answer("DeleteObjects", refuse)


@pytest.mark.parametrize("honors", [True, False])
def test_a_delete_depends_on_the_etag_only_where_a_probe_survived_a_wrong_one(
    s3: S3Server, bucket: str, honors: bool
) -> None:
    stores, injected = _injected(s3)
    if honors:
        _with_conditions(s3, injected)
    path = f"s3://{bucket}/t/part-0.parquet"
    stores.write(path, b"first")
    seen = stores.statuses(pa.array([path]))
    stores.write(path, b"second", overwrite=True)
    removals = stores.remove(pa.array([path]), etags=seen.etags)
    assert (removals.outcomes.tolist(), stores.head(path) is not None) == ([FAILED if honors else REMOVED], honors)
    assert _paths(stores, f"s3://{bucket}/t") == ([path] if honors else [])
    # The server is asked once.
    injected.requests.clear()
    stores.write(path, b"third", overwrite=True)
    now = stores.statuses(pa.array([path]))
    assert stores.remove(pa.array([path]), etags=now.etags).outcomes.tolist() == [REMOVED]
    assert injected.requests.count("PutObject") == 1 and stores.head(path) is None


def test_a_delete_names_no_version(s3: S3Server, bucket: str) -> None:
    """In a bucket with versions, what a delete hides can be brought back, and no version of a newer object goes."""
    stores = s3.stores()
    s3.client().put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    path = f"s3://{bucket}/t/part-0.parquet"
    stores.write(path, b"first")
    stores.write(path, b"second", overwrite=True)
    assert stores.remove(pa.array([path]), etags=stores.statuses(pa.array([path])).etags).outcomes.tolist() == [REMOVED]
    versions = s3.client().list_object_versions(Bucket=bucket, Prefix="t/part-0").get("Versions", ())
    assert len(versions) == 2 and stores.head(path) is None
