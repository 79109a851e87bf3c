"""What an admin does straight on the channel, without asking a broker: propose, wait for what follows, bury the dead."""
