"""Requests to Azure Blob Storage and ADLS Gen2: paths with `abfss:`, `abfs:`, `wasbs:` or `wasb:`.

Each is one request to the REST API of blobs: obstore has no conditional copies and deletes, hides error codes, and
fails to list a container with a key such as `a//b`. Azure's own library would add its retries to those of the budget.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import os
import re
import threading
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from functools import partial
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from xml.etree import ElementTree

import requests
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase
from urllib3.exceptions import HTTPError

from artemis_lifecycle.errors import ConfigError, EnvironmentMissing, StorageError
from artemis_lifecycle.storage.bounded import ReadLimits
from artemis_lifecycle.storage.objects import Address, Call, Item, Page, Refusal
from artemis_lifecycle.storage.settings import AzureSettings, StoreSettings

_VERSION = "2023-11-03"
_SCOPE = "https://storage.azure.com/.default"
_WRITE_ID = "x-ms-meta-artemiswrite"
_FOLDER = "hdi_isfolder"
"""The metadata of an empty object by which Hadoop marks a folder."""

_PAGE = 5000
_COPY_POLLED = 0.5
_SIGNED = re.compile(r"(sig=)[^&\s'\"]+")


class AzureRequests:
    """The blob service of the accounts in paths: `abfss://container@account.dfs.core.windows.net/key`."""

    kind = "Azure"
    credentials = "adls.account-key, adls.sas-token, adls.token, or Entra ID"
    classes: Mapping[str, str | None] = MappingProxyType({"STANDARD": None, "GLACIER_IR": "Cold"})
    wrong_token = '"0x0000000000000000"'

    def __init__(self, settings: StoreSettings) -> None:
        self._settings, self._azure = settings, settings.azure
        self._sessions: dict[int, requests.Session] = {}
        self._lock = threading.Lock()
        logging.getLogger("urllib3.connectionpool").addFilter(_without_signature)

    def refused_key(self, key: str) -> str | None:
        """Addresses with these name another object."""
        if "\\" in key:
            return "Azure takes a backslash for a slash"
        if any(name.endswith(".") for name in key.split("/")):
            return "Azure and its clients drop dots at the end of a name"
        return None

    def server(self, bucket: str) -> str:
        return self._place(bucket)[1]

    def _place(self, bucket: str) -> tuple[str, str, str]:
        """Return the account, the address of its blob service, and the container."""
        container, at, host = bucket.partition("@")
        if not at:
            if self._azure.account is None:
                raise StorageError(
                    "The path names no storage account",
                    path=f"abfss://{bucket}",
                    hint="write abfss://container@account.dfs.core.windows.net/key, or set adls.account-name",
                )
            host = self._azure.account
        account, azure = host.partition(".")[0], self._azure
        if (azure.key or azure.sas_token) and azure.account not in (None, account):
            raise StorageError(
                f"adls.account-key and adls.sas-token are of account {azure.account}, the path is of {account}",
                path=f"abfss://{bucket}",
                hint="give the catalog of that account its own properties",
            )
        return account, azure.endpoint(host), container

    # --- requests

    def _session(self, account: str) -> requests.Session:
        with self._lock:
            # A fork must not share sockets.
            session = self._sessions.get(os.getpid())
            if session is None:
                session = self._sessions[os.getpid()] = requests.Session()
                adapter = HTTPAdapter(pool_maxsize=self._settings.s3_connections)
                session.mount("https://", adapter)
                session.mount("http://", adapter)
                session.headers.update({"Accept-Encoding": "identity", "x-ms-version": _VERSION})
        return session

    def ask(
        self,
        method: str,
        bucket: str,
        key: str,
        headers: Mapping[str, str | None] = {},
        *,
        query: str = "",
        data: bytes | bytearray = b"",
        limits: tuple[ReadLimits, str] | None = None,
    ) -> tuple[requests.Response, bytes]:
        """Return the answer and its body."""
        account, endpoint, container = self._place(bucket)
        url = f"{endpoint}/{container}{'/' + quote(key, safe='/') if key else ''}"
        query = "&".join(part for part in (query, self._azure.sas_token) if part)
        settings = self._settings
        try:
            with self._session(account).request(
                method,
                f"{url}?{query}" if query else url,
                headers={name: value for name, value in headers.items() if value is not None},
                data=bytes(data) if method == "PUT" else None,
                auth=_Signed(account, self._azure),
                timeout=(settings.s3_connect_timeout, settings.s3_read_timeout),
                allow_redirects=False,
                stream=True,
            ) as answer:
                if not answer.ok:
                    raise _refused(answer)
                if limits is not None:
                    limits[0].require(int(answer.headers.get("Content-Length") or 0), limits[1])
                # Not `content`, which would undo a blob's own encoding.
                return answer, answer.raw.read(decode_content=False)
        except (requests.RequestException, HTTPError, OSError) as error:
            raise Refusal(0, _SIGNED.sub(r"\1***", str(error))) from None

    def page(self, bucket: str, prefix: str, *, deep: bool, after: Any) -> Page:
        query = {"restype": "container", "comp": "list", "include": "metadata", "prefix": prefix, "marker": after}
        query |= {"delimiter": None if deep else "/", "maxresults": str(_PAGE)}
        text = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items() if value)
        try:
            answer = ElementTree.fromstring(self.ask("GET", bucket, "", query=text)[1])
            items = [item for blob in answer.iter("Blob") if (item := _listed(blob)) is not None]
            return [_name(each) for each in answer.iter("BlobPrefix")], items, answer.findtext("NextMarker") or None
        except (ElementTree.ParseError, AttributeError, TypeError, ValueError) as error:
            raise Refusal(502, f"the listing cannot be read: {error}", settled=True) from None

    def head(self, bucket: str, key: str) -> Item:
        said = self.ask("HEAD", bucket, key)[0].headers
        if said.get("x-ms-resource-type") == "directory" or said.get(f"x-ms-meta-{_FOLDER}") == "true":
            raise Refusal(404, "a folder", code="BlobNotFound")
        if "Content-Length" not in said or "Last-Modified" not in said:
            raise Refusal(502, "the answer has no size or no time", settled=True)
        return Item(
            key,
            int(said["Content-Length"]),
            parsedate_to_datetime(said["Last-Modified"]),
            _quoted(said.get("ETag")),
            said.get(_WRITE_ID),
            archived=said.get("x-ms-access-tier") == "Archive",
            thawing=said.get("x-ms-archive-status", "").startswith("rehydrate"),
        )

    def get(self, bucket: str, key: str, start: int, length: int | None, token: str | None) -> bytes:
        span = f"bytes={start}-{start + length - 1 if length is not None else ''}"
        answer, data = self.ask("GET", bucket, key, {"Range": span, "If-Match": token})
        if start and answer.status_code != 206:
            raise Refusal(501, "the server ignores the range of a request")
        return data[:length]

    def whole(self, bucket: str, key: str, limits: ReadLimits, path: str) -> bytes:
        return self.ask("GET", bucket, key, limits=(limits, path))[1]

    def put(
        self, bucket: str, key: str, data: bytes | bytearray, *, new: bool, storage_class: str | None, write_id: str
    ) -> str:
        headers = _written(new, storage_class, write_id) | {"x-ms-blob-type": "BlockBlob", "Content-MD5": _md5(data)}
        return _token_of(self.ask("PUT", bucket, key, headers, data=data)[0])

    def put_parts(
        self,
        bucket: str,
        key: str,
        parts: Iterable[bytearray],
        *,
        new: bool,
        storage_class: str | None,
        write_id: str,
        call: Call,
    ) -> str:
        names: list[str] = []
        for part in parts:
            # Of this write only: another writer's blocks of the same key would else be taken for these.
            name = base64.b64encode(f"{write_id}{len(names):08d}".encode()).decode()
            query = f"comp=block&blockid={quote(name, safe='')}"
            put = partial(self.ask, "PUT", bucket, key, {"Content-MD5": _md5(part)}, query=query, data=part)
            call(put, "writes", len(part))
            names.append(name)
        body = f"<BlockList>{''.join(f'<Latest>{name}</Latest>' for name in names)}</BlockList>".encode()
        headers = _written(new, storage_class, write_id)
        try:
            answer, _ = call(lambda: self.ask("PUT", bucket, key, headers, query="comp=blocklist", data=body), "writes")
        except Refusal as error:
            if error.status != 412:
                raise
            # Finished before, but the answer was lost?
            there = call(lambda: self.head(bucket, key))
            if there.write_id != write_id or there.token is None:
                raise
            return there.token
        return _token_of(answer)

    def copy(
        self, source: Address, target: Address, token: str | None, *, new: bool, storage_class: str | None, call: Call
    ) -> str:
        _, endpoint, container = self._place(source.bucket)
        url = f"{endpoint}/{container}/{quote(source.key, safe='/')}"
        headers = {
            "x-ms-copy-source": f"{url}?{self._azure.sas_token}" if self._azure.sas_token else url,
            "x-ms-source-if-match": _quoted(token),
            "x-ms-access-tier": storage_class,
            "If-None-Match": "*" if new else None,
        }
        answer, _ = call(lambda: self.ask("PUT", target.bucket, target.key, headers), "writes")
        ends = time.monotonic() + self._settings.deadline_seconds
        while answer.headers.get("x-ms-copy-status") == "pending" and time.monotonic() < ends:
            time.sleep(_COPY_POLLED)
            answer, _ = call(lambda: self.ask("HEAD", target.bucket, target.key))
        status = answer.headers.get("x-ms-copy-status", "success")
        if status != "success":
            raise Refusal(500, f"the copy on the server is {status}", settled=True)
        return _token_of(answer)

    def delete(self, bucket: str, key: str, token: str | None) -> None:
        self.ask("DELETE", bucket, key, {"If-Match": _quoted(token)})


class _Signed(AuthBase):
    """Signs by the account's key, or with a token of Entra ID; a SAS token stands in the address."""

    def __init__(self, account: str, azure: AzureSettings) -> None:
        self._account, self._azure = account, azure

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        azure, headers = self._azure, request.headers
        headers["x-ms-date"] = format_datetime(datetime.now(UTC), usegmt=True)
        if azure.key is None:
            if azure.sas_token is None:
                headers["Authorization"] = f"Bearer {_token(azure)}"
            return request
        lowered = {name.lower(): str(value) for name, value in headers.items()}
        size = lowered.get("content-length", "")
        standard = ("content-md5", "content-type", "", "if-modified-since", "if-match", "if-none-match")
        own = sorted(name for name in lowered if name.startswith("x-ms-"))
        address = urlsplit(str(request.url))
        said = sorted((name.lower(), value) for name, value in parse_qsl(address.query, keep_blank_values=True))
        text = "\n".join(
            [
                *(str(request.method), "", "", "" if size == "0" else size),
                *(lowered.get(name, "") for name in (*standard, "if-unmodified-since", "range")),
                *(f"{name}:{lowered[name].strip()}" for name in own),
                f"/{self._account}{address.path}",
                *(f"{name}:{value}" for name, value in said),
            ]
        )
        try:
            key = base64.b64decode(azure.key, validate=True)
        except ValueError:
            raise ConfigError("adls.account-key is not base64", hint="copy the key of the account as it is") from None
        signature = base64.b64encode(hmac.digest(key, text.encode(), "sha256")).decode()
        headers["Authorization"] = f"SharedKey {self._account}:{signature}"
        return request


