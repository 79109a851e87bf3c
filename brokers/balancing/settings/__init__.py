"""Settings of balancing: values, units, and their names in Pulsar. Pure."""
