"""Fixtures of the storage room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from artemis_lifecycle_tests.storage import object_servers, s3_server
from artemis_lifecycle_tests.storage.object_servers import ObjectServer
from artemis_lifecycle_tests.storage.s3_server import S3Server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with s3_server.running() as server:
        yield server


@pytest.fixture
def bucket(s3: S3Server) -> str:
    return s3.bucket()


@pytest.fixture(scope="session")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with object_servers.azurite(tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.fixture(scope="session")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with object_servers.fake_gcs(tmp_path_factory.mktemp("gcs")) as server:
        yield server
