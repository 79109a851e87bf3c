"""Run many brokers in one process in virtual time: the simulation, and the cluster for users'
tests.
"""
