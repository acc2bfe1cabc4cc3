"""The Spark session of an open configuration. Belongs here: starting it at first use, and stopping the own one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from artemis_lifecycle.catalogs.settings import lifecycle_conf
from artemis_lifecycle.embedded.jars import needed, resolve
from artemis_lifecycle.spark.session import add_catalogs, live_session, open_session, session_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from artemis_lifecycle.config.models import LifecycleConfig


class Sessions(Protocol):
    """Whoever has a Spark session to lend."""

    @property
    def spark_session(self) -> SparkSession:
        """The session, started at first use."""

    @property
    def started(self) -> SparkSession | None:
        """The session, if there is one already; None rather than starting one."""


class LazySession:
    """The given session, the one that lives in this process, or one of our own that starts at first use."""

    def __init__(self, config: LifecycleConfig, given: SparkSession | None = None) -> None:
        self._config = config
        self._given = given
        self._own: SparkSession | None = None
        self._prepared = False

    @property
    def spark_session(self) -> SparkSession:
        """The session, with both catalogs."""
        if self._own is None and self._given is None:
            # A session that lives in this process already is its owner's to stop.
            self._given = live_session()
        if self._given is not None:
            if not self._prepared:
                add_catalogs(self._given, lifecycle_conf(self._config))
                self._prepared = True
            return self._given
        if self._own is None:
            jars = resolve(self._config.home, needed(self._config))
            self._own = open_session(session_conf(self._config, lifecycle_conf(self._config), jars))
        return self._own

    @property
    def started(self) -> SparkSession | None:
        """The session, if there is one already; None rather than starting one."""
        return self._given or self._own

    def close(self) -> None:
        """Stop the session that this object started."""
        if self._own is not None:
            self._own.stop()
            self._own = None
