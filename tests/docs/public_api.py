"""Find what programs may call in the public API, and the errors that its docstrings name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equipoise
from equipoise import pytest as plugin


class Call(NamedTuple):
    """A function, class or member of the public API."""

    name: str
    called: Callable[..., object]

    @property
    def text(self) -> str:
        """Return its docstring, for a class with that of its constructor."""
        constructor = vars(self.called).get("__init__")
        texts = (each.__doc__ for each in (self.called, constructor) if each is not None)
        return "\n\n".join(inspect.cleandoc(text) for text in texts if text)


def public_names() -> tuple[str, ...]:
    """Return the public names of `equipoise`, and the classes of `equipoise.pytest`."""
    classes = (name for name in plugin.__all__ if inspect.isclass(getattr(plugin, name)))
    return (*equipoise.__all__, *classes)


def public_object(name: str) -> Any:  # noqa: ANN401 - a class or a function
    """Return what a public name of `equipoise` or `equipoise.pytest` stands for."""
    return getattr(plugin if name in plugin.__all__ else equipoise, name)


def members(name: str) -> Iterator[Call]:
    """Yield the members of a public class that a program may use. For a service that comes with
    Equipoise, leave out those that the worker calls.
    """
    public = public_object(name)
    is_hosted = issubclass(public, equipoise.Service) and public is not equipoise.Service
    seen = set(vars(equipoise.Service)) if is_hosted else set[str]()
    for base in (base for base in public.__mro__ if base.__module__.startswith("equipoise.")):
        for member, value in vars(base).items():
            # What a property or a class method calls.
            function = getattr(value, "fget", getattr(value, "__func__", value))
            is_public = (
                not member.startswith("_")
                or (member in ("__call__", "__enter__", "__aenter__") and function.__doc__)
            ) and "`equipoise.pytest` only" not in (function.__doc__ or "")
            if is_public and member not in seen and inspect.isfunction(function):
                seen.add(member)
                yield Call(f"{name}.{member}", function)


def calls() -> Iterator[Call]:
    """Yield each public name, and each member of each class."""
    for name in public_names():
        public = public_object(name)
        yield Call(name, public)
        yield from members(name) if inspect.isclass(public) else ()


def errors_of(call: Call) -> tuple[str, ...]:
    """Return the errors that the docstring of a call names as raised, in its order. `See ...`
    stands for those of another call.
    """
    referred = re.match(r"See `([\w.]+)`", call.text)
    if referred is not None:
        return errors_of(next(each for each in calls() if each.name == referred[1]))
    _, *after = re.split(r"\braises?\b", call.text, maxsplit=1, flags=re.IGNORECASE)
    named = dict.fromkeys(re.findall(r"`([A-Z]\w+)`", "".join(after)))
    return tuple(name for name in named if name not in equipoise.__all__)