_found: dict[AzureSettings, Any] = {}


def _token(azure: AzureSettings) -> str:
    """Return a token of Entra ID."""
    if azure.token is not None:
        return azure.token
    if azure not in _found:
        try:
            from azure.identity import ClientSecretCredential, DefaultAzureCredential
        except ImportError as error:
            raise EnvironmentMissing(
                "The catalog has neither adls.account-key nor adls.sas-token, and azure-identity, which finds other "
                "credentials, is not installed",
                hint='pip install "artemis-lifecycle[azure]"',
            ) from error
        if azure.tenant_id and azure.client_id and azure.client_secret:
            _found[azure] = ClientSecretCredential(azure.tenant_id, azure.client_id, azure.client_secret)
        else:
            _found[azure] = DefaultAzureCredential()
    try:
        return str(_found[azure].get_token(_SCOPE).token)  # It keeps tokens until they end.
    except Exception as error:  # azure-identity's own tree, which is installed only with it.
        raise Refusal(401, f"Entra ID gives no token: {type(error).__name__}") from error


def _refused(answer: requests.Response) -> Refusal:
    code = answer.headers.get("x-ms-error-code", "")
    said = re.search(r"<Message>([^<\n]*)", answer.text)
    # A create-only request for a key that is taken.
    status = 412 if code == "BlobAlreadyExists" else answer.status_code
    return Refusal(status, said[1] if said else answer.reason or str(status), code=code)


