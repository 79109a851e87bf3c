"""Serve Apache Pulsar's binary protocol for non-persistent topics as a `Service` of the core."""
