"""The session that a long-lived process keeps from one run to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from artemis_lifecycle.spark.session import live_session, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class KeptSession:
    """One process's session, and the settings that it was started with."""

    conf: Mapping[str, str] | None = None

    def open(self, conf: Mapping[str, str]) -> SparkSession:
        """Return the session. Start a new one if there is none, its JVM has ended, or its settings are not `conf`.

        Raises what `open_session` raises.
        """
        if _jvm_ended():
            _forget()
        elif self.conf is not None and dict(conf) != dict(self.conf):
            # A JVM reads the settings of catalogs when it starts, and a loaded catalog keeps its own.
            _end_jvm()
        session = open_session(conf)
        self.conf = dict(conf)
        return session


def _jvm_ended() -> bool:
    from pyspark import SparkContext

    started = getattr(SparkContext._gateway, "proc", None)
    return started is not None and started.poll() is not None


def _end_jvm() -> None:
    from pyspark import SparkContext

    live, gateway = live_session(), SparkContext._gateway
    if live is not None:
        live.stop()
    started = getattr(gateway, "proc", None)
    if gateway is not None and started is not None:
        gateway.shutdown()
        started.stdin.close()  # the JVM ends when its input does
        started.wait(timeout=60)
        _forget()


def _forget() -> None:
    """Let pyspark start a new JVM. It has no public call for this: `stop` keeps the connection to the ended one."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
