"""Fetch the jars of Spark's Kafka connector with Maven into the user's cache, once, and verify them
before each use.

`connector-jars.json` lists the jars with versions and checksums. docs/adr/0012-spark.md explains
the choice.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from equipoise.channel.core.errors import OperatorError
from equipoise.channel.system.file_system import locked

CACHE_VARIABLE: Final = "XDG_CACHE_HOME"

# For Maven's own plugins and 10 MB of jars at 200 kB/s.
_FETCH_S: Final = 600.0
# The rest of Maven's output is a stack trace of its plugins.
_OUTPUT_CHARACTERS_MAX: Final = 600

# Transitive dependencies are excluded: Spark brings the needed ones, and the published set does not
# resolve.
_DEPENDENCY: Final = (
    "<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
)
_POM: Final = (
    "<project"
    ' xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>equipoise</groupId>'
    "<artifactId>spark-connector</artifactId><version>1</version><dependencies>{dependencies}</dependencies></project>"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    """One jar by its Maven coordinates; `sha256` in hexadecimal digits."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """The file name that Maven uses."""
        return f"{self.artifact}-{self.version}.jar"


def jars_of_connector() -> tuple[Jar, ...]:
    """Return the jars of `connector-jars.json`."""
    document = json.loads(
        files("equipoise.spark_jobs.streams")
        .joinpath("connector-jars.json")
        .read_text(encoding="utf-8")
    )
    return tuple(Jar(**jar) for jar in document["jars"])


def cache_folder() -> Path:
    """Return this user's folder for the jars. Each set has its own, so that versions of this
    program do not interfere.
    """
    given = os.environ.get(CACHE_VARIABLE, "")
    # The text may be empty.
    root = Path(given) if os.path.isabs(given) else Path.home() / ".cache"  # noqa: PTH117
    digest = hashlib.sha256(
        "".join(jar.sha256 for jar in jars_of_connector()).encode()
    ).hexdigest()[:12]
    return root / "equipoise" / f"spark-connector-{digest}"


def connector_jars(*, note: Callable[[str], None] = lambda _: None) -> tuple[Path, ...]:
    """Return the verified jars, after fetching missing ones (reported to `note`). Raise
    `OperatorError`.
    """
    folder = cache_folder()
    jars = jars_of_connector()
    with locked(folder):
        missing = [jar for jar in jars if not (folder / jar.file_name).is_file()]
        if missing:
            _fetch(missing, folder, note)
    for jar in jars:
        check_jar(folder / jar.file_name, jar)
    return tuple(folder / jar.file_name for jar in jars)


def check_jar(path: Path, jar: Jar) -> None:
    """Raise `OperatorError` unless the file has the expected checksum. All jars take 10 ms."""
    with path.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if digest != jar.sha256:
        raise OperatorError(
            f"{path} is not the expected jar: its SHA-256 is {digest}, expected"
            f" {jar.sha256}; remove it and run `equipoise spark jars`, and find out who put it"
            " there"
        )


def _fetch(jars: Sequence[Jar], folder: Path, note: Callable[[str], None]) -> None:
    """Fetch the jars with Maven, and verify each before it gets its name, so that no partial jar is
    ever found.
    """
    program = shutil.which("mvn")
    if program is None:
        raise _missing(
            jars, folder, "it was never fetched, and there is no program `mvn` on the path"
        )
    note(f"Maven fetches Spark's Kafka connector into {folder} (10 MB, once)")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetching-") as place:
        pom = Path(place) / "pom.xml"
        pom.write_text(pom_of(jars), encoding="utf-8")
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={place}"]
        words = [program, "--quiet", "--batch-mode", f"--file={pom}", *goal]
        try:
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=_FETCH_S,
            )
        except subprocess.TimeoutExpired as error:
            raise _missing(jars, folder, f"Maven did not finish within {_FETCH_S:.0f} s") from error
        if done.returncode:
            output = " ".join(f"{done.stdout}{done.stderr}".split())[:_OUTPUT_CHARACTERS_MAX]
            raise _missing(jars, folder, f"Maven could not fetch it: {output}")
        for jar in jars:
            check_jar(Path(place) / jar.file_name, jar)
            (Path(place) / jar.file_name).rename(folder / jar.file_name)


def _missing(jars: Sequence[Jar], folder: Path, problem: str) -> OperatorError:
    return OperatorError(
        f"Spark's Kafka connector is missing: {problem}; run `equipoise spark jars` where Maven"
        " reaches its repository (on Debian: apt-get install maven), or put"
        f" {', '.join(jar.file_name for jar in jars)} into {folder} by hand"
    )


def pom_of(jars: Sequence[Jar]) -> str:
    """Return the POM that makes Maven fetch the jars."""
    dependencies = "".join(
        _DEPENDENCY.format(
            group=escape(jar.group), artifact=escape(jar.artifact), version=escape(jar.version)
        )
        for jar in jars
    )
    return _POM.format(dependencies=dependencies)
