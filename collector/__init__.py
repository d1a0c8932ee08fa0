"""OTLP in, ClickHouse out: the one process that owns the store and its schema."""
