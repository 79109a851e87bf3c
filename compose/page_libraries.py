"""Fetch the libraries of the page from npm, and check them: `make page-libraries`.

They are kept in the repository, so that nothing is fetched or built when the page is installed or
used.
"""

from __future__ import annotations

import io
import tarfile
from base64 import b64encode
from hashlib import sha512
from pathlib import Path
from typing import Final, NamedTuple
from urllib.request import urlopen

FOLDER: Final = Path(__file__).parents[1] / "brokers/http/page/static/vendor"


class Package(NamedTuple):
    """A package of npm: its name, its version, the SHA-512 of its archive in base64, and the files
    that the page needs, with their names there.
    """

    name: str
    version: str
    sha512: str
    files: dict[str, str]


PACKAGES: Final = (
    Package(
        "htm",
        "3.1.1",
        "983Vyg8NwUE7JkZ6NmOqpCZ+sh1bKv2iYTlUkzlWmA5JD2acKoxd4KVxbMmxX/85mtfdnDmTFoNKcg5DGAvxNQ==",
        {"preact/standalone.module.js": "preact-htm.js", "LICENSE": "htm-LICENSE.txt"},
    ),
    # Its code is in the file above. Only its licence is missing there.
    Package(
        "preact",
        "10.29.8",
        "ej2aVZ+vZ8WO7tvlQWRM9N63A0KzF9q4mWJfDUHgYaIofWY9hu74QdnQrjoPMmZi2/nZ5gN0bJCQF49xQqx09Q==",
        {"LICENSE": "preact-LICENSE.txt"},
    ),
)


def fetched(package: Package) -> dict[str, bytes]:
    """Return the files of a package, by the name that they get here."""
    url = f"https://registry.npmjs.org/{package.name}/-/{package.name}-{package.version}.tgz"
    with urlopen(url) as answer:
        archive: bytes = answer.read()
    found = b64encode(sha512(archive).digest()).decode()
    if found != package.sha512:
        raise SystemExit(f"{url} has the SHA-512 {found}, not {package.sha512}")
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        members = {
            name: files.extractfile(f"package/{path}") for path, name in package.files.items()
        }
        return {name: file.read() for name, file in members.items() if file is not None}


def main() -> None:
    """Write the files of all packages."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        for name, content in fetched(package).items():
            (FOLDER / name).write_bytes(content)
            print(f"{package.name} {package.version}: {name}, {len(content)} bytes")


if __name__ == "__main__":
    main()
