"""Read the whole log in order, and make rows and facts for operators that see only a part of it.

This package is pure: it turns arrivals into rows. `spark_jobs.streams.sequential_operator` connects
it to Spark.
"""
