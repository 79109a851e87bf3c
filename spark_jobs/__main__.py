"""Run a job from the command line: `python -m spark_jobs JOB ...` equals `equipoise spark JOB ...`.

`spark-submit` starts this file too, and the job uses its session:
`spark-submit --py-files equipoise.whl .../spark_jobs/__main__.py audit --log URL`.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run this process's command line as `equipoise spark`."""
    # The command line is a layer above the jobs. Only this entry point may import it.
    # Only as a program, not on import.
    from equipoise.brokers.cli.__main__ import main as run  # noqa: PLC0415

    sys.argv[1:1] = ["spark"]
    run()


if __name__ == "__main__":
    main()
