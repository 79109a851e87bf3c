"""Write into every story of Pulsar's protocol what happens now: `python -m tests.pulsar.rewrite`.
The difference is to be reviewed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.unit.pulsar import test_protocol_stories as protocol
from tests.unit.pulsar import test_stories as service

if __name__ == "__main__":
    for path in protocol.PATHS:
        path.write_text(protocol.played(path), encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        for path in service.PATHS:
            path.write_text(service.played(path, Path(folder, path.stem)), encoding="utf-8")
