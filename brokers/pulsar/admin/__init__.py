"""Paths of Pulsar's REST interface that need the broker's topics."""
