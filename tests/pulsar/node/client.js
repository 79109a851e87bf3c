// Produces or consumes numbered messages until standard input ends; README.md of the harness has the contract.
'use strict';

const fs = require('fs');
const { parseArgs } = require('util');
const Pulsar = require('pulsar-client');

const KEYS = 8;
const UNRECEIPTED_MAX = 10_000;
const RECEIPTS_MS = 10_000;
const CLOSE_MS = 5_000;
const TYPES = { Exclusive: 'Exclusive', Shared: 'Shared', Failover: 'Failover', Key_Shared: 'KeyShared' };

// CLOCK_MONOTONIC in nanoseconds. It fits into a double for the first 104 days of a machine.
const nowNs = () => Number(process.hrtime.bigint());
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

let isReady = false;
let isOver = false;
let end;
const ended = new Promise((done) => {
  end = done;
});

function say(line) {
  isReady ||= line.event === 'ready';
  process.stdout.write(`${JSON.stringify({ at_ns: nowNs(), ...line })}\n`);
}

function exit(code) {
  // The library may wait for brokers that are gone: the process ends without it, once its output is written.
  process.stdout.write('', () => process.exit(code));
}

// Sends by the clock until the end, then waits for the receipts that are missing.
async function produce(client, given) {
  const topics = given.topics.split(',');
  const batching = given.batch ? { batchingEnabled: true, batchingMaxMessages: Number(given.batch) } : { batchingEnabled: false };
  const made = topics.map((topic) => client.createProducer({
    topic, producerName: given.name, maxPendingMessages: UNRECEIPTED_MAX, blockIfQueueFull: false, ...batching,
  }));
  const producers = await Promise.all(made);
  say({ event: 'ready', producer: given.name, topics });
  const unreceipted = new Set();
  const intervalNs = 1e9 / (Number(given.rate) * topics.length);
  const beganNs = nowNs();
  for (let number = 0; !isOver; number += 1) {
    const waitMs = (beganNs + number * intervalNs - nowNs()) / 1e6;
    await pause(Math.max(0, Math.ceil(waitMs))); // Timers are of whole milliseconds.
    if (isOver) break;
    const turn = number % topics.length;
    const n = Math.floor(number / topics.length);
    const what = { topic: topics[turn], producer: given.name, n };
    say({ event: 'sent', ...what });
    const message = { data: Buffer.from(`${given.name} ${n}`), sequenceId: n };
    if (!given.batch) message.partitionKey = `${given.name}/${n % KEYS}`;
    const receipt = producers[turn].send(message).then(
      () => say({ event: 'receipted', ...what }),
      (error) => say({ event: 'failed', ...what, why: error.message }),
    );
    unreceipted.add(receipt);
    receipt.then(() => unreceipted.delete(receipt));
  }
  await Promise.race([Promise.all(unreceipted), pause(RECEIPTS_MS)]);
}

// Receives for ever.
async function consume(client, given) {
  const topics = given.pattern ? null : given.topics.split(',');
  const who = { subscription: given.subscription, consumer: given.name };
  const consumer = await client.subscribe({
    // A list even for one topic: the library keeps the queue of a list when it reconnects.
    ...(topics ? { topics } : { topicsPattern: given.pattern, regexSubscriptionMode: 'NonPersistentOnly' }),
    subscription: given.subscription,
    subscriptionType: TYPES[given.type],
    consumerName: given.name,
  });
  say({ event: 'ready', ...who, type: given.type, topics });
  for (;;) {
    const message = await consumer.receive();
    const at_ns = nowNs();
    const [, producer, n] = /^(.*) (\d+)$/.exec(message.getData().toString());
    say({ event: 'received', topic: message.getTopicName(), ...who, producer, n: Number(n), at_ns });
    consumer.acknowledge(message).catch(() => {});
  }
}

async function main() {
  const task = process.argv[2];
  const string = { type: 'string' };
  const { values: given } = parseArgs({
    args: process.argv.slice(3),
    options: {
      url: string, topics: string, pattern: string, subscription: string, type: string, name: string, rate: string, batch: string,
    },
  });
  Pulsar.Client.setLogHandler((level, file, line, message) => {
    if (level >= Pulsar.LogLevel.WARN) fs.writeSync(2, `${Pulsar.LogLevel.toString(level)} ${file}:${line} ${message}\n`);
  });
  const client = new Pulsar.Client({ serviceUrl: given.url });
  await (task === 'produce' ? produce(client, given) : Promise.race([ended, consume(client, given)]));
  await Promise.race([client.close(), pause(CLOSE_MS)]);
}

process.stdin.on('end', () => {
  if (!isReady) {
    process.stderr.write('error: told to end before it was ready\n', () => process.exit(1));
    return;
  }
  isOver = true;
  end();
});
process.stdin.resume();
process.stdout.on('error', () => process.exit(1)); // Nobody reads any more.
main().then(
  () => exit(0),
  (error) => process.stderr.write(`error: ${error.message ?? error}\n`, () => process.exit(1)),
);
