"""Start the Spark session of every job, with the settings and checks that all jobs share."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from equipoise.channel.core.errors import (
    CallerError,
    EquipoiseError,
    OperatorError,
    missing_extra,
)
from equipoise.spark_jobs.streams.causes import spark_failed
from equipoise.spark_jobs.streams.connector import connector_jars
from equipoise.spark_jobs.streams.interrupts import Result, delayed_interrupts, interruptible
from equipoise.spark_jobs.streams.options import Screen, SparkOptions, counting

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

Task = TypeVar("Task")

_ARCHIVE: Final = ("deltalake", "pyarrow", "zstandard")
_REPORT: Final = (*_ARCHIVE, "duckdb", "jinja2", "matplotlib")
_MODULES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "archive": ("an audit or archive", _ARCHIVE),
    "report": ("a report", _REPORT),
    "spark": ("a Spark job", (*_REPORT, "google.protobuf", "pandas", "pyspark")),
}
"""By extra: what needs it, and the modules in it."""

LOCAL_MASTER: Final = "local[*,4]"
"""All cores of this machine, and four attempts per task: a file that is missing for a moment does
not end the job."""

DRIVER_MEMORY: Final = "1g"
"""Memory of the JVM, with everything in it in local mode; `MEMORY_VARIABLE` overrides it.

A batch of 40,000 records takes 10 MB as rows, and a few times that in transit.
"""

MEMORY_VARIABLE: Final = "SPARK_DRIVER_MEMORY"
"""Spark's own environment variable."""

STACK: Final = "16m"
"""Stack of each JVM thread; only the used part takes memory.

If a query is stopped during a batch, Spark searches its error with a pattern that recurses for each
character, too deep for Java's 1 MB.
"""

SHUFFLE_PARTITIONS: Final = 2
"""Tasks of each keyed operator. A checkpoint keeps this number for ever, and each task has its own
state store.

Two suffice for the 2,000 records/s that a cluster writes at most.
"""

_STATE_STORE: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": _STATE_STORE,
    # Write only the changes of a batch to the checkpoint, not the whole state.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS),
    # Pass rows between the JVM and Python in few pieces.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Keep Python workers: one that waits for a missing file is alive.
    "spark.python.worker.reuse": "true",
}

_IN_PROCESS: Final = "local["
"""Prefix of masters whose workers are children of this process. Those of `local-cluster[...]` are
not."""

_LOOKS: Final = 4
"""How many tasks for each core look for a folder."""

JAVA_MIN: Final = 17
"""The Java that the extra's Spark needs; see docs/adr/0012-spark.md."""

_JAVA_ADVICE: Final = (
    f"on Debian: apt-get install openjdk-{JAVA_MIN}-jre-headless; elsewhere any JRE from"
    " https://adoptium.net; if there are several, JAVA_HOME selects the one to use"
)

# Java prints its version in a quarter of a second; a busy machine may need longer.
_ANSWER_S: Final = 60.0

_find_version: Final = re.compile(r'version "(?:1\.)?(\d+)').search
"""Java 8 reports 1.8, all later ones their number."""

_STANDARD_ERROR: Final = 2

# No setting turns off these lines of Java, its start script and Spark's workers.
_NOISE: Final = (
    b"WARNING: Using incubator modules",
    b"WARNING: package sun.security.action not in",
    b"WARNING: A terminally deprecated method",
    b"WARNING: sun.misc.Unsafe::",
    b"WARNING: Please consider reporting this to the maintainers",
    b"Using Spark's default log4j profile",
    b"Picked up JAVA_TOOL_OPTIONS",
    # Messages of a stateful operator's Python worker in each batch, with an empty line after each.
    b"Starting Streaming TransformWithState",
    b"Streaming TransformWithState",
    b"\n",
)

OUR_PACKAGE: Final = "equipoise"
"""The package to send to workers on machines where it is not installed."""


_ENVIRONMENT: Final = "equipoise-environment"
"""The folder on a worker into which Spark unpacks the packed environment."""

_PROGRAMS: Final = "/usr/local/bin:/usr/bin:/bin"


