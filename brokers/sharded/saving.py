"""Hold the states of keys, and save them in a store: before a call ends, or afterwards in rounds.

A round saves all objects whose changes were put off, twice in the time that they may be unsaved. A
close saves those of its bundle. A key whose save has failed takes no change until one succeeds.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from itertools import islice
from types import TracebackType
from typing import Final, Generic, Protocol, TypeVar

import orjson

from equipoise.brokers.runtime.service import Bundle, Ownership, Work
from equipoise.channel.core.errors import EquipoiseError, Overloaded, PeerError
from equipoise.channel.system.clocks import Deadline

_logger: Final = logging.getLogger(__name__)

T = TypeVar("T")

UNSAVED_MAX: Final = 1_024
"""How many objects may be unsaved. A store that takes 3 ms for each, one after the other, needs 3 s
for a handover of all, and `close_ms` is 5 s by default."""

_SAVES_MAX: Final = 32  # At the same time.
_PAUSE_S_MIN: Final = 1.0
_PAUSE_S_MAX: Final = 30.0
_LAST_PAUSE_S: Final = 0.1  # Before a handover saves again what has failed.


class Store(Protocol):
    """Where the states of keys are kept beyond the life of a process. All processes use the same
    one. It is asked for one key by one call at a time.

    An error of any type says that it is not known what has happened. A save that failed so may
    still be carried out, but not after the next one of its key.
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

    def __init__(self, *, key: str, token: int, seen: int | None = None) -> None:
        """`key` is the whole one, with its namespace. `token` is that of the refused write, and
        `seen` the greatest one in the store, where it is known.
        """
        self.key = key
        self.token = token
        super().__init__(
            f"the state of {key} was not saved under token {token}: the store has seen"
            f" {seen or 'a greater one'}; ask again who owns the key"
        )


@dataclass(slots=True, eq=False)
class Kept(Generic[T]):
    """The object of one key, which lies at `point`. `encoded` is its form after the last call, if
    there is one.

    `state` is None before the first call and after a failed one. `waiting` counts the calls, with
    the one that has its turn. `saving`: a save that has not ended. `unsaved_token`: the token to
    save `encoded` under, if the store does not have it; `problem` is why the last try failed.
    """

    point: int
    encoded: bytes | None = None
    state: T | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0
    saving: asyncio.Future[None] | None = None
    used_s: float = 0.0
    unsaved_token: int | None = None
    problem: str | None = None

    @property
    def is_unsaved(self) -> bool:
        """Whether the store does not have it."""
        return self.unsaved_token is not None

    @property
    def is_used(self) -> bool:
        """Whether it must stay in memory although nobody has called it lately."""
        return bool(self.waiting or self.is_unsaved or self.saving is not None)


def size_of(key: str, encoded: bytes | None) -> int:
    """Return the size of a state in a handover, with its key and the ends of both lines."""
    return 0 if encoded is None else len(orjson.dumps(key)) + len(encoded) + 2


@dataclass(slots=True)
class Part(Generic[T]):
    """The objects of one open bundle, by key; those that were not used for longest come first.
    `charged`: since the last question for the load. It is open until it moves, or is cut or joined.
    """

    ownership: Ownership
    kept: OrderedDict[str, Kept[T]] = field(default_factory=OrderedDict)
    charged: float = 0.0
    is_open: bool = True

    @property
    def bundle(self) -> Bundle:
        """The bundle."""
        return self.ownership.bundle

    @property
    def size(self) -> int:
        """The size of the encoded objects."""
        return sum(size_of(key, kept.encoded) for key, kept in self.kept.items())


@dataclass(slots=True)
class Turn(Generic[T]):
    """A call that has the turn of a key. `part` is where the key was when it came; `entered` is the
    context of `work`.

    Once it has the object: `block` is the context of its CPU time, `before` the form of the object,
    and `encoded` the one that was kept or loaded, if any.
    """

    key: str
    part: Part[T]
    kept: Kept[T]
    work: Work
    entered: AbstractContextManager[Work]
    block: AbstractContextManager[object] = field(init=False)
    state: T = field(init=False)
    before: bytes = field(init=False)
    encoded: bytes | None = field(init=False)


