"""The command line `equipoise`: commands decode, call and print; what they decide is decided elsewhere."""
