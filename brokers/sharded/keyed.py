"""Keep one object for each key, in the process that owns the key.

Theory of operation:

* The objects of an open bundle are a part. A part moves as a whole, and is cut and joined with its
  bundle.
* One call at a time has a key. Others wait in order of arrival.
* A call changes the object itself. After the call, its encoded form is compared with the last one.
  What has changed is saved before the caller gets its answer.
* What moves, and what a failed call falls back to, is the last encoded form. Nobody sees an object
  while a call changes it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import time
from bisect import bisect_right
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar, cast

import orjson
from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from equipoise.brokers.balancing.namespace_policies import check_new_bundles
from equipoise.brokers.client.attempts import RequestOutcome
from equipoise.brokers.runtime.embedding.by_key import current_work
from equipoise.brokers.runtime.embedding.installed import Elsewhere, Unserved
from equipoise.brokers.runtime.service import (
    Bundle,
    Ownership,
    OwnershipLost,
    Peer,
    Service,
    Work,
)
from equipoise.brokers.runtime.state_stream import KEPT_BYTES_MAX
from equipoise.channel.core.errors import (
    CallerError,
    EquipoiseError,
    InvalidName,
    Overloaded,
    PeerError,
)
from equipoise.channel.core.ranges import bundle_contains, check_namespace, key_hash
from equipoise.channel.core.records import HANDOVER_BYTES_MAX
from equipoise.channel.system.deadline import Deadline
from equipoise.shedder.loads import BundleLoad

_logger: Final = logging.getLogger(__name__)

T = TypeVar("T")
Endpoint = TypeVar("Endpoint", bound=Callable[..., Awaitable[Any]])

SHARDS: Final = 64
"""How many bundles a namespace of `Keyed` or `Tasks` has by default."""

KEY_BYTES_MAX: Final = 1_024
WAITING_MAX: Final = 512
"""How many calls of one key may wait."""

CALL_MS: Final = 10_000


class Store(Protocol):
    """Where the states of keys are kept beyond the life of a process. All processes use the same
    one. It is asked for one key by one call at a time.
    """

    async def load(self, namespace: str, key: str) -> bytes | None:
        """Return the state that was saved last; None if there is none."""
        ...

    async def save(self, namespace: str, key: str, state: bytes, *, token: int) -> None:
        """Save a state, unless the store has one of this key under a greater token: then raise
        `StaleToken`, and change nothing.
        """
        ...


class StaleToken(PeerError):
    """A store has refused the write of a former owner."""

    def __init__(self, *, namespace: str, key: str, token: int) -> None:
        """`token` is that of the refused write."""
        self.namespace = namespace
        self.key = key
        self.token = token
        super().__init__(
            f"the state of {namespace}/{key} was not saved under token {token}: the store has seen"
            " a greater one; ask again who owns the key"
        )


@dataclass(slots=True)
class _Kept(Generic[T]):
    """The object of one key. `saved` is its encoded form after the last call, if there is one.

    `state` is None before the first call and after a failed one. `waiting` counts the calls, with
    the one that has its turn. `saving`: a save that has not ended.
    """

    saved: bytes | None = None
    state: T | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0
    saving: asyncio.Future[None] | None = None
    used_s: float = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether it holds nothing, and nobody waits for it."""
        return self.saved is None and not self.waiting and self.saving is None


@dataclass(slots=True)
class _Part(Generic[T]):
    """The objects of one open bundle, by key, and the calls since the last question for its
    load.
    """

    bundle: Bundle
    kept: dict[str, _Kept[T]] = field(default_factory=dict)
    calls: int = 0

    @property
    def bytes_saved(self) -> int:
        """The size of the encoded objects."""
        return sum(_bytes_of(key, kept.saved) for key, kept in self.kept.items())


def _check_key(key: str) -> None:
    try:
        is_valid = 1 <= len(key.encode()) <= KEY_BYTES_MAX
    except (AttributeError, UnicodeEncodeError):  # It is no text, or half of a character.
        is_valid = False
    if not is_valid:
        raise InvalidName(
            what="key",
            name=f"{key!s:.40}",
            expected=f"a str of 1 to {KEY_BYTES_MAX:,} bytes in UTF-8",
        )


def _bytes_of(key: str, saved: bytes | None) -> int:
    """Return the size of a state in a handover, with its key and the ends of both lines."""
    return 0 if saved is None else len(orjson.dumps(key)) + len(saved) + 2


