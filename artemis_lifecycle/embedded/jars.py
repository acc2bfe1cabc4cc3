"""Spark's Java and jars: find a Java that Spark supports, resolve Spark's jars once into `<home>/jars` by Spark itself,
and compile the project's own, unless the wheel has them.

Sessions name the files in `spark.jars` and need no network. Spark decides where artifacts come from: its defaults,
`~/.m2`, or the resolvers of a site's own Spark settings. Each has a pinned hash.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import file_digest, sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from artemis_lifecycle import escaping
from artemis_lifecycle.config.schemes import kind_of
from artemis_lifecycle.embedded.java_classes import CLASS_PATHS, SOURCES, class_path, compile_folder
from artemis_lifecycle.embedded.locks import file_lock
from artemis_lifecycle.errors import EnvironmentMissing

if TYPE_CHECKING:
    from artemis_lifecycle.config.models import LifecycleConfig

_log = escaping.logger(__name__)

JARS_VARIABLE = "ARTEMIS_JARS"
"""A folder that already has the jars; nothing is resolved then."""

_OWN = "artemis-"

PACED_CLIENTS = "artemis.lifecycle.PacedS3Clients"
"""The class in the project's own jar whose S3 clients keep to the request budget of all workers."""

GIVEN_CREDENTIALS = "artemis.lifecycle.GivenCredentials"
"""The class in the same jar that passes the credentials of lifecycle.yaml to Glue's client."""

GATED_CATALOG = "artemis.lifecycle.GatedJdbcCatalog"
"""Iceberg's JdbcCatalog with the lineage gate of its database."""

_RESOLVE_SECONDS = 900


@dataclass(frozen=True)
class Jar:
    """One artifact by its Maven coordinates; `sha256` in hex, so that a mirror cannot serve another file. Spark's own
    resolution, and so `resolve`, supports no `classifier`."""

    group: str
    artifact: str
    version: str
    sha256: str
    classifier: str = ""

    @property
    def coordinates(self) -> str:
        """`group:artifact:version`, as in `spark.jars.packages`; then the classifier, if there is one."""
        return f"{self.group}:{self.artifact}:{self.version}{self.classifier and f':{self.classifier}'}"

    @property
    def file_name(self) -> str:
        """The name of its file in `<home>/jars`."""
        return f"{self.artifact}-{self.version}{self.classifier and f'-{self.classifier}'}.jar"


ICEBERG = Jar(
    "org.apache.iceberg",
    "iceberg-spark-runtime-4.1_2.13",
    "1.12.0",
    "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
)
POSTGRES = Jar(
    "org.postgresql", "postgresql", "42.7.8", "2a32a9dcbc42d67a50ad3a0de5efd102c8d2be46720045f2cbd6689f160ab7c7"
)
ICEBERG_AWS = Jar(
    "org.apache.iceberg",
    "iceberg-aws-bundle",
    "1.12.0",
    "dd7e49ffa4ac9b215bed846581991259e3aec9bb2fa08d6cec029c46cd66d957",
)
"""AWS clients of Iceberg, only for warehouses on S3 and for Glue."""

ICEBERG_AZURE = Jar(
    "org.apache.iceberg",
    "iceberg-azure-bundle",
    "1.10.0",
    "f143be94b94bb380e76d1c45ee9a63e143f4a7f813c6aa1ed72f5bfd44f52d05",
)
ICEBERG_GCP = Jar(
    "org.apache.iceberg",
    "iceberg-gcp-bundle",
    "1.11.0",
    "d9248fc76d94d232e153bf760631229cd3b7c6bc3b20f47d4b2caffe011a8a2f",
)
"""Clients of Azure and Google for warehouses there, in the newest versions that Maven has."""

_BUNDLES = {"s3": ICEBERG_AWS, "abfss": ICEBERG_AZURE, "gs": ICEBERG_GCP}


def needed(config: LifecycleConfig) -> tuple[Jar, ...]:
    """Return the jars that the catalogs of `config` need."""
    catalogs = (*config.catalogs.iceberg, config.catalogs.cold)
    kinds = {kind_of(place) for each in catalogs for place in each.places}
    if any(each.type == "glue" or each.is_signed for each in catalogs):
        kinds.add("s3")
    return ICEBERG, POSTGRES, *(bundle for kind, bundle in _BUNDLES.items() if kind in kinds)


def resolve(home: Path, jars: Sequence[Jar] = (ICEBERG, POSTGRES)) -> list[Path]:
    """Return the files of `jars`, fetched into `<home>/jars` if necessary, then the jars of the project's own classes
    for them, which a wheel has and a clone compiles.

    If ARTEMIS_JARS is set: all other jars of that folder, which must have these (of any version). Raises
    EnvironmentMissing, with the name of the jar, if one is missing, cannot be resolved or compiled, or has another
    hash.
    """
    configured = os.environ.get(JARS_VARIABLE)
    files = _configured(Path(configured), jars) if configured else _resolved(home, jars)
    return [*files, *_own(home, jars, files)]


