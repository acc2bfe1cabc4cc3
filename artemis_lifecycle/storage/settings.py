"""How stores are reached. Belongs here: plain, picklable values that Spark executors rebuild clients from. Does not
belong: a client."""

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
    """Addresses, credentials and limits of stores; whatever is None is boto3's own default chain's to find.

    `storage_class` is for writes and copies that name none. Sizes are bytes, times seconds. The limits on time
    keep one request with all its retries under a minute and a half, shorter than a lease (2 minutes): no retry begins
    after `deadline_seconds` and one wait.

    No repr or str of it shows a credential; its pickle carries them.
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
    """Larger objects are copied in parts of this size, or of more where 10,000 parts would not do."""
    attempts: int = 7
    max_wait_seconds: float = 10.0
    deadline_seconds: float = 60.0
    copy_attempts: int = 3
    requests_per_second: float | None = None
    """What one process may ask of S3 by itself; None means no limit."""
    limits: ReadLimits = DEFAULT_LIMITS
    pace: PaceSettings | None = None
    """The bucket that all processes draw from. Without one, or while it does not answer, each has its own."""

    def __post_init__(self) -> None:
        if self.s3_endpoint is not None and "@" in self.s3_endpoint.partition("://")[2].partition("/")[0]:
            # Not echoed: what stands before the @ is a credential, and every connection error would print it.
            raise ConfigError(
                "The S3 endpoint has a user name or password in its address",
                hint="give s3.access-key-id and s3.secret-access-key as properties of their own",
            )
        if self.multipart_bytes < 5 * MIB:
            raise ConfigError(
                "multipart_bytes is under 5 MiB, the least that S3 takes as a part",
                hint="give at least 5 MiB",
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
        """The settings that a catalog's properties give, spelled as pyiceberg spells them (`s3.endpoint`, …; for
        credentials and region `client.…` stands in). With `operations_uri` the budget is shared by all workers.
        Raises ConfigError for a value of the wrong kind."""
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
        """The settings for each of so many processes that read at once: together they keep to the budget."""
        rate = self.requests_per_second
        return self if rate is None else replace(self, requests_per_second=rate / max(1, tasks))

    def secrets(self) -> tuple[str, ...]:
        """What must never be shown."""
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
