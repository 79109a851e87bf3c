"""Read a channel with Spark, from Kafka topics or SQLite files."""
