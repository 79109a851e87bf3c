"""Build the programs with real Pulsar clients, one for each language that this machine can run."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final

import pytest

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent.parent

# On a new machine Maven fetches some 60 MB, and Go compiles for three minutes on two slow cores.
_BUILD_S: Final = 900.0

_JAVA: Final = HERE / "java"
_GO: Final = HERE / "go"
_RUST: Final = HERE / "rust"
# Brokers need the machine: little memory, and no optimising compiler.
_JAVA_OPTIONS: Final = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")


class Language(StrEnum):
    """The languages of the clients. Python's uses the C++ core."""

    PYTHON = "python"
    JAVA = "java"
    GO = "go"
    RUST = "rust"


EVERYDAY: Final = (Language.PYTHON, Language.JAVA, Language.GO)
"""Apache's own clients, for all tests. Rust's belongs to another project, and is only tested with stale lookups."""

_TOOLS: Final = {Language.PYTHON: (), Language.JAVA: ("javac", "java", "mvn"), Language.GO: ("go",), Language.RUST: ("cargo", "protoc")}


class BuildFailedError(Exception):
    """A program could not be built. The message is the output of its tool."""


def lacking(language: Language) -> str | None:
    """Return what this machine lacks for the client of a language, or None."""
    missing = [tool for tool in _TOOLS[language] if shutil.which(tool) is None]
    return f"the {language} client needs {' and '.join(missing)}" if missing else None


def is_required() -> bool:
    """Return whether a missing tool is a failure, as in CI, instead of a reason to skip."""
    return os.environ.get("CI", "").lower() == "true"


def require(*languages: Language) -> None:
    """Skip the test if this machine cannot run the clients of these languages, or fail it in CI."""
    for problem in filter(None, map(lacking, languages)):
        (pytest.fail if is_required() else pytest.skip)(problem)


@cache
def command(language: Language) -> tuple[str, ...]:
    """Return the command of a language's program, built if necessary. Raises `BuildFailedError`."""
    if language is Language.PYTHON:
        return (sys.executable, "-m", "tests.pulsar.python_client")
    if language is Language.GO:
        program = _GO / "build" / "client"
        # Without cgo it needs no C compiler, and half the time.
        _build(_GO, ["go", "build", "-o", str(program), "."], {"CGO_ENABLED": "0"})
        return (str(program),)
    if language is Language.RUST:
        _build(_RUST, ["cargo", "build", "--quiet", "--locked", "--target-dir", "build"], {})
        return (str(_RUST / "build" / "debug" / "client"),)
    classpath = _JAVA / "build" / "classpath.txt"
    _build(_JAVA, ["mvn", "--quiet", "--batch-mode", "compile", "dependency:build-classpath", f"-Dmdep.outputFile={classpath}"], {})
    classes = f"{_JAVA / 'build' / 'classes'}:{classpath.read_text().strip()}"
    return ("java", *_JAVA_OPTIONS, "-cp", classes, "equipoise.harness.Client")


def _build(project: Path, words: Sequence[str], environment: dict[str, str]) -> None:
    """Build a project, unless its last build had the same sources."""
    with _locked(project):
        stamp, digest = project / "build" / "sources.sha256", _digest(project)
        if stamp.exists() and stamp.read_text() == digest:
            return
        try:
            built = subprocess.run(
                words, cwd=project, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=_BUILD_S
            )
        except subprocess.TimeoutExpired as error:
            raise BuildFailedError(f"{' '.join(words)} took longer than {_BUILD_S:.0f} s") from error
        if built.returncode:
            raise BuildFailedError(f"{' '.join(words)} ended with {built.returncode}:\n{built.stdout}{built.stderr}")
        stamp.write_text(digest)


@contextmanager
def _locked(project: Path) -> Iterator[None]:
    """Allow one build of a project at a time, because runs of the tests share it."""
    (project / "build").mkdir(exist_ok=True)
    with (project / "build" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _digest(project: Path) -> str:
    """Return a digest of sources, dependencies and the folder, whose path is in the build."""
    sources = sorted(path for path in project.rglob("*") if path.is_file() and (project / "build") not in path.parents)
    content = b"".join(f"{path}\n".encode() + path.read_bytes() for path in sources)
    return hashlib.sha256(content).hexdigest()


def main() -> None:
    """Build the programs of all languages that this machine can run."""
    runnable = [language for language in Language if lacking(language) is None]
    with ThreadPoolExecutor() as pool:  # Their tools spend half of the time on downloads.
        list(pool.map(command, runnable))


if __name__ == "__main__":
    main()
