"""Run brokers: their pure state machine, its host, and the HTTP and command-line interfaces."""
