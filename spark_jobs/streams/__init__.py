"""Spark sessions and streaming queries: starting, progress and errors."""
