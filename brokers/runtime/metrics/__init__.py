"""Prometheus metrics of a broker."""
