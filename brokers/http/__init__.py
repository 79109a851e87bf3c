"""The ways in over HTTP: routes decode, call and encode; what they decide is decided elsewhere."""