def _listed(blob: ElementTree.Element) -> Item | None:
    """Return an object of a listing; None for a folder, which is one itself in some accounts."""
    said, metadata = blob.find("Properties"), blob.find("Metadata")
    if said is None or said.findtext("Content-Length") is None:
        raise ValueError("an object has no size")
    if said.findtext("ResourceType") == "directory" or (metadata is not None and metadata.findtext(_FOLDER) == "true"):
        return None
    modified = parsedate_to_datetime(said.findtext("Last-Modified", ""))
    return Item(_name(blob), int(said.findtext("Content-Length", "")), modified, _quoted(said.findtext("Etag")))


def _name(element: ElementTree.Element) -> str:
    name = element.find("Name")
    if name is None or not name.text:
        raise ValueError("an object has no name")
    # Names that XML cannot have come percent-encoded.
    return unquote(name.text, errors="strict") if name.get("Encoded") == "true" else name.text


def _written(new: bool, storage_class: str | None, write_id: str) -> dict[str, str | None]:
    return {"If-None-Match": "*" if new else None, "x-ms-access-tier": storage_class, _WRITE_ID: write_id}


def _token_of(answer: requests.Response) -> str:
    return _quoted(answer.headers.get("ETag")) or ""


def _quoted(etag: str | None) -> str | None:
    """Return the ETag as conditions have it; listings have it without quotes."""
    return etag if etag is None or etag.startswith('"') else f'"{etag}"'


def _md5(data: bytes | bytearray) -> str:
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def _without_signature(record: logging.LogRecord) -> bool:
    """urllib3 logs addresses at DEBUG, and a SAS token stands in them."""
    text = record.getMessage()
    clean = _SIGNED.sub(r"\1***", text)
    if clean != text:
        record.msg, record.args = clean, ()
    return True
