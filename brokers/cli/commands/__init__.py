"""The command groups of the command line."""
