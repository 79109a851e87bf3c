"""A running broker. `worker` hosts its agent, and `broker` composes the process around it."""
