"""Apache Pulsar's binary protocol for non-persistent topics, served as a `Service` of the core."""
