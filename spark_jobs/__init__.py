"""The past, at scale: PySpark audits, archives, verifies and reports on a channel.

The only package that imports `pyspark`, and of that only at its rim: what is decided about a record, a bundle or an interval
is decided by pure modules, which the tests run without a JVM.
"""
