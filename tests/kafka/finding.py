"""A Kafka for the tests: the first way to one that works on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from compose.local_kafka.cluster import Cluster

GIVEN: Final = "EQUIPOISE_TEST_KAFKA"
"""The variable that names a Kafka which is there already, by its address; the tests leave no topics
behind in it."""

# So that a test which waits for Kafka's own compaction waits seconds, not the quarter of a minute
# that the cleaner sleeps.
EAGER_CLEANER: Final[Mapping[str, str]] = {"log.cleaner.backoff.ms": "200"}

ROOT: Final = Path(__file__).resolve().parents[2]
_LEASH_S: Final = 30.0


@contextmanager
def some_kafka(folder: Path) -> Iterator[str]:
    """The address of a Kafka: the one that is given; else one in a container, where an engine runs;
    else a local one.

    It may be of one node, and be shared: it is not to be stopped. Raises `NotInstalled` if there is
    no way to one.
    """
    with ExitStack() as running:
        if given := os.environ.get(GIVEN):
            address = given
        else:
            from tests.kafka import container

            if container.engine_answers():
                address = running.enter_context(container.started(EAGER_CLEANER))
            else:
                address = running.enter_context(local_kafka(folder, extra=EAGER_CLEANER)).address
        yield address


@contextmanager
def local_kafka(
    folder: Path,
    *,
    nodes: int = 1,
    proxies: Sequence[str] = (),
    extra: Mapping[str, str] | None = None,
    prepare: Callable[[Cluster], None] = lambda _: None,
) -> Iterator[Cluster]:
    """A local Kafka, from start to end; it ends with this process, too, however that dies. Raises
    as `Cluster.start` does.

    `prepare` may change the files of its nodes before they start.
    """
    cluster = Cluster.lay_out(folder, nodes=nodes, proxies=proxies, extra=extra)
    prepare(cluster)
    with _leashed(cluster):
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.kill()


@contextmanager
def _leashed(cluster: Cluster) -> Iterator[None]:
    """Beside the body a process waits for the end of this one, and ends the cluster then."""
    words = [sys.executable, "-m", "compose.local_kafka", "leash", "--folder", str(cluster.folder)]
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, start_new_session=True) as leash:
        yield
        assert leash.stdin is not None, "it was started with one"
        leash.stdin.close()
        leash.wait(_LEASH_S)
