"""Run clusters on this machine: broker processes, load workers and the demo."""
