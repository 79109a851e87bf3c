"""Publish findings outside the archive, in a side log of the channel."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from equipoise.channel.core.errors import invalid_log_url
from equipoise.channel.core.side_log import Document, SideLogUnavailable, SideTopic, newest
from equipoise.channel.log.open_log import is_in_memory, open_side_log
from equipoise.spark_jobs.rules.rule import Finding

FINDINGS: Final = SideTopic(
    name="findings",
    content="the log of findings",
    consequence=(
        "bring that back, and let this user write there; the archive has the findings meanwhile"
    ),
    kept_ms=30 * 86_400_000,  # The archive keeps them for ever.
    rows_max=100_000,  # Some 100 MB.
    lock_ms_max=5_000,  # A failed write ends the job. Brokers hold the lock for milliseconds.
)

REPEATED_MAX: Final = 1_000
"""The newest findings among which those of a repeated batch are looked for. A batch seldom has as
many. Further ones are published again, with the same key and bytes."""

_logger: Final = logging.getLogger(__name__)


class FindingsOut:
    """The findings beside the log at `log_url`, keyed by subject. For one thread at a time.

    A reader of the channel may have no right to write them. If Kafka denies it, one warning is
    logged, and findings go only to the screen and the archive.
    """

    def __init__(self, log_url: str) -> None:
        """Raise `CallerError` for a log in memory, and what `open_side_log` raises."""
        if is_in_memory(log_url):
            raise invalid_log_url(
                url=log_url, problem="a log of this kind lives in one process, and Spark is another"
            )
        self._findings = open_side_log(log_url, FINDINGS)
        self._is_denied = False
        self.place = self._findings.place

    def put(self, findings: Sequence[Finding]) -> None:
        """Write the findings of one batch, in order. After `SideLogUnavailable` none, some or all
        of them may be written; those of a repeated batch that are there are left out.
        """
        if self._is_denied or not findings:
            return
        found = [Document(each.subject, each.to_bytes()) for each in findings]
        try:
            known = {(each.key, each.value) for each in newest(self._findings, REPEATED_MAX)}
            self._findings.append([each for each in found if each not in known])
        except SideLogUnavailable as error:
            if not error.is_denied:
                raise
            self._is_denied = True
            _logger.warning("findings are only in the archive: %s", error)
