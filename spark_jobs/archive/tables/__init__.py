"""Store the archive's tables in files that outlive the channel: a folder per table, partitioned by
day.

* `schema`: the columns
* `layout`: file names
* `manifest`: a writer's progress
* `parquet`: one file
* `sink`: writing
* `reading`: reading
* `small_files`: compacting small files
"""
