"""The pure core of Pulsar's binary protocol: frames, commands, replies and connections."""
