"""Decide what to move, split and merge, by policies, placement rules and settings. Pure."""
