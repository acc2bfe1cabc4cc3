"""The UI as a person sees it after a walk: the graph, its partitions and its checks. Chromium opens a webserver on a
Postgres-backed instance. Skipped where no Chromium is found; on CI that is a failure."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from dagster import DagsterInstance, DagsterRunStatus, RunsFilter

from artemis_lifecycle.defs.run import Walk, materialize_fleet, materialize_walk
from artemis_lifecycle.defs.tags import PARTITIONS_NAME
from artemis_lifecycle.errors import ApprovalNeeded
from artemis_lifecycle.fleet.fleet import FOLDER
from artemis_lifecycle_tests.conftest import REPOSITORY
from artemis_lifecycle_tests.defs.conftest import OTHER, TABLE, Project, no_checksum_files, with_tables, written
from artemis_lifecycle_tests.defs.test_definitions import CHECKS, DEPS

if TYPE_CHECKING:
    from playwright.sync_api import Page
    from pyspark.sql import SparkSession

    from artemis_lifecycle.config.models import LifecycleConfig

pytestmark = pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning")

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
POLICY = {
    "artemis.*": {
        "retention": {"window": "1ms"},
        "deletion": {"grace": "0ms"},
        "orphans": {"min_age": "0ms", "min_age_floor": "0ms", "max_share": 1},
        "lineage": {"required": [], "overwrite": {"needs": []}},
    }
}
WAITS = "large.events"
WAITING = {WAITS: {"retention": {"window": "1ms"}, "cold_tier": {"enabled": False}, "deletion": {"max_files": 0}}}
SLOW = 60_000
PICTURES = os.environ.get("ARTEMIS_SCREENSHOTS")
"""A folder for pictures of all pages; without it the browser opens one of each sort."""


@pytest.fixture(scope="module")
def browser() -> str:
    """The path of the system's Chromium. Without one the tests are skipped; on CI, which must have one, they fail."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found:
            return found
    if os.environ.get("CI") == "true":
        pytest.fail("CI must have a Chromium, and none is on the path")
    pytest.skip("no Chromium on the path")


