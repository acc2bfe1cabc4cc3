"""Fixtures of the storage room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from artemis_lifecycle_tests.storage import s3_server
from artemis_lifecycle_tests.storage.s3_server import S3Server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with s3_server.running() as server:
        yield server


@pytest.fixture
def bucket(s3: S3Server) -> str:
    return s3.bucket()
