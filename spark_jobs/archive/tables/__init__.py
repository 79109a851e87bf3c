"""The archive: tables in files that outlive the channel, one folder for each table, partitioned by day.

May live here: this docstring. What the columns are stands in `schema`, how files are named in `layout`, what a writer says of itself
in `manifest`; `sink` writes, `reading` reads, `tidying` joins small files, and `delta` does as `sink` does for Delta tables.
"""