class Keyed(Service, Generic[T]):
    """A service that keeps one object for each key of a namespace: `Keyed("iot/shadows", Shadow)`.

    The object of a key is in the process that owns the key. It is made, or loaded from the store,
    at its first use, and moves with its bundle. With a store, each change is saved before the call
    ends, so what was answered is kept. Without a store, objects live in the memory of the
    processes: they move, and those of a process that dies are lost.
    """

    def __init__(
        self,
        namespace: str,
        kind: type[T],
        *,
        shards: int = SHARDS,
        store: Store | None = None,
        new: Callable[[str], T] | None = None,
        call_ms: int = CALL_MS,
        idle_ms: int = 600_000,
    ) -> None:
        """`kind` is a dataclass, a pydantic model, or any type that pydantic encodes as JSON.

        * `shards`: how many bundles the namespace has at first.
        * `new`: returns the object of a key that has none yet. Default: `kind()`.
        * `call_ms`: how long a call waits for its turn, and for the store.
        * `idle_ms`: how long an object that nobody uses stays in memory, if there is a store.

        Raises `InvalidName`, and `CallerError` for a type that cannot be encoded.
        """
        self.namespace = check_namespace(namespace)
        self.shards = check_new_bundles(namespace, shards)
        self._new: Callable[[str], T] = (lambda _key: kind()) if new is None else new
        try:
            if new is None:
                kind()
        except (TypeError, ValidationError) as error:
            problem = str(error).splitlines()[0]
            raise CallerError(
                f"the first object of a key of {namespace} cannot be made: {problem}; give all"
                " fields a default, or give Keyed new=FUNCTION, which returns the object of a key"
            ) from error
        try:
            self._kind: TypeAdapter[T] = TypeAdapter(kind)
            self._kind.json_schema(mode="serialization")
        except PydanticUserError as error:
            raise CallerError(
                f"the state of {namespace} cannot be encoded as JSON; use a dataclass or a pydantic"
                f" model of plain values: {kind.__name__}: {str(error).splitlines()[0]}"
            ) from error
        self._type = kind
        self._store = store
        self._call_ms = call_ms
        self._idle_s = idle_ms / 1_000
        # By their low ends, which rise.
        self._lows: list[int] = []
        self._parts: dict[int, _Part[T]] = {}
        self._bytes = 0
        self._counted_since_s = time.monotonic()

    def __repr__(self) -> str:
        return f"<Keyed {self._type.__name__} of {self.namespace}, {len(self._parts)} open bundles>"

    @asynccontextmanager
    async def at(self, key: str) -> AsyncGenerator[T]:
        """Yield the object of `key`, for one call at a time. What the call has changed is kept if
        it ends without an error, and dropped otherwise.

        In a request that `Equipoise.by_key` has given this key, the work of the request counts.
        Otherwise this call is a piece of work, which a move of the key waits for.

        Raises `PeerError` with the owner's address if another process owns the key,
        `OwnershipLost` if the key has moved during the call, `DeadlineExceeded` if it does not get
        its turn or the store does not answer, `Overloaded`, `StaleToken`, `InvalidName`, and the
        errors of the store.
        """
        _check_key(key)
        if not hasattr(self, "host"):
            raise CallerError(
                f"the objects of {self.namespace} are not served: give this Keyed to the Equipoise"
                " of the program, and let that start first"
            )
        deadline = Deadline.after(timeout_ms=self._call_ms)
        with await self._work(key) as work:
            part = self._part_of(key, work)
            part.calls += 1
            kept = part.kept.setdefault(key, _Kept())
            if kept.waiting > WAITING_MAX:
                raise Overloaded(what=f"the queue of calls of {key}", limit=WAITING_MAX)
            kept.waiting += 1
            try:
                await deadline.wait(kept.turn.acquire(), what=f"the turn of a call of {key}")
                try:
                    # A save goes on when its call has given up.
                    if kept.saving is not None:
                        what = f"the end of the save before, of {key}"
                        await deadline.wait(asyncio.wait({kept.saving}), what=what)
                    async with self._changed(key, kept, work, deadline) as state:
                        yield state
                finally:
                    kept.turn.release()
            finally:
                kept.waiting -= 1
                kept.used_s = time.monotonic()
                if kept.is_empty and part.kept.get(key) is kept:
                    del part.kept[key]

    def route(self, parameter: str) -> Callable[[Endpoint], Endpoint]:
        """Return a decorator of an endpoint whose path has the key in `parameter`. The endpoint
        gets the object of the key for its parameter of that type, as from `at`. Write it below the
        decorator of the framework.

        `Equipoise.install` has the call answered by the program that owns the key. Raises
        `CallerError` for an endpoint that is no coroutine function, or does not take the key as
        `str` and one object.
        """

        def routed(endpoint: Endpoint) -> Endpoint:
            signature = inspect.signature(endpoint, eval_str=True)
            taken = signature.parameters
            objects = [each.name for each in taken.values() if each.annotation == self._type]
            if (
                not inspect.iscoroutinefunction(endpoint)
                or parameter not in taken
                or taken[parameter].annotation is not str
                or len(objects) != 1
            ):
                raise CallerError(
                    f"{endpoint.__name__} cannot be routed: write it as `async def"
                    f" {endpoint.__name__}({parameter}: str, state: {self._type.__name__})`"
                )

            @functools.wraps(endpoint)
            async def answer(**named: Any) -> Any:  # noqa: ANN401
                outcome = RequestOutcome.NOT_STARTED
                try:
                    async with self.at(named[parameter]) as state:
                        outcome = RequestOutcome.UNKNOWN
                        return await endpoint(**named, **{objects[0]: state})
                except EquipoiseError as error:
                    raise Unserved(error, outcome) from error

            # The framework gives what is in the signature.
            shown = [each for each in taken.values() if each.name != objects[0]]
            vars(answer)["__signature__"] = signature.replace(parameters=shown)
            return cast("Endpoint", answer)

        return routed

    async def _work(self, key: str) -> AbstractContextManager[Work]:
        """Return the work of this call: that of the request, or one that begins here."""
        try:
            current = current_work()
        except CallerError:
            current = None
        if (
            current is not None
            and current.is_awaited
            and (current.namespace, current.key) == (self.namespace, key)
        ):
            return nullcontext(current)  # It ends before the answer.
        served = await self.host.route(self.namespace, key, timeout_ms=self._call_ms)
        if isinstance(served, Peer):
            name = f"{self.namespace}/{key}"
            raise Elsewhere(key=name, peer=served, broker=self.host.broker_id)
        return served.admit(key)

    def _part_of(self, key: str, work: Work) -> _Part[T]:
        """Return the part of a key. Raise `OwnershipLost` if this broker has no longer the key."""
        point = key_hash(key)
        place = bisect_right(self._lows, point) - 1
        part = self._parts[self._lows[place]] if place >= 0 else None
        if part is None or not bundle_contains(part.bundle.low, part.bundle.high, point):
            raise OwnershipLost(
                bundle=f"{self.namespace}/{key}",
                token=work.token,
                problem="its objects have moved",
                is_closed=True,
            )
        return part

    @asynccontextmanager
    async def _changed(
        self, key: str, kept: _Kept[T], work: Work, deadline: Deadline
    ) -> AsyncGenerator[T]:
        """Yield the object, and save what the call has changed."""
        saved = kept.saved
        if saved is None and self._store is not None:
            saved = await deadline.wait(
                self._store.load(self.namespace, key), what=f"the store giving the state of {key}"
            )
        state = kept.state
        if state is None:
            state = self._new(key) if saved is None else self._decoded(key, saved)
        # Of a key without a state, only what a call has changed is kept.
        before = self._encoded(key, state) if saved is None else saved
        kept.state = None  # A failed call leaves nothing of what it has changed.
        yield state
        encoded = self._encoded(key, state)
        # A part that has moved, or an object that was dropped meanwhile, takes no change any more.
        part = self._part_of(key, work)
        if part.kept.get(key) is not kept:
            raise OwnershipLost(
                bundle=part.bundle.name, token=work.token, problem="it has moved meanwhile"
            )
        if encoded != before:
            self._decoded(key, encoded)  # Or its next owner could not.
            if self._store is None:
                self._check_room(key, kept.saved, encoded)
            else:
                await self._save(key, kept, encoded, token=work.token)
        if encoded != kept.saved and (encoded != before or saved is not None):
            self._bytes += _bytes_of(key, encoded) - _bytes_of(key, kept.saved)
            kept.saved = encoded
        kept.state = None if kept.saved is None else state

    async def _save(self, key: str, kept: _Kept[T], encoded: bytes, *, token: int) -> None:
        """Save a state. Until it is known what the store has, nothing of it is in memory."""
        assert self._store is not None, "only an object with a store is saved"
        self._forget(key, kept)
        saving = asyncio.ensure_future(self._store.save(self.namespace, key, encoded, token=token))
        kept.saving = saving
        saving.add_done_callback(lambda _: setattr(kept, "saving", None))
        deadline = Deadline.after(timeout_ms=self._call_ms)
        await deadline.wait(asyncio.shield(saving), what=f"the store saving the state of {key}")

    def _encoded(self, key: str, state: T) -> bytes:
        try:
            return self._kind.dump_json(state, by_alias=True, round_trip=True, warnings="error")
        except PydanticSerializationError as error:
            raise CallerError(
                f"the object of {self.namespace}/{key} does not fit its type:"
                f" {str(error).splitlines()[0]}; nothing of this call is kept"
            ) from error

    def _decoded(self, key: str, encoded: bytes) -> T:
        try:
            return self._kind.validate_json(encoded)
        except ValidationError as error:
            # Without the values, which may be nobody's business.
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise CallerError(
                f"the state of {self.namespace}/{key} does not fit its type: {where}:"
                f" {first['msg']}; let the type accept what is saved, or keep it from being saved"
            ) from error

    def _check_room(self, key: str, before: bytes | None, after: bytes) -> None:
        more = _bytes_of(key, after) - _bytes_of(key, before)
        if more > 0 and self._bytes + more > KEPT_BYTES_MAX:
            raise Overloaded(
                what=f"the memory for objects without a store, at {self.namespace}/{key},",
                limit=KEPT_BYTES_MAX,
            )

    def _forget(self, key: str, kept: _Kept[T]) -> None:
        self._bytes -= _bytes_of(key, kept.saved)
        kept.saved = kept.state = None

    # --- the service ---

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        """Take over the objects of the former owner."""
        bundle = ownership.bundle
        if bundle.namespace != self.namespace:
            raise CallerError(
                f"{type(self).__name__} keeps the keys of {self.namespace}, not of"
                f" {bundle.namespace}; register it for its own namespace"
            )
        for low, each in list(self._parts.items()):
            # A part that was not closed, because its close overran: the bundle has been elsewhere.
            if low < bundle.high and bundle.low < each.bundle.high:
                self._bytes -= self._remove(each.bundle).bytes_saved
        part = _Part[T](bundle)
        lines = (handover or b"").splitlines()
        for key, saved in zip(lines[::2], lines[1::2], strict=True):
            part.kept[orjson.loads(key)] = _Kept(saved=saved, used_s=time.monotonic())
        self._bytes += part.bytes_saved
        if self._store is None and ownership.handover_problem is not None:
            _logger.error(
                "objects are lost: %s; give Keyed a store",
                ownership.handover_problem,
                extra={"bundle": bundle.name},
            )
        self._add(part)

    async def close(
        self,
        bundle: Bundle,
        moved_to: Peer | None,  # noqa: ARG002
        deadline: Deadline,  # noqa: ARG002
    ) -> bytes | None:
        """Hand over the objects. With a store, more than fits on the channel is loaded from
        there.
        """
        part = self._remove(bundle)
        self._bytes -= part.bytes_saved
        saved = ((key, kept.saved) for key, kept in part.kept.items() if kept.saved is not None)
        # JSON has no line break.
        handover = b"\n".join(line for key, state in saved for line in (orjson.dumps(key), state))
        return handover if self._store is None or len(handover) <= HANDOVER_BYTES_MAX else None

    def split(self, parent: Bundle, children: Sequence[Ownership]) -> None:
        """Cut a part."""
        before = self._remove(parent)
        for child in children:
            bundle = child.bundle
            kept = {
                key: each
                for key, each in before.kept.items()
                if bundle.contains(self.namespace, key)
            }
            self._add(_Part(bundle, kept, before.calls // len(children)))

    def merge(self, left: Bundle, right: Bundle, union: Ownership) -> None:
        """Join two parts."""
        one, other = self._remove(left), self._remove(right)
        self._add(_Part(union.bundle, one.kept | other.kept, one.calls + other.calls))

    def load(self) -> Mapping[str, BundleLoad]:
        """Return the calls per second of each bundle since the last question, and drop objects that
        nobody has used for `idle_ms`.
        """
        now_s = time.monotonic()
        elapsed_s, self._counted_since_s = max(now_s - self._counted_since_s, 0.001), now_s
        loads = dict[str, BundleLoad]()
        for part in self._parts.values():
            loads[part.bundle.name] = BundleLoad(calls_per_second=part.calls / elapsed_s)
            part.calls = 0
            if self._store is not None:
                self._drop_idle(part, now_s)
        return loads

    def _drop_idle(self, part: _Part[T], now_s: float) -> None:
        for key, kept in list(part.kept.items()):
            is_used = kept.waiting or kept.saving is not None
            if not is_used and now_s - kept.used_s >= self._idle_s:
                self._forget(key, part.kept.pop(key))

    def _add(self, part: _Part[T]) -> None:
        self._parts[part.bundle.low] = part
        self._lows = sorted(self._parts)

    def _remove(self, bundle: Bundle) -> _Part[T]:
        part = self._parts.pop(bundle.low)
        self._lows = sorted(self._parts)
        return part
