"""`python -m spark_jobs JOB ...`, and the file that `spark-submit` starts: the same as `equipoise spark JOB ...`.

May live here: what hands a command line on. `spark-submit --py-files equipoise.whl .../spark_jobs/__main__.py audit --log URL` runs the
job in the session that `spark-submit` has begun.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line of this process as one of the group `spark`."""
    # The command line stands above the jobs; here a process begins, and what it begins with is that.
    from equipoise.brokers.cli.__main__ import main as run  # noqa: PLC0415 - as a program alone, not when a module of ours is imported

    sys.argv[1:1] = ["spark"]
    run()


if __name__ == "__main__":
    main()
