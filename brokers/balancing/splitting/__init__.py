"""When to split a bundle and when to merge two. Pure."""
