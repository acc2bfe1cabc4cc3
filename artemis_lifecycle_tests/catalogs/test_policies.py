"""Policies that a catalog keeps, against a stand-in of Polaris' policy API that is made from its published schemas:
a server of Polaris could not be had here."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.catalogs.policies import CatalogPolicy
from artemis_lifecycle.config.deployment import Catalog
from artemis_lifecycle.errors import OperationsUnavailable, Refused, StalePlan
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle

LATER = datetime.now(UTC) + timedelta(days=60)


class Polaris(BaseHTTPRequestHandler):
    """`applicable-policies` of policy-apis.yaml, two pages of it; the rest of the catalog is empty."""

    policies: ClassVar[list[dict[str, Any]]] = []
    asked: ClassVar[list[dict[str, list[str]]]] = []
    status: ClassVar[int] = 200

    def do_GET(self) -> None:
        path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
        body: dict[str, Any] = {"defaults": {}, "overrides": {"prefix": "lake"}}
        status = 200
        if path.endswith("/polaris/v1/lake/applicable-policies"):
            self.asked.append(query)
            page = int(query.get("pageToken", ["0"])[0])
            body = {"applicable-policies": self.policies[page : page + 1]}
            if page + 1 < len(self.policies):
                body["next-page-token"] = str(page + 1)
            status = self.status
        said = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None:
        pass


def policy(kind: str, name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """An ApplicablePolicy of the specification."""
    return {
        "policy-type": kind,
        "name": name,
        "inheritable": True,
        "inherited": True,
        "namespace": ["db"],
        "version": 0,
        "content": json.dumps(content),
    }


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[CatalogReader]:
    monkeypatch.setattr(Polaris, "policies", [])
    monkeypatch.setattr(Polaris, "asked", [])
    monkeypatch.setattr(Polaris, "status", 200)
    with ThreadingHTTPServer(("127.0.0.1", 0), Polaris) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        uri = f"http://127.0.0.1:{server.server_port}/api/catalog"
        yield CatalogReader(Catalog(name="live", type="rest", uri=uri))
        server.shutdown()


def test_policies_of_all_pages_are_read_for_the_table(reader: CatalogReader) -> None:
    Polaris.policies += [
        policy("system.snapshot-expiry", "expiry", {"enable": True, "config": {"max_snapshot_age_days": 90}}),
        policy("system.data-compaction", "compaction", {"enable": True}),
        policy("system.orphan-file-removal", "orphans", {"enable": False, "max_orphan_file_age_in_days": 3}),
    ]
    assert reader.policies("a.b.t") == [
        CatalogPolicy("expiry", "system.snapshot-expiry", True, window=timedelta(days=90)),
        CatalogPolicy("orphans", "system.orphan-file-removal", False, min_age=timedelta(days=3)),
    ]
    assert len(Polaris.asked) == 3
    assert all((each["namespace"], each["target-name"]) == (["a\x1fb"], ["t"]) for each in Polaris.asked)


@pytest.mark.parametrize(
    "content",
    [
        {"config": {}},
        {"enable": "yes"},
        {"enable": True, "version": "2031-01-01"},
        {"enable": True, "config": {"max_snapshot_age_days": "soon"}},
        {"enable": True, "config": {"max_snapshot_age_days": -1}},
    ],
)
def test_a_policy_of_another_schema_stops_the_step(reader: CatalogReader, content: Mapping[str, Any]) -> None:
    Polaris.policies.append(policy("system.snapshot-expiry", "expiry", content))
    with pytest.raises(Refused, match="expiry"):
        reader.policies("db.t")


def test_a_catalog_that_does_not_tell_stops_the_step(reader: CatalogReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Polaris, "status", 404)
    with pytest.raises(OperationsUnavailable, match="status 404"):
        reader.policies("db.t")


def test_the_safer_value_wins_and_says_where_it_came_from(
    make_config: MakeConfig, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    retention = {"window": "7d", "min_snapshots": 1, "from": ["catalog", "properties", "lifecycle.yaml"]}
    policies: list[CatalogPolicy] = []
    monkeypatch.setattr(CatalogReader, "policies", lambda self, table: policies)
    with open_lifecycle(
        make_config(defaults={"retention": retention, "cold_tier": {"enabled": False}}), spark
    ) as lifecycle:
        live = lifecycle.config.catalogs.live.name
        spark.sql(f"CREATE NAMESPACE {live}.db")
        spark.sql(
            f"CREATE TABLE {live}.db.t (id int) USING iceberg TBLPROPERTIES "
            "('history.expire.max-snapshot-age-ms'='1000', 'history.expire.min-snapshots-to-keep'='2')"
        )
        for number in range(4):
            spark.sql(f"INSERT OVERWRITE {live}.db.t VALUES ({number})")

        def sources() -> dict[str, tuple[str, str]]:
            return {each.setting: (each.value, each.source) for each in lifecycle.explain_policy("db.t").values}

        assert sources() == {
            "retention.window": ("1w", "lifecycle.yaml"),
            "retention.min_snapshots": ("2", "properties"),
            "orphans.min_age": ("1w", "lifecycle.yaml"),
        }
        plan = lifecycle.plan_expiration("db.t", now=LATER)
        assert len(plan.expired_snapshots) == 2
        # The catalog's policy asks for more before the commit.
        policies.append(CatalogPolicy("long", "system.snapshot-expiry", True, timedelta(days=90), 3))
        with pytest.raises(StalePlan, match="would remove what the table now keeps"):
            lifecycle.commit_expiration(plan)
        assert sources()["retention.window"] == ("90d", "catalog: long")
        assert sources()["retention.min_snapshots"] == ("3", "catalog: long")
        assert lifecycle.plan_expiration("db.t", now=LATER).expired_snapshots == ()
        policies[:] = [
            CatalogPolicy("off", "system.snapshot-expiry", False),
            CatalogPolicy("no removal", "system.orphan-file-removal", False),
        ]
        with pytest.raises(Refused, match="off"):
            lifecycle.plan_expiration("db.t", now=LATER)
        with pytest.raises(Refused, match="no removal"):
            lifecycle.scan_orphans("db.t")
        spark.sql(f"ALTER TABLE {live}.db.t SET TBLPROPERTIES ('history.expire.max-snapshot-age-ms'='soon')")
        with pytest.raises(Refused, match="is not a number"):
            lifecycle.explain_policy("db.t")
