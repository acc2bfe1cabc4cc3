"""The bench: Iceberg's own expire action and this project's planner, side by side on synthetic metadata."""
