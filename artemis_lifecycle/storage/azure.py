"""Requests to Azure Blob Storage and ADLS Gen2: paths with `abfss:`, `abfs:`, `wasbs:` or `wasb:`.

Each is one request to the REST API of blobs: obstore has no conditional copies and deletes, hides error codes, and
fails to list a container with a key such as `a//b`. Azure's own library would add its retries to those of the budget.
"""

from __future__ import annotations

import base64
import hmac
import logging
import os
import re
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from functools import cache, partial
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from xml.etree import ElementTree

import requests
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase
from urllib3.exceptions import HTTPError

from artemis_lifecycle.errors import ConfigError, EnvironmentMissing, StorageError
from artemis_lifecycle.storage.objects import Address, Call, Item, Page, Refusal, Writing, content_md5, hiding
from artemis_lifecycle.storage.settings import AzureSettings, StoreSettings
from artemis_lifecycle.storage.types import ArchiveState

_VERSION = "2023-11-03"
_SCOPE = "https://storage.azure.com/.default"
_WRITE_ID = "x-ms-meta-artemiswrite"
_FOLDER = "hdi_isfolder"
"""The metadata of an empty object by which Hadoop marks a folder."""

_PAGE = 5000
_COPY_POLLED = 0.5
_SIGNED = re.compile(r"(sig=)[^&\s'\"]+")
_WITHOUT_SIGNATURE = hiding(_SIGNED)
"""urllib3 logs addresses at DEBUG, and a SAS token stands in them."""


class AzureRequests:
    """The blob service of the accounts in paths: `abfss://container@account.dfs.core.windows.net/key`."""

    kind = "Azure"
    credentials = "credentials (adls.account-key, adls.sas-token, adls.token, or Entra ID)"
    classes: Mapping[str, str | None] = MappingProxyType({"STANDARD": None, "GLACIER_IR": "Cold"})
    wrong_token = '"0x0000000000000000"'

    def __init__(self, settings: StoreSettings) -> None:
        self._settings, self._azure = settings, settings.azure
        logging.getLogger("urllib3.connectionpool").addFilter(_WITHOUT_SIGNATURE)

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

    def ask(
        self,
        method: str,
        bucket: str,
        key: str,
        headers: Mapping[str, str | None] = {},
        *,
        query: str = "",
        data: bytes | bytearray = b"",
    ) -> tuple[requests.Response, bytes]:
        """Return the answer and its body."""
        account, endpoint, container = self._place(bucket)
        url = f"{endpoint}/{container}{'/' + quote(key, safe='/') if key else ''}"
        query = "&".join(part for part in (query, self._azure.sas_token) if part)
        settings = self._settings
        try:
            with _session(os.getpid(), settings.s3_connections).request(
                method,
                f"{url}?{query}" if query else url,
                headers={name: value for name, value in headers.items() if value is not None},
                data=bytes(data) if method == "PUT" else None,
                auth=_Signed(account, self._azure),
                timeout=(settings.s3_connect_timeout, settings.s3_read_timeout),
                allow_redirects=False,
                stream=True,
            ) as answer:
                if answer.status_code >= 300:
                    raise _refused(answer)
                # Not `content`, which would undo a blob's own encoding.
                return answer, answer.raw.read(decode_content=False)
        except (requests.RequestException, HTTPError, OSError) as error:
            raise Refusal(0, _SIGNED.sub(r"\1***", str(error))) from None

    def require_bucket(self, bucket: str) -> None:
        self.page(bucket, "", deep=False, after=None)

    def page(self, bucket: str, prefix: str, *, deep: bool, after: Any) -> Page:
        query = {"restype": "container", "comp": "list", "include": "metadata", "prefix": prefix, "marker": after}
        query |= {"delimiter": None if deep else "/", "maxresults": str(_PAGE)}
        text = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items() if value)
        body = self.ask("GET", bucket, "", query=text)[1]
        try:
            answer = ElementTree.fromstring(body)
            following = answer.findtext("NextMarker")
            if following is None:  # Even at the end there is an empty one: this is something else's page.
                raise ValueError("it has no marker")
            items = [item for blob in answer.iter("Blob") if (item := _listed(blob)) is not None]
            return [_name(each) for each in answer.iter("BlobPrefix")], items, following or None
        except (ElementTree.ParseError, AttributeError, TypeError, ValueError) as error:
            raise Refusal(502, f"the listing cannot be read: {error}", settled=True) from None

    def head(self, at: Address) -> Item:
        said = self.ask("HEAD", at.bucket, at.key)[0].headers
        if said.get("x-ms-resource-type") == "directory" or said.get(f"x-ms-meta-{_FOLDER}") == "true":
            raise Refusal(404, "a folder")
        if "Content-Length" not in said or "Last-Modified" not in said:
            raise Refusal(502, "the answer has no size or no time", settled=True)
        return Item(
            at.key,
            int(said["Content-Length"]),
            parsedate_to_datetime(said["Last-Modified"]),
            _quoted(said.get("ETag")),
            said.get(_WRITE_ID),
            ArchiveState(
                archived=said.get("x-ms-access-tier") == "Archive",
                readable=said.get("x-ms-access-tier") != "Archive",
                thawing=said.get("x-ms-archive-status", "").startswith("rehydrate"),
            ),
        )

    def get(self, at: Address, start: int, length: int, token: str | None) -> bytes:
        span = {"Range": f"bytes={start}-{start + length - 1}", "If-Match": token}
        answer, data = self.ask("GET", at.bucket, at.key, span)
        if start and answer.status_code != 206:
            raise Refusal(501, "the server ignores the range of a request")
        return data[:length]

    def put(self, at: Address, data: bytes | bytearray, how: Writing) -> str:
        headers = _written(how) | {"x-ms-blob-type": "BlockBlob", "Content-MD5": content_md5(data)}
        return _token_of(self.ask("PUT", at.bucket, at.key, headers, data=data)[0])

    def put_parts(self, at: Address, parts: Iterable[bytearray], how: Writing, call: Call) -> str:
        names: list[str] = []
        ask = partial(self.ask, "PUT", at.bucket, at.key)
        for part in parts:
            # Of this write only: another writer's blocks of the same key would else be taken for these.
            name = base64.b64encode(f"{how.write_id}{len(names):08d}".encode()).decode()
            query = f"comp=block&blockid={quote(name, safe='')}"
            call(partial(ask, {"Content-MD5": content_md5(part)}, query=query, data=part), "writes", len(part))
            names.append(name)
        body = f"<BlockList>{''.join(f'<Latest>{name}</Latest>' for name in names)}</BlockList>".encode()
        return _token_of(call(lambda: ask(_written(how), query="comp=blocklist", data=body), "writes")[0])

    def copy(
        self, source: Address, at: Address, token: str, size: int, how: Writing, call: Call
    ) -> tuple[str, str | None]:
        _, endpoint, container = self._place(source.bucket)
        url = f"{endpoint}/{container}/{quote(source.key, safe='/')}"
        headers = _written(how) | {
            "x-ms-copy-source": f"{url}?{self._azure.sas_token}" if self._azure.sas_token else url,
            "x-ms-source-if-match": _quoted(token),
            _WRITE_ID: None,
        }
        answer, _ = call(lambda: self.ask("PUT", at.bucket, at.key, headers), "writes")
        ends = time.monotonic() + self._settings.deadline_seconds
        while answer.headers.get("x-ms-copy-status") == "pending" and time.monotonic() < ends:
            time.sleep(_COPY_POLLED)
            answer, _ = call(lambda: self.ask("HEAD", at.bucket, at.key))
        status = answer.headers.get("x-ms-copy-status", "success")
        if status != "success":
            raise Refusal(500, f"the copy on the server is {status}", settled=True)
        return _token_of(answer), None

    def delete(self, at: Address, token: str | None) -> None:
        self.ask("DELETE", at.bucket, at.key, {"If-Match": _quoted(token)})


