"""The buckets of another live catalog are reached by its own settings."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pyarrow as pa
import pytest

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.types import REMOVED
from artemis_lifecycle_tests.storage import s3_server


def test_each_bucket_is_reached_by_the_settings_of_its_catalog() -> None:
    with s3_server.running() as server:
        there, nowhere = server.bucket(), server.bucket()
        own = server.settings(s3_endpoint="http://127.0.0.1:9", attempts=1, s3_connect_timeout=0.2)
        stores = pickle.loads(pickle.dumps(Stores(replace(own, elsewhere=((there, server.settings()),)))))
        stores.write(f"s3://{there}/a", b"1")
        stores.copy(f"s3://{there}/a", f"s3a://{there}/b")
        found = stores.shared_by(2).heads([f"s3://{there}/a", f"s3://{there}/b"])
        assert [each is not None for each in found] == [True, True]
        with pytest.raises(StorageError):
            stores.head(f"s3://{nowhere}/a")
        paths = pa.array([f"s3://{nowhere}/a", f"s3://{there}/a", f"s3://{there}/b"])
        removals = stores.remove(paths, etags={1: found[0].etag if found[0] else ""})
        assert removals.outcomes[1] == removals.outcomes[2] == REMOVED and list(removals.errors) == [0]
        assert list(server.stores().list(f"s3://{there}/")) == []
