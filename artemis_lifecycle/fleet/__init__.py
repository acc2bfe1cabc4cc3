"""All tables at a glance, from Postgres alone: where each is in its maintenance window, the page, the metrics."""