def check_shared(session: SparkSession, folder: Path) -> None:
    """Raise `CallerError` if a worker of the cluster does not see `folder`, where a job keeps its
    checkpoint.
    """
    context = session.sparkContext
    if _is_in_process(session):
        return
    mark = str(folder.absolute() / f".seen-by-{context.applicationId}")
    Path(mark).touch()
    try:
        # Several for each core, so that each worker gets some.
        tasks = _LOOKS * context.defaultParallelism
        seen = context.parallelize(range(tasks), tasks).map(lambda _: os.path.exists(mark))  # noqa: PTH110 - a worker needs no pathlib
        is_shared = all(seen.collect())
    finally:
        Path(mark).unlink()
    if not is_shared:
        raise CallerError(
            f"the checkpoint of this job would be in {folder.absolute()}, which workers of"
            f" {context.master} do not see: each would keep a part of the state on a disk of its"
            " own, and the job could not continue; name a folder that all machines share with"
            " --archive, or omit --master"
        )


def spark_session(
    app: str,
    where: SparkOptions,
    *,
    kafka: bool = False,
    note: Callable[[str], None] = lambda _: None,
) -> SparkSession:
    """Return a session named `app`, or the session that this process already has.

    It runs on this machine, unless `where` or `spark-submit` names a cluster. With `kafka`, fetch
    Spark's connector if it is missing. `note` gets a message about the fetch and the start; the
    start blocks.

    Raise `CallerError`, and `OperatorError` if Java or the connector is missing or unfit.
    """
    check_extra("spark")
    check_java()
    jars = connector_jars(note=note) if kafka else ()
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - an extra, which is checked first
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the same

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    conf = SparkConf().setAppName(app)
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    master = where.master or (None if is_submitted else LOCAL_MASTER)
    if master is not None:
        conf.setMaster(master)
        choose_python(conf.set, master, where.environment)
    if not is_submitted:
        conf.set("spark.driver.memory", driver_memory())
        conf.set("spark.driver.extraJavaOptions", " ".join(_java_options()))
    if jars:
        conf.set("spark.jars", ",".join(map(str, jars)))
    for name, value in _SETTINGS.items():
        conf.set(name, value)
    if not is_submitted:
        note("starting Spark, which takes some 10 s")
    # In two steps, because the first replaces our handler of Ctrl-C by PySpark's.
    with delayed_interrupts(), quietly(on=not is_submitted):
        SparkContext.getOrCreate(conf)
    with delayed_interrupts():
        session = SparkSession.builder.config(conf=conf).getOrCreate()
    if not _is_in_process(session):
        _ship(session)
    return session


def choose_python(put: Callable[[str, str], object], master: str, environment: Path | None) -> None:
    """Choose the Python of the workers of `master`, with the packed `environment` if there is one.
    `put` takes settings of Spark.
    """
    if master.startswith(_IN_PROCESS):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        return
    # Spark starts the same command on workers and, for its plans, beside the driver. So it is the
    # first `python3` of a path that fits both: a path of the driver means nothing elsewhere.
    beside = Path(sys.executable).parent
    os.environ["PATH"] = f"{beside}:{os.environ.get('PATH', '')}"
    if environment is not None:
        put("spark.archives", f"{environment.absolute()}#{_ENVIRONMENT}")
        put("spark.executorEnv.PATH", f"{_ENVIRONMENT}/bin:{beside}:{_PROGRAMS}")


def spark_work(
    context: SparkContext,
    job: str,
    work: Callable[[], Result],
    *,
    meanwhile: Callable[[], None] = lambda: None,
) -> Result:
    """Return the result of `work`, which calls into Spark. See `interruptible`.

    Raise `PeerError` if Spark fails, and our own errors of `work`.
    """
    done = interruptible(work, cancel=context.cancelAllJobs, meanwhile=meanwhile)
    failure = done.exception()
    if isinstance(failure, Exception) and not isinstance(failure, EquipoiseError):
        raise spark_failed(job, str(failure)) from failure
    return done.result()


TASKS_MAX: Final = 5_000
"""Tasks of `side_by_side`. With more segments to verify, a task replays several. A hundred million
records are 1,000 segments."""


def side_by_side(
    context: SparkContext,
    job: str,
    tasks: Sequence[Task],
    work: Callable[[Task], Result],
    screen: Screen,
    *,
    records_of: Callable[[Task], int],
) -> list[Result]:
    """Run `work` on all tasks in parallel, and report progress by their records. Return the results
    in order. Raises as `spark_work`.
    """
    if not tasks:
        return []
    done = context.accumulator(0)

    def run(some: Iterable[Task]) -> Iterator[Result]:
        for task in some:
            yield work(task)
            done.add(records_of(task))

    def spread() -> list[Result]:
        return context.parallelize(tasks, min(len(tasks), TASKS_MAX)).mapPartitions(run).collect()

    total = sum(map(records_of, tasks))
    with counting(screen, job, total=total, unit="records") as report:
        return spark_work(context, job, spread, meanwhile=lambda: report(done.value))


