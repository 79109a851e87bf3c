"""How long a compaction may take, whoever asks for it: by hand, or the broker that leads.

May live here: these bounds, apart from the compactor, so that a command line need not load it to know them.
"""

from __future__ import annotations

from typing import Final

COMPACT_S_MAX: Final = 600
"""How long one compaction may take, unless somebody says otherwise. A million records take 15 s in a process that has a core for
itself; at a tenth of one, and for the ten million of a log that was never compacted, it is ended too late rather than too soon."""

WAIT_MS_MAX: Final = 10_000
"""How long it waits for other writers at each of its writes: the brokers', whose batches take milliseconds."""
