"""What people write to us over HTTP: bodies, parameters and names, checked.

May live here: the models of bodies, and how parts of a request become values. Whatever does not fit is an `InvalidRequest`
that says what is wrong, or an `InvalidName`.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, TypeVar

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, Strict, TypeAdapter, ValidationError

from brokers.errors import InvalidRequest
from brokers.namespace_policies import ON_CHANNEL_LOSS, OnChannelLoss
from brokers.namespace_size import check_new_bundles
from channel.errors import InvalidBoundaries
from channel.ranges import HASH_MAX, bundle_name, check_cuts, check_namespace, even_boundaries, parse_range
from channel.records import CUTS_MAX, Document

BODY_BYTES_MAX: Final = 1 << 20
"""The largest body. The largest that makes sense for us names 4,097 boundaries of 13 bytes each: 52 KiB."""

BUNDLES_DEFAULT: Final = 4
"""Bundles of a namespace whose creator does not say how many, as in Pulsar."""

_PROBLEMS_SHOWN_MAX: Final = 3
_match_boundary: Final = re.compile(r"0x[0-9a-fA-F]{1,8}").fullmatch

Value = TypeVar("Value")
Integer = Annotated[int, Strict()]


class Bundles(BaseModel):
    """How a new namespace is cut: into so many equal bundles, or at these boundaries (`0x%08x`, with both ends)."""

    model_config = ConfigDict(populate_by_name=True)

    boundaries: list[str] | None = None
    num_bundles: Integer | None = Field(default=None, alias="numBundles")

    def cuts(self, namespace: str) -> tuple[int, ...]:
        """The boundaries as hash points, from 0 to `HASH_MAX`; as in Pulsar they win over a number.

        Raises `InvalidBoundaries`.
        """
        if not self.boundaries:
            # Pulsar's clients write 0 where nobody has said a number, and Pulsar takes its default for it. It does so for
            # less than 0, too, which we refuse: whoever says that means something else.
            return even_boundaries(check_new_bundles(namespace, self.num_bundles or BUNDLES_DEFAULT))
        check_new_bundles(namespace, len(self.boundaries) - 1)
        wrong = next((text for text in self.boundaries if not _match_boundary(text)), None)
        if wrong is not None:
            raise InvalidBoundaries(subject=f"namespace {namespace}", problem=f"{wrong[:64]!r} is no boundary such as 0x40000000")
        cuts = tuple(int(text, 16) for text in self.boundaries)
        if cuts[0] != 0 or cuts[-1] != HASH_MAX:
            raise InvalidBoundaries(subject=f"namespace {namespace}", problem="they begin with 0x00000000 and end with 0xffffffff")
        check_cuts(0, HASH_MAX, cuts[1:-1])
        return cuts


class NamespaceBody(BaseModel):
    """What may be said of a new namespace: of Pulsar's policies only `bundles` is understood, the rest is passed over.

    `on_channel_loss` is ours.
    """

    bundles: Bundles | None = None
    on_channel_loss: OnChannelLoss | None = None

    @property
    def policies(self) -> Document:
        """What of it stands in the namespace's policies."""
        return {} if self.on_channel_loss is None else {ON_CHANNEL_LOSS: self.on_channel_loss.value}


Positions = Annotated[list[Annotated[Integer, Field(ge=0, le=HASH_MAX)]], Field(max_length=CUTS_MAX)]

NAMESPACE_BODY: Final = TypeAdapter[NamespaceBody | None](NamespaceBody | None)
ON_CHANNEL_LOSS_BODY: Final = TypeAdapter[OnChannelLoss | None](OnChannelLoss | None)
POSITIONS_BODY: Final = TypeAdapter[list[int] | None](Positions | None)


async def body_of(request: web.Request, adapter: TypeAdapter[Value | None]) -> Value | None:
    """The body of a request; None if it is empty or `null`. Raises `InvalidRequest`."""
    data = await request.read()
    if not data.strip():
        return None
    try:
        return adapter.validate_json(data)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, detail['loc'])) or 'it'}: {detail['msg']}" for detail in error.errors()[:_PROBLEMS_SHOWN_MAX]]
        raise InvalidRequest(what="the body", problem="; ".join(problems)) from None


def parameter_of(request: web.Request, name: str) -> str | None:
    """A parameter of the query; None if it is not given. Raises `InvalidRequest` if it is given twice."""
    values = request.query.getall(name, [])
    if len(values) > 1:
        raise InvalidRequest(what=f"the parameter {name}", problem=f"it is given {len(values)} times, and which one counts is not clear")
    return values[0] if values else None


def integer_of(request: web.Request, name: str, *, default: int, at_most: int) -> int:
    """A parameter that is an integer from 0 to `at_most`. Raises `InvalidRequest`."""
    text = parameter_of(request, name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(at_most)) and int(text) <= at_most):
        raise InvalidRequest(what=f"the parameter {name}", problem=f"{text[:64]!r} is no integer from 0 to {at_most}")
    return int(text)


def namespace_of(request: web.Request) -> str:
    """The namespace that a path names. Raises `InvalidName`."""
    return check_namespace(f"{request.match_info['tenant']}/{request.match_info['namespace']}")


def bundle_of(request: web.Request) -> str:
    """The full name of the bundle that a path names by namespace and range. Raises `InvalidName`."""
    namespace = namespace_of(request)
    low, high = parse_range(request.match_info["bundle"])
    return bundle_name(namespace, low, high)
