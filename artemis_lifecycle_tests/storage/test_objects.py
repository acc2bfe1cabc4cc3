"""What object stores besides S3 have: conditions by ETag or generation, lost answers, parts, errors, credentials."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import requests

from artemis_lifecycle.errors import ConfigError, CopyMismatch, ExistingFile, MissingFile, StorageError
from artemis_lifecycle.storage import objects
from artemis_lifecycle.storage.azure import AzureRequests
from artemis_lifecycle.storage.gcs import GcsRequests
from artemis_lifecycle.storage.objects import Address, Refusal
from artemis_lifecycle.storage.pace import Pace
from artemis_lifecycle.storage.settings import MIB, AzureSettings, StoreSettings
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.types import FAILED, REMOVED, Sameness
from artemis_lifecycle_tests.storage import object_servers
from artemis_lifecycle_tests.storage.object_servers import ObjectServer

pytestmark = pytest.mark.seconds

KINDS = {"gcs": GcsRequests, "azure": AzureRequests}


@pytest.fixture(params=["gcs", pytest.param("azure", marks=pytest.mark.nightly)])
def server(request: pytest.FixtureRequest) -> Iterator[ObjectServer]:
    found: ObjectServer = request.getfixturevalue(request.param)
    if found.kind == "azure":
        yield found
        return
    with object_servers.strict(found) as strict:
        yield strict


@pytest.fixture
def requests_of(server: ObjectServer) -> type[Any]:
    return KINDS[server.kind]


def _answers_get_lost(monkeypatch: pytest.MonkeyPatch, kind: type[Any], name: str) -> list[int]:
    """The server does the first of these requests, and the client learns nothing of it."""
    real, sent = getattr(kind, name), []

    def request(self: Any, *arguments: Any, **options: Any) -> Any:
        answer = real(self, *arguments, **options)
        sent.append(1)
        if len(sent) == 1:
            raise Refusal(0, "connection reset")
        return answer

    monkeypatch.setattr(kind, name, request)
    return sent


# --- conditions -------------------------------------------------------------------------------------------------------


def test_an_object_that_was_written_again_survives_the_delete_of_the_former(server: ObjectServer) -> None:
    stores, root = server.stores(), server.root()
    paths = [f"{root}/t/{name}" for name in ("again", "same", "listed")]
    for path in paths:
        stores.write(path, b"1")
    seen = stores.statuses(pa.array(paths))
    [listed] = [file for file in stores.list(f"{root}/t") if file.path == paths[2]]
    stores.write(paths[0], b"2", overwrite=True)
    removals = stores.remove(pa.array(paths), etags={**seen.etags, 2: str(listed.etag)})
    assert removals.outcomes.tolist() == [FAILED, REMOVED, REMOVED]
    assert [file.path for file in stores.list(root)] == [paths[0]]
    assert stores.read(paths[0]) == b"2"


def test_a_server_that_ignores_the_condition_of_a_delete_is_not_trusted_with_it(
    server: ObjectServer, requests_of: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, root = server.stores(), server.root()
    stores.write(f"{root}/t/x", b"1")
    real, asked = requests_of.delete, []

    def delete(self: Any, at: Any, token: str | None) -> None:
        asked.append((at.key, token))
        real(self, at, None)

    monkeypatch.setattr(requests_of, "delete", delete)
    assert stores.delete([f"{root}/t/x"], etags={0: requests_of.wrong_token})[0].outcome == "deleted"
    assert [token for key, token in asked if key == "t/x"] == [None]
    assert list(stores.list(root)) == []


def test_identity_is_size_time_and_token_the_same_in_a_listing_and_a_head(server: ObjectServer) -> None:
    stores, root = server.stores(), server.root()
    stores.write(f"{root}/t/x", b"1")
    [listed] = stores.list(root)
    head = stores.head(f"{root}/t/x")
    assert head is not None and listed == head
    stores.write(f"{root}/t/x", b"2", overwrite=True)
    again = stores.head(f"{root}/t/x")
    assert again is not None and head.identity.compare(again.identity) is Sameness.UNSURE


def test_only_the_object_that_was_read_is_copied(server: ObjectServer) -> None:
    stores, root = server.stores(), server.root()
    source, target = f"{root}/t/x", f"{root}/cold/x"
    stores.write(source, b"12345")
    found = stores.head(source)
    stores.write(source, b"other", overwrite=True)
    with pytest.raises(StorageError, match="run the step again"):
        stores.copy(source, target, found=found)
    with pytest.raises(CopyMismatch, match="the source changed meanwhile"):
        stores.copy(source, target, found=found, overwrite=False)
    assert stores.head(target) is None
    stores.write(target, b"there")
    with pytest.raises(ExistingFile):
        stores.copy(source, target, overwrite=False)
    assert stores.read(target) == b"there"


def test_a_reader_never_mixes_two_objects(server: ObjectServer) -> None:
    stores, path = server.stores(), f"{server.root()}/t/x"
    stores.write(path, b"1" * 3 * MIB)
    with stores.open(path) as file:
        assert file.read(10) == b"1" * 10
        stores.write(path, b"2" * 3 * MIB, overwrite=True)
        with pytest.raises(StorageError, match="run the step again"):
            file.read()


def test_folders_with_empty_names_are_walked_to_their_end(server: ObjectServer) -> None:
    stores, root = server.stores(), server.root()
    stores.write(f"{root}/t//x", b"1")
    assert stores.children(f"{root}/t") == ([f"{root}/t//"], [])
    folders, files = stores.children(f"{root}/t//")
    assert (folders, [file.path for file in files]) == ([], [f"{root}/t//x"])


# --- writing ----------------------------------------------------------------------------------------------------------


def test_a_lost_answer_to_a_write_is_found_again_and_anothers_object_is_not_taken_for_it(
    server: ObjectServer, requests_of: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, root = server.stores(), server.root()
    sent = _answers_get_lost(monkeypatch, requests_of, "put")
    stores.write(f"{root}/t/x", b"1")
    assert len(sent) == 1  # The retry was refused.
    with pytest.raises(ExistingFile):
        stores.write(f"{root}/t/x", b"1")


@pytest.mark.parametrize("size", [5 * MIB, 17 * MIB + 1])
def test_large_objects_go_in_parts_and_never_over_another(server: ObjectServer, size: int, tmp_path: Any) -> None:
    stores, root, source = server.stores(multipart_bytes=5 * MIB), server.root(), str(tmp_path / "x")
    data = os.urandom(size)
    Stores().write(source, data)
    stores.copy(source, f"{root}/t/x", source_stores=Stores())
    assert stores.read(f"{root}/t/x") == data
    Stores().write(source, data[::-1], overwrite=True)
    with pytest.raises(ExistingFile):
        stores.copy(source, f"{root}/t/x", source_stores=Stores(), overwrite=False)
    assert stores.read(f"{root}/t/x") == data


@pytest.mark.parametrize("size", [16 * MIB, 17 * MIB])
def test_a_large_object_that_is_not_confirmed_never_stands_at_its_place(
    server: ObjectServer, size: int, tmp_path: Any
) -> None:
    stores, root, source = server.stores(multipart_bytes=8 * MIB), server.root(), str(tmp_path / "x")
    Stores().write(source, b"1" * size)

    def refuse(checksum: str) -> None:
        raise StorageError("another file's bytes", path="x", untouched="all", hint="none")

    with pytest.raises(StorageError, match="another file's bytes"):
        stores.copy(source, f"{root}/t/x", source_stores=Stores(), confirm=refuse)
    assert list(stores.list(root)) == []


def test_a_class_that_cannot_be_read_back_is_refused_and_nothing_is_archived(server: ObjectServer) -> None:
    stores, root = server.stores(), server.root()
    # The default of a cold catalog, and what probes are written in.
    stores.write(f"{root}/t/x", b"1", storage_class="GLACIER_IR")
    stores.write(f"{root}/t/probe", b"1", storage_class="STANDARD")
    with pytest.raises(StorageError, match="no archive class") as refused:
        stores.archive(f"{root}/t/x")
    assert "cold_tier.then" in str(refused.value) and stores.read(f"{root}/t/x") == b"1"
    stores.thaw(f"{root}/t/x", days=1)
    state = stores.archive_state(f"{root}/t/x")
    assert state is not None and (state.archived, state.readable) == (False, True)
    assert stores.archive_state(f"{root}/t/none") is None
    with pytest.raises(MissingFile):
        stores.archive(f"{root}/t/none")
    if server.kind == "azure":
        with pytest.raises(StorageError, match="cannot be read back"):
            stores.copy(f"{root}/t/x", f"{root}/t/y", storage_class="Archive")


# --- errors -----------------------------------------------------------------------------------------------------------


def test_a_missing_bucket_is_not_taken_for_an_absent_file(server: ObjectServer) -> None:
    stores, root = server.stores(), server.root().replace("bucket-", "nobody-")
    for ask in (stores.head, stores.read, lambda path: list(stores.list(path)), stores.children, stores.open):
        with pytest.raises(StorageError) as refused:
            ask(f"{root}/t")
        assert not isinstance(refused.value, MissingFile) and "check" in str(refused.value)
    assert stores.delete([f"{root}/t/x"])[0].outcome == "failed"


def test_a_server_that_does_not_answer_or_refuses_says_what_where_and_what_next(server: ObjectServer) -> None:
    root, nowhere = server.root(), "127.0.0.1:9"
    away = {"adls.blob-storage-authority": nowhere, "gcs.service.host": f"http://{nowhere}"}
    stores = server.stores(properties=away, attempts=2)
    for ask in (stores.head, stores.read, lambda path: list(stores.list(path))):
        with pytest.raises(StorageError) as refused:
            ask(f"{root}/t")
        assert root in str(refused.value) and "Left untouched" in str(refused.value) and "Next: " in str(refused.value)
    assert stores.delete([f"{root}/x"])[0].outcome == "failed"


def test_an_answer_without_a_token_is_an_error_of_the_store(
    server: ObjectServer, requests_of: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, path, real = server.stores(), f"{server.root()}/x", requests_of.head
    stores.write(path, b"1")
    monkeypatch.setattr(requests_of, "head", lambda self, at: real(self, at)._replace(token=None))
    with pytest.raises(StorageError, match="neither ETag nor generation"):
        stores.open(path)


def test_a_busy_server_is_asked_again_and_each_request_waits_for_its_turn(
    server: ObjectServer, requests_of: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, root, real = server.stores(), server.root(), requests_of.delete
    stores.write(f"{root}/x", b"123")
    taken: list[tuple[str, float]] = []

    def delete(self: Any, at: Any, token: str | None) -> None:
        if len(taken) < 6:
            raise Refusal(503, "slow down")
        real(self, at, token)

    class Turns(Pace):
        def take(self, kind: str, count: float) -> None:
            taken.append((kind, count))

    monkeypatch.setattr(requests_of, "delete", delete)
    monkeypatch.setattr(objects, "pace_of", lambda *_: Turns(None, {}))
    assert stores.delete([f"{root}/x"])[0].outcome == "deleted"
    assert taken == 3 * [("writes", 1), ("bytes", 0)]
    taken.clear()
    stores.write(f"{root}/y", b"123")
    assert stores.read(f"{root}/y") == b"123"
    assert taken == [("writes", 1), ("bytes", 3), ("reads", 1), ("bytes", 0), ("bytes", 3)]


def test_a_versioned_bucket_loses_no_older_version(gcs: ObjectServer) -> None:
    host, name = gcs.properties["gcs.service.host"], f"versions-{os.urandom(4).hex()}"
    body = {"name": name, "versioning": {"enabled": True}}
    requests.post(f"{host}/storage/v1/b?project=x", json=body, timeout=10).raise_for_status()
    stores, path = gcs.stores(), f"gs://{name}/t/x"
    stores.write(path, b"1")
    stores.write(path, b"2", overwrite=True)
    found = stores.head(path)
    assert found is not None and stores.delete([path], etags={0: str(found.etag)})[0].outcome == "deleted"
    assert stores.delete([path])[0].outcome == "absent"
    kept = requests.get(f"{host}/storage/v1/b/{name}/o?versions=true&prefix=t/x", timeout=10).json()["items"]
    assert len(kept) == 2


# --- Azure's keys and credentials -------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["a/../b", "a/./b", "a\\b", "a/b.", "a./b"])
def test_a_key_that_azure_or_its_clients_change_is_not_touched(key: str) -> None:
    stores = Stores(StoreSettings(azure=AzureSettings(key="a2V5"), attempts=1))
    path = f"abfss://c@nowhere.dfs.core.windows.net/{key}"
    for ask in (stores.head, stores.read):
        with pytest.raises(StorageError, match="No object has this key"):
            ask(path)
    assert stores.delete([path])[0].outcome == "failed"


def test_a_path_without_an_account_or_of_another_account_is_refused_before_any_request() -> None:
    with pytest.raises(StorageError, match="names no storage account"):
        Stores(StoreSettings(azure=AzureSettings(key="a2V5"))).head("abfss://c/x")
    with pytest.raises(StorageError, match="are of account one, the path is of two"):
        Stores(StoreSettings(azure=AzureSettings("one", "a2V5"))).head("abfss://c@two.dfs.core.windows.net/x")
    with pytest.raises(ConfigError, match="not base64"):
        Stores(StoreSettings(azure=AzureSettings("one", "?"))).head("abfss://c@one.dfs.core.windows.net/x")


def test_endpoints_follow_the_host_in_the_path() -> None:
    azure = AzureSettings()
    assert azure.endpoint("a.dfs.core.windows.net") == "https://a.blob.core.windows.net"
    assert azure.endpoint("a.blob.core.chinacloudapi.cn") == "https://a.blob.core.chinacloudapi.cn"
    assert azure.endpoint("a") == "https://a.blob.core.windows.net"
    assert replace(azure, authority=".blob.local").endpoint("a.dfs.x") == "https://a.blob.local"


@contextmanager
def _blob_service(headers: dict[str, str]) -> Iterator[tuple[AzureSettings, list[str | None]]]:
    """A server that answers everything with an empty object, and whom it was asked by."""
    asked: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            asked.append(self.headers.get("Authorization"))
            self.send_response(200)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield AzureSettings("a", scheme="http", authority=f"127.0.0.1:{running.server_port}"), asked
        running.shutdown()


def test_entra_id_gives_a_token_or_the_store_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from azure.core.exceptions import ClientAuthenticationError
    from azure.identity import ClientSecretCredential

    given = ["t1", "t2"]

    def get_token(self: Any, scope: str) -> Any:
        assert scope == "https://storage.azure.com/.default"
        if not given:
            raise ClientAuthenticationError("AADSTS7000215: the secret is never-show-this")
        return SimpleNamespace(token=given.pop(0))

    monkeypatch.setattr(ClientSecretCredential, "get_token", get_token)
    path = "abfss://c@a.dfs.core.windows.net/x"
    with _blob_service({"Content-Length": "0", "Last-Modified": "Fri, 21 Dec 2012 00:00:00 GMT"}) as (azure, asked):
        principal = replace(azure, tenant_id="t-id", client_id="c", client_secret="never-show-this")
        stores = Stores(StoreSettings(azure=principal, attempts=1))
        assert stores.head(path) is not None and stores.head(path) is not None
        assert asked == ["Bearer t1", "Bearer t2"]
        with pytest.raises(StorageError, match=r"Entra ID gives no token.*check the catalog's credentials") as refused:
            stores.head(path)
        assert "never-show-this" not in str(refused.value) + repr(stores) and len(asked) == 2
        # It names no ETag.
        with pytest.raises(StorageError, match="neither ETag nor generation"):
            Stores(StoreSettings(azure=replace(azure, token="t3"))).open(path)
        assert asked[-1] == "Bearer t3"


def test_folders_of_azure_are_no_files() -> None:
    said = {"Content-Length": "0", "Last-Modified": "Fri, 21 Dec 2012 00:00:00 GMT", "ETag": '"1"'}
    page = {**said, "x-ms-resource-type": "directory"}, {**said, "x-ms-meta-hdi_isfolder": "true"}
    for headers in page:
        with _blob_service(headers) as (azure, _):
            requests_of = AzureRequests(StoreSettings(azure=replace(azure, token="t")))
            with pytest.raises(Refusal, match="a folder"):
                requests_of.head(Address("abfss://c@a", "c@a", "x"))


def test_a_listing_of_azure_leaves_folders_out_and_takes_every_name(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = "<Properties><Last-Modified>Fri, 21 Dec 2012 00:00:00 GMT</Last-Modified><Etag>0x1</Etag>"
    facts += "<Content-Length>7</Content-Length>{}</Properties>{}"
    blobs = [
        ("<Name>t/a &amp; b//c%20</Name>", "", ""),
        ('<Name Encoded="true">t/x%09y</Name>', "", ""),
        ("<Name>t/folder</Name>", "<ResourceType>directory</ResourceType>", ""),
        ("<Name>t/marker</Name>", "", "<Metadata><hdi_isfolder>true</hdi_isfolder></Metadata>"),
    ]
    text = "".join(f"<Blob>{name}{facts.format(*more)}</Blob>" for name, *more in blobs)
    body = f"<EnumerationResults><Blobs>{text}</Blobs><NextMarker/></EnumerationResults>".encode()
    monkeypatch.setattr(AzureRequests, "ask", lambda self, *_, **__: (None, body))
    listed = [*Stores(StoreSettings(azure=AzureSettings("a", "a2V5"))).list("abfss://c@a.dfs.x/t")]
    assert [file.path for file in listed] == ["abfss://c@a.dfs.x/t/a & b//c%20", "abfss://c@a.dfs.x/t/x\ty"]
    assert [file.etag for file in listed] == 2 * ['"0x1"'] and listed[0].size_in_bytes == 7
    for broken in (body[:-9], body.replace(b"<Content-Length>7</Content-Length>", b""), b"<html/>"):
        monkeypatch.setattr(AzureRequests, "ask", lambda self, *_, broken=broken, **__: (None, broken))
        with pytest.raises(StorageError, match="the listing cannot be read"):
            list(Stores(StoreSettings(azure=AzureSettings("a", "a2V5"))).list("abfss://c@a.dfs.x/t"))


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.DEBUG):
        yield caplog


@pytest.mark.nightly
def test_a_sas_token_suffices_and_is_neither_logged_nor_shown(
    azure: ObjectServer, said: pytest.LogCaptureFixture
) -> None:
    sas = object_servers.sas_token()
    signature = sas.partition("sig=")[2].partition("&")[0]
    assert signature
    properties = {name: value for name, value in azure.properties.items() if name != "adls.account-key"}
    server = replace(azure, properties=properties | {"adls.sas-token": sas})
    stores, root = server.stores(), server.root()
    stores.write(f"{root}/t/x y", b"1")
    stores.copy(f"{root}/t/x y", f"{root}/t/z")
    assert [file.path for file in stores.list(root)] == [f"{root}/t/x y", f"{root}/t/z"]
    wrong = server.stores(properties={"adls.sas-token": sas.replace(signature[:9], "AAAAAAAAA")}, attempts=1)
    away = server.stores(properties={"adls.blob-storage-authority": "127.0.0.1:9"}, attempts=1)
    for each in (wrong, away):
        for ask in (each.head, each.read, lambda path, each=each: list(each.list(path))):
            with pytest.raises(StorageError) as refused:
                ask(f"{root}/t")
            assert signature not in str(refused.value) and refused.value.__cause__ is None
    assert signature not in said.text and signature not in repr(stores.settings)
    assert object_servers.KEY not in repr(azure.settings())
