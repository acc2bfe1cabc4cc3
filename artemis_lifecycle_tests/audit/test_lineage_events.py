"""Each recorded snapshot is an OpenLineage event that openlineage-python accepts, sent until a receiver takes it."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import attr
import pytest
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    dataset_version_dataset,
    datasource_dataset,
    job_type_job,
    lifecycle_state_change_dataset,
    output_statistics_output_dataset,
    parent_run,
    schema_dataset,
    source_code_location_job,
)
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle_tests.conftest import MakeConfig

RUN = str(uuid.uuid4())
KEYS = {
    "writer.id": "ingest-1",
    "writer.commit_hash": "a1b2c3d4",
    "input.snapshot_ids": '{"ns.source": [7]}',
    "dagster.run_id": RUN,
    "dagster.code_version": "2",
}
_FACETS = {
    "version": dataset_version_dataset.DatasetVersionDatasetFacet,
    "dataSource": datasource_dataset.DatasourceDatasetFacet,
    "schema": schema_dataset.SchemaDatasetFacet,
    "lifecycleStateChange": lifecycle_state_change_dataset.LifecycleStateChangeDatasetFacet,
    "outputStatistics": output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet,
    "parent": parent_run.ParentRunFacet,
    "jobType": job_type_job.JobTypeJobFacet,
    "sourceCodeLocation": source_code_location_job.SourceCodeLocationJobFacet,
}


class Receiver(HTTPServer):
    """Takes events like an OpenLineage server; answers with `status`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status, self.events, self.logins = 200, list[dict[str, Any]](), set[str | None]()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/api/v1/lineage"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.logins.add(self.headers["Authorization"])
        if self.server.status == 200:
            self.server.events.append(json.loads(body))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def _with(config: LifecycleConfig, **events: Any) -> LifecycleConfig:
    return LifecycleConfig.model_validate(config.model_dump(by_alias=True) | {"lineage_events": events})


def _write(spark: SparkSession, live: str) -> None:
    spark.sql(f"CREATE NAMESPACE {live}.ns")
    spark.sql(f"CREATE TABLE {live}.ns.t (a int, s struct<x: string>) USING iceberg")
    writer = spark.createDataFrame([(1, ("x",))], "a int, s struct<x: string>").coalesce(1).writeTo(f"{live}.ns.t")
    for key, value in KEYS.items():
        writer = writer.option(f"snapshot-property.{key}", value)
    writer.append()
    spark.sql(f"INSERT OVERWRITE {live}.ns.t SELECT 2, struct('y')")


def _accepted(kind: Any, given: Any) -> Any:
    """Build the client's own class of an event's part: it validates values, and knows no other names."""
    return kind(**{field.alias: given[field.name] for field in attr.fields(kind) if field.init and field.name in given})


def _parsed(event: dict[str, Any]) -> RunEvent:
    names = {field.name.strip("_") for field in attr.fields(RunEvent)}
    assert {name for name in event if not name.startswith("schema")} <= names, event
    for part in (event["run"], event["job"], *event["outputs"], *event["inputs"]):
        for name, facet in {**part.get("facets", {}), **part.get("outputFacets", {})}.items():
            accepted = _accepted(_FACETS[name], facet)
            assert {key for key in facet if not key.startswith("_")} <= {
                each.name for each in attr.fields(type(accepted))
            }
            assert facet["_schemaURL"] == accepted._schemaURL
    return RunEvent(
        eventType=RunState[event["eventType"]],
        eventTime=event["eventTime"],
        producer=event["producer"],
        run=_accepted(Run, event["run"]),
        job=_accepted(Job, event["job"]),
        inputs=[_accepted(InputDataset, each) for each in event["inputs"]],
        outputs=[_accepted(OutputDataset, each) for each in event["outputs"]],
    )


def test_events_reach_a_server_once_it_takes_them_and_have_the_standard_facets(
    make_config: MakeConfig, spark: SparkSession, receiver: Receiver
) -> None:
    config = _with(make_config(), url=receiver.url, token="topsecret")
    assert "topsecret" not in repr(config)
    live = config.catalogs.live.name
    with Lifecycle.open(config, spark=spark) as lifecycle:
        _write(spark, live)
        receiver.status = 503
        assert lifecycle.record_lineage("ns.t").recorded == 2
        # The rows are published, and only the events wait.
        assert spark.table(f"{live}.lifecycle.lineage_ledger").count() == 2 and not receiver.events
        receiver.status = 200
        lifecycle.publish_results()
        lifecycle.publish_results()
        uuid_of_t = lifecycle.steps.table_uuid("ns.t")
        first, second = (each.snapshot_id for each in lifecycle.snapshot_history("ns.t").snapshots)
    assert receiver.logins == {"Bearer topsecret"} and len(receiver.events) == 2
    written, overwritten = map(_parsed, receiver.events)
    assert written.eventType is RunState.COMPLETE and written.job.name == "ingest-1"
    assert written.run.runId == str(uuid.uuid5(uuid.NAMESPACE_URL, f"iceberg://{live}/{uuid_of_t}/{first}"))
    assert written.run.runId != overwritten.run.runId
    event = receiver.events[0]
    assert event["run"]["facets"]["parent"]["run"]["runId"] == RUN
    assert event["job"]["facets"]["sourceCodeLocation"]["version"] == "a1b2c3d4"
    (source,) = event["inputs"]
    assert (source["name"], source["facets"]["version"]["datasetVersion"]) == ("ns.source", "7")
    facets, statistics = event["outputs"][0]["facets"], event["outputs"][0]["outputFacets"]["outputStatistics"]
    assert (facets["version"]["datasetVersion"], statistics["rowCount"], statistics["fileCount"]) == (str(first), 1, 1)
    assert facets["lifecycleStateChange"]["lifecycleStateChange"] == "CREATE"
    assert [(each["name"], each["type"]) for each in facets["schema"]["fields"]] == [("a", "int"), ("s", "struct")]
    assert [each["name"] for each in facets["schema"]["fields"][1]["fields"]] == ["x"]
    changed = receiver.events[1]["outputs"][0]["facets"]
    assert changed["lifecycleStateChange"]["lifecycleStateChange"] == "OVERWRITE"
    assert changed["version"]["datasetVersion"] == str(second) and not receiver.events[1]["inputs"]


def test_a_refused_event_does_not_hold_up_the_others(
    make_config: MakeConfig, spark: SparkSession, receiver: Receiver
) -> None:
    config = _with(make_config(), url=receiver.url)
    with Lifecycle.open(config, spark=spark) as lifecycle:
        _write(spark, config.catalogs.live.name)
        receiver.status = 422
        lifecycle.record_lineage("ns.t")
        receiver.status = 200
        lifecycle.publish_results()
        spark.sql(f"INSERT INTO {config.catalogs.live.name}.ns.t SELECT 3, struct('z')")
        lifecycle.record_lineage("ns.t")
    assert len(receiver.events) == 1


def test_a_file_gets_one_line_for_each_also_after_a_torn_one(
    make_config: MakeConfig, spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "events" / "lineage.jsonl"
    config = _with(make_config(), file=str(path))
    with Lifecycle.open(config, spark=spark) as lifecycle:
        _write(spark, config.catalogs.live.name)
        path.parent.mkdir()
        path.write_text('{"torn": ')
        lifecycle.record_lineage("ns.t")
        lifecycle.record_lineage("ns.t")
    torn, *lines = path.read_text().splitlines()
    assert torn == '{"torn": '
    assert [_parsed(json.loads(line)).job.name for line in lines] == ["ingest-1", "unknown"]
