"""Host the audit and the archive in one process beside the brokers, without Spark."""
