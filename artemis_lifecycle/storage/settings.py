"""How to access stores: plain, picklable values from which Spark executors rebuild clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import quote

from artemis_lifecycle.errors import ConfigError
from artemis_lifecycle.storage.bounded import DEFAULT_LIMITS, ReadLimits
from artemis_lifecycle.storage.pace import PaceSettings, read_rate, write_rate

if TYPE_CHECKING:
    from artemis_lifecycle.config.deployment import Catalog, Reading
    from artemis_lifecycle.config.policies import Budgets

MIB = 1 << 20


@dataclass(frozen=True)
class AzureSettings:
    """Access to one storage account. Without `key`, `sas_token`, `token` and `client_secret`, azure-identity finds
    credentials. `authority`: `.blob.…` follows the account's name; a host and port has the account in its path."""

    account: str | None = None
    key: str | None = field(default=None, repr=False)
    sas_token: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    tenant_id: str | None = None
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    scheme: str = "https"
    authority: str | None = None

    def endpoint(self, host: str) -> str:
        """Return the address of the blob service of an account, by its host in a path."""
        account, _, rest = host.partition(".")
        if self.authority is not None and not self.authority.startswith("."):
            return f"{self.scheme}://{self.authority}/{account}"
        domain = rest.removeprefix("dfs.").removeprefix("blob.") or "core.windows.net"
        return f"{self.scheme}://{account}{self.authority or f'.blob.{domain}'}"


@dataclass(frozen=True)
class GcsSettings:
    """Access to Google Cloud Storage. Without `token`, google-auth finds credentials."""

    endpoint: str | None = None
    project: str | None = None
    token: str | None = field(default=None, repr=False)


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
    s3_connections: int = 32
    storage_class: str | None = None
    multipart_bytes: int = 64 * MIB
    """Larger objects are copied in parts of this size, or of a larger size if they would need more than 10,000
    parts."""
    attempts: int = 7
    max_wait_seconds: float = 10.0
    deadline_seconds: float = 60.0
    copy_attempts: int = 3
    requests_per_second: float | None = None
    """Maximum reads per second of one process from S3; None means no limit."""
    writes_per_second: float | None = None
    """The same for writes, of which a bulk delete is one for each key."""
    limits: ReadLimits = DEFAULT_LIMITS
    pace: PaceSettings | None = None
    """The buckets that all processes share. Without them, or while they do not answer, each process has its own."""
    azure: AzureSettings = AzureSettings()
    gcs: GcsSettings = GcsSettings()
    elsewhere: tuple[tuple[str, StoreSettings], ...] = ()
    """The settings of buckets that other ones reach, by authority: those of the other live catalogs."""
    moved: tuple[str, ...] = ()
    """The quarantine folders in which files may be that are not at their paths (`Stores.with_moved`)."""

    def __post_init__(self) -> None:
        if self.s3_endpoint is not None and "@" in self.s3_endpoint.partition("://")[2].partition("/")[0]:
            # Do not echo the address: the part before the @ is a credential, and every connection error would print it.
            raise ConfigError(
                "The S3 endpoint has a user name or password in its address",
                hint="give s3.access-key-id and s3.secret-access-key as separate properties",
            )
        if self.multipart_bytes < 5 * MIB:
            raise ConfigError(
                "multipart_bytes is less than 5 MiB, the minimum part size of S3", hint="set at least 5 MiB"
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
        """Return the settings from a catalog's properties, in pyiceberg's spelling (`s3.endpoint`, `adls.account-key`,
        `gcs.oauth2.token`, …; `client.…` is the fallback for credentials and region on S3). With `operations_uri`, all
        workers share the budget. Raises ConfigError for a value of the wrong type."""
        properties = _Properties(catalog.properties)
        virtual = properties.flag("s3.force-virtual-addressing")
        path_style = properties.flag("s3.path-style-access")
        return cls(
            s3_endpoint=properties.text("s3.endpoint"),
            s3_region=properties.text("s3.region", "client.region"),
            s3_access_key_id=properties.text("s3.access-key-id", "client.access-key-id"),
            s3_secret_access_key=properties.text("s3.secret-access-key", "client.secret-access-key"),
            s3_session_token=properties.text("s3.session-token", "client.session-token"),
            s3_path_style=path_style if path_style is not None or virtual is None else not virtual,
            azure=AzureSettings(
                account=properties.text("adls.account-name"),
                key=properties.text("adls.account-key"),
                sas_token=(properties.text("adls.sas-token") or "").lstrip("?") or None,
                token=properties.text("adls.token"),
                tenant_id=properties.text("adls.tenant-id"),
                client_id=properties.text("adls.client-id"),
                client_secret=properties.text("adls.client-secret"),
                scheme=properties.text("adls.blob-storage-scheme") or "https",
                authority=properties.text("adls.blob-storage-authority"),
            ),
            gcs=GcsSettings(
                endpoint=properties.text("gcs.service.host"),
                project=properties.text("gcs.project-id"),
                token=properties.text("gcs.oauth2.token"),
            ),
            storage_class=catalog.storage_class,
            requests_per_second=None if budgets is None else read_rate(budgets),
            writes_per_second=None if budgets is None else write_rate(budgets),
            limits=DEFAULT_LIMITS if reading is None else ReadLimits(**reading.model_dump()),
            pace=None if budgets is None or operations_uri is None else PaceSettings.of(budgets, operations_uri),
        )

    def shared_by(self, tasks: int) -> StoreSettings:
        """Return the settings for each of `tasks` processes that read at the same time: together they keep to the
        budget."""
        others = tuple((name, each.shared_by(tasks)) for name, each in self.elsewhere)
        rates = (self.requests_per_second, self.writes_per_second)
        reads, writes = (rate and rate / max(1, tasks) for rate in rates)
        return replace(self, requests_per_second=reads, writes_per_second=writes, elsewhere=others)

    @property
    def paced_by(self) -> tuple[PaceSettings | None, dict[str, float | None]]:
        """The arguments of `pace.pace_of`."""
        return self.pace, {"reads": self.requests_per_second, "writes": self.writes_per_second}

    def secrets(self) -> tuple[str, ...]:
        """Values that must never be shown."""
        azure, gcs = self.azure, self.gcs
        s3 = (self.s3_access_key_id, self.s3_secret_access_key, self.s3_session_token)
        others = (azure.key, azure.sas_token, azure.token, azure.client_secret, gcs.token)
        return tuple(secret for secret in (*s3, *others) if secret)

    def without_secrets(self, text: str) -> str:
        """Return what a store said, without those values."""
        for secret in self.secrets():
            for spelling in (secret, quote(secret, safe=""), quote(secret)):
                text = text.replace(spelling, "***")
        return text


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
            raise ConfigError(f"The catalog property {key} is neither true nor false", hint="write true or false")
        return value.strip().lower() == "true"
