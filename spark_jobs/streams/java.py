"""Check that a new enough Java is installed, before Spark starts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from equipoise.spark_jobs.streams.errors import JAVA_MIN, MissingJava

# Java prints its version in a quarter of a second; a busy machine may need longer.
_ANSWER_S: Final = 60.0

_find_version: Final = re.compile(r'version "(?:1\.)?(\d+)').search
"""Java 8 reports 1.8, all later ones their number."""


def java_program(environment: Mapping[str, str] = os.environ) -> str:
    """Return the `java` that Spark will start: from JAVA_HOME, else the first on the path. Raise `MissingJava` if there is none."""
    home = environment.get("JAVA_HOME")
    if home:
        program = Path(home) / "bin" / "java"
        if not os.access(program, os.X_OK):
            raise MissingJava(problem=f"JAVA_HOME is {home}, and {program} is not there")
        return str(program)
    found = shutil.which("java", path=environment.get("PATH"))
    if found is None:
        raise MissingJava(problem="there is no program `java` on the path, and JAVA_HOME is not set")
    return found


def check_java(environment: Mapping[str, str] = os.environ) -> int:
    """Return the version of the Java that Spark will use. Raise `MissingJava` if it is too old or unknown."""
    program = java_program(environment)
    try:
        answer = subprocess.run([program, "-version"], capture_output=True, text=True, check=False, timeout=_ANSWER_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingJava(problem=f"{program} cannot be asked for its version: {error}") from error
    found = _find_version(answer.stderr + answer.stdout)
    if answer.returncode or found is None:
        raise MissingJava(problem=f"{program} does not say its version: {(answer.stderr + answer.stdout).strip()[:200]!r}")
    version = int(found[1])
    if version < JAVA_MIN:
        raise MissingJava(problem=f"{program} is Java {version}")
    return version
