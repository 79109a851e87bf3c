"""Write one forged record to a living channel: `python -m tests.channels.forge KIND --log URL`.
Some kinds destroy the channel.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from contextlib import closing

from equipoise.channel.core.log import BATCH_ENTRIES_MAX, READ_ENTRIES_MAX, Entry
from equipoise.channel.log.open_log import open_log
from equipoise.channel.snapshots.restore import earliest
from tests.injected.forgeries import FORGERIES
from tests.injected.forging import Scene, UnfitError

APPEND_TIMEOUT_MS = 5_000


def forge(url: str, kind: str, *, seed: int) -> tuple[int, ...]:
    """Append what the forgery of this name is; its storage offsets, none if the channel lacks what
    it needs just now.
    """
    forgery = next(each for each in FORGERIES if each.name == kind)
    with closing(open_log(url, create=False)) as log:
        reader, entries, end = earliest(log), list[Entry](), log.end()
        while reader.position <= end and (
            read := log.read(reader.position, limit=READ_ENTRIES_MAX)
        ):
            for entry in read:
                reader.feed(entry)
            entries += read
        scene = Scene(
            view=reader.view,
            entries=entries,
            now_ms=time.time_ns() // 1_000_000,
            rng=random.Random(seed),
        )
        try:
            forged = forgery.make(scene)
        except UnfitError:
            return ()
        offsets: list[int] = []
        for first in range(0, len(forged.data), BATCH_ENTRIES_MAX):
            offsets += log.append(
                forged.data[first : first + BATCH_ENTRIES_MAX], timeout_ms=APPEND_TIMEOUT_MS
            )
        return tuple(offsets)


def main() -> int:
    """Forge what the command line says; 1 if the channel lacks what that needs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument(
        "kind",
        choices=sorted(each.name for each in FORGERIES),
        metavar="KIND",
        help="one of tests/injected/forgeries.py",
    )
    parser.add_argument("--log", required=True)
    parser.add_argument(
        "--seed", type=int, default=0, help="which of several bundles or brokers it is about"
    )
    arguments = parser.parse_args()
    offsets = forge(arguments.log, arguments.kind, seed=arguments.seed)
    if not offsets:
        print(
            f"nothing was forged: the channel has at present nothing that {arguments.kind} needs;"
            " try again, or another seed"
        )
        return 1
    print(
        f"forged {arguments.kind} at offset {offsets[-1]}"
        + (f", after {len(offsets) - 1} others" if len(offsets) > 1 else "")
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
