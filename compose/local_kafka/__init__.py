"""A real Kafka on this machine, one node or three, from Maven's jars: for tests and for trying things, without Docker.

`python -m compose.local_kafka` is its command line (`make kafka`); tests use `Cluster` and `Node` themselves. Only the standard
library is needed, Java 17 or newer, and Maven once.
"""
