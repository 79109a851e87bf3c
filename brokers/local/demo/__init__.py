"""The demo: a local cluster that balances, fails and recovers on the screen."""
