"""Find the broker that a client of a bundle is sent to. Brokers, clients and test clusters share this one answer."""

from __future__ import annotations

from equipoise.channel.core.entries import BrokerEntry, BundleEntry
from equipoise.channel.core.view import View


def server_of(view: View, bundle: BundleEntry) -> BrokerEntry | None:
    """Return the live broker that serves `bundle` in this view, or None if a client should wait.

    A source that is closing still owns the bundle, but would send the client away. So the client waits for the next owner.
    """
    if bundle.phase in ("handing_over", "unloading") or bundle.server is None:
        return None
    return view.live.get(bundle.server)
