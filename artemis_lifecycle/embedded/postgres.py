"""Postgres from a wheel. Belongs here: setting up, starting and stopping the server that a first run uses. Does not
belong: what is stored in it, and any Postgres of the user's own.

The server listens on 127.0.0.1 alone, behind a password that is made at set-up and kept, readable by its owner only, in
`<home>/postgres/server.json`.
"""

from __future__ import annotations

import json
import os
import random
import re
import secrets
import shlex
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from artemis_lifecycle.embedded.folders import open_folder
from artemis_lifecycle.embedded.locks import file_lock
from artemis_lifecycle.embedded.placement import (
    binaries,
    choose_place,
    claim,
    claimed_by,
    discard,
    give,
    is_outside,
    reaches,
    require_place,
    run_tool,
    server_user,
    user_name,
)
from artemis_lifecycle.errors import EnvironmentMissing, OperationsUnavailable

ROLE = "artemis"
CATALOGS = "artemis"
"""The database of the catalogs and of `operations/`."""
DAGSTER = "dagster"
"""The database of Dagster's own storage."""
DATABASES = (CATALOGS, DAGSTER)

SETTINGS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    # Spark's catalogs, two pools, Dagster's daemon, its web server and its runs each keep some.
    "max_connections": "200",
    "shared_buffers": "64MB",
    "fsync": "on",
    "timezone": "UTC",
    "log_timezone": "UTC",
}

_INSIDE = "server"
_START_SECONDS = 60
_LOCK_SECONDS = 180
_LOG_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True)
class ServerStatus:
    """Whether the embedded Postgres runs, and where. `data` is None before the first start, `pid` and `port` while it
    does not run; `user` owns its data."""

    running: bool
    data: Path | None = None
    port: int | None = None
    pid: int | None = None
    user: str | None = None


@dataclass(frozen=True)
class _State:
    """`server.json`: the folder of the data (relative to the file's own, or absolute), the port, the password."""

    folder: str
    port: int
    password: str


