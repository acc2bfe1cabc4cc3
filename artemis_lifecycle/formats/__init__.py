"""Table formats beside Iceberg, each with its reader, its rules and its service. No room below knows their names."""
