"""Serve HTTP: handlers decode a request, call, and encode the answer."""
