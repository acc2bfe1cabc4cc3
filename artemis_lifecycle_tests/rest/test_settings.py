"""A REST catalog in lifecycle.yaml: names and managed stores, the record of its deployment, and what doctor says before
anything is planned."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import requests
import yaml
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import BadRequestError, ForbiddenError, NoSuchNamespaceError, RESTError, ServerError

from artemis_lifecycle.catalogs.deployments import (
    NAMESPACE,
    PROPERTY,
    DeploymentsInProperties,
    require_deployment,
    take_over,
)
from artemis_lifecycle.catalogs.settings import catalog_conf, pyiceberg_properties
from artemis_lifecycle.config.deployment import SoleDeployment
from artemis_lifecycle.config.loading import load_config
from artemis_lifecycle.doctor.diagnosis import diagnose
from artemis_lifecycle.embedded.addresses import fill
from artemis_lifecycle.errors import OtherDeployment, Refused
from artemis_lifecycle.operations.database import Deployment
from artemis_lifecycle_tests.rest.servers import Server

Write = Callable[..., Path]


@pytest.fixture
def write(postgres_uri: str, tmp_path: Path) -> Write:
    def make(live: dict[str, Any], **sections: Any) -> Path:
        cold = {"uri": postgres_uri, "warehouse": str(tmp_path / "cold")}
        operations = {"uri": postgres_uri, "root": str(tmp_path / "state")}
        document = {"catalogs": {"live": live, "cold": cold}, "operations": operations, "home": ".artemis", **sections}
        file = tmp_path / "lifecycle.yaml"
        file.write_text(yaml.safe_dump(document))
        return file

    return make


def test_a_warehouse_that_is_a_name_is_never_a_folder(write: Write, tmp_path: Path) -> None:
    rest = {"type": "rest", "uri": "http://127.0.0.1:1", "warehouse": "lake"}
    config = fill(load_config(write({**rest, "roots": ["s3://bucket/lake"]})))
    live = config.catalogs.live
    assert (live.warehouse, live.root, live.places) == ("lake", "s3://bucket/lake", ("s3://bucket/lake",))
    assert pyiceberg_properties(live)["warehouse"] == "lake"
    conf = catalog_conf(live)
    assert conf["spark.sql.catalog.live.warehouse"] == "lake" and "S3FileIO" in conf["spark.sql.catalog.live.io-impl"]
    assert config.roots()["catalogs.live.warehouse"] == "s3://bucket/lake"
    assert config.quarantine.root is not None and "lake" not in config.quarantine.root
    alone = fill(load_config(write({key: rest[key] for key in ("type", "uri")}))).catalogs.live
    assert (alone.warehouse, alone.root, alone.places) == (None, None, ())
    # Of a SQL catalog, it is a folder, as ever.
    sql = load_config(write({"warehouse": "lake"})).catalogs.live
    assert sql.warehouse == f"file://{tmp_path}/lake" and sql.root == sql.warehouse


@pytest.mark.seconds
def test_doctor_says_what_works_and_what_will_be_refused(write: Write, seaweed_server: Server) -> None:
    other = load_catalog("other", **pyiceberg_properties(seaweed_server.catalog()))
    other.create_namespace_if_not_exists("doctor")
    name = f"doctor.t{uuid.uuid4().hex[:8]}"
    table = other.create_table(name, schema=pa.schema([("id", pa.int64())]))
    with table.transaction() as change:
        change.set_properties(
            {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "3"}
        )
    keys = {"type", "uri", "warehouse", "properties"}
    live = {**seaweed_server.catalog().model_dump(include=keys), "managed": True}
    before = list(other.load_namespace_properties("doctor").items())
    checks = {each.name: each for each in diagnose(write(live), write_probe=True)}
    assert checks["commits over REST"].status == "ok"
    refused = checks["expirations over REST"]
    assert refused.status == "warning" and f"{name}: " in refused.detail and "keeps 3 previous" in refused.detail
    assert checks["catalogs.live.warehouse"].status == "ok" and "not tried" in checks["catalogs.live.warehouse"].detail
    assert list(other.load_namespace_properties("doctor").items()) == before
    sole = {"who": "ada", "why": "the only one"}
    if not other.namespace_exists(NAMESPACE) or PROPERTY not in other.load_namespace_properties(NAMESPACE):
        checks = {each.name: each for each in diagnose(write({**live, "sole_deployment": sole}))}
        assert checks["deployment"].status in ("ok", "warning")


class Keeping:
    """A catalog's properties of namespaces, which it may refuse to keep."""

    def __init__(self, error: Exception | None = None, status: int | None = None) -> None:
        self.error = error
        self.status = status
        self.kept: dict[str, str] | None = None

    def create_namespace_if_not_exists(self, namespace: str) -> None:
        assert namespace == NAMESPACE
        self.kept = self.kept or {}

    def update_namespace_properties(self, namespace: str, updates: dict[str, str]) -> None:
        if self.error is not None:
            raise self.error
        assert self.kept is not None
        self.kept |= updates

    def load_namespace_properties(self, namespace: str) -> dict[str, str]:
        if self.status is not None:
            answer = requests.Response()
            answer.status_code = self.status
            raise RESTError("refused") from requests.HTTPError(response=answer)
        if self.kept is None:
            raise NoSuchNamespaceError(namespace)
        return self.kept


