"""Who may connect to a broker, how that is proved, and TLS."""
