"""`equipoise spark report`: one page that shows what a channel went through.

May live here: `run_report` under the name of the package. `figures` is what the page shows, `queries` gets it out of the archive,
`failures` names what keeps it from that, `plots` draws it, `page` writes it down.
"""

from equipoise.spark_jobs.report.job import run_report as run_report
