"""Convert a view into the second membership's state, to begin from if the head of the log is gone.

It is not in `spark_jobs.rules`, because those know nothing of views.
"""

from __future__ import annotations

from equipoise.channel.core.view import View
from equipoise.spark_jobs.rules.membership.members import Member, Standing


def standing_of(view: View) -> Standing:
    """Return the argument of `Membership.begin` for continuing after the last record in `view`."""
    return Standing(
        offset=view.offset,
        genesis=view.genesis,
        cluster=view.cluster,
        base=view.base,
        level=view.level,
        level_last=view.level_last,
        removed_at=view.removed_at,
        brokers={
            broker.broker: Member(
                status=broker.status,
                incarnation=broker.incarnation,
                last=broker.last,
                sequence=broker.sequence,
                nonce=broker.joined.nonce,
                lease_ms=broker.joined.lease_ms,
                margin_ms=broker.joined.margin_ms,
                renew_ms=broker.joined.renew_ms,
                supported_level=broker.joined.supported_level,
            )
            for broker in view.brokers.values()
        },
        namespaces={namespace.name: (namespace.status, namespace.last) for namespace in view.namespaces.values()},
        policies={policy.name: policy.last for policy in view.policies.values()},
        bundles={bundle.name: (bundle.owner, bundle.source, bundle.state) for bundle in view.bundles.values()},
    )
