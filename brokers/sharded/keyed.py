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
import re
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import (
    Callable,
    Coroutine,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import is_dataclass
from itertools import islice
from typing import (
    Annotated,
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    TypeVar,
    cast,
    get_args,
    get_origin,
)

import orjson
from pydantic import BaseModel, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from equipoise.brokers.balancing.namespace_policies import check_new_bundles
from equipoise.brokers.client.attempts import RequestOutcome
from equipoise.brokers.load.metering import driven
from equipoise.brokers.runtime.embedding.by_key import WORK
from equipoise.brokers.runtime.embedding.installed import Unserved, elsewhere
from equipoise.brokers.runtime.service import (
    Bundle,
    Ownership,
    OwnershipLost,
    Peer,
    Service,
    Work,
)
from equipoise.brokers.runtime.state_stream import KEPT_BYTES_MAX
from equipoise.brokers.sharded.saving import Call, Kept, Part, Saver, Store, Turn, size_of
from equipoise.channel.core.errors import (
    CallerError,
    EquipoiseError,
    InvalidName,
    Overloaded,
)
from equipoise.channel.core.ranges import bundle_contains, check_namespace, key_hash
from equipoise.channel.core.records import HANDOVER_BYTES_MAX
from equipoise.channel.system.clocks import Deadline
from equipoise.shedder.loads import FIGURE_MAX, BundleLoad, check_unit, impossible_figure

_logger: Final = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")
Answer = TypeVar("Answer")

SHARDS: Final = 64
"""How many bundles a namespace of `Keyed` or `Tasks` has by default."""

KEY_BYTES_MAX: Final = 1_024
WAITING_MAX: Final = 512
"""How many calls of one key may wait."""

CALL_MS: Final = 10_000

STATE_BYTES_MAX: Final = 1 << 20
"""The size of one object, encoded. Each call encodes its object, which takes 1 ms for 256 KiB."""

# A call drops some objects that nobody uses, so that they never outnumber those in use. The rest of
# the time the question for the load does, for a few milliseconds.
_IDLE_BY_CALL: Final = 2
_IDLE_BY_LOAD: Final = 2_000

_LINES_AT_ONCE: Final = 1_000  # Of a handover: 1 ms.

# What pydantic says of the first value that does not fit.
_MISFIT: Final = re.compile(
    r"Expected `(?P<expected>[^`\n]+)`[^\n]*?\[(?:field_name='(?P<field>[^'\n]+)', )?"
    r"input_value=[^\n]*, input_type=(?P<type>\w+)\]"
)

ROUTED: Final = "equipoise_routed"
UNROUTED: Final = "equipoise_unrouted"
"""The attributes with their `Keyed` of an endpoint with `route`, and of what it stands before."""


def _check_key(key: str) -> None:
    try:
        # A server puts U+FFFD where the bytes of a path are no UTF-8, so it stands for many keys.
        is_valid = 1 <= len(key.encode()) <= KEY_BYTES_MAX and "\ufffd" not in key
    except (AttributeError, UnicodeEncodeError):  # It is no text, or half of a character.
        is_valid = False
    if not is_valid:
        raise InvalidName(
            what="key",
            name=f"{key!s:.40}",
            expected=f"a str of 1 to {KEY_BYTES_MAX:,} bytes in UTF-8",
        )


def _misfit(error: PydanticSerializationError) -> str:
    """Return what does not fit, without its value, which may be nobody's business."""
    found = _MISFIT.search(str(error))
    if found is None:
        return str(error).splitlines()[0]
    where, expected, got = found["field"], found["expected"], found["type"]
    return f"{f'{where}: ' if where else ''}it must be {expected}, not {got}"


def _plain(annotation: object) -> object:
    """Return the type of a parameter without what a framework reads about it."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _is_immutable(kind: object) -> bool:
    """Return whether an object of this type can only be replaced: it has a hash by value."""
    plain = get_origin(kind) or kind
    by_value: object = getattr(plain, "__hash__", None)
    if not isinstance(plain, type) or by_value in (None, object.__hash__):
        return False
    if is_dataclass(plain):
        return bool(vars(plain)["__dataclass_params__"].frozen)
    return not issubclass(plain, BaseModel) or bool(plain.model_config.get("frozen"))


class Keyed(Service, Generic[T]):
    """A service that keeps one object for each key of a namespace: `Keyed("iot/shadows", Shadow)`.

    The object of a key is in the process that owns the key. It is made, or loaded from the store,
    at its first use, and moves with its bundle. With a store, each change is saved before the call
    ends. Without one, the objects of a process that dies are lost.

    Its load is what its calls use, and the bytes of what they load and change.
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
        unsaved_ms: int = 0,
        unit: str = "",
    ) -> None:
        """`kind` is a dataclass, a pydantic model, or any type that pydantic encodes as JSON.

        * `shards`: how many bundles the namespace has at first.
        * `new`: returns the object of a key that has none yet. Default: `kind()`.
        * `call_ms`: how long a call waits for its turn, and for the store.
        * `idle_ms`: how long an object that nobody uses stays in memory, if there is a store.
        * `unsaved_ms`: how long a change may be unsaved after its call has ended, if there is a
          store, which keeps up. A process that is killed loses what is unsaved. A move saves it
          first. If a save fails, it is logged and tried again, and the key takes no change
          meanwhile.
        * `unit`: that of the costs that calls `charge`, such as `tokens/s`.

        Raises `InvalidName`, and `CallerError` for a type that cannot be encoded, or whose objects
        cannot be changed, and for what is no store.
        """
        self.namespace = check_namespace(namespace)
        self.shards = check_new_bundles(namespace, shards)
        if store is not None and not callable(getattr(store, "load", None)):
            raise CallerError(
                f"{store!r} is no store for {namespace}; give Keyed an object such as"
                " SqliteStore(PATH)"
            )
        if unsaved_ms and store is None:
            raise CallerError(
                f"unsaved_ms={unsaved_ms} of {namespace} has no effect without a store; give Keyed"
                " a store, or leave unsaved_ms out"
            )
        self._new: Callable[[str], T] = (lambda _key: kind()) if new is None else new
        self._type = kind
        self._kind = self._adapter()
        if new is None:
            self._check_first()
        self._call_ms = call_ms
        self._saver: Saver[T] | None = None
        if store is not None:
            self._saver = Saver(namespace, store, call_ms=call_ms, unsaved_s=unsaved_ms / 1_000)
        self._idle_s = idle_ms / 1_000
        self._unit = check_unit(unit) if unit else ""
        self._asked_s = time.monotonic()
        # By their low ends, which rise.
        self._lows: list[int] = []
        self._parts: dict[int, Part[T]] = {}
        self._bytes = 0  # Of all objects, if there is no store.

    def __repr__(self) -> str:
        return f"<Keyed {self._shown} of {self.namespace}, {len(self._parts)} open bundles>"

    @property
    def _shown(self) -> str:
        return getattr(self._type, "__name__", str(self._type))

    def _adapter(self) -> TypeAdapter[T]:
        if _is_immutable(self._type):
            raise CallerError(
                f"the objects of {self.namespace} could never change: a {self._shown} is replaced,"
                " not changed; use a dataclass or a pydantic model that holds it"
            )
        try:
            adapter = TypeAdapter(self._type)
            adapter.json_schema(mode="serialization")
        except PydanticUserError as error:
            raise self._not_json(error) from error
        return adapter

    def _check_first(self) -> None:
        """Make, encode and decode an object, as the first call of a key does."""
        try:
            first = self._new("")
        except (TypeError, ValidationError) as error:
            problem = str(error).splitlines()[0]
            raise CallerError(
                f"the first object of a key of {self.namespace} cannot be made: {problem}; give"
                " all fields a default, or give Keyed new=FUNCTION, which returns the object of a"
                " key"
            ) from error
        try:
            self._kind.validate_json(self._kind.dump_json(first, by_alias=True, round_trip=True))
        except (PydanticSerializationError, ValidationError) as error:
            raise self._not_json(error) from error

    def _not_json(self, error: Exception) -> CallerError:
        return CallerError(
            f"the state of {self.namespace} cannot be encoded as JSON; use a dataclass or a"
            f" pydantic model of plain values: {self._shown}: {str(error).splitlines()[0]}"
        )

    def at(self, key: str) -> AbstractAsyncContextManager[T]:
        """Return a context with the object of `key`, for one call at a time. What the call has
        changed is kept if it ends without an error, and dropped otherwise.

        In a request that `Equipoise.by_key` has given this key, the work of the request counts.
        Otherwise this call is a piece of work, which a move of the key waits for.

        Raises `PeerError` with the owner's address if another process owns the key, and if the
        store fails; `OwnershipLost` if the key has moved during the call; `DeadlineExceeded` if it
        does not get its turn or the store does not answer; `Overloaded`, `StaleToken`,
        `InvalidName`, and `CallerError` for an object that does not fit its type or is too large.
        """
        return Call(self._begin, self._end, key)

    def route(
        self, parameter: str
    ) -> Callable[
        [Callable[Concatenate[str, T, P], Coroutine[Any, Any, Answer]]],
        Callable[Concatenate[str, P], Coroutine[Any, Any, Answer]],
    ]:
        """Return a decorator of an endpoint whose path has the key in `parameter`: its first
        parameter. Its second one gets the object of the key, as from `at`. Write it below the
        decorator of the framework.

        `Equipoise.install` has the call answered by the program that owns the key. Raises
        `CallerError` for an endpoint that is no coroutine function, or does not take the key as
        `str` and the object first.
        """
        if not isinstance(parameter, str):
            raise CallerError(
                f"the parameter with the key of {self.namespace} has no name: write"
                ' @KEYED.route("PARAMETER") in place of @KEYED.route'
            )

        def routed(
            endpoint: Callable[Concatenate[str, T, P], Coroutine[Any, Any, Answer]],
        ) -> Callable[Concatenate[str, P], Coroutine[Any, Any, Answer]]:
            signature = inspect.signature(endpoint, eval_str=True)
            taken = [*signature.parameters.values()]
            name = getattr(endpoint, "__name__", repr(endpoint))
            if (
                not inspect.iscoroutinefunction(endpoint)
                or [each.name for each in taken[:1]] != [parameter]
                or [_plain(each.annotation) for each in taken[:2]] != [str, self._type]
            ):
                raise CallerError(
                    f"{name} cannot be routed: write it as `async def {name}({parameter}: str,"
                    f" state: {self._shown})`, with other parameters after these"
                )

            async def call(key: str, *others: Any, **named: Any) -> Answer:  # noqa: ANN401
                outcome = RequestOutcome.NOT_STARTED
                try:
                    turn = await self._begin(key)  # The same as `at`, for speed.
                    outcome = RequestOutcome.UNKNOWN
                    try:
                        done = await endpoint(key, turn.state, *others, **named)
                    except BaseException as error:
                        await self._end(turn, error)
                        raise
                    await self._end(turn, None)
                except EquipoiseError as error:
                    raise Unserved(error, outcome) from error
                return done

            @functools.wraps(endpoint)
            async def answer(*given: Any, **named: Any) -> Answer:  # noqa: ANN401
                key, *others = given or (named.pop(parameter),)
                return await driven(call(key, *others, **named))

            # The framework gives what is in the signature.
            shown = signature.replace(parameters=[taken[0], *taken[2:]])
            vars(answer)["__signature__"] = shown
            vars(answer)[ROUTED] = vars(endpoint)[UNROUTED] = self
            return answer

        return routed

    async def _begin(self, key: str) -> Turn[T]:
        """Give a call its turn of a key, and the object. `_end` ends it."""
        _check_key(key)
        if not hasattr(self, "host"):
            raise self.unserved()
        began_ns = time.monotonic_ns()
        entered = await self._work(key)
        work = entered.__enter__()
        try:
            part = self._part_of(key, key_hash(key), work)
            turn = Turn(key, part, await self._taken(key, part, began_ns), work, entered)
            try:
                await self._take_object(turn, began_ns)
            except BaseException:
                self._give_back(turn)
                raise
        except BaseException as error:
            entered.__exit__(type(error), error, error.__traceback__)
            raise
        return turn

    async def _end(self, turn: Turn[T], error: BaseException | None) -> None:
        """End a call with its error, if any, and keep what it has changed."""
        try:
            try:
                turn.block.__exit__(None, None, None)
                if error is None:
                    await self._keep_change(turn)
            finally:
                self._give_back(turn)
        except BaseException as failure:
            turn.entered.__exit__(type(failure), failure, failure.__traceback__)
            raise
        trace = None if error is None else error.__traceback__
        turn.entered.__exit__(None if error is None else type(error), error, trace)

    def _deadline(self, began_ns: int) -> Deadline:
        return Deadline(started_ns=began_ns, timeout_ms=self._call_ms)

    async def _taken(self, key: str, part: Part[T], began_ns: int) -> Kept[T]:
        """Return what is kept of a key, once it is the turn of this call."""
        kept = part.kept.get(key)
        if kept is None:
            kept = part.kept[key] = Kept(key_hash(key))
        if kept.waiting > WAITING_MAX:
            raise Overloaded(what=f"the queue of calls of {key}", limit=WAITING_MAX)
        kept.waiting += 1
        kept.used_s = time.monotonic()
        part.kept.move_to_end(key)
        self._drop_idle(part, _IDLE_BY_CALL)
        try:
            turn = kept.turn.acquire()
            if kept.waiting > 1:
                turn = self._deadline(began_ns).wait(turn, what=f"the turn of a call of {key}")
            await turn
        except BaseException:
            self._leave(key, part, kept)
            raise
        return kept

    def _give_back(self, turn: Turn[T]) -> None:
        turn.kept.turn.release()
        self._leave(turn.key, turn.part, turn.kept)

    def _leave(self, key: str, part: Part[T], kept: Kept[T]) -> None:
        kept.waiting -= 1
        kept.used_s = time.monotonic()
        if kept.encoded is None and not kept.is_used and part.kept.get(key) is kept:
            del part.kept[key]

    def unserved(self) -> CallerError:
        """Return the error for a call of a key in a program that does not serve this object."""
        return CallerError(
            f"the objects of {self.namespace} are not served: give this Keyed to the Equipoise of"
            " the program, and let that start first"
        )

    async def _work(self, key: str) -> AbstractContextManager[Work]:
        """Return the work of this call: that of the request, or one that begins here."""
        current = WORK.get()
        if (
            current is not None
            and current.is_awaited
            and (current.namespace, current.key) == (self.namespace, key)
        ):
            return nullcontext(current)  # It ends before the answer.
        owned = self.host.owned(self.namespace, key)
        try:
            if owned is not None:
                return owned.admit(key)
        except OwnershipLost:
            pass  # Another program may serve it by now.
        served = await self.host.route(self.namespace, key, timeout_ms=self._call_ms)
        if isinstance(served, Peer):
            name = f"{self.namespace}/{key}"
            raise elsewhere(key=name, owner=served, broker=self.host.broker_id)
        return served.admit(key)

    def _part_of(self, key: str, point: int, work: Work) -> Part[T]:
        """Return the part of a key, which lies at `point`. Raise `OwnershipLost` if this broker has
        no longer the key.
        """
        part = self._part_at(point)
        if part is None:
            raise OwnershipLost(
                bundle=f"{self.namespace}/{key}",
                token=work.token,
                problem="its objects have moved",
                is_closed=True,
            )
        return part

    def _part_now(self, turn: Turn[T]) -> Part[T]:
        """Return the part of a key whose call has the turn: it may have been cut or joined."""
        if turn.part.is_open:
            return turn.part
        return self._part_of(turn.key, turn.kept.point, turn.work)

    def _part_at(self, point: int) -> Part[T] | None:
        place = bisect_right(self._lows, point) - 1
        part = self._parts[self._lows[place]] if place >= 0 else None
        if part is None or not bundle_contains(part.bundle.low, part.bundle.high, point):
            return None
        return part

    async def _take_object(self, turn: Turn[T], began_ns: int) -> None:
        """Make or load the object of a call."""
        key, kept = turn.key, turn.kept
        account = self._part_now(turn).ownership.account
        if self._saver is not None:
            await self._saver.await_last_save(key, kept, self._deadline(began_ns))
        encoded = kept.encoded
        if encoded is None and self._saver is not None:
            encoded = await self._saver.load(key, self._deadline(began_ns))
            account.bytes += len(encoded or b"")
        with account.block():
            state = kept.state
            if state is None:
                state = self._new(key) if encoded is None else self._decoded(key, encoded)
            # Of a key without a state, only what a call has changed is kept.
            turn.before = self._encoded(key, state) if encoded is None else encoded
        kept.state = None  # A failed call leaves nothing of what it has changed.
        turn.state, turn.encoded, turn.block = state, encoded, account.block()
        turn.block.__enter__()

    async def _keep_change(self, turn: Turn[T]) -> None:
        """Keep what a call has changed of its object."""
        key, kept, encoded, state = turn.key, turn.kept, turn.encoded, turn.state
        with turn.part.ownership.account.block():
            after = self._encoded(key, state)
        # A part that has moved, or an object that was dropped meanwhile, takes no change any more.
        part = self._part_now(turn)
        if part.kept.get(key) is not kept:
            raise OwnershipLost(
                bundle=part.bundle.name, token=turn.work.token, problem="it has moved meanwhile"
            )
        is_changed = after != turn.before
        if is_changed:
            self._check_change(key, kept, turn.before, after)
            part.ownership.account.bytes += len(after)
        if is_changed and self._saver is not None:
            await self._saver.save(key, kept, after, token=turn.work.token)
        if after != kept.encoded and (is_changed or encoded is not None):
            self._keep(key, kept, after)
        kept.state = None if kept.encoded is None else state

    def _check_change(self, key: str, kept: Kept[T], before: bytes, after: bytes) -> None:
        """Refuse a change that its next owner could not read, or that has no room."""
        if len(after) > max(STATE_BYTES_MAX, len(before)):
            raise CallerError(
                f"the object of {self.namespace}/{key} has {len(after):,} bytes, of"
                f" {STATE_BYTES_MAX:,} at most; nothing of this call is kept; spread what it holds"
                " over several keys, or keep it in a store of your own"
            )
        self._decoded(key, after)
        if self._saver is not None:
            self._saver.check(key, kept)
            return
        more = len(after) - len(kept.encoded or b"")
        if more > 0 and self._bytes + more > KEPT_BYTES_MAX:
            raise Overloaded(
                what=f"the memory for objects without a store, at {self.namespace}/{key},",
                limit=KEPT_BYTES_MAX,
            )

    def _encoded(self, key: str, state: T) -> bytes:
        try:
            return self._kind.serializer.to_json(
                state, by_alias=True, round_trip=True, warnings="error"
            )
        except PydanticSerializationError as error:
            raise CallerError(
                f"the object of {self.namespace}/{key} does not fit its type:"
                f" {_misfit(error)}; nothing of this call is kept"
            ) from error

    def _decoded(self, key: str, encoded: bytes) -> T:
        try:
            return cast("T", self._kind.validator.validate_json(encoded))
        except ValidationError as error:
            # Without the values, which may be nobody's business.
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise CallerError(
                f"the state of {self.namespace}/{key} does not fit its type: {where}:"
                f" {first['msg']}; let the type accept what is saved, or keep it from being saved"
            ) from error

    def _keep(self, key: str, kept: Kept[T], encoded: bytes | None) -> None:
        if self._saver is None:
            if encoded is None or kept.encoded is None:
                self._bytes += size_of(key, encoded) - size_of(key, kept.encoded)
            else:
                self._bytes += len(encoded) - len(kept.encoded)
        kept.encoded, kept.state = encoded, None

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
                self._drop(self._remove(each.bundle))
        part = Part[T](ownership)
        lines, now_s = iter((handover or b"").splitlines()), time.monotonic()
        while some := list(islice(lines, _LINES_AT_ONCE)):
            for name, encoded in zip(some[::2], some[1::2], strict=True):
                key = orjson.loads(name)
                kept = part.kept[key] = Kept(key_hash(key), used_s=now_s)
                self._keep(key, kept, encoded)
                if self._saver is not None and self._saver.puts_off:
                    # Its former owner may have failed to save it.
                    self._saver.put_off(key, kept, ownership.token)
            await asyncio.sleep(0)
        if self._saver is None and ownership.handover_problem is not None:
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
        deadline: Deadline,
    ) -> bytes | None:
        """Save what is unsaved, and hand over the objects. With a store, more than fits on the
        channel is loaded from there.
        """
        part = self._remove(bundle)
        unsaved: Mapping[str, Kept[T]] = {}
        if self._saver is None:
            self._bytes -= part.size
        else:
            unsaved = await self._saver.save_rest(bundle, part.kept, deadline)
        kept = iter((unsaved or part.kept).items())
        lines = list[bytes]()  # JSON has no line break.
        while some := list(islice(kept, _LINES_AT_ONCE)):
            for key, each in some:
                if each.encoded is not None:
                    lines += orjson.dumps(key), each.encoded
            await asyncio.sleep(0)
        handover = b"\n".join(lines)
        is_in_store = self._saver is not None and not unsaved
        return None if is_in_store and len(handover) > HANDOVER_BYTES_MAX else handover

    def split(self, parent: Bundle, children: Sequence[Ownership]) -> None:
        """Cut a part."""
        before = self._remove(parent)
        for child in children:
            low, high = child.bundle.low, child.bundle.high
            kept = OrderedDict(
                (key, each)
                for key, each in before.kept.items()
                if bundle_contains(low, high, each.point)
            )
            self._add(Part(child, kept, before.charged / len(children)))

    def merge(self, left: Bundle, right: Bundle, union: Ownership) -> None:
        """Join two parts."""
        one, other = self._remove(left), self._remove(right)
        self._add(Part(union, one.kept | other.kept, one.charged + other.charged))

    def charge(self, key: str, amount: float) -> None:
        """Add what a call has cost, such as its tokens. The calls of a second together are the cost
        of the bundle, in `unit`. A key that another process has by now costs nothing here.

        Raises `CallerError` without a unit, and for an amount that cannot be.
        """
        if not self._unit:
            raise CallerError(
                f"a call of {self.namespace} cannot be charged without a unit: give Keyed unit=,"
                " such as unit='tokens/s'"
            )
        if not 0 <= amount <= FIGURE_MAX:
            raise impossible_figure("call", "amount", amount)
        part = self._part_at(key_hash(key))
        if part is not None:
            part.charged += amount

    def load(self) -> Mapping[str, BundleLoad]:
        """Return what was charged since the last question, if there is a unit; the rest is
        measured. Drop some of the objects that nobody has used for `idle_ms`.
        """
        left = _IDLE_BY_LOAD
        for part in self._parts.values():
            left -= self._drop_idle(part, left)
        if not self._unit:
            return {}
        now_s, loads = time.monotonic(), dict[str, BundleLoad]()
        elapsed_s, self._asked_s = max(now_s - self._asked_s, 0.001), now_s
        for part in self._parts.values():
            charged, part.charged = part.charged, 0.0
            cost = min(charged / elapsed_s, FIGURE_MAX)
            loads[part.bundle.name] = BundleLoad(cost=cost, unit=self._unit)
        return loads

    def _drop_idle(self, part: Part[T], at_most: int) -> int:
        """Drop the objects that were idle for longest, unless they must stay. Return how many were
        looked at.
        """
        if self._saver is None:
            return 0
        looked_at, before_s = 0, time.monotonic() - self._idle_s
        for key, kept in list(islice(part.kept.items(), at_most)):
            if kept.used_s > before_s:
                break
            looked_at += 1
            if kept.is_used:
                part.kept.move_to_end(key)
            else:
                del part.kept[key]
        return looked_at

    def _drop(self, part: Part[T]) -> None:
        """Drop the objects of a part that has moved without a handover."""
        for key, kept in part.kept.items():
            self._keep(key, kept, None)
            if self._saver is not None:
                self._saver.forget(key, kept)

    def _add(self, part: Part[T]) -> None:
        self._parts[part.bundle.low] = part
        self._lows = sorted(self._parts)

    def _remove(self, bundle: Bundle) -> Part[T]:
        part = self._parts.pop(bundle.low)
        part.is_open = False
        self._lows = sorted(self._parts)
        return part
