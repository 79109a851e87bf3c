"""Measuring the use of a broker, and carrying load reports."""
