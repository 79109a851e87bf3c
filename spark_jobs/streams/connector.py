"""The jars of Spark's Kafka connector: fetched once by Maven into the user's cache, and checked each time before they are loaded.

May live here: what knows of Maven, and of the folder. Which jars, in which versions and with which bytes, is data:
`connector-jars.json` beside this file. Why it names these is told in docs/adr/0012-spark.md.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from equipoise.spark_jobs.streams.errors import JarsMissing, WrongJar

CACHE_VARIABLE: Final = "XDG_CACHE_HOME"

# Maven's own plugins and 10 MB of jars over a slow line, 200 kB/s.
_FETCH_S: Final = 600.0
_READ_BYTES: Final = 1 << 20
# The rest of what Maven says is a stack of its own plugins.
_TOLD_CHARACTERS: Final = 600

# Transitive ones are left out: Spark brings what is needed of them, and the set as it is published does not resolve.
_DEPENDENCY: Final = (
    "<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
)
_POM: Final = (
    '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>equipoise</groupId>'
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
        """As Maven names it."""
        return f"{self.artifact}-{self.version}.jar"


def jars_of_connector() -> tuple[Jar, ...]:
    """What `connector-jars.json` names."""
    document = json.loads(files("equipoise.spark_jobs.streams").joinpath("connector-jars.json").read_text(encoding="utf-8"))
    return tuple(Jar(**jar) for jar in document["jars"])


def cache_folder() -> Path:
    """Where the jars are kept for this user; one folder for each set, so that versions of this program do not disturb one another."""
    given = os.environ.get(CACHE_VARIABLE, "")
    root = Path(given) if os.path.isabs(given) else Path.home() / ".cache"  # noqa: PTH117 - of a text that may be empty
    digest = hashlib.sha256("".join(jar.sha256 for jar in jars_of_connector()).encode()).hexdigest()[:12]
    return root / "equipoise" / f"spark-connector-{digest}"


def connector_jars(*, folder: Path | None = None, telling: Callable[[str], None] = lambda _: None) -> tuple[Path, ...]:
    """The jars, each checked, and fetched first if one is not there; `telling` hears of that. Raises `JarsMissing`, `WrongJar`."""
    folder = cache_folder() if folder is None else folder
    jars = jars_of_connector()
    with _locked(folder):
        missing = [jar for jar in jars if not (folder / jar.file_name).is_file()]
        if missing:
            _fetch(missing, folder, telling)
    for jar in jars:
        check_jar(folder / jar.file_name, jar)
    return tuple(folder / jar.file_name for jar in jars)


def check_jar(path: Path, jar: Jar) -> None:
    """Raise `WrongJar` unless the file holds the bytes that the data names: 10 ms for all of them."""
    digest = hashlib.sha256()
    with path.open("rb") as opened:
        while piece := opened.read(_READ_BYTES):
            digest.update(piece)
    if digest.hexdigest() != jar.sha256:
        raise WrongJar(path=str(path), expected=jar.sha256, found=digest.hexdigest())


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """In the body nobody else fetches into the folder. The lock ends with its process."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(jars: Sequence[Jar], folder: Path, telling: Callable[[str], None]) -> None:
    """Have Maven copy the jars, check each, and only then give it its name, so that no half of one is ever found under it."""
    names = tuple(jar.file_name for jar in jars)
    program = shutil.which("mvn")
    if program is None:
        raise JarsMissing(folder=str(folder), problem="it was never fetched, and there is no program `mvn` on the path", names=names)
    telling(f"Maven fetches Spark's Kafka connector into {folder} (10 MB, once)")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetching-") as place:
        pom = Path(place) / "pom.xml"
        pom.write_text(pom_of(jars), encoding="utf-8")
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={place}"]
        words = [program, "--quiet", "--batch-mode", f"--file={pom}", *goal]
        try:
            done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=_FETCH_S)
        except subprocess.TimeoutExpired as error:
            raise JarsMissing(folder=str(folder), problem=f"Maven was not done within {_FETCH_S:.0f} s", names=names) from error
        if done.returncode:
            said = " ".join(f"{done.stdout}{done.stderr}".split())[:_TOLD_CHARACTERS]
            raise JarsMissing(folder=str(folder), problem=f"Maven could not fetch it and said: {said}", names=names)
        for jar in jars:
            check_jar(Path(place) / jar.file_name, jar)
            (Path(place) / jar.file_name).rename(folder / jar.file_name)


def pom_of(jars: Sequence[Jar]) -> str:
    """What Maven is asked for."""
    dependencies = "".join(
        _DEPENDENCY.format(group=escape(jar.group), artifact=escape(jar.artifact), version=escape(jar.version)) for jar in jars
    )
    return _POM.format(dependencies=dependencies)
