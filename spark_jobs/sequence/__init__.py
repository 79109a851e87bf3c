"""The log's order is one: what only a reader of the whole log can tell, as rows and facts for those who see a part of it.

Pure: `Sequence` is fed with arrivals, and gives rows; where they come from and go to is `spark_jobs.streams.sequential_operator`.
"""
