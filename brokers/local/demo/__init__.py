"""The demo: a local cluster that balances, fails and heals before your eyes, and what it is made of: callers, deeds, a screen."""
