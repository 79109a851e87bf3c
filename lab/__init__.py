"""Measure balancing policies on load traces, in simulated time and with the planning code of
brokers.
"""
