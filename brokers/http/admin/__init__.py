"""Paths that change or describe the cluster. Those of Apache Pulsar have Pulsar's spelling."""