@cache
def _session(process: int, connections: int) -> requests.Session:
    """Return the session of a process: a fork must not share sockets."""
    session, adapter = requests.Session(), HTTPAdapter(pool_maxsize=connections)
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    session.headers.update({"Accept-Encoding": "identity", "x-ms-version": _VERSION})
    return session


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
    try:
        from azure.core.exceptions import AzureError
        from azure.identity import ClientSecretCredential, DefaultAzureCredential
    except ImportError as error:
        raise EnvironmentMissing(
            "The catalog has neither adls.account-key nor adls.sas-token, and azure-identity, which finds other "
            "credentials, is not installed",
            hint="pip install 'artemis-lifecycle[azure]'",
        ) from error
    try:
        if azure not in _found:
            own: Any = (azure.tenant_id, azure.client_id, azure.client_secret)
            _found[azure] = ClientSecretCredential(*own) if all(own) else DefaultAzureCredential()
        return str(_found[azure].get_token(_SCOPE).token)  # It keeps tokens until they end.
    except (AzureError, ValueError) as error:
        raise Refusal(401, f"Entra ID gives no token: {type(error).__name__}") from None


def _refused(answer: requests.Response) -> Refusal:
    code = answer.headers.get("x-ms-error-code", "")
    said = re.search(r"<Message>([^<\n]*)", answer.text)
    # A create-only request for a key that is taken.
    status = 412 if code == "BlobAlreadyExists" else answer.status_code
    hint = "rehydrate the blob to an online tier, then retry" if code == "BlobArchived" else None
    return Refusal(status, said[1] if said else answer.reason or str(status), code=code, hint=hint)


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


def _written(how: Writing) -> dict[str, str | None]:
    return {"If-None-Match": "*" if how.new else None, "x-ms-access-tier": how.storage_class, _WRITE_ID: how.write_id}


def _token_of(answer: requests.Response) -> str:
    return _quoted(answer.headers.get("ETag")) or ""


def _quoted(etag: str | None) -> str | None:
    """Return the ETag as conditions have it; listings have it without quotes."""
    return etag if etag is None or etag.startswith('"') else f'"{etag}"'
