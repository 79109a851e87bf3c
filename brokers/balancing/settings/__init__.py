"""Define the settings of balancing: values, units, and their names in Pulsar. Pure."""
