"""Run a whole broker process: the composition root and its background tasks."""
