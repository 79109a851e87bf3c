"""Every error that Equipoise raises on purpose, by who must act: the caller, the operator, or nobody but time.

May live here: names that live in other modules.
"""

from brokers.errors import NotProposed, Rejected, UnknownNamespace
from brokers.loop_thread import NotRunning
from brokers.service import OwnershipLost, WorkerEnded
from brokers.virtual_cluster import AlreadyRuns, LoopIsRunning, NobodyRuns, NoRest, NotInCluster, NotServed, NotSplit
from channel.errors import (
    Bug,
    CallerError,
    DeadlineExceeded,
    EquipoiseError,
    LogUnavailable,
    OperatorError,
    OutcomeUnknown,
    Overloaded,
    PeerError,
)

__all__ = [
    "AlreadyRuns",
    "Bug",
    "CallerError",
    "DeadlineExceeded",
    "EquipoiseError",
    "LogUnavailable",
    "LoopIsRunning",
    "NoRest",
    "NobodyRuns",
    "NotInCluster",
    "NotProposed",
    "NotRunning",
    "NotServed",
    "NotSplit",
    "OperatorError",
    "OutcomeUnknown",
    "Overloaded",
    "OwnershipLost",
    "PeerError",
    "Rejected",
    "UnknownNamespace",
    "WorkerEnded",
]
