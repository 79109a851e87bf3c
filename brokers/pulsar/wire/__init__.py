"""Pulsar's binary protocol: frames, commands, replies and connections. Pure."""
