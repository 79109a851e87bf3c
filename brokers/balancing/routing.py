"""Routing: whom a client of a bundle is to be sent to.

May live here: the one pure answer that brokers, clients and clusters in tests give alike.
"""

from __future__ import annotations

from equipoise.channel.core.entries import BrokerEntry, BundleEntry
from equipoise.channel.core.view import View


def server_of(view: View, bundle: BundleEntry) -> BrokerEntry | None:
    """The live broker that serves `bundle` as far as the log says; None while a client had better wait.

    A source that is closing still owns the bundle, but would send a client away again: it waits for the next owner.
    """
    if bundle.phase in ("handing_over", "unloading") or bundle.server is None:
        return None
    return view.live.get(bundle.server)
