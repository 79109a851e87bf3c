"""The command line `equipoise`. Commands only decode options, call other packages and print."""
