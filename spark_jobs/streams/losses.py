"""Ask the log whether entries that did not come are lost."""

from __future__ import annotations

from contextlib import closing

from equipoise.channel.core.snapshot import to_bytes
from equipoise.channel.log.open_log import open_log
from equipoise.channel.snapshots.restore import beginning


# See `spark_jobs.sequence.folding.Lost`.
def lost(log_url: str, first: int, below: int) -> bytes | None:  # noqa: ARG001
    """Answer `spark_jobs.sequence.folding.Lost` for the log at this URL.

    Gaps occur only after a failed write, so it may open the log each time. The log's start only
    rises: if it is not above `first` after the batch was read, nothing was lost.
    """
    with closing(open_log(log_url, create=False)) as log:
        return None if log.start() <= first else to_bytes(beginning(log).reader.view)
