"""The face of Equipoise: what users import. It only names what lives in other packages, and has no logic of its own."""

from equipoise.neighbours import check_neighbours

# Before anything of theirs is imported: a stranger of the same name would fail further on, in words that help nobody.
check_neighbours()

from brokers.client.client import Client, ClientInThread
from brokers.embedded import Worker, WorkerInThread
from brokers.load import BundleLoad
from brokers.service import Bundle, Ownership, Peer, Service, ServiceHost, Work
from brokers.virtual_cluster import Cluster
from channel.deadline import Deadline
from channel.ranges import key_hash

__all__ = [
    "Bundle",
    "BundleLoad",
    "Client",
    "ClientInThread",
    "Cluster",
    "Deadline",
    "Ownership",
    "Peer",
    "Service",
    "ServiceHost",
    "Work",
    "Worker",
    "WorkerInThread",
    "key_hash",
]
