"""Keep the log in a Kafka topic."""
