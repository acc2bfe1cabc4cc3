"""How to access stores. Belongs here: plain, picklable values from which Spark executors rebuild clients. Does not
belong here: a client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from artemis_lifecycle.errors import ConfigError
from artemis_lifecycle.storage.bounded import DEFAULT_LIMITS, ReadLimits
from artemis_lifecycle.storage.pace import PaceSettings, read_rate

if TYPE_CHECKING:
    from artemis_lifecycle.config.deployment import Catalog, Reading
    from artemis_lifecycle.config.policies import Budgets

MIB = 1 << 20


@dataclass(frozen=True)
class StoreSettings:
    """Addresses, credentials and limits of stores. boto3's default chain provides values that are None.

    `storage_class` applies to writes and copies that specify none. Sizes are in bytes, times in seconds. The time
    limits keep one request with all its retries below a minute and a half, less than a lease (2 minutes): no retry
    begins later than `deadline_seconds` plus one wait.

    Neither repr nor str shows a credential. The pickle contains them.
    """

    s3_endpoint: str | None = None
    s3_region: str | None = None
    s3_access_key_id: str | None = field(default=None, repr=False)
    s3_secret_access_key: str | None = field(default=None, repr=False)
    s3_session_token: str | None = field(default=None, repr=False)
    s3_path_style: bool | None = None
    s3_connect_timeout: float = 5.0
    s3_read_timeout: float = 20.0
    s3_connections: int = 16
    storage_class: str | None = None
    multipart_bytes: int = 64 * MIB
    """Larger objects are copied in parts of this size, or of a larger size if they would need more than 10,000
    parts."""
    attempts: int = 7
    max_wait_seconds: float = 10.0
    deadline_seconds: float = 60.0
    copy_attempts: int = 3
    requests_per_second: float | None = None
    """Maximum requests per second of one process to S3; None means no limit."""
    limits: ReadLimits = DEFAULT_LIMITS
    pace: PaceSettings | None = None
    """The bucket that all processes share. Without it, or while it does not answer, each process has a separate one."""
    elsewhere: tuple[tuple[str, StoreSettings], ...] = ()
    """The settings of S3 buckets that other ones reach, by name: those of the other live catalogs."""

    def __post_init__(self) -> None:
        if self.s3_endpoint is not None and "@" in self.s3_endpoint.partition("://")[2].partition("/")[0]:
            # Do not echo the address: the part before the @ is a credential, and every connection error would print it.
            raise ConfigError(
                "The S3 endpoint has a user name or password in its address",
                hint="give s3.access-key-id and s3.secret-access-key as separate properties",
            )
        if self.multipart_bytes < 5 * MIB:
            raise ConfigError(
                "multipart_bytes is less than 5 MiB, the minimum part size of S3",
                hint="set at least 5 MiB",
            )
        for name in ("attempts", "copy_attempts", "s3_connections"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1", hint="give a positive number")

    @classmethod
    def from_catalog(
        cls,
        catalog: Catalog,
        budgets: Budgets | None = None,
        operations_uri: str | None = None,
        reading: Reading | None = None,
    ) -> StoreSettings:
        """Return the settings from a catalog's properties, in pyiceberg's spelling (`s3.endpoint`, …; `client.…` is the
        fallback for credentials and region). With `operations_uri`, all workers share the budget. Raises ConfigError
        for a value of the wrong type."""
        properties = _Properties(catalog.properties)
        virtual = properties.flag("s3.force-virtual-addressing")
        rate = None if budgets is None else read_rate(budgets)
        path_style = properties.flag("s3.path-style-access")
        return cls(
            s3_endpoint=properties.text("s3.endpoint"),
            s3_region=properties.text("s3.region", "client.region"),
            s3_access_key_id=properties.text("s3.access-key-id", "client.access-key-id"),
            s3_secret_access_key=properties.text("s3.secret-access-key", "client.secret-access-key"),
            s3_session_token=properties.text("s3.session-token", "client.session-token"),
            s3_path_style=path_style if path_style is not None or virtual is None else not virtual,
            storage_class=catalog.storage_class,
            requests_per_second=rate,
            limits=DEFAULT_LIMITS if reading is None else ReadLimits(**reading.model_dump()),
            pace=None if budgets is None or operations_uri is None else PaceSettings.of(budgets, operations_uri),
        )

    def shared_by(self, tasks: int) -> StoreSettings:
        """Return the settings for each of `tasks` processes that read at the same time: together they keep to the
        budget."""
        rate, others = self.requests_per_second, tuple((name, each.shared_by(tasks)) for name, each in self.elsewhere)
        return self if rate is None else replace(self, requests_per_second=rate / max(1, tasks), elsewhere=others)

    def secrets(self) -> tuple[str, ...]:
        """Values that must never be shown."""
        return tuple(s for s in (self.s3_access_key_id, self.s3_secret_access_key, self.s3_session_token) if s)


@dataclass(frozen=True)
class _Properties:
    values: Mapping[str, str]

    def text(self, *keys: str) -> str | None:
        return next((self.values[key] for key in keys if self.values.get(key)), None)

    def flag(self, key: str) -> bool | None:
        value = self.text(key)
        if value is None:
            return None
        if value.strip().lower() not in ("true", "false"):
            raise ConfigError(
                f"The catalog property {key} is neither true nor false",
                hint="write true or false",
            )
        return value.strip().lower() == "true"
