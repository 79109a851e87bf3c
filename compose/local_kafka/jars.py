"""Fetch Kafka's jars once with Maven, into the user's Maven repository. `pom.xml` beside this file
lists them.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

from equipoise.channel.core.errors import OperatorError
from equipoise.channel.system.file_system import locked

HOME: Final = Path(__file__).resolve().parents[2] / ".kafka"
"""The folder that all local clusters of this clone share, beside the Makefile."""

POM: Final = Path(__file__).with_name("pom.xml")

# Maven's own plugins and 45 MB of jars over a slow line, 200 kB/s.
_FETCH_S: Final = 600.0
_PACKAGES: Final = {"java": "default-jre-headless", "mvn": "maven"}


class NotInstalled(OperatorError):
    """A required program is not on the path, or Kafka's jars cannot be fetched."""


def no_cluster(folder: Path, problem: str) -> OperatorError:
    """Return the error for a folder without a Kafka, or without a node of it."""
    return OperatorError(f"{folder}: {problem}; start a Kafka there first")


def tool(name: str) -> str:
    """Return the path of `java` or `mvn`. Raises `NotInstalled`."""
    found = shutil.which(name)
    if found is None:
        raise NotInstalled(
            f"a local Kafka needs {name}, which is not on the path; on Debian: apt-get install"
            f" {_PACKAGES[name]}"
        )
    return found


def kafka_version() -> str:
    """Return the version of the Kafka jars."""
    found = re.search(r"<kafka\.version>(.+)</", POM.read_text())
    assert found is not None, "the file beside this one has it"
    return found[1]


def class_path(*, home: Path = HOME, note: Callable[[str], None] = lambda _: None) -> str:
    """Return Java's class path for Kafka. Fetches missing jars, and reports that to `note`, since
    it takes time.

    Raises `NotInstalled`.
    """
    digest = hashlib.sha256(POM.read_bytes()).hexdigest()[:16]
    kept = home / f"class-path-{digest}.txt"
    with locked(home):
        if not _is_whole(kept):
            note("Maven fetches the jars of Kafka (45 MB, once)")
            _fetch(kept)
        return kept.read_text().strip()


def class_archive(java: str, path: str) -> Path:
    """Return the file of the archive of Kafka's classes, which one Java program uses for one class
    path. It may not exist.

    `Cluster.archive_classes` writes it.
    """
    program = Path(java).resolve()
    digest = hashlib.sha256(f"{program} {program.stat().st_mtime_ns} {path}".encode()).hexdigest()[
        :16
    ]
    return HOME / f"classes-{digest}.jsa"


def _is_whole(kept: Path) -> bool:
    """Return whether the class path is known and all its jars exist."""
    return kept.exists() and all(Path(jar).exists() for jar in kept.read_text().strip().split(":"))


def _fetch(kept: Path) -> None:
    """Fetch the jars with Maven, and write their class path. Raises `NotInstalled`."""
    goals = ["dependency:build-classpath", "-DincludeScope=runtime", f"-Dmdep.outputFile={kept}"]
    words = [tool("mvn"), "--quiet", "--batch-mode", f"--file={POM}", *goals]
    try:
        fetched = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_FETCH_S,
        )
    except subprocess.TimeoutExpired as error:
        raise _not_fetched(f"it did not end within {_FETCH_S:.0f} s") from error
    if fetched.returncode:
        raise _not_fetched(f"{fetched.stdout}{fetched.stderr}".strip())


def _not_fetched(output: str) -> NotInstalled:
    return NotInstalled(
        "Maven could not fetch the jars of Kafka; check that it reaches its repository, and try"
        f" again. Its output:\n{output}"
    )
