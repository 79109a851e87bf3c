"""What the hunts share: the violation that they look for, and their command line.

`python -m tests.channels.NAME_hunt --seeds N` prints the first violation and exits with 1, as
`python -m tests.simulation` does. tests.mutants runs a hunt over a product in which one rule is
broken.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from equipoise.channel.core.errors import EquipoiseError


class ViolationError(Exception):
    """Something that must hold does not; its text says what."""


def require(holds: bool, what: str) -> None:
    """Complain unless it holds."""
    if not holds:
        raise ViolationError(what)


def hunt(scenario: str, play: Callable[[int], None], *, no_error: str | None = None) -> int:
    """Play seed after seed, as many as the command line says. `no_error` is the rule that an error
    of the product breaks; without one such an error is a crash.
    """
    parser = argparse.ArgumentParser(prog=f"tests.channels, {scenario}")
    parser.add_argument("--seeds", type=int, default=100)
    for seed in range(parser.parse_args().seeds):
        try:
            play(seed)
        except ViolationError as error:
            broken = str(error)
        except EquipoiseError as error:
            if no_error is None:
                raise
            broken = f"{no_error}: {type(error).__name__}: {error}"
        else:
            continue
        print(f"scenario {scenario}, seed {seed};\nVIOLATION of {broken}")
        return 1
    return 0
