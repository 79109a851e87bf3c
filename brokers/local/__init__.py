"""Clusters on this machine: processes, load workers and the demo."""
