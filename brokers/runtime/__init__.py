"""A running broker: the worker, its services, its clocks and its data directory."""
