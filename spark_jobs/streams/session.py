"""The Spark session that every job runs in: started quietly, with what the jobs need and a user should not have to hunt for.

May live here: `spark_session`, the settings that all jobs share, and what is checked before anything of Spark starts.
"""

from __future__ import annotations

import os
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from equipoise.channel.core.errors import MissingExtra
from equipoise.spark_jobs.streams.connector import connector_jars
from equipoise.spark_jobs.streams.interrupts import delayed_interrupts
from equipoise.spark_jobs.streams.java import check_java
from equipoise.spark_jobs.streams.quiet import quietly

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXTRA_MODULES: Final = ("google.protobuf", "matplotlib", "pandas", "pyarrow", "pyspark")

LOCAL_MASTER: Final = "local[*,4]"
"""All cores of this machine, and four attempts at each task: one that meets a file that is away for a moment does not end the job."""

DRIVER_MEMORY: Final = "1g"
"""Of the JVM, with everything in it in local mode, unless `MEMORY_VARIABLE` says otherwise. A batch of 40,000 records takes 10 MB as
rows, a few times that on its way."""

MEMORY_VARIABLE: Final = "SPARK_DRIVER_MEMORY"
"""Spark's own name for it."""

STACK: Final = "16m"
"""Of each thread of the JVM; only what is used of it takes memory. A query that is stopped within a batch has its error searched by a
pattern that recurses for each character, which is too much for the 1 MB of Java's default."""

SHUFFLE_PARTITIONS: Final = 2
"""Tasks of each keyed operator. A checkpoint keeps it for its life, each has a state store of its own, and two suffice for the
2,000 records/s that a cluster writes at most."""

_STATE_STORE: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": _STATE_STORE,
    # Only what a batch changed is written to the checkpoint, not the whole of the state.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS),
    # Rows pass between the JVM and Python in as few pieces as there are.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A task whose Python worker waits for a file that is away is alive.
    "spark.python.worker.reuse": "true",
}

_IN_PROCESS: Final = "local["
"""How a master begins whose workers are children of this process; those of `local-cluster[...]` are not."""

OUR_PACKAGE: Final = "equipoise"
"""What a worker on another machine is sent, where it was not installed."""


def spark_session(
    app: str, *, master: str | None = None, kafka: bool = False, telling: Callable[[str], None] = lambda _: None
) -> SparkSession:
    """A session named `app`, or the one that this process has already.

    It runs on this machine, unless `master` or `spark-submit` names a cluster. With `kafka`, Spark's connector is on its path, and is
    fetched first if it never was. `telling` hears of that, and of the start, during which nothing else can be told.

    Raises `MissingExtra`, `MissingJava`, `JarsMissing`, `WrongJar`.
    """
    check_extra()
    check_java()
    jars = connector_jars(telling=telling) if kafka else ()
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - comes with the extra, which is checked first
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the same

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    # Workers are started by this name, and must find what this process finds.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = SparkConf().setAppName(app)
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if master is not None or not is_submitted:
        conf.setMaster(master or LOCAL_MASTER)
    if not is_submitted:
        conf.set("spark.driver.memory", driver_memory())
        conf.set("spark.driver.extraJavaOptions", " ".join(_java_options()))
    if jars:
        conf.set("spark.jars", ",".join(map(str, jars)))
    for name, value in _SETTINGS.items():
        conf.set(name, value)
    if not is_submitted:
        telling("starting Spark, which takes some 10 s")
    # In two steps, because the first ends with PySpark's own handler of Ctrl-C in the place of ours.
    with delayed_interrupts(), quietly(on=not is_submitted):
        SparkContext.getOrCreate(conf)
    with delayed_interrupts():
        session = SparkSession.builder.config(conf=conf).getOrCreate()
    if not (session.sparkContext.master or "").startswith(_IN_PROCESS):
        _ship(session)
    return session


def driver_memory(environment: Mapping[str, str] = os.environ) -> str:
    """What the JVM of a session on this machine may take, in Java's words for it: `1g`."""
    return environment.get(MEMORY_VARIABLE) or DRIVER_MEMORY


def check_extra() -> None:
    """Raise `MissingExtra` unless all that comes with the extra `spark` is installed."""
    for module in _EXTRA_MODULES:
        root = module.partition(".")[0]
        if find_spec(root) is None or find_spec(module) is None:
            raise MissingExtra(what="a Spark job", extra="spark")


def _java_options() -> list[str]:
    """Options of the JVM: its stacks, and what it logs. From within a zip there is no file to name, and Spark's own default holds."""
    path = Path(__file__).with_name("log4j2.properties")
    return [f"-Xss{STACK}", *([f"-Dlog4j2.configurationFile={path.as_uri()}"] if path.is_file() else [])]


def _ship(session: SparkSession) -> None:
    """Send our packages to the workers of a cluster. What they stand on (`equipoise[spark]`) must be installed there, or sent along."""
    folder = Path(tempfile.mkdtemp(prefix="equipoise-"))
    path = folder / "equipoise-packages.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        spec = find_spec(OUR_PACKAGE)
        for root in (spec.submodule_search_locations or ()) if spec is not None else ():
            # In a checkout the packages below it are links.
            for below, _, names in os.walk(root, followlinks=True):
                for name in sorted(names):
                    found = Path(below, name)
                    if found.suffix != ".pyc":
                        archive.write(found, str(OUR_PACKAGE / found.relative_to(root)))
    session.sparkContext.addPyFile(str(path))
