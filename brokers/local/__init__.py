"""Run clusters on this machine: broker processes."""
