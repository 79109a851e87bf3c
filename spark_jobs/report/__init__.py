"""Write one HTML page about the history of a channel: `equipoise spark report`."""

from equipoise.spark_jobs.report.job import run_report as run_report
