"""Who may connect to a broker, and how that is proved."""
