"""The check that the packages beside `equipoise` are its own.

Equipoise installs `brokers`, `channel` and `shedder` beside `equipoise`; so may anybody else, and a script's own folder comes
before all that is installed. May live here: that check. It imports nothing of ours, since that is what it doubts.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

NAMES = ("brokers", "channel", "compaction", "shedder")


class ForeignPackage(ImportError):
    """Python finds another package of the name of one of ours."""

    def __init__(self, *, package: str, found: str, expected: str) -> None:
        """`package` was found at `found`, and ours lies in the folder `expected`."""
        self.found = found
        self.expected = expected
        message = (
            f"equipoise needs its own package {package!r}, which lies in {expected}, but Python finds {found}; "
            f"rename that, or take it off the path or out of the environment"
        )
        super().__init__(message, name=package)


def check_neighbours(folder: Path | None = None) -> None:
    """Raise `ForeignPackage` if a package of ours is hidden by another.

    `folder` is where ours lie, by default beside this one. A name that we do not ship in it may be anybody's.
    """
    folder = Path(__file__).resolve().parent.parent if folder is None else folder
    for name in NAMES:
        if not (folder / name / "__init__.py").is_file():
            continue
        spec = find_spec(name)
        found = Path(spec.origin).resolve() if spec is not None and spec.origin else None
        if found != (folder / name / "__init__.py").resolve():
            raise ForeignPackage(package=name, found=str(found or "something else"), expected=str(folder))
