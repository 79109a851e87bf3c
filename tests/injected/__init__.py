"""Honest channels and injected violations, for the audit: what it must say nothing of, and what it must name.

May live here: the makers of channels (`honest`), violations as data, each kind a small function with the rules that may name it
(`forging` and `forgeries`, `tampering`, `stories`, `evidence`, `mutants`, `obedience`), and the catalogue of all (`kinds`).
"""
