"""Verify an archive: replay all its segments in parallel and compare their digests.

The package knows neither Spark nor files, except for `spark_jobs.verifying.job`.
"""
