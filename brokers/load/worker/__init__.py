"""Run load workers: processes that average samples, any number in one group per log on
Kafka.

Theory of operation:

* Samples are partitioned by broker, so one worker has all samples of a broker. It keeps the
  broker's load, with the averages of the bundles in it, in the table of brokers. Without moves
  that is all.
* For bundles that move, the worker sends each bundle of a load as a *sighting*, by bundle.
  Sightings have their own partitions, whose workers keep the last sighting of each bundle in the
  table of bundles.
* A sighting from another broker than the last one shows a move. The worker blends both averages and
  sends the result as a *handover* to the partition of the new broker's samples, where it replaces
  the average that began anew.
* So a moved bundle has its long-term average within two messages of its first sample at the new
  broker, and no worker needs another worker's state.
* Both tables have a changelog on Kafka, from which another worker restores them, even if all were
  killed. A message read twice is recognised by its offset and has no second effect.
"""
