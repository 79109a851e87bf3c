"""Topics, subscriptions and producers. Pure."""
