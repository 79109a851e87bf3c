"""The audit's independent view of who is a member and who holds which bundle."""
