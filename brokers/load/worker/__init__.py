"""Load workers: processes that make summaries of samples, any number of them, in one group for each log on Kafka.

Here live what is decided of each message (`steps`, pure), its spelling (`rows`, pure), how Kafka lets a worker in (`access`,
pure), the Faust app that carries messages and tables (`streams`), and the process around it (`running`).

**Theory of operation.** Samples lie in partitions by broker, so one worker has all of a broker, and keeps its summary, with the
averages of the bundles that it names, in the table of brokers. That is all, as long as no bundle moves. For those that do, the
worker tells of each bundle in a summary, by bundle: a *sighting*. Sightings lie in partitions of their own, where a worker keeps
the last of each in the table of bundles. One that comes from another broker than the one before is of a bundle that has moved:
its average is made of both, and goes, as a *handover*, to the partition of the new broker's samples, where it replaces the
average that began anew. So a bundle that moves is known by its long-term average within two messages of its first sample at
its new broker, and no worker needs to know what another keeps.

Both tables have a changelog on Kafka: another worker restores them from there, even if all were killed. A message that is read twice
after that is known by its offset, and changes nothing twice.
"""
