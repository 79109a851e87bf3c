"""What a broker does at intervals, beside its agent."""
