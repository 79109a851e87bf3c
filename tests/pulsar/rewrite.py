"""Write into every story of Pulsar's protocol what happens now: `python -m tests.pulsar.rewrite`.
The difference is to be reviewed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.pulsar.topic_stage import TopicStage
from tests.pulsar.wire_stage import WireStage
from tests.scenarios.stories import told
from tests.unit.pulsar import test_stories as service
from tests.unit.pulsar.topics import test_stories as topics
from tests.unit.pulsar.wire import test_stories as wire

if __name__ == "__main__":
    for paths, stage in ((wire.PATHS, WireStage), (topics.PATHS, TopicStage)):
        for path in paths:
            text = told(path.read_text(encoding="utf-8"), stage().perform)
            path.write_text(text, encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        for path in service.PATHS:
            path.write_text(service.played(path, Path(folder, path.stem)), encoding="utf-8")
