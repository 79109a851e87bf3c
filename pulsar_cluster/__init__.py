"""See, audit and balance an Apache Pulsar cluster from outside.

Pulsar's records are folded by Pulsar's own rule, and not translated into ours: what Pulsar allows
and we forbid is what an audit is for.
"""
