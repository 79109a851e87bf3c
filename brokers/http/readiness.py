"""Whether a broker may answer for the channel: a view that is still being read would deny what has long been there.

May live here: the one question that reading handlers ask before they look.
"""

from __future__ import annotations

from brokers.errors import NotReady
from brokers.worker import Worker
from channel.view import View


def ready_view(worker: Worker) -> View:
    """The view of a broker that is ready. Raises `NotReady`."""
    if not worker.agent.is_ready:
        left = worker.catching_up.left
        raise NotReady(broker=worker.broker_id) if left is None else NotReady(broker=worker.broker_id, problem=str(left))
    return worker.view
