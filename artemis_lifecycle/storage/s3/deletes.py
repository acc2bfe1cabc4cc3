"""Deleting objects, a thousand with each request."""

from __future__ import annotations

import re
from collections.abc import Sequence

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
_DELETERS = 4  # More at once, of a thousand keys each, is what S3 answers with 503.
# What XML cannot carry would spoil a bulk request for a thousand others, or, as a carriage return or outer blanks that
# a parser changes, name another object. Such a key goes by a request of its own, in its address.
_ALONE = re.compile(r"[\x00-\x08\x0b-\x1f\ufffe\uffff]|\A\s|\s\Z")
# Nearly all paths: a key of ASCII that goes into a bulk request as it is, whatever `_ALONE` and `refusal` ask.
_PLAIN = r"\As3[an]?://(?P<bucket>[^/]+)/(?P<key>[!-~](?:[ -~]*[!-~])?)\z"


class Deletes:
    """Deletes objects of one connection."""

    def __init__(self, connection: Connection) -> None:
        self._s3 = connection

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

    def remove(self, paths: pa.Array, *, until: float | None) -> Removals:
        """`delete` of an Arrow array of strings, of whose plain keys Python makes no more objects than the requests
        need."""
        removals = Removals(np.zeros(len(paths), np.int8))
        parts = pc.extract_regex(paths, _PLAIN)
        keys, buckets = pc.struct_field(parts, "key"), pc.struct_field(parts, "bucket")
        plain = pc.fill_null(pc.less_equal(pc.binary_length(keys), LONGEST_KEY), False)
        for bucket in pc.unique(buckets.filter(plain)).to_pylist():
            here = pc.and_(plain, pc.equal(buckets, bucket))
            errors = self._delete_keys(bucket, pc.unique(keys.filter(here)).to_pylist(), until)
            if errors:
                failed = pc.and_(here, pc.is_in(keys, pa.array(list(errors), pa.string())))
                rows = np.flatnonzero(failed.to_numpy(zero_copy_only=False))
                removals.outcomes[rows] = FAILED
                removals.errors.update({int(row): errors[keys[row].as_py()] for row in rows})
        odd = np.flatnonzero(~plain.to_numpy(zero_copy_only=False))
        for row, answer in zip(odd, self.delete(paths.take(odd).to_pylist(), until=until), strict=True):
            removals.put(int(row), answer)
        return removals

    def _delete_keys(self, bucket: str, keys: Sequence[str], until: float | None) -> dict[str, str]:
        """Delete different keys; the reason for each of which it is not known that it went."""
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
        for refused in threaded(lambda batch: self._delete_batch(bucket, batch, until), batches, _DELETERS):
            errors.update(refused)
        return errors

    def _delete_batch(self, bucket: str, keys: Sequence[str], until: float | None) -> dict[str, str]:
        """Delete up to a thousand keys; the reason for each that stays. Keys that the server was too busy for are asked
        for again, and only those. No request goes out once `instants.elapsed` is `until`: not after a wait for the
        pace either, nor after one between two tries, in which a process may be stopped."""
        left = list(keys)
        reasons: dict[str, str] = {}

        def once() -> None:
            nonlocal left
            with only_until(until):
                refused = self._ask_to_delete(bucket, left)
            for key in left:
                reasons.pop(key, None)
            reasons.update({key: f"{code}: {message}".rstrip(": ") for key, (code, message) in refused.items()})
            left = [key for key, (code, _) in refused.items() if code in TRANSIENT_CODES]
            if left:
                raise BusyKeys

        try:
            self._s3.call("Objects cannot be deleted", f"s3://{bucket}", once)
        except BusyKeys:
            pass  # Out of attempts; `reasons` has what the server said last.
        except TimeIsOver:
            for key in left:
                said = reasons.get(key)
                reasons[key] = NOT_TRIED if said is None else f"{NOT_TRIED} (before: {said})"
        except StorageError as error:
            reasons.update(dict.fromkeys(left, error.what))
        return reasons

    def _ask_to_delete(self, bucket: str, keys: Sequence[str]) -> dict[str, tuple[str, str]]:
        """One request; (code, message) of each key that the server did not delete."""
        if len(keys) == 1 and _ALONE.search(keys[0]) is not None:
            self._s3.client.delete_object(Bucket=bucket, Key=keys[0])
            return {}
        answer = self._s3.client.delete_objects(
            Bucket=bucket, Delete={"Objects": [{"Key": key} for key in keys], "Quiet": True}
        )
        refused = {
            problem.get("Key", ""): (problem.get("Code", ""), problem.get("Message", ""))
            for problem in answer.get("Errors", ())
            if problem.get("Code") not in ("NoSuchKey", "NoSuchVersion")
        }
        strangers = refused.keys() - set(keys)
        if strangers:
            # It does not say which key it means, so none counts as deleted.
            code, message = refused[min(strangers)]
            return dict.fromkeys(keys, (code, f"{message} (for another key than asked: {min(strangers)!r})"))
        return refused
