"""Deleting objects, up to a thousand per request."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.storage.s3.addresses import LONGEST_KEY, address_of, is_too_long, refusal
from artemis_lifecycle.storage.s3.client import TimeIsOver, only_until
from artemis_lifecycle.storage.s3.connection import TRANSIENT_CODES, BusyKeys, Connection
from artemis_lifecycle.storage.threads import threaded
from artemis_lifecycle.storage.types import FAILED, NOT_TRIED, DeleteOutcome, Outcomes, Removals

_DELETES_PER_REQUEST = 1000
_DELETERS = 4  # With more at once, at a thousand keys each, S3 answers 503.
# Characters that XML cannot represent would break a bulk request for a thousand others. Carriage returns and outer
# blanks, which a parser changes, would name another object. Such a key needs a separate request, with the key in its
# URL.
_ALONE = re.compile(r"[\x00-\x08\x0b-\x1f\ufffe\uffff]|\A\s|\s\Z")
# Nearly all paths: an ASCII key that a bulk request can have as it is, whatever `_ALONE` and `refusal` check.
_PLAIN = r"\As3[an]?://(?P<bucket>[^/]+)/(?P<key>[!-~](?:[ -~]*[!-~])?)\z"

_PROBE = "artemis-probe-"
_ANY: Mapping[str, str] = {}


class Deletes:
    """Deletes objects of one connection."""

    def __init__(self, connection: Connection) -> None:
        self._s3 = connection
        self._conditional: dict[str, bool] = {}

    def delete(self, paths: Sequence[str], *, until: float | None) -> Outcomes:
        outcomes: dict[str, DeleteOutcome] = {}
        buckets: dict[str, dict[str, list[str]]] = {}
        for path in dict.fromkeys(paths):
            try:
                address = address_of(path)
            except StorageError as error:
                outcomes[path] = DeleteOutcome(path, "failed", error.what)
                continue
            refused = refusal(address.key)
            if refused is not None:
                outcomes[path] = DeleteOutcome(path, "failed", refused)
            elif is_too_long(address.key):
                outcomes[path] = DeleteOutcome(path, "absent")
            else:
                # One key may have several spellings: s3://b/k and s3a://b/k.
                buckets.setdefault(address.bucket, {}).setdefault(address.key, []).append(path)
        for bucket, spelled in buckets.items():
            errors = self._delete_keys(bucket, list(spelled), until)
            for key, spellings in spelled.items():
                reason = errors.get(key)
                for path in spellings:
                    outcomes[path] = DeleteOutcome(path, "deleted" if reason is None else "failed", reason)
        return [outcomes[path] for path in paths]

    def remove(self, paths: pa.Array, *, until: float | None, etags: Mapping[int, str] | None = None) -> Removals:
        """`delete` for an Arrow array of strings. For plain keys, Python creates only the objects that the requests
        need. Where the server honors it, a row with one of `etags` is deleted only if the object still has it."""
        removals = Removals(np.zeros(len(paths), np.int8))
        parts = pc.extract_regex(paths, _PLAIN)
        keys, buckets = pc.struct_field(parts, "key"), pc.struct_field(parts, "bucket")
        plain = pc.fill_null(pc.less_equal(pc.binary_length(keys), LONGEST_KEY), False)
        for bucket in pc.unique(buckets.filter(plain)).to_pylist():
            in_bucket = pc.and_(plain, pc.equal(buckets, bucket))
            together = pc.unique(keys.filter(in_bucket)).to_pylist()
            only: dict[str, str] = {}
            if etags and self._honors(bucket, together[0]):
                inside = np.flatnonzero(in_bucket.to_numpy(zero_copy_only=False)).tolist()
                only = {keys[row].as_py(): etags[row] for row in inside if row in etags}
            errors = self._delete_keys(bucket, together, until, only)
            if errors:
                failed = pc.and_(in_bucket, pc.is_in(keys, pa.array(list(errors), pa.string())))
                rows = np.flatnonzero(failed.to_numpy(zero_copy_only=False))
                removals.outcomes[rows] = FAILED
                removals.errors.update({int(row): errors[keys[row].as_py()] for row in rows})
        odd = np.flatnonzero(~plain.to_numpy(zero_copy_only=False))
        for row, answer in zip(odd, self.delete(paths.take(odd).to_pylist(), until=until), strict=True):
            removals.put(int(row), answer)
        return removals

    def _honors(self, bucket: str, beside: str) -> bool:
        """Return True if the server deletes by ETag, as an object shows that is put `beside` a key: it survives a wrong
        ETag, and goes with the right one. Asked once for each bucket."""
        if bucket not in self._conditional:
            key = f"{beside.rpartition('/')[0]}/{_PROBE}{uuid.uuid4().hex}".lstrip("/")
            client, path = self._s3.client, f"s3://{bucket}/{key}"

            def ask() -> bool:
                etag = client.put_object(Bucket=bucket, Key=key, Body=b"May this be deleted?")["ETag"]
                self._ask_to_delete(bucket, [key], {key: f'"{"0" * 32}"'})
                survived = self._s3.head(path) is not None
                self._ask_to_delete(bucket, [key], {key: etag})
                return survived and self._s3.head(path) is None

            try:
                self._conditional[bucket] = self._s3.call("Conditional deletes cannot be tried", path, ask)
            except StorageError:
                self._conditional[bucket] = False
            if not self._conditional[bucket]:
                self.delete([path], until=None)
        return self._conditional[bucket]

    def _delete_keys(
        self, bucket: str, keys: Sequence[str], until: float | None, only: Mapping[str, str] = _ANY
    ) -> dict[str, str]:
        """Delete distinct keys; those in `only` if they have that ETag. Return the reason for each key whose deletion
        is not confirmed."""
        together: list[str] = []
        alone: list[list[str]] = []
        for key in keys:
            if _ALONE.search(key) is None:
                together.append(key)
            else:
                alone.append([key])
        batches = [together[i : i + _DELETES_PER_REQUEST] for i in range(0, len(together), _DELETES_PER_REQUEST)]
        batches += alone
        errors: dict[str, str] = {}
        for refused in threaded(lambda batch: self._delete_batch(bucket, batch, until, only), batches, _DELETERS):
            errors.update(refused)
        return errors

    def _delete_batch(
        self, bucket: str, keys: Sequence[str], until: float | None, only: Mapping[str, str]
    ) -> dict[str, str]:
        """Delete up to a thousand keys. Return the reason for each that remains. Retries only the keys for which the
        server was too busy. No request is sent once `instants.elapsed` is `until`, not even after a wait for the rate
        limit or between two retries, in which the process may be suspended."""
        left = list(keys)
        reasons: dict[str, str] = {}

        def once() -> None:
            nonlocal left
            with only_until(until):
                refused = self._ask_to_delete(bucket, left, only)
            for key in left:
                reasons.pop(key, None)
            reasons.update({key: f"{code}: {message}".rstrip(": ") for key, (code, message) in refused.items()})
            left = [key for key, (code, _) in refused.items() if code in TRANSIENT_CODES]
            if left:
                raise BusyKeys

        try:
            self._s3.call("Objects cannot be deleted", f"s3://{bucket}", once)
        except BusyKeys:
            pass  # Out of attempts; `reasons` has the server's last answer.
        except TimeIsOver:
            for key in left:
                said = reasons.get(key)
                reasons[key] = NOT_TRIED if said is None else f"{NOT_TRIED} (before: {said})"
        except StorageError as error:
            reasons.update(dict.fromkeys(left, error.what))
        return reasons

    def _ask_to_delete(self, bucket: str, keys: Sequence[str], only: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """Send one request. Return (code, message) of each key that the server did not delete."""
        if len(keys) == 1 and _ALONE.search(keys[0]) is not None:
            self._s3.client.delete_object(Bucket=bucket, Key=keys[0])
            return {}
        objects = [{"Key": key, "ETag": only[key]} if key in only else {"Key": key} for key in keys]
        answer = self._s3.client.delete_objects(Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
        refused = {
            problem.get("Key", ""): (problem.get("Code", ""), problem.get("Message", ""))
            for problem in answer.get("Errors", ())
            if problem.get("Code") not in ("NoSuchKey", "NoSuchVersion")
        }
        strangers = refused.keys() - set(keys)
        if strangers:
            # It is unknown which of these keys the server means, so none of them counts as deleted.
            code, message = refused[min(strangers)]
            return dict.fromkeys(keys, (code, f"{message} (for a key that was not requested: {min(strangers)!r})"))
        return refused
