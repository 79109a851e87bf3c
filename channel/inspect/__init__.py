"""Verifying a log, and explaining why a bundle moved. Pure."""
