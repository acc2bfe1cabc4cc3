"""The conductor of a storm: starts everybody, kills and restarts at random, calms it, and lets the walk come to rest.

What is tested runs in processes of its own; nothing here touches a table before the storm is over, but to make it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.request import Request, urlopen

import psutil
import yaml
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.catalogs.settings import spark_conf
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.embedded.postgres import CATALOGS, EmbeddedPostgres
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.spark.session import add_catalogs
from artemis_lifecycle_tests.conftest import REPOSITORY
from artemis_lifecycle_tests.soak import journal, place, proxy, worker
from artemis_lifecycle_tests.soak.dying import kill_all
from artemis_lifecycle_tests.storage.s3_server import ACCESS_KEY, SECRET_KEY, S3Server

LIVE, COLD = "storm_live", "storm_cold"

_PACKAGE = "artemis_lifecycle_tests.soak"
_LONGER = 3600
"""Seconds that a storm may last beyond its time."""

_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Young JVMs on few cores, killed before a second compiler pays."""

FAULTS: Mapping[str, float] = {
    proxy.SLOW_DOWN: 0.02,
    proxy.BROKEN: 0.002,
    proxy.TIMEOUT: 0.0006,
    proxy.LOST: 0.004,
    proxy.LATE: 0.0004,
    proxy.CUT: 0.003,
    proxy.SLOW: 0.2,
}
"""Shares of all requests; of reads, and of listings, for the last two."""


@dataclass(frozen=True)
class Plan:
    """How hard, and how long. Times are in seconds; those between kills and restarts are means."""

    seconds: float
    tables: tuple[str, ...]
    heartbeats: tuple[str, ...]
    pyiceberg_writers: int
    spark_writers: int
    workers: int
    threads: int
    """Lifecycle workers in the test's own process, on its Spark session; nobody kills those."""
    window: int
    grace: int
    min_age: int
    commit_within: int
    heartbeat: int
    pause: float
    most_files: int
    between_kills: float
    between_restarts: float
    done_between_restarts: int
    least_commits: int
    faults: Mapping[str, float] = field(default_factory=lambda: FAULTS)


class Forked:
    """A process that is not a child of this one; how it ended is not known."""

    returncode = 0

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self._process: psutil.Process | None = psutil.Process(pid)
        except psutil.NoSuchProcess:
            self._process = None

    def poll(self) -> int | None:
        return None if self._process is not None and self._process.is_running() else 0

    def wait(self, timeout: float | None = None) -> int:
        try:
            if self._process is not None:
                self._process.wait(timeout)
        except psutil.TimeoutExpired:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0) from None
        return 0


@dataclass
class Child:
    """A process that is started again whenever it ends, until the storm does."""

    name: str
    module: str
    kind: str
    process: subprocess.Popen[bytes] | Forked | None = None
    started_at: float = 0.0
    began_at: float | None = None
    lives: int = 0


