"""The independent view of who is a member and who holds what."""
