"""Define the load of a bundle, as its service reports it to the broker."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from equipoise.channel.core.errors import CallerError


@dataclass(frozen=True, slots=True, kw_only=True)
class Messaging:
    """The load of the topics of a bundle: rates per second over the last sample, and counts of open
    objects.

    Raises `CallerError` for a number that is negative or not finite.
    """

    messages_in_per_second: float = 0.0
    bytes_in_per_second: float = 0.0
    messages_out_per_second: float = 0.0
    bytes_out_per_second: float = 0.0
    producers: int = 0
    consumers: int = 0
    topics: int = 0

    def __post_init__(self) -> None:
        # Written out for speed: a broker makes thousands of these per sample. NaN fails each
        # comparison.
        if not (
            0 <= self.messages_in_per_second < math.inf
            and 0 <= self.bytes_in_per_second < math.inf
            and 0 <= self.messages_out_per_second < math.inf
            and 0 <= self.bytes_out_per_second < math.inf
            and 0 <= self.producers < math.inf
            and 0 <= self.consumers < math.inf
            and 0 <= self.topics < math.inf
        ):
            raise _refusal_of(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleLoad:
    """The cost of a bundle for its broker: rates per second over the last sample, and the number of
    open sessions.

    `bytes_per_second` counts both directions. A batch of messages is one call. `messaging` holds
    the details of a bundle of topics. Raises `CallerError` for a number that is negative or not
    finite.
    """

    calls_per_second: float = 0.0
    bytes_per_second: float = 0.0
    sessions: int = 0
    messaging: Messaging | None = None

    def __post_init__(self) -> None:
        # As in `Messaging`.
        if not (
            0 <= self.calls_per_second < math.inf
            and 0 <= self.bytes_per_second < math.inf
            and 0 <= self.sessions < math.inf
        ):
            raise _refusal_of(self)


def _refusal_of(load: BundleLoad | Messaging) -> CallerError:
    figures = (
        (each.name, getattr(load, each.name)) for each in fields(load) if each.name != "messaging"
    )
    name, value = next((name, value) for name, value in figures if not 0 <= value < math.inf)
    return impossible_figure("bundle", name, value)


def impossible_figure(subject: str, field: str, value: float) -> CallerError:
    """Return the error for a load of a `bundle` or `topic` that cannot be."""
    return CallerError(
        f"a {subject} cannot have {field}={value!r}: the figure must be finite and not negative"
    )
