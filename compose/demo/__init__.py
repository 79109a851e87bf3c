"""The demo: a local cluster that balances, fails and recovers on the screen.

It is part of a checkout: its callers, Pulsar clients and checkers are those of the tests.
"""
