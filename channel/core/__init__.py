"""Records, their codec, the bundle lifecycle, the fold, and the port of a log. Pure."""
