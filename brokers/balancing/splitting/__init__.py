"""Decide when to split a bundle and when to merge two. Pure."""