class Call(AbstractAsyncContextManager[T]):
    """One call of a key. A class, because contexts of generators take several microseconds each."""

    __slots__ = ("_begin", "_end", "_key", "_turn")

    def __init__(
        self,
        begin: Callable[[str], Awaitable[Turn[T]]],
        end: Callable[[Turn[T], BaseException | None], Awaitable[None]],
        key: str,
    ) -> None:
        """`begin` and `end` are those of the `Keyed`."""
        self._begin = begin
        self._end = end
        self._key = key

    async def __aenter__(self) -> T:
        self._turn = await self._begin(self._key)
        return self._turn.state

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._end(self._turn, error)


class Saver(Generic[T]):
    """Loads and saves the objects of one `Keyed`. It saves a change before the call ends, unless
    `unsaved_s` says how long it may be unsaved.
    """

    def __init__(self, namespace: str, store: Store, *, call_ms: int, unsaved_s: float) -> None:
        self._namespace = namespace
        self._store = store
        self._call_ms = call_ms
        self._unsaved_s = unsaved_s
        self._unsaved: dict[str, Kept[T]] = {}
        self._rounds: asyncio.Task[None] | None = None

    @property
    def puts_off(self) -> bool:
        """Whether a call ends before its change is saved."""
        return self._unsaved_s > 0

    async def load(self, key: str, deadline: Deadline) -> bytes | None:
        """Return the state of a key; None if it has none."""
        what = f"the store giving the state of {self._namespace}/{key}"
        try:
            return await deadline.wait(self._store.load(self._namespace, key), what=what)
        except EquipoiseError:
            raise
        except Exception as error:
            raise self._store_failed(key, "load", error) from error

    async def await_last_save(self, key: str, kept: Kept[T], deadline: Deadline) -> None:
        """Wait for the end of a save whose call has given up."""
        if kept.saving is not None and not self.puts_off:
            what = f"the end of the save before, of {key}"
            await deadline.wait(asyncio.wait({kept.saving}), what=what)

    def check(self, key: str, kept: Kept[T]) -> None:
        """Refuse a change whose last one has not been saved, or that could not be put off."""
        if kept.problem is not None:
            raise PeerError(
                f"the object of {self._namespace}/{key} takes no change until its last one is"
                f" saved: {kept.problem}"
            )
        if self.puts_off and not kept.is_unsaved and len(self._unsaved) >= UNSAVED_MAX:
            raise Overloaded(
                what=f"the list of unsaved objects of {self._namespace}", limit=UNSAVED_MAX
            )

    async def save(self, key: str, kept: Kept[T], encoded: bytes, *, token: int) -> None:
        """Save a state, or have the next round save it."""
        if self.puts_off:
            self.put_off(key, kept, token)
            return
        # Until it is known what the store has, nothing is in memory.
        kept.encoded = kept.state = None
        saving = self._begin_save(key, kept, encoded, token=token)
        deadline = Deadline.after(timeout_ms=self._call_ms)
        await deadline.wait(asyncio.shield(saving), what=f"the store saving the state of {key}")

    def put_off(self, key: str, kept: Kept[T], token: int) -> None:
        """Have an object saved by the next round."""
        kept.unsaved_token = token
        self._unsaved[key] = kept
        if self._rounds is None:
            self._rounds = asyncio.get_running_loop().create_task(self._save_in_rounds())

    def forget(self, key: str, kept: Kept[T]) -> None:
        """Save an object no more."""
        if self._unsaved.get(key) is kept:
            del self._unsaved[key]

    def _store_failed(self, key: str, verb: str, error: Exception) -> PeerError:
        return PeerError(
            f"the store did not {verb} the state of {self._namespace}/{key}:"
            f" {type(error).__name__}: {error}; try again later"
        )

    def _begin_save(
        self, key: str, kept: Kept[T], encoded: bytes, *, token: int
    ) -> asyncio.Future[None]:
        """Start a save. It goes on to its end, also if nobody waits for it."""

        async def save() -> None:
            try:
                await self._store.save(self._namespace, key, encoded, token=token)
            except EquipoiseError:
                raise
            except Exception as error:
                raise self._store_failed(key, "save", error) from error

        def ended(saving: asyncio.Future[None]) -> None:
            kept.saving = None
            if not saving.cancelled():
                saving.exception()  # Whoever waited has it. A caller may have given up.

        kept.saving = saving = asyncio.ensure_future(save())
        saving.add_done_callback(ended)
        return saving

    async def _save_in_rounds(self) -> None:
        """Save what is unsaved, again and again, until nothing is."""
        pause_s = self._unsaved_s / 2
        try:
            while self._unsaved:
                await asyncio.sleep(pause_s)
                deadline = Deadline.after(timeout_ms=self._call_ms)
                problem = await self._saved(self._unsaved, deadline)
                if problem is None:
                    pause_s = self._unsaved_s / 2
                    continue
                pause_s = min(max(2 * pause_s, _PAUSE_S_MIN), _PAUSE_S_MAX)
                _logger.error(
                    "saves failed: %s; %d objects of %s are unsaved, and are tried again in %.0f s",
                    problem,
                    len(self._unsaved),
                    self._namespace,
                    pause_s,
                )
        finally:
            self._rounds = None

    async def _saved(self, unsaved: Mapping[str, Kept[T]], deadline: Deadline) -> str | None:
        """Save these objects. Return why that failed for one of them."""
        everything, problems = iter(list(unsaved.items())), list[str]()
        while some := list(islice(everything, _SAVES_MAX)):
            saves = (self._save_one(key, kept, deadline) for key, kept in some)
            problems += filter(None, await asyncio.gather(*saves))
        return problems[0] if problems else None

    async def _save_one(self, key: str, kept: Kept[T], deadline: Deadline) -> str | None:
        """Save an unsaved object. Return why that failed."""
        what = f"the store saving the state of {self._namespace}/{key}"
        try:
            if kept.saving is not None:  # Of a round that gave up, or that a close overtakes.
                await deadline.wait(asyncio.wait({kept.saving}), what=what)
            encoded, token = kept.encoded, kept.unsaved_token
            if encoded is None or token is None:
                return None  # It was saved meanwhile.
            saving = self._begin_save(key, kept, encoded, token=token)
            await deadline.wait(asyncio.shield(saving), what=what)
        except StaleToken as error:
            _logger.error("a change is lost: %s", error)  # noqa: TRY400 - no bug
            kept.encoded = kept.state = kept.problem = None
        except EquipoiseError as error:
            kept.problem = str(error)
            return kept.problem
        else:
            kept.problem = None
            if kept.encoded is not encoded:
                return None  # The next round saves what has changed meanwhile.
        kept.unsaved_token = None
        self.forget(key, kept)
        return None

    async def save_rest(
        self, bundle: Bundle, kept: Mapping[str, Kept[T]], deadline: Deadline
    ) -> Mapping[str, Kept[T]]:
        """Save the unsaved objects of a bundle that closes. Return those that could not be."""
        rest = {key: each for key, each in kept.items() if each.is_unsaved}
        for key, each in rest.items():
            self.forget(key, each)
        most = Deadline.after(timeout_ms=deadline.remaining_ms() * 3 // 4)
        while rest:
            problem = await self._saved(rest, most)
            rest = {key: each for key, each in rest.items() if each.is_unsaved}
            if problem is not None and not most.remaining_ms():
                _logger.error(
                    "saves failed: %s; %d objects are unsaved, and lost unless there is a next"
                    " owner, who gets them",
                    problem,
                    len(rest),
                    extra={"bundle": bundle.name},
                )
                break
            if rest:
                await asyncio.sleep(_LAST_PAUSE_S)
        return rest
