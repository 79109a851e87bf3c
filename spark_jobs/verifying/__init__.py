"""The archive folded again, all its parts side by side: a chain of digests, each link of which is proved by itself.

May live here: the plan of the parts, the folding of one, and what all of them come to. Nothing of it knows Spark or files: that is
`spark_jobs.verifying.job`.
"""
