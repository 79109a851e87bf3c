"""Name the side logs that brokers write and that others read."""

from __future__ import annotations

from typing import Final

from equipoise.channel.core.side_log import SideTopic

DOCUMENT_BYTES_MAX: Final = 256 * 1024
"""Room for a round of a thousand moves with their reasons. Further moves and stays are dropped and
counted."""

DECISIONS: Final = SideTopic(
    name="decisions",
    content="the decision log",
    consequence="balancing goes on, and what it decides is not kept",
    kept_ms=7 * 86_400_000,  # Over a weekend and the following days.
    rows_max=100_000,  # Six days of rounds at the default interval, about 100 MB.
    document_bytes_max=2 * DOCUMENT_BYTES_MAX,
)

SERVING: Final = SideTopic(
    name="serving",
    content="the record of serving",
    consequence="brokers serve on, and audits miss what is lost meanwhile",
    kept_ms=7 * 86_400_000,  # How late an audit may still read it.
    rows_max=200_000,  # 60 MB, 100,000 openings.
)
