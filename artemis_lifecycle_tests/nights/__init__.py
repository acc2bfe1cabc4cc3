"""A fleet's nights on a simulated clock. Dagster's daemon, sensors and queue are real, like Postgres; Spark is not."""
