"""Honest channels and injected violations: what the audit must not report, and what it must
name.
"""
