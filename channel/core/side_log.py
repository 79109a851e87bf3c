"""Define the `SideLog` port: documents that are kept beside the log, such as load reports.

`channel.log.open_log.open_side_log` chooses an adapter by URL. No verdict depends on a side log: a
document that cannot be written is lost, and its writer reports the loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, Literal, NamedTuple, Protocol

from equipoise.channel.core.errors import PeerError

READ_DOCUMENTS_MAX: Final = 1_000
"""Documents that `read_on` reads at once: some megabytes of decisions, which take some kilobytes
each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideTopic:
    """What one side log holds, and for how long it keeps it.

    * `name`: of the table in the file beside an embedded log; the end of a topic's name on Kafka.
    * `content`, `consequence`: for messages: what it holds, and what a failure leads to.
    * `kept_ms`: how long a topic on Kafka keeps a document. `rows_max`: how many documents a table
      keeps. The oldest go.
    * `lock_ms_max`: how long a call waits for other writers of the file.
    * `cleanup`, `document_bytes_max`: of a new topic on Kafka, which has one partition. It removes
      documents older than `kept_ms`. With "compact" it keeps only the last of each key before that.
    """

    name: str
    content: str
    consequence: str
    kept_ms: int
    rows_max: int = 100_000
    lock_ms_max: int = 500
    cleanup: Literal["delete", "compact,delete"] = "delete"
    document_bytes_max: int = 1 << 20

    def beside(self, log: str) -> str:
        """Return the name of its topic on Kafka, beside the topic `log`."""
        return f"{log}-{self.name}"


class Document(NamedTuple):
    """One document: its key, and its JSON. No value withdraws earlier documents of the key."""

    key: str
    value: bytes | None


class Kept(NamedTuple):
    """A document in a side log: its position, which only rises, and the Unix time when it came."""

    position: int
    at_ms: int
    key: str
    value: bytes | None


class SideLog(Protocol):
    """The documents of one `SideTopic` beside one log, in the order in which they came.

    The contract of every adapter, which one test suite checks:

    * Nothing is created before the first document. Until then it reads as empty.
    * Documents of one `append` stay in order. After an error none, some or all of them may be kept.
    * A power failure may undo the newest documents.
    * It is made anew if its file or topic is deleted. Positions then begin again.
    * Handles on one side log are independent, in one process or in many. Calls may block. Only one
      thread may use a handle at a time.

    Each method but `close` raises `SideLogUnavailable`; the next call may succeed.
    """

    @property
    def place(self) -> str:
        """Where the documents are, for messages: "in FILE"."""
        ...

    def append(self, documents: Sequence[Document]) -> None:
        """Add documents. None of them is nothing."""
        ...

    def read(self, position: int, *, limit: int) -> Sequence[Kept]:
        """Return the documents at `position` and above, in order, at most `limit` (positive).

        An empty answer means the end. A short one does not. A position below the oldest document,
        or above the end, counts as that of the oldest.
        """
        ...

    def bounds(self) -> tuple[int, int]:
        """Return the position of the oldest document, and the one after the newest. Positions in
        between may be empty.
        """
        ...

    def position_at(self, time_ms: int) -> int:
        """Return the position of the first document that came at or after a time (Unix), or the
        end.
        """
        ...

    def close(self) -> None:
        """Release what the handle holds."""
        ...


def read_on(side_log: SideLog, position: int) -> Iterator[Kept]:
    """Yield the documents from `position` to the end. Raises `SideLogUnavailable`."""
    while found := side_log.read(position, limit=READ_DOCUMENTS_MAX):
        yield from found
        position = found[-1].position + 1


def newest(side_log: SideLog, at_most: int, *, until_ms: int | None = None) -> Sequence[Kept]:
    """Return the last documents, oldest first: of all, or of those that came up to Unix time
    `until_ms`. Raises `SideLogUnavailable`.
    """
    first, end = side_log.bounds()
    if until_ms is not None:
        end = side_log.position_at(until_ms + 1)
    found = read_on(side_log, max(first, end - at_most)) if at_most else ()
    return list(takewhile(lambda kept: kept.position < end, found))


class SideLogUnavailable(PeerError):
    """A side log cannot be written or read."""

    def __init__(
        self, topic: SideTopic, *, place: str, problem: object, is_denied: bool = False
    ) -> None:
        """`place` is where its documents are. `is_denied`: this user lacks a right."""
        self.is_denied = is_denied
        super().__init__(f"{topic.content} {place} cannot be used: {problem}; {topic.consequence}")
