"""The log as a Kafka topic."""
