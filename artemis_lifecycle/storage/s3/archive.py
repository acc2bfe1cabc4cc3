"""Archive storage classes: moving objects to them, and thawing the objects ("restoring" in S3's terms)."""

from __future__ import annotations

import re
from datetime import UTC
from email.utils import parsedate_to_datetime

from botocore.exceptions import ClientError

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.storage.s3.addresses import address_of
from artemis_lifecycle.storage.s3.connection import Connection, code_of
from artemis_lifecycle.storage.s3.uploads import Uploads
from artemis_lifecycle.storage.types import ARCHIVE_CLASSES, ArchiveState, missing


class Archive:
    """Archive classes for one connection's objects."""

    def __init__(self, connection: Connection, uploads: Uploads) -> None:
        self._s3 = connection
        self._uploads = uploads

    def archive(self, path: str, storage_class: str) -> bool:
        found = self._s3.head(path)
        if found is None:
            raise missing(path)
        if found.get("StorageClass") in ARCHIVE_CLASSES:
            return False
        # Copy the object onto itself, and only the version that was checked. A copy in one request keeps the object's
        # metadata; a multipart copy needs it as an argument.
        if self._uploads.copied(path, path, found, storage_class, Metadata=found.get("Metadata", {})) is None:
            raise StorageError(
                "The S3 server does not copy the object onto itself, so its storage class cannot change",
                path=path,
                untouched="the object",
                hint="allow s3:PutObject and s3:GetObject on the cold bucket, or set cold_tier.then to keep",
            )
        now = self._s3.head(path) or {}
        if now.get("StorageClass") != storage_class or now.get("ContentLength") != found["ContentLength"]:
            raise StorageError(
                f"The object should have {found['ContentLength']} bytes in storage class {storage_class}, but has "
                f"{now.get('ContentLength')} in {now.get('StorageClass', 'STANDARD')}",
                path=path,
                untouched="all other objects",
                hint="check whether this server supports storage classes; if not, set cold_tier.then to keep",
            )
        return True

    def thaw(self, path: str, days: int, retrieval: str) -> None:
        address = address_of(path)
        request = {"Days": days, "GlacierJobParameters": {"Tier": retrieval}}

        def ask() -> None:
            try:
                self._s3.client.restore_object(Bucket=address.bucket, Key=address.key, RestoreRequest=request)
            except ClientError as error:
                # The object is not in an archive class, or a thaw was requested before.
                if code_of(error) not in ("InvalidObjectState", "RestoreAlreadyInProgress"):
                    raise

        self._s3.call("An object cannot be thawed", path, ask)

    def state(self, path: str) -> ArchiveState | None:
        found = self._s3.head(path)
        if found is None:
            return None
        if found.get("StorageClass") not in ARCHIVE_CLASSES:
            return ArchiveState(archived=False, readable=True)
        restore = found.get("Restore", "")
        until = re.search(r'expiry-date="([^"]+)"', restore)
        return ArchiveState(
            archived=True,
            readable='ongoing-request="false"' in restore,
            thawing='ongoing-request="true"' in restore,
            readable_until=None if until is None else parsedate_to_datetime(until[1]).astimezone(UTC),
        )
