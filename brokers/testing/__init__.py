"""Run many brokers in one process and in virtual time, for users' tests."""