@pytest.fixture(scope="module")
def home(postgres_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A $DAGSTER_HOME with the repository's own dagster.yaml, on a database of the tests' Postgres. No daemon runs, so
    the webserver itself launches what a person asks for."""
    folder = tmp_path_factory.mktemp("dagster")
    settings = yaml.safe_load((REPOSITORY / "dagster.yaml").read_text())
    del settings["concurrency"]
    settings["run_coordinator"] = {"module": "dagster._core.run_coordinator", "class": "DefaultRunCoordinator"}
    (folder / "dagster.yaml").write_text(yaml.safe_dump(settings))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_HOME", str(folder))
        patch.setenv("ARTEMIS_DAGSTER_POSTGRES", postgres_uri)
        yield folder


@pytest.fixture(scope="module")
def walks(
    browser: str, home: Path, module_config: LifecycleConfig, spark: SparkSession
) -> Iterator[tuple[Project, list[Walk]]]:
    """Two tables, walked for real. Asks for the browser first: without one there is nothing to prepare."""
    config = with_tables(module_config, POLICY | WAITING)
    path = written(config, home)
    with DagsterInstance.get() as instance, no_checksum_files(spark):
        project = Project(config, path, instance, spark)
        project.create(TABLE, OTHER, commits=2)
        walked = materialize_walk([TABLE, OTHER], config_path=path, instance=instance, spark=spark)
        project.create(WAITS, commits=2)
        instance.delete_dynamic_partition(PARTITIONS_NAME, WAITS)
        with project.lifecycle() as lifecycle, pytest.raises(ApprovalNeeded):
            lifecycle.commit_expiration(lifecycle.plan_expiration(WAITS))
        materialize_fleet(config_path=path, instance=instance)
        yield project, walked


@pytest.fixture(scope="module")
def address(walks: tuple[Project, list[Walk]], home: Path) -> Iterator[str]:
    """A webserver of its own process, as `make ui` starts it."""
    project, _ = walks
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        str(Path(sys.executable).with_name("dagster-webserver")),
        *("--workspace", str(REPOSITORY / "workspace.yaml"), "--host", "127.0.0.1", "--port", str(port)),
    ]
    log = (home / "webserver.log").open("wb")
    environment = {**os.environ, "ARTEMIS_CONFIG": str(project.path)}
    server = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait(lambda: _answers(f"http://127.0.0.1:{port}/server_info"), home / "webserver.log", server)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=60)
        log.close()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return int(response.status) == 200
    except OSError:
        return False


def _wait(ready: Callable[[], bool], log: Path, server: subprocess.Popen[bytes] | None = None) -> None:
    end = time.monotonic() + 180
    while time.monotonic() < end:
        if ready():
            return
        if server is not None and server.poll() is not None:
            break
        time.sleep(0.5)
    pytest.fail(f"it did not happen:\n{log.read_text()[-4000:]}")


def test_the_walk_that_the_ui_shows_was_right(walks: tuple[Project, list[Walk]]) -> None:
    for walk in walks[1]:
        assert walk.failures == ()
        assert walk.succeeded
        assert walk.failed_checks == ()


@pytest.fixture(scope="module")
def page(browser: str, address: str) -> Iterator[Page]:
    """Opened after the walks: Playwright keeps an event loop in this thread, which Dagster's runs do not bear."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=browser, headless=True, args=FLAGS)
        opened = launched.new_page(viewport={"width": 1600, "height": 1000})
        opened.set_default_timeout(SLOW)
        yield opened
        launched.close()


def picture(page: Page, name: str) -> None:
    """Keep what the page shows, where $ARTEMIS_SCREENSHOTS names a folder for it."""
    if PICTURES:
        page.wait_for_timeout(4000)
        page.screenshot(path=str(Path(PICTURES) / f"{name}.png"))


def test_the_graph_shows_every_asset(page: Page, address: str) -> None:
    page.set_viewport_size({"width": 3300, "height": 1900})
    page.goto(f"{address}/asset-groups")
    page.get_by_text("expiration", exact=True).first.wait_for()
    page.keyboard.press("Alt+e")
    for asset in DEPS:
        # A long name is cut in its middle where the graph is drawn small.
        page.get_by_text(re.compile(f"^{asset[:6]}.*{asset[-5:]}$")).first.wait_for()
    picture(page, "graph")
    assert page.get_by_text("Failed", exact=False).count() == 0


def test_the_server_reports_every_partition_materialized_and_every_check_passed(address: str) -> None:
    """What the pages ask the server for, of all assets; a browser takes seconds for each page."""
    query = """{ assetNodes { assetKey { path }
        assetPartitionStatuses { ... on DefaultPartitionStatuses { materializedPartitions failedPartitions } }
        assetChecksOrError { ... on AssetChecks {
            checks { name executionForLatestMaterialization { status } } } } } }"""
    request = urllib.request.Request(
        f"{address}/graphql", json.dumps({"query": query}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        nodes = json.load(response)["data"]["assetNodes"]
    statuses = {node["assetKey"]["path"][0]: node["assetPartitionStatuses"] for node in nodes}
    assert statuses.pop("fleet")["materializedPartitions"] == []  # Of all tables, in no partition.
    assert statuses.pop("live_table")["materializedPartitions"] == []  # Other writers' own.
    assert statuses.keys() == DEPS.keys()
    for asset, status in statuses.items():
        assert sorted(status["materializedPartitions"]) == sorted([TABLE, OTHER]), asset
        assert status["failedPartitions"] == [], asset
    passed = {
        (node["assetKey"]["path"][0], check["name"]): check["executionForLatestMaterialization"]["status"]
        for node in nodes
        for check in node["assetChecksOrError"].get("checks", ())
    }
    assert passed == dict.fromkeys(CHECKS, "SUCCEEDED")


@pytest.mark.parametrize("asset", sorted(DEPS) if PICTURES else ["expiration_plan"])
def test_every_partition_of_the_asset_is_materialised(page: Page, address: str, asset: str) -> None:
    page.goto(f"{address}/assets/{asset}?view=partitions")
    for said in ("Materialized (2)", "Failed (0)", "Missing (0)"):
        page.get_by_text(said).first.wait_for()
    for table in (TABLE, OTHER):
        page.get_by_text(table, exact=True).first.wait_for()


@pytest.mark.parametrize(
    ("asset", "check"), sorted(CHECKS) if PICTURES else [("cold_tier_snapshots", "cold_copy_verified")]
)
def test_the_check_is_green_in_every_partition(page: Page, address: str, asset: str, check: str) -> None:
    page.goto(f"{address}/assets/{asset}?view=checks&checkDetail={check}")
    page.get_by_text("Passed", exact=True).first.wait_for()
    picture(page, f"{asset}-{check}")


def test_the_retention_curve_is_a_picture_in_the_tables_health(page: Page, address: str) -> None:
    page.goto(f"{address}/assets/table_health?view=events")
    page.get_by_text("retention_curve", exact=True).first.wait_for()
    page.get_by_text("[Show Markdown]").first.click()
    drawn = page.locator("img[src^='data:image/png']").first
    drawn.wait_for()
    assert drawn.evaluate("image => image.complete && image.naturalWidth") > 300
    picture(page, "table_health")


def test_a_person_reads_on_the_fleet_page_what_waits_and_approves_it_in_the_ui(
    walks: tuple[Project, list[Walk]], home: Path, page: Page, address: str
) -> None:
    project, _ = walks
    done = RunsFilter(job_name="approve", statuses=[DagsterRunStatus.SUCCESS])
    page.goto(f"{project.config.operations.root}/{FOLDER}/index.html")
    page.set_viewport_size({"width": 1280, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280, "it fits a laptop"
    row = page.get_by_role("row").filter(has_text=WAITS).first
    waits = re.search(r"approval of (\S+) since", row.inner_text())
    assert waits is not None, row.inner_text()
    picture(page, "fleet")
    assert page.locator("figure svg").count() == 4
    header = page.get_by_role("columnheader", name="stored", exact=True)
    header.click()
    cells = page.locator("table").first.locator(
        f"tbody tr td:nth-child({header.evaluate('each => each.cellIndex') + 1})"
    )
    stored = cells.evaluate_all("each => each.map(cell => Number(cell.dataset.key))")
    assert len(stored) > 2 and stored == sorted(stored) and stored[-1] > 0
    walked = page.get_by_role("row").filter(has_text=TABLE).first
    walked.get_by_role("link", name="page").click()
    page.get_by_role("heading", name=TABLE, exact=True).wait_for()
    page.get_by_role("link", name="receipt").first.wait_for()
    picture(page, "table")
    decision = {"plan": waits[1], "what": "large", "who": "Ada", "why": "the old partition is gone on purpose"}
    page.goto(f"{address}/locations/artemis_lifecycle.definitions/jobs/approve/playground")
    # It opens filled, and without an error.
    page.get_by_text("<Your name>").first.wait_for()
    picture(page, "launchpad")
    page.locator(".CodeMirror").first.click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(json.dumps({"ops": {"approve_step": {"config": decision}}}))
    page.get_by_role("button", name="Launch Run").click()
    _wait(lambda: bool(project.instance.get_runs(done)), home / "webserver.log")
    page.get_by_text("Success").first.wait_for()
    picture(page, "approved")
    with project.lifecycle() as lifecycle:
        (plan,) = lifecycle.plans(WAITS)
        assert (plan.plan_id, plan.approved_by, plan.approved_why) == (waits[1], "Ada", decision["why"])
        assert not lifecycle.operations.waits.open()
        assert lifecycle.commit_expiration(plan.plan_id).snapshots_removed == 1
