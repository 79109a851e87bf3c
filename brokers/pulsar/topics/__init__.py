"""The pure core of Pulsar topics, subscriptions and producers."""
