"""Measure the resources that a broker uses, and exchange load reports."""
