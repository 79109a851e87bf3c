"""Audit, archive, verify and report on a channel's history with PySpark.

Only this package imports `pyspark`, and only in its outer modules. Pure modules decide about
records, bundles and intervals, so tests run without a JVM.
"""