def _records(catalog: Any, sole: SoleDeployment | None = None, *, destructive: bool = True) -> DeploymentsInProperties:
    return DeploymentsInProperties(catalog, "live", sole, nullcontext, destructive=destructive)


def _deployment(name: str) -> Deployment:
    return Deployment(f"{name}-id", f"{name}-server", f"{name}-place", f"{name}:5432/ops", f"s3://ops/{name}")


def test_a_rest_catalog_belongs_to_its_first_deployment_until_it_is_taken_over() -> None:
    catalog = Keeping()
    # A question reads the record and never makes it.
    require_deployment(_records(catalog), "live", _deployment("a"), who="me", record=False)
    assert catalog.kept is None
    require_deployment(_records(catalog), "live", _deployment("a"), who="me")
    with pytest.raises(OtherDeployment, match=r"a:5432/ops \(a-id\)"):
        require_deployment(_records(catalog), "live", _deployment("b"), who="you")
    take_over(_records(catalog), _deployment("b"), who="you", why="a is gone")
    require_deployment(_records(catalog), "live", _deployment("b"), who="you")
    with pytest.raises(OtherDeployment, match="a is gone"):
        require_deployment(_records(catalog), "live", _deployment("a"), who="me")


def test_without_a_place_for_the_record_only_a_sole_deployment_goes_on() -> None:
    refusing = Keeping(BadRequestError("no properties here"))
    with pytest.raises(Refused, match=r"keeps no properties.*sole_deployment"):
        require_deployment(_records(refusing), "live", _deployment("a"), who="me")
    require_deployment(_records(refusing), "live", _deployment("a"), who="me", record=False)
    require_deployment(_records(refusing, destructive=False), "live", _deployment("a"), who="me")
    # Others may have the right that this login lacks, and look at the namespace only.
    forbidden = _records(Keeping(ForbiddenError("not you")), destructive=False)
    with pytest.raises(Refused, match="its login may not set them"):
        require_deployment(forbidden, "live", _deployment("a"), who="me")
    # A server without the endpoint has no record; one that refuses to answer may have another deployment's.
    lacking = _records(Keeping(NotImplementedError("no endpoint"), status=405), destructive=False)
    require_deployment(lacking, "live", _deployment("a"), who="me")
    with pytest.raises(RESTError):
        _records(Keeping(status=403)).newest()
    sole = SoleDeployment(who="ada", why="the only one")
    require_deployment(_records(refusing, sole), "live", _deployment("a"), who="me")
    # A server that is down is not one that keeps nothing.
    with pytest.raises(ServerError):
        require_deployment(_records(Keeping(ServerError("down")), sole), "live", _deployment("a"), who="me")