class EmbeddedPostgres:
    """The embedded Postgres of one home folder. Every method may be called from several processes at once."""

    def __init__(self, home: Path, settings: Mapping[str, str] | None = None) -> None:
        """`settings` are laid over SETTINGS when the server starts; one that runs already keeps its own."""
        self.home = home.resolve()
        self._folder = self.home / "postgres"
        self._settings = {**SETTINGS, **(settings or {})}

    def start(self) -> str:
        """Make sure that the server runs and has its databases; set it up the first time.

        Returns its address without a database: `postgresql+psycopg2://role:password@127.0.0.1:port`. One that already
        answers costs a connection and no more. A `postmaster.pid` that a crash left behind is removed once its process
        is known to be another; a taken port is replaced, and the new one kept.

        Raises EnvironmentMissing, with the last lines of its log, when it cannot be set up or started; Busy when
        another process has been at it for minutes; OperationsUnavailable when it runs but takes no connection.
        """
        state = self._read()
        if state is None or not self._answers(state):
            with self._locked():
                state = self._start_locked()
        return f"postgresql+psycopg2://{ROLE}:{state.password}@127.0.0.1:{state.port}"

    def uri(self, database: str, *, driver: str = "postgresql+psycopg2") -> str:
        """The address of one database of the server, which is started if need be."""
        return f"{driver}{self.start().removeprefix('postgresql+psycopg2')}/{database}"

    def stop(self) -> bool:
        """Stop the server, cutting its connections; False when it did not run."""
        if self._read() is None:
            return False
        with self._locked():
            state = self._read()
            return state is not None and _stop(self._place(state), "fast")

    def status(self) -> ServerStatus:
        """Whether the server runs, where its data is, and whose. Starts nothing."""
        state = self._read()
        data = None if state is None else self._place(state) / "data"
        if state is None or data is None or not data.exists():
            return ServerStatus(running=False)
        pid = _postmaster(data)
        port = state.port if pid is not None else None
        return ServerStatus(pid is not None, data, port, pid, user_name(data.stat().st_uid))

    def remove(self) -> None:
        """Stop the server and delete its data: every catalog and plan in it is gone. Nothing else deletes them."""
        state = self._read()
        if state is None:
            return
        with self._locked():
            place = self._place(state)
            # Outside, what does not name this home is not provably its own.
            if place.is_dir() and (place.parent == self._folder or claimed_by(place) == self.home):
                require_place(place)
                _stop(place, "fast")
                with open_folder(place.parent) as parent:
                    shutil.rmtree(place.name, ignore_errors=True, dir_fd=parent.descriptor)
            with open_folder(self.home) as home:
                shutil.rmtree(self._folder.name, dir_fd=home.descriptor)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (
            open_folder(self._folder, make=True) as folder,
            file_lock(self._folder / "lock", timeout=_LOCK_SECONDS, folder=folder.descriptor),
        ):
            yield

    # --- starting, under the lock -----------------------------------------------------------------------------------

    def _start_locked(self) -> _State:
        state = self._read()
        if state is not None and self._answers(state):
            return state  # Another starter was quicker.
        state = self._settle() if state is None else self._adopt(state)
        place = self._place(state)
        data = place / "data"
        if not (data / "PG_VERSION").exists():
            self._initialise(place, state.password)
        if _postmaster(data) is None:
            state = self._launch(place, state)
        else:
            state = self._keep(replace(state, port=_recorded_port(data) or state.port))
        self._make_databases(state)
        return state

    def _settle(self) -> _State:
        """A place and a password for a server that home knows nothing of yet."""
        place = choose_place(self._folder / _INSIDE, self.home)
        inside = place.parent == self._folder
        if (place / "data").exists():
            # Also outside: its home may only be out of sight (moved, not mounted, in another container).
            # Catalogs, holds and plans are in it, and nothing says that they are not needed.
            raise EnvironmentMissing(
                f"The embedded Postgres has data in {place}, but the note of its password is gone",
                path=str(self._folder / "server.json"),
                untouched="the data",
                hint="put the note back (from a backup, or from where the home was moved to); if you do not need the "
                f"catalogs, holds and plans in the data, remove {self._folder if inside else place} to start anew",
            )
        return self._keep(_State(place.name if inside else str(place), 0, secrets.token_hex(16)))

    def _adopt(self, state: _State) -> _State:
        """The state that is right for this home, where the home or its data was moved, copied or deleted."""
        place = self._place(state)
        owner = claimed_by(place)
        if owner is not None and owner != self.home:
            if (owner / "postgres" / "server.json").exists():
                return self._settle()  # This home is a copy, and the data outside stays the original's.
            claim(place, self.home)
        if not place.is_dir():
            return self._settle()
        require_place(place)
        user = server_user(place)
        if user is not None:
            if place.stat().st_uid == 0:
                give(place, user)  # Copied by root.
            if not reaches(place, user):
                raise EnvironmentMissing(
                    f"User {user.pw_name}, who runs the embedded Postgres for root, can no longer reach its data",
                    path=str(place),
                    untouched="the data",
                    hint="move the folder back to where it was, or run as its owner",
                )
        return state

    def _initialise(self, place: Path, password: str) -> None:
        fresh, data, secret = place / "data.new", place / "data", place / "password"
        initdb = binaries(place) / "initdb"
        flags = ["-E", "UTF8", "--no-locale", *(["--no-sync"] if self._settings["fsync"] == "off" else [])]

        def run(*command: str | Path, given: bytes | None = None) -> None:
            # The folder is the server user's, and this may be root: whatever touches it runs as that user.
            failure = "The embedded Postgres cannot be set up"
            run_tool(command, place, timeout=2 * _START_SECONDS, failure=failure, given=given)

        discard(place, fresh.name)
        run("rm", "-f", "--", secret)
        try:
            run("sh", "-c", 'cat > "$1"', "sh", secret, given=password.encode() + b"\n")
            run(initdb, "-D", fresh, "-U", ROLE, "-A", "scram-sha-256", f"--pwfile={secret}", *flags)
        finally:
            run("rm", "-f", "--", secret)
        # Renamed when complete, so that a set-up that was killed is begun again and never taken for a database.
        run("sh", "-c", '[ ! -e "$2" ] || rmdir -- "$2"; mv -- "$1" "$2"', "sh", fresh, data)

    def _launch(self, place: Path, state: _State) -> _State:
        data, log = place / "data", place / "log"
        tools = binaries(place)
        if log.exists() and log.stat().st_size > _LOG_BYTES:
            _tidy(place, "mv", "-f", log, place / "log.1")
        deadline = time.monotonic() + _START_SECONDS
        taken: set[int] = set()
        while _postmaster(data) is None:
            # The process it names is gone or another's, yet Postgres would trust any number that is alive.
            _tidy(place, "rm", "-f", data / "postmaster.pid")
            state = self._keep(replace(state, port=self._free_port(state.port, taken)))
            begin = log.stat().st_size if log.exists() else 0
            options = {**self._settings, "port": str(state.port)}
            flags = " ".join(f"-c {key}={shlex.quote(value)}" for key, value in options.items())
            try:
                run_tool(
                    [tools / "pg_ctl", "start", "-D", data, "-w", "-t", str(_START_SECONDS), "-l", log, "-o", flags],
                    place,
                    timeout=2 * _START_SECONDS,
                    failure="The embedded Postgres does not start",
                )
            except EnvironmentMissing as error:
                said = _from(log, begin)
                if re.search(r"Address already in use|could not bind|could not create any TCP/IP", said):
                    taken.add(state.port)
                elif "shared memory block" in said and time.monotonic() < deadline:
                    time.sleep(0.3)  # After a kill of the postmaster its children take a moment to notice and leave.
                else:
                    last = " | ".join(said.strip().splitlines()[-4:])
                    raise EnvironmentMissing(f"{error.what}: {last}", path=str(log), hint=error.hint) from error
        return self._keep(replace(state, port=_recorded_port(data) or state.port))

    def _make_databases(self, state: _State) -> None:
        import psycopg2
        from psycopg2 import sql

        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                connection = _connect(state, "postgres")
                break
            except psycopg2.OperationalError as error:
                # Starting up, or going through its log after a crash.
                if time.monotonic() > deadline:
                    raise OperationsUnavailable(
                        f"The embedded Postgres runs but takes no connection: {' '.join(str(error).split())}",
                        path=str(self._place(state) / "log"),
                        hint="see its log, or stop it with `python -m artemis_lifecycle.embedded stop`",
                    ) from error
                time.sleep(0.1)
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute("SELECT datname FROM pg_database")
                existing = {row[0] for row in cursor.fetchall()}
                for name in DATABASES:
                    if name not in existing:
                        cursor.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        finally:
            connection.close()

    def _answers(self, state: _State) -> bool:
        """Whether the server at the port is this one, with all its databases."""
        import psycopg2

        if not state.port:
            return False
        try:
            connection = _connect(state, CATALOGS)
        except psycopg2.OperationalError:
            return False
        try:
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT current_setting('data_directory'), "
                    "(SELECT count(*) FROM pg_database WHERE datname = ANY(%s))",
                    (list(DATABASES),),
                )
                folder, databases = cursor.fetchall()[0]
        except psycopg2.Error:
            return False
        finally:
            connection.close()
        place = self._place(state)
        ours = claimed_by(place) in (None, self.home)
        return ours and databases == len(DATABASES) and Path(folder) == place / "data"

    def _free_port(self, wanted: int, taken: set[int]) -> int:
        # Under the range from which systems hand out ports to outgoing connections, so that the port is still free
        # after a restart; seeded by the folder, so that two homes seldom want the same one.
        seeded = random.Random(str(self.home))
        for port in [wanted, *(seeded.randrange(20_000, 32_000) for _ in range(100))]:
            if port and port not in taken and _is_free(port):
                return port
        raise EnvironmentMissing(
            "No free port on 127.0.0.1 for the embedded Postgres", hint="free some port between 20000 and 32000"
        )

    # --- server.json ------------------------------------------------------------------------------------------------

    def _place(self, state: _State) -> Path:
        place = self._folder / state.folder
        if state.folder != _INSIDE and not is_outside(place):
            # Whoever may write the note would otherwise have root work in any folder.
            raise EnvironmentMissing(
                f"The note of where the embedded Postgres stands names a folder where it never is: {place}",
                path=str(self._folder / "server.json"),
                untouched="that folder",
                hint=f"put the note back from a backup, or remove {self._folder} to start anew",
            )
        return place

    def _read(self) -> _State | None:
        file = self._folder / "server.json"
        try:
            return _State(**json.loads(file.read_text()))
        except FileNotFoundError:
            return None
        except PermissionError as error:
            owner = user_name(file.parent.stat().st_uid)
            raise EnvironmentMissing(
                f"The embedded Postgres of this home belongs to user {owner}",
                path=str(file),
                hint=f"run as {owner}, or name another folder in ARTEMIS_HOME",
            ) from error
        except (ValueError, TypeError) as error:
            raise EnvironmentMissing(
                f"The note of where the embedded Postgres stands cannot be read: {error}",
                path=str(file),
                untouched="its data",
                hint=f"fix the note, or remove {self._folder} to start anew",
            ) from error

    def _keep(self, state: _State) -> _State:
        if state != self._read():
            with open_folder(self._folder) as folder:
                status = os.fstat(folder.descriptor)
                # Root may start the server of another user's home, and must not lock that user out.
                owner = (status.st_uid, status.st_gid) if os.geteuid() == 0 else None
                folder.write("server.json", json.dumps(asdict(state)) + "\n", owner=owner)
        return state


