"""A process that holds a broker's data directory: `python -m tests.integration.directory_process
PATH INSTANCE_ID`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from equipoise.brokers.runtime.data_directory import DataDirectory
from equipoise.channel.core.errors import EquipoiseError


def hold(path: Path, instance_id: str) -> None:
    """Lock the directory, write an instance id, say `holding`, and keep the lock until a line comes
    in; or say what is wrong.
    """
    try:
        with DataDirectory(path) as directory:
            directory.write_instance_id(instance_id)
            os.write(1, b"holding\n")
            sys.stdin.readline()
    except EquipoiseError as error:
        os.write(1, f"{type(error).__name__}\n".encode())


if __name__ == "__main__":
    hold(Path(sys.argv[1]), sys.argv[2])