def _resolved(home: Path, jars: Sequence[Jar]) -> list[Path]:
    folder = home.resolve() / "jars"
    files = [folder / jar.file_name for jar in jars]
    if not all(file.exists() for file in files):
        with file_lock(folder / "lock", timeout=_RESOLVE_SECONDS):
            missing = [jar for jar in jars if not (folder / jar.file_name).exists()]
            if missing:
                _fetch(missing, folder)
    return files


def _configured(folder: Path, jars: Sequence[Jar]) -> list[Path]:
    # Not the project's own, which may be of another release: the first class that Java finds counts.
    files = [file for file in sorted(folder.glob("*.jar")) if not file.name.startswith(_OWN)]
    for jar in jars:
        if not any(f"{jar.artifact}-" in file.name for file in files):
            raise EnvironmentMissing(
                f"{JARS_VARIABLE} names a folder without {jar.artifact}",
                path=str(folder),
                hint=f"put {jar.coordinates} there, or unset {JARS_VARIABLE}",
            )
    return files


def spark_home() -> str:
    """Return the folder of the installed pyspark. Raises EnvironmentMissing if there is none."""
    spec = find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise EnvironmentMissing("pyspark is not installed", hint="`pip install pyspark`, or `make setup`")
    return spec.submodule_search_locations[0]


def _own(home: Path, jars: Sequence[Jar], files: Sequence[Path]) -> list[Path]:
    """Return the jars of the project's own classes for `jars`: from the wheel, or compiled at first use."""
    artifacts = {jar.artifact for jar in jars}
    own = []
    for folder, needs in CLASS_PATHS.items():
        packaged = SOURCES / f"{folder}.jar"
        if artifacts.issuperset(needs):
            own.append(packaged if packaged.exists() else compiled(home, SOURCES / folder, class_path(folder, files)))
    return own


def compiled(home: Path, folder: Path, libraries: Sequence[Path]) -> Path:
    """Return the jar of the classes in `folder`, in `<home>/jars`, named by a digest of its sources and libraries.

    Spark's Janino compiles it, because a Java runtime has no compiler. Raises EnvironmentMissing if that fails.
    """
    source = b"".join(file.read_bytes() for file in sorted(folder.glob("*.java")))
    made_from = sha256(source + b"".join(file.name.encode() for file in libraries)).hexdigest()[:12]
    jar = home.resolve() / "jars" / f"{_OWN}{folder.name}-{made_from}.jar"
    if jar.exists():
        return jar
    with file_lock(jar.parent / "lock", timeout=_RESOLVE_SECONDS):
        if not jar.exists():
            said = compile_folder(
                folder,
                [
                    str(export_java()),
                    # Otherwise Janino targets Java 6, whose interfaces had no static methods.
                    "-Dorg.codehaus.janino.UnitCompiler.defaultTargetVersion=8",
                    *("-classpath", f"{spark_home()}/jars/*", "org.codehaus.commons.compiler.samples.CompilerDemo"),
                ],
                # The one library that Iceberg's runtime refers to but does not include.
                [*libraries, *Path(spark_home(), "jars").glob("slf4j-api-*.jar")],
                jar,
            )
            if said:
                raise EnvironmentMissing(
                    f"The project's own Java does not compile: {_reason(said)}",
                    path=str(folder),
                    hint="see whether the jars of Spark and Iceberg are of the versions that this release was made for",
                )
    return jar


def _fetch(jars: Sequence[Jar], folder: Path) -> None:
    # Python shows it where nothing is configured, as in a command, which may wait for minutes.
    _log.warning("Spark needs %s: fetching into %s, once", ", ".join(jar.file_name for jar in jars), folder)
    export_java()
    home = spark_home()
    with tempfile.TemporaryDirectory(prefix="ivy-", dir=folder) as work:
        ivy = Path(work)
        nothing = ivy / "nothing.py"
        nothing.write_text("")
        command = [
            f"{home}/bin/spark-submit",
            *("--master", "local[1]"),
            *("--conf", f"spark.jars.ivy={ivy}"),
            *("--packages", ",".join(jar.coordinates for jar in jars)),
            # Annotations that the driver needs only to compile.
            *("--exclude-packages", "org.checkerframework:checker-qual"),
            str(nothing),
        ]
        environment = {**os.environ, "SPARK_HOME": home, "PYSPARK_PYTHON": sys.executable}
        wanted = ", ".join(jar.coordinates for jar in jars)
        try:
            done = subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_RESOLVE_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise _unresolved(wanted, f"no answer in {_RESOLVE_SECONDS} s") from error
        if done.returncode != 0:
            raise _unresolved(wanted, _reason(done.stdout))
        for jar in jars:
            fetched = ivy / "jars" / f"{jar.group}_{jar.file_name}"
            if not fetched.exists():
                raise _unresolved(wanted, f"Spark fetched no {jar.file_name}")
            with fetched.open("rb") as file:
                digest = file_digest(file, "sha256").hexdigest()
            if digest != jar.sha256:
                raise _unresolved(wanted, f"{jar.file_name} has sha256 {digest} and not {jar.sha256}")
            # Within one file system, so a reader sees the complete jar or none.
            shutil.move(fetched, folder / jar.file_name)