class Storm:
    def __init__(self, home: Path, seed: int, plan: Plan) -> None:
        self.home = home
        self.seed = seed
        self.plan = plan
        self.dice = random.Random(seed)
        self.server = EmbeddedPostgres(home, {"fsync": "off"})
        self.counts: Counter[str] = Counter()
        self.children: list[Child] = []
        self.helpers: list[subprocess.Popen[bytes]] = []
        self.left_behind: list[psutil.Process] = []
        self.threads: list[threading.Thread] = []
        self.nursery: subprocess.Popen[bytes] | None = None
        self.uri = ""
        self.endpoint = ""
        self.direct = ""
        self.place: place.Place = None  # type: ignore[assignment]

    # --- before -----------------------------------------------------------------------------------------------------

    def prepare(self, spark: SparkSession, other_server: str | None) -> None:
        """Servers, configuration, and empty tables. `other_server` is an S3 server that runs already."""
        self.home.mkdir(parents=True, exist_ok=True)
        self.home.chmod(0o755)
        self.uri = f"{self.server.start()}/{CATALOGS}"
        self.direct = other_server or self._store()
        log = str(self.home / "requests.log")
        self.endpoint = f"http://127.0.0.1:{self._helper('proxy', self.direct, 'PORT', log, str(self.seed))}"
        s3 = S3Server(self.direct, knows_classes=other_server is None, session_token=None)
        buckets = {name: s3.bucket() for name in ("live", "cold", "state")}
        storm, rest = self._config(buckets, self.plan.min_age), self._config(buckets, 1)
        (self.home / "storm.yaml").write_text(yaml.safe_dump(storm))
        (self.home / "rest.yaml").write_text(yaml.safe_dump(rest))
        self.place = place.Place(
            home=str(self.home),
            seed=self.seed,
            direct=self.direct,
            tables=self.plan.tables,
            heartbeats=self.plan.heartbeats,
            commit_within=self.plan.commit_within,
            heartbeat=self.plan.heartbeat,
            pause=self.plan.pause,
            most_files=self.plan.most_files,
        )
        self.place.save()
        self._make_tables(spark)

    @property
    def config(self) -> LifecycleConfig:
        return self.place.config

    def _store(self) -> str:
        return f"http://127.0.0.1:{self._helper('store', 'PORT')}"

    def _config(self, buckets: Mapping[str, str], min_age: int) -> dict[str, Any]:
        properties = {
            "s3.endpoint": self.endpoint,
            "s3.region": "us-east-1",
            "s3.access-key-id": ACCESS_KEY,
            "s3.secret-access-key": SECRET_KEY,
            # Under the proxy's patience, so that a time-out is the client's own.
            "s3.request-timeout": "5",
            "s3.connect-timeout": "5",
            "http-client.apache.socket-timeout-ms": "5000",
            "s3.retry.min-wait-ms": "200",
        }
        return {
            "home": str(self.home),
            "catalogs": {
                "live": {
                    "name": LIVE,
                    "uri": self.uri,
                    "warehouse": f"s3://{buckets['live']}/live",
                    "properties": properties,
                },
                "cold": {
                    "name": COLD,
                    "uri": self.uri,
                    "warehouse": f"s3://{buckets['cold']}/cold",
                    "properties": properties,
                },
            },
            "operations": {"uri": self.uri, "root": f"s3://{buckets['state']}/state"},
            "spark": {"master": "local[1]", "conf": {"spark.driver.memory": "900m"}},
            "defaults": {
                "retention": {"window": f"{self.plan.window}s"},
                "cold_tier": {"then": "keep"},
                "deletion": {"grace": f"{self.plan.grace}s"},
                "orphans": {"min_age": f"{min_age}s", "min_age_floor": f"{min_age}s", "max_share": 1},
            },
            "tables": {f"{place.NAMESPACE}.*": {}},
        }

    def _make_tables(self, spark: SparkSession) -> None:
        with Operations.open(self.uri) as operations, CatalogReader(self.config.catalogs.live) as catalog:
            catalog.create_namespace(place.NAMESPACE)
            place.install_guard(operations.engine)
        add_catalogs(spark, spark_conf(self.config.catalogs))
        for table in self.plan.tables:
            spark.sql(_statement(f"{LIVE}.{table}", table))

    # --- the storm --------------------------------------------------------------------------------------------------

    def blow(self, spark: SparkSession) -> None:
        """The storm, for `plan.seconds`, and until each of its parts was there."""
        names = [
            *(("writer", "pyiceberg writer", number) for number in range(self.plan.pyiceberg_writers)),
            *(("spark_writer", "Spark writer", number) for number in range(self.plan.spark_writers)),
            *(("worker", "lifecycle worker", number) for number in range(self.plan.workers)),
        ]
        self.children = [Child(f"{module}-{number}", module, kind) for module, kind, number in names]
        self.nursery = self._start("nursery", str(self.home), log="nursery", asked=True)
        self.helpers.append(self.nursery)
        self.helpers.append(self._start("observer", str(self.home), log="observer"))
        self._rates(self.plan.faults)
        for number in range(self.plan.threads):
            thread = threading.Thread(
                target=self._work, args=(spark, f"worker-here{number}"), name=f"worker-here{number}"
            )
            thread.start()
            self.threads.append(thread)
        end = time.monotonic() + self.plan.seconds
        kill_at = time.monotonic() + self._next(self.plan.between_kills)
        restart_at = time.monotonic() + self._next(self.plan.between_restarts)
        did_before = 0
        # A busy machine is given longer: a storm in which nothing happened would have shown nothing.
        latest = end + _LONGER
        while time.monotonic() < end or (lacking := self._lacking()):
            for child in self.children:
                self._revive(child)
            ripe = [child for child in self.children if self._ripe(child)]
            if time.monotonic() >= kill_at and ripe:
                kind = self.dice.choice(sorted({child.kind for child in ripe}))
                self._kill(self.dice.choice([child for child in ripe if child.kind == kind]))
                kill_at = time.monotonic() + self._next(self.plan.between_kills)
            if time.monotonic() >= restart_at:
                # However slow the machine: between two restarts some work comes to its end.
                did = self._did("commit", "done")
                if did - did_before >= self.plan.done_between_restarts:
                    self._restart_postgres()
                    did_before = did
                restart_at = time.monotonic() + self._next(self.plan.between_restarts)
            for helper in self.helpers:
                assert helper.poll() is None, f"{helper.args!r} ended with {helper.returncode}; see {self.home}"
            assert time.monotonic() < latest, f"the storm never had {lacking}; see {self.home}"
            time.sleep(0.1)

    def _did(self, *what: str) -> int:
        """Commits of writers ("commit"), and steps that workers ended ("done"), so far."""
        found = self.place.journal("x").parent.glob("*.jsonl")
        return sum(line["what"] in what for path in found for line in journal.read(path))

    def _lacking(self) -> list[str]:
        """What must happen at least once, and has not."""
        faults = self.faults()
        found = [kind for kind, rate in self.plan.faults.items() if rate and not faults.get(kind)]
        names = [*(child.name for child in self.children), *(thread.name for thread in self.threads)]
        for name in names:
            if not any(line["what"] in ("commit", "done") for line in journal.read(self.place.journal(name))):
                found.append(f"anything done by {name}")
        if self._did("commit") < self.plan.least_commits:
            found.append(f"{self.plan.least_commits} commits")
        for kind in {child.kind for child in self.children}:
            if not any(what.startswith(f"{kind} killed") for what in self.counts):
                found.append(f"a {kind} killed")
        if not any("Postgres" in what for what in self.counts):
            found.append("a restart of Postgres")
        if found:
            time.sleep(1)
        return found

    def _work(self, spark: SparkSession, name: str) -> None:
        dice = random.Random(f"{self.seed} {name}")
        with Lifecycle.open(self.place.config_path, spark=spark, owner=name) as lifecycle:
            said = journal.Journal(self.place.journal(name))
            worker.work(lifecycle, self.plan.tables, dice, said, lambda: self.place.stopping)
            said.close()

    def _ripe(self, child: Child) -> bool:
        """Whether it has worked for as long as it took to start: however slow the machine, it has something to lose."""
        said = self.place.journal(child.name)
        if child.process is None or child.process.poll() is not None or not said.exists():
            return False
        found = said.stat()
        if child.began_at is None and found.st_size > 0 and found.st_mtime > child.started_at:
            child.began_at = time.time()
        return child.began_at is not None and time.time() - child.began_at > child.began_at - child.started_at

    def _next(self, mean: float) -> float:
        return self.dice.uniform(0.3, 1.7) * mean

    def _revive(self, child: Child) -> None:
        if child.process is not None and child.process.poll() is None:
            return
        if child.process is not None and child.process.returncode == -signal.SIGKILL:
            self.counts[f"{child.kind} killed by itself at a crash point"] += child.kind == "lifecycle worker"
        elif child.process is not None:
            self.counts[f"{child.kind} ended by itself"] += 1
        child.lives += 1
        child.started_at, child.began_at = time.time(), None
        # One life in two ends at a durable write of its own; the others last until they are killed.
        die = [str(self.dice.randrange(5, 150))] if child.module == "worker" and self.dice.random() < 0.5 else []
        seed = str(self.seed * 1000 + child.lives * 10 + len(child.name))
        if child.module == "writer":
            child.process = self._born(child.name, seed)
        else:
            child.process = self._start(child.module, str(self.home), child.name, seed, *die, log=child.name)

    def _born(self, name: str, seed: str) -> Forked:
        assert self.nursery is not None and self.nursery.stdin is not None and self.nursery.stdout is not None
        self.nursery.stdin.write(f"{name} {seed}\n".encode())
        self.nursery.stdin.flush()
        return Forked(int(self.nursery.stdout.readline()))

    def _kill(self, child: Child) -> None:
        process = child.process
        if process is None or process.poll() is not None:
            return
        alone = child.module != "writer" and self.dice.random() < 0.3
        family = psutil.Process(process.pid).children(recursive=True)
        if alone:
            # The JVM notices by itself, and may end what it was at.
            os.kill(process.pid, signal.SIGKILL)
            self.left_behind.extend(family)
        else:
            kill_all(process.pid)
        process.wait()
        child.process = None
        self.counts[f"{child.kind} killed" + (", its JVM left" if alone else "")] += 1

    def _restart_postgres(self) -> None:
        mode: Literal["fast", "immediate"] = self.dice.choice(["fast", "immediate"])
        self.server.stop(mode)
        time.sleep(self.dice.uniform(0, 2))
        assert f"{self.server.start()}/{CATALOGS}" == self.uri
        self.counts[f"Postgres restarted, {mode}"] += 1

    # --- after ------------------------------------------------------------------------------------------------------

    def calm(self, patience: float = 1200) -> None:
        """No more faults and kills; everybody ends what they are at."""
        self._rates({})
        (self.home / "stop").touch()
        end = time.monotonic() + patience
        for child in self.children:
            if child.process is None:
                continue
            try:
                child.process.wait(max(1.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{child.name} does not come to an end") from None
            # One that had not begun yet may have met a Postgres, or a Spark, that was not there.
            fine = child.process.returncode in (0, -signal.SIGKILL) or child.began_at is None
            assert fine, f"{child.name} ended with {child.process.returncode}"
        for thread in self.threads:
            thread.join(max(1.0, end - time.monotonic()))
            assert not thread.is_alive(), f"{thread.name} does not come to an end"
        for process in self.left_behind:
            with suppress(psutil.NoSuchProcess):
                process.wait(max(1.0, end - time.monotonic()))
        (self.home / "ended").touch()
        observer = self.helpers.pop()
        assert observer.wait(max(1.0, end - time.monotonic())) == 0

    def faults(self) -> dict[str, int]:
        """Injected so far, by kind; and all requests."""
        with urlopen(f"{self.endpoint}/.storm", timeout=30) as answer:
            reported: dict[str, int] = json.loads(answer.read())
        return reported

    def _rates(self, rates: Mapping[str, float]) -> None:
        request = Request(f"{self.endpoint}/.storm", json.dumps(dict(rates)).encode(), method="PUT")
        with urlopen(request, timeout=30) as answer:
            answer.read()

    def end(self) -> None:
        """End whatever still runs."""
        (self.home / "stop").touch()
        for thread in self.threads:
            thread.join(60)
        for process in [*(child.process for child in self.children), *self.helpers]:
            if process is not None and process.poll() is None:
                with suppress(psutil.NoSuchProcess):
                    kill_all(process.pid)
                process.wait()
        if self.nursery is not None:
            for end in (self.nursery.stdin, self.nursery.stdout):
                assert end is not None
                end.close()
        for left in self.left_behind:
            with suppress(psutil.NoSuchProcess):
                left.kill()
        self.server.stop()

    # --- processes --------------------------------------------------------------------------------------------------

    def _helper(self, module: str, *arguments: str) -> str:
        """A process that serves; the port that it tells."""
        reported = self.home / f"{module}.port"
        process = self._start(module, *(str(reported) if each == "PORT" else each for each in arguments), log=module)
        self.helpers.append(process)
        end = time.monotonic() + 60
        while not reported.exists():
            assert process.poll() is None and time.monotonic() < end, (self.home / f"{module}.log").read_text()
            time.sleep(0.05)
        return reported.read_text()

    def _start(self, module: str, *arguments: str, log: str, asked: bool = False) -> subprocess.Popen[bytes]:
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("ARTEMIS_", "DAGSTER_"))},
            "ARTEMIS_JARS": os.environ.get("ARTEMIS_JARS") or str(REPOSITORY / ".artemis" / "jars"),
            "JDK_JAVA_OPTIONS": _JAVA,
            "PYTHONPATH": str(REPOSITORY),
        }
        command = [sys.executable, "-m", f"{_PACKAGE}.{module}", *arguments]
        with (self.home / f"{log}.log").open("a") as handle:
            ends: dict[str, Any] = {"stdout": handle, "stderr": handle}
            if asked:
                ends |= {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            return subprocess.Popen(command, cwd=REPOSITORY, env=environment, **ends)


def _statement(full: str, table: str) -> str:
    """How a table is made: each has something of its own."""
    parted = "" if table == place.PLAIN else "PARTITIONED BY (part)"
    properties = {"format-version": "3" if table == place.NEWEST else "2"}
    if table == place.PLAIN:
        properties |= {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "6"}
    if table in (place.MERGED, place.NEWEST):
        properties |= {f"write.{what}.mode": "merge-on-read" for what in ("delete", "update", "merge")}
    if table in (place.PARTED, place.NEWEST):
        properties |= {
            "write.metadata.delete-after-commit.enabled": "true",
            "write.metadata.previous-versions-max": "8",
        }
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    return (
        f"CREATE TABLE {full} (id bigint, mark bigint, part string, said string) USING iceberg {parted} "
        f"TBLPROPERTIES ({listed})"
    )
