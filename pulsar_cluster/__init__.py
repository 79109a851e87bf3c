"""See, audit and balance an Apache Pulsar cluster from outside."""