def _reason(output: str) -> str:
    reasons = [
        line.strip()
        for line in output.splitlines()
        if "unresolved dependency" in line or "not found" in line or "Exception" in line or "WARN:" in line
    ]
    return (reasons or output.strip().splitlines() or ["Spark said nothing"])[-1]


def _unresolved(wanted: str, reason: str) -> EnvironmentMissing:
    return EnvironmentMissing(
        f"Spark cannot resolve {wanted}: {reason}",
        hint="check the network (a proxy goes into spark-defaults.conf) and try again, or "
        f"put the jars in a folder and name it in {JARS_VARIABLE}",
    )


# --- Java -------------------------------------------------------------------------------------------------------------

SUPPORTED = range(17, 24)
"""Spark 4.1 needs 17; its Hadoop needs a method that Java 24 removed (`Subject.getSubject`)."""

INSTALL_JAVA = (
    "install Java 17: `sudo apt-get install openjdk-17-jre-headless` (Debian, Ubuntu) or `brew install openjdk@17` "
    "(macOS); JAVA_HOME chooses one of several"
)

# Installation folders of packages: Debian and Red Hat; macOS; Homebrew on Arm and Intel.
_INSTALLED = (
    (Path("/usr/lib/jvm"), "*/bin/java"),
    (Path("/Library/Java/JavaVirtualMachines"), "*/Contents/Home/bin/java"),
    (Path("/opt/homebrew/opt"), "openjdk*/bin/java"),
    (Path("/usr/local/opt"), "openjdk*/bin/java"),
)


def require_java() -> Path:
    """Return a `java` that Spark supports: `$JAVA_HOME/bin/java` if that is set; else the first on the path or, if its
    version is wrong, an installed package.

    Raises EnvironmentMissing, with the command that installs it, if there is none.
    """
    java_home = os.environ.get("JAVA_HOME")
    if java_home:
        java = Path(java_home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise EnvironmentMissing(
                "JAVA_HOME names a folder without bin/java", path=java_home, hint=f"unset JAVA_HOME, or {INSTALL_JAVA}"
            )
        return _require_supported(java)
    on_path = shutil.which("java")
    try:
        if on_path is None:
            raise EnvironmentMissing("Spark needs Java 17 and there is no java on the path", hint=INSTALL_JAVA)
        return _require_supported(Path(on_path))
    except EnvironmentMissing:
        for java in _installed_packages():
            if java_version(java) in SUPPORTED:
                return java
        raise


def require_user_name() -> str:
    """Return the name of this process' user. Raises EnvironmentMissing if its id has none, as in a container that runs
    as any user: Hadoop's login, which Spark makes, ends the JVM then."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise EnvironmentMissing(
            f"The user id {os.geteuid()} has no name on this machine, and Spark's JVM does not start without one",
            path="/etc/passwd",
            hint="add a line for it, or preload libnss_wrapper, as deploy/entrypoint.sh does",
        ) from None


def export_java() -> Path:
    """Return `require_java()`, and set JAVA_HOME of this process to it for Spark's own scripts."""
    java = require_java()
    if not os.environ.get("JAVA_HOME"):
        os.environ["JAVA_HOME"] = str(java.resolve().parent.parent)
    return java


@cache
def java_version(java: Path) -> int:
    """Return the feature release of `java`, such as 17; 8 for version 1.8. 0 if it does not run or has no version
    (macOS has a `java` that only suggests an installation)."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    return int(match[1]) if match else 0


def _require_supported(java: Path) -> Path:
    version = java_version(java)
    if version not in SUPPORTED:
        which = f"is {version}" if version else "does not run"
        raise EnvironmentMissing(
            f"Spark needs Java {SUPPORTED[0]} to {SUPPORTED[-1]}, and this one {which}",
            path=str(java),
            hint=INSTALL_JAVA,
        )
    return java


def _installed_packages() -> Iterator[Path]:
    for folder, pattern in _INSTALLED:
        yield from sorted(java for java in folder.glob(pattern) if os.access(java, os.X_OK))
