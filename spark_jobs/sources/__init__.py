"""Sources of a channel for Spark: Kafka topics and SQLite files."""
