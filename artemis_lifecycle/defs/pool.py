"""The pool of the runs that need a Spark session: each is a JVM, or a warm worker."""

from dagster import DagsterInstance

SPARK_POOL = "artemis_spark"


def parallel_runs(instance: DagsterInstance) -> int | None:
    """Return how many of these runs the instance allows at once; None without a limit."""
    config = instance.get_concurrency_config()
    own = [each.limit for each in instance.event_log_storage.get_pool_limits() if each.name == SPARK_POOL]
    queue = config.run_queue_config
    limits = (
        own[0] if own else config.pool_config.default_pool_limit,
        None if queue is None else queue.max_concurrent_runs,
    )
    return min((limit for limit in limits if limit is not None and limit > 0), default=None)
