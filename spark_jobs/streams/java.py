"""The Java that Spark runs in: whether it is there, and new enough, before anything of Spark is started.

May live here: what knows how `java` is found and asked.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from equipoise.spark_jobs.streams.errors import JAVA_MIN, MissingJava

# A Java virtual machine says its version in a quarter of a second; this machine may be busy.
_ANSWER_S: Final = 60.0

_find_version: Final = re.compile(r'version "(?:1\.)?(\d+)').search
"""Java 8 called itself 1.8, all since by their number."""


def java_program(environment: Mapping[str, str] = os.environ) -> str:
    """The `java` that Spark will start: that of JAVA_HOME, or else the first on the path. Raises `MissingJava` if there is none."""
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
    """The version of the Java that Spark will run in. Raises `MissingJava` if it is too old, or says nothing."""
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
