"""Build the programs with real Pulsar clients, one for each language that this machine can run, and
the one with pulsar-admin.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import orjson
import pytest

from equipoise.channel.system.file_system import locked

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent.parent

# On a new machine Maven fetches some 60 MB, and Go compiles for three minutes on two slow cores.
_BUILD_S: Final = 900.0

_JAVA: Final = HERE / "java"
_ADMIN: Final = HERE / "admin"
_GO: Final = HERE / "go"
_RUST: Final = HERE / "rust"
_NODE: Final = HERE / "node"
_CPP: Final = HERE / "cpp"
_SERVER: Final = HERE / "server"
# Brokers need the machine: little memory, and no optimising compiler.
_JAVA_OPTIONS: Final = (
    "-Xmx192m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)


class Language(StrEnum):
    """The languages of the clients. Python's uses the C++ core."""

    PYTHON = "python"
    JAVA = "java"
    GO = "go"
    RUST = "rust"
    NODE = "node"
    CPP = "cpp"


EVERYDAY: Final = (Language.PYTHON, Language.JAVA, Language.GO)
"""The clients of the long tests. Node and C++ share Python's library, so CI tests them briefly, as
it does Rust."""

_TOOLS: Final = {
    Language.PYTHON: (),
    Language.JAVA: ("javac", "java", "mvn"),
    Language.GO: ("go",),
    Language.RUST: ("cargo", "protoc"),
    Language.NODE: ("node", "npm", "c++", "cargo"),
    Language.CPP: ("c++", "cargo"),
}


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
    return _BUILDERS[language]()


@cache
def admin_command() -> tuple[str, ...]:
    """Return the command of the program that runs pulsar-admin, built if necessary. Raises
    `BuildFailedError`.
    """
    # Its library logs each refusal, which the tool then prints itself.
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
    return ("java", *_JAVA_OPTIONS, quiet, "-cp", _java_classes(_ADMIN), "equipoise.harness.Admin")


@cache
def server() -> Path:
    """Return the folder of Pulsar's own server, fetched by Maven (245 MB) and unpacked if
    necessary. Raises `BuildFailedError`.
    """
    _build(_SERVER, ["mvn", "--quiet", "--batch-mode", "dependency:unpack"])
    (folder,) = (_SERVER / "build").glob("apache-pulsar-*")
    return folder


def _java_classes(project: Path) -> str:
    """Build a project of Java, and return its class path."""
    classpath = project / "build" / "classpath.txt"
    _build(
        project,
        [
            "mvn",
            "--quiet",
            "--batch-mode",
            "compile",
            "dependency:build-classpath",
            f"-Dmdep.outputFile={classpath}",
        ],
    )
    return f"{project / 'build' / 'classes'}:{classpath.read_text().strip()}"


def _java() -> tuple[str, ...]:
    return ("java", *_JAVA_OPTIONS, "-cp", _java_classes(_JAVA), "equipoise.harness.Client")


def _go() -> tuple[str, ...]:
    program = _GO / "build" / "client"
    # Without cgo it needs no C compiler, and half the time.
    _build(_GO, ["env", "CGO_ENABLED=0", "go", "build", "-o", str(program), "."])
    return (str(program),)


def _rust() -> tuple[str, ...]:
    _build(_RUST, ["cargo", "build", "--quiet", "--locked", "--target-dir", "build"])
    return (str(_RUST / "build" / "debug" / "client"),)


def _node() -> tuple[str, ...]:
    """Compile the addon of Apache's client: its own installer downloads one, and not from npm's
    registry.
    """
    modules = Path("build") / "node_modules"
    client = modules / "pulsar-client"
    includes = [f"-I{modules / name}" for name in ("node-addon-api", "node-api-headers/include")]
    compiling = ["c++", "-shared", "-fvisibility=hidden", "-DNAPI_VERSION=4", *includes, *_native()]
    script = f"""
        cp client.js package.json package-lock.json build
        npm ci --prefix build --ignore-scripts --no-audit --no-fund
        mkdir -p {client}/lib/binding
        {shlex.join(compiling)} -o {client}/lib/binding/pulsar.node {client}/src/*.cc {_linked()}
    """
    _build(_NODE, ["sh", "-e", "-c", script])
    return ("node", str(_NODE / "build" / "client.js"))


def _cpp() -> tuple[str, ...]:
    _build(
        _CPP,
        [
            "sh",
            "-c",
            f"{shlex.join(['c++', '-pthread', *_native()])} -o build/client main.cpp {_linked()}",
        ],
    )
    return (str(_CPP / "build" / "client"),)


_BUILDERS: Final = {
    Language.JAVA: _java,
    Language.GO: _go,
    Language.RUST: _rust,
    Language.NODE: _node,
    Language.CPP: _cpp,
}


def _native() -> list[str]:
    """Return the compiler's options for programs on the C interface of libpulsar. Raises
    `BuildFailedError`.
    """
    crates = orjson.loads(_run(["cargo", "metadata", "--format-version", "1", "--locked"], _CPP))[
        "packages"
    ]
    headers = next(
        Path(crate["manifest_path"]).parent / "include"
        for crate in crates
        if crate["name"] == "pulsar-sys"
    )
    return ["-std=gnu++17", "-fPIC", "-include", str(_CPP / "newer.h"), f"-I{headers}"]


def _linked() -> str:
    """Return the linker's options for libpulsar. The Python client's wheel has it."""
    spec = find_spec("_pulsar")
    assert spec is not None, "the Python client is installed"
    assert spec.origin is not None, "as a file"
    (library,) = (Path(spec.origin).parent / "pulsar_client.libs").glob("libpulsar-*.so")
    return shlex.join([str(library), f"-Wl,-rpath,{library.parent}"])


def _build(project: Path, words: Sequence[str]) -> None:
    """Build a project, unless its last build had the same sources and command."""
    with locked(project / "build"):  # Runs of the tests share it.
        stamp, digest = project / "build" / "sources.sha256", _digest(project, words)
        if stamp.exists() and stamp.read_text() == digest:
            return
        _run(words, project)
        stamp.write_text(digest)


def _run(words: Sequence[str], project: Path) -> str:
    """Run a command in the folder of a project, and return its standard output. Raises
    `BuildFailedError`.
    """
    try:
        done = subprocess.run(
            words, cwd=project, capture_output=True, text=True, check=False, timeout=_BUILD_S
        )
    except subprocess.TimeoutExpired as error:
        raise BuildFailedError(f"{shlex.join(words)} took longer than {_BUILD_S:.0f} s") from error
    if done.returncode:
        raise BuildFailedError(
            f"{shlex.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def _digest(project: Path, words: Sequence[str]) -> str:
    """Return a digest of sources, dependencies, the command, and the folder, whose path is in the
    build.
    """
    sources = sorted(
        path
        for path in project.rglob("*")
        if path.is_file() and (project / "build") not in path.parents
    )
    content = b"".join(f"{path}\n".encode() + path.read_bytes() for path in sources)
    return hashlib.sha256(shlex.join(words).encode() + content).hexdigest()


def main() -> None:
    """Build the programs of all languages that this machine can run."""
    runnable = [language for language in Language if lacking(language) is None]
    with ThreadPoolExecutor() as pool:  # Their tools spend half of the time on downloads.
        list(pool.map(command, runnable))
    if lacking(Language.JAVA) is None:
        admin_command()  # After the other one of Java: two of Maven would download the same files.


if __name__ == "__main__":
    main()
