"""Run a real Kafka on this machine, with one node or three, from Maven's jars: for tests and for
trials, without Docker.

`python -m compose.local_kafka` is the command line (`make kafka`); tests use `Cluster` and `Node`.
It needs only the standard library, Java 17 or newer, and Maven once.
"""