def _tidy(place: Path, *command: str | Path) -> None:
    """Change files in the server's folder, as its user."""
    run_tool(command, place, timeout=_START_SECONDS, failure="The embedded Postgres' folder cannot be tidied up")


def _stop(place: Path, mode: str) -> bool:
    data = place / "data"
    if _postmaster(data) is None:
        return False
    run_tool(
        [binaries(place) / "pg_ctl", "stop", "-D", data, "-m", mode, "-w", "-t", str(_START_SECONDS)],
        place,
        timeout=2 * _START_SECONDS,
        failure="The embedded Postgres does not stop",
    )
    return True


def _connect(state: _State, database: str) -> Any:
    from artemis_lifecycle.postgres import connect

    return connect(
        host="127.0.0.1",
        port=state.port,
        user=ROLE,
        password=state.password,
        dbname=database,
        connect_timeout=5,
        application_name="artemis-setup",
    )


def _postmaster(data: Path) -> int | None:
    """The process id of the server on `data`. None when `postmaster.pid` is missing, or names a process that is gone, a
    zombie, or something else (numbers are used again, and a copied folder names the original's server)."""
    try:
        import psutil
    except ImportError as error:
        raise EnvironmentMissing.extra("embedded", error) from error

    try:
        pid = int((data / "postmaster.pid").read_text().split("\n", 1)[0])
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE or "postgres" not in process.name():
            return None
        # A postmaster works in its data folder, whatever that is called by now.
        return pid if os.path.samefile(process.cwd(), data) else None
    except (OSError, ValueError, psutil.NoSuchProcess):
        return None
    except psutil.AccessDenied:
        return pid  # Another user's postgres under that number: leave it alone.


def _recorded_port(data: Path) -> int | None:
    try:
        return int((data / "postmaster.pid").read_text().splitlines()[3])
    except (OSError, ValueError, IndexError):
        return None


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As Postgres does: connections that linger after a stop do not prevent it.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _from(log: Path, begin: int) -> str:
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(begin)
        return file.read().decode(errors="replace")