def _is_in_process(session: SparkSession) -> bool:
    return (session.sparkContext.master or "").startswith(_IN_PROCESS)


def driver_memory() -> str:
    """Return the memory limit of the JVM of a local session, in Java's notation: `1g`."""
    return os.environ.get(MEMORY_VARIABLE) or DRIVER_MEMORY


def check_extra(extra: str) -> None:
    """Raise `CallerError` unless everything in the extra is installed."""
    what, modules = _MODULES[extra]
    for module in modules:
        root = module.partition(".")[0]
        if find_spec(root) is None or find_spec(module) is None:
            raise missing_extra(what=what, extra=extra)


def check_java(environment: Mapping[str, str] = os.environ) -> int:
    """Return the version of the Java that Spark will use: from JAVA_HOME, else the first on the
    path. Raise `OperatorError` if there is none, or if it is too old or unknown.
    """
    home = environment.get("JAVA_HOME")
    program = f"{home}/bin/java" if home else shutil.which("java", path=environment.get("PATH"))
    if program is None:
        raise _no_java("there is no program `java` on the path, and JAVA_HOME is not set")
    try:
        answer = subprocess.run(
            [program, "-version"], capture_output=True, text=True, check=False, timeout=_ANSWER_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _no_java(f"{program} cannot be asked for its version: {error}") from error
    said = answer.stderr + answer.stdout
    found = _find_version(said)
    if answer.returncode or found is None:
        raise _no_java(f"{program} does not report its version: {said.strip()[:200]!r}")
    version = int(found[1])
    if version < JAVA_MIN:
        raise _no_java(f"{program} is Java {version}")
    return version


def _no_java(problem: str) -> OperatorError:
    return OperatorError(f"Spark needs Java {JAVA_MIN} or newer: {problem}; {_JAVA_ADVICE}")


@contextmanager
def quietly(*, on: bool = True) -> Iterator[None]:
    """Send the standard error of programs started in the block through a thread that drops noise,
    also after the block.

    The thread ends with the last of these programs. If `on` is false, change nothing.
    """
    if not on:
        yield
        return
    kept = os.dup(_STANDARD_ERROR)
    reading, writing = os.pipe()
    threading.Thread(
        target=_forward, args=(reading, os.dup(kept)), name="spark-stderr", daemon=True
    ).start()
    os.dup2(writing, _STANDARD_ERROR)
    os.close(writing)
    try:
        yield
    finally:
        os.dup2(kept, _STANDARD_ERROR)
        os.close(kept)


def _forward(reading: int, target: int) -> None:
    with os.fdopen(reading, "rb") as lines, os.fdopen(target, "wb", buffering=0) as out:
        for line in lines:
            if not line.startswith(_NOISE):
                try:
                    out.write(line)
                except OSError:
                    # Nobody reads the output any more, but a full pipe would block the JVM.
                    continue


def _java_options() -> list[str]:
    """Return the options of the JVM: stack size and logging. In a zip there is no configuration
    file, and Spark's default applies.
    """
    path = Path(__file__).with_name("log4j2.properties")
    return [
        f"-Xss{STACK}",
        *([f"-Dlog4j2.configurationFile={path.as_uri()}"] if path.is_file() else []),
    ]


def _ship(session: SparkSession) -> None:
    """Send our packages to the workers of a cluster. Their dependencies (`equipoise[spark]`) must
    be installed or sent separately.
    """
    folder = Path(tempfile.mkdtemp(prefix="equipoise-"))
    path = folder / "equipoise-packages.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        spec = find_spec(OUR_PACKAGE)
        for root in (spec.submodule_search_locations or ()) if spec is not None else ():
            # In a checkout the subpackages are links.
            for below, _, names in os.walk(root, followlinks=True):
                for name in sorted(names):
                    found = Path(below, name)
                    if found.suffix != ".pyc":
                        archive.write(found, str(OUR_PACKAGE / found.relative_to(root)))
    session.sparkContext.addPyFile(str(path))
