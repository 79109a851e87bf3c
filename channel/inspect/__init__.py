"""Audit a log, and explain why a bundle moved. Pure."""
