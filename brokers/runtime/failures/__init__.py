"""Repeated failures, and how often a log reports them."""
