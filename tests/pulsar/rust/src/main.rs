// Produces or consumes numbered messages until standard input ends; README.md of the harness has the contract.
use std::collections::HashMap;
use std::io::{Read, Write};
use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt;
use pulsar::{producer, ConnectionRetryOptions, Consumer, ProducerOptions, Pulsar, SubType, TokioExecutor};
use rustix::time::{clock_gettime, ClockId};
use serde_json::{json, Value};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout, Instant};

type Error = Box<dyn std::error::Error + Send + Sync>;
type Client = Pulsar<TokioExecutor>;

const KEYS: usize = 8;
const UNRECEIPTED_MAX: usize = 10_000;
const RECEIPTS_WAIT: Duration = Duration::from_secs(10);
const BATCH_DELAY: Duration = Duration::from_millis(10);
// How long a topic lacks a consumer after the retries are over. The library's default is 30 s.
const TOPIC_REFRESH: Duration = Duration::from_secs(1);

static IS_READY: AtomicBool = AtomicBool::new(false);

#[tokio::main(worker_threads = 2)]
async fn main() {
    log::set_logger(&StandardError).expect("there is no other logger");
    log::set_max_level(log::LevelFilter::Warn);
    let (end, ended) = watch::channel(false);
    std::thread::spawn(move || wait_for_the_end(end));
    if let Err(error) = run(ended).await {
        eprintln!("error: {error}");
        exit(1);
    }
    exit(0); // The library may wait for brokers that are gone: the process ends without it.
}

async fn run(ended: watch::Receiver<bool>) -> Result<(), Error> {
    let mut words = std::env::args().skip(1);
    let task = words.next().ok_or("name a task: produce or consume")?;
    let mut given = HashMap::new();
    while let Some(option) = words.next() {
        let value = words.next().ok_or(format!("{option} lacks a value"))?;
        given.insert(option.trim_start_matches('-').to_owned(), value);
    }
    // The library takes one host.
    let url = option(&given, "url")?.split(',').next().unwrap_or_default().to_owned();
    // By default, a consumer tries a dead broker 12 times, which takes up to a minute.
    let retries = ConnectionRetryOptions { max_retries: 3, ..Default::default() };
    let client = Pulsar::builder(url, TokioExecutor).with_connection_retry_options(retries).build().await?;
    match task.as_str() {
        "produce" => produce(ended, client, &given).await,
        "consume" => consume(ended, client, &given).await,
        _ => Err(format!("there is no task {task}").into()),
    }
}

// Sends by the clock until the end, then waits for the receipts that are missing.
async fn produce(mut ended: watch::Receiver<bool>, client: Client, given: &HashMap<String, String>) -> Result<(), Error> {
    let (name, rate) = (option(given, "name")?, option(given, "rate")?.parse::<f64>()?);
    let batch = given.get("batch").map(|text| text.parse::<u32>()).transpose()?;
    let topics: Vec<String> = option(given, "topics")?.split(',').map(str::to_owned).collect();
    let options = ProducerOptions { batch_size: batch, batch_timeout: batch.map(|_| BATCH_DELAY), ..Default::default() };
    let mut queues = Vec::new();
    let mut senders = JoinSet::new();
    for topic in &topics {
        let producer = client.producer().with_topic(topic).with_name(&name).with_options(options.clone()).build().await?;
        let (queue, queued) = mpsc::channel(UNRECEIPTED_MAX);
        senders.spawn(send_all(producer, topic.clone(), name.clone(), batch.is_none(), queued));
        queues.push(queue);
    }
    say(json!({"event": "ready", "producer": name, "topics": topics}));
    let interval = Duration::from_secs_f64(1.0 / (rate * topics.len() as f64));
    let began = Instant::now();
    for number in 0u32.. {
        tokio::select! {
            _ = ended.wait_for(|is_over| *is_over) => break,
            _ = sleep_until(began + interval * number) => {}
        }
        let (turn, n) = (number as usize % topics.len(), number as usize / topics.len());
        if queues[turn].try_send(n).is_err() {
            let what = json!({"topic": topics[turn], "producer": name, "n": n});
            say_of(&what, "sent", None);
            say_of(&what, "failed", Some("too many messages wait".to_owned()));
        }
    }
    drop(queues);
    let _ = timeout(RECEIPTS_WAIT, senders.join_all()).await;
    Ok(())
}

// The library may hold up a send for as long as it connects anew: so each topic has a task of its own.
async fn send_all(
    mut producer: pulsar::Producer<TokioExecutor>,
    topic: String,
    name: String,
    has_key: bool,
    mut queued: mpsc::Receiver<usize>,
) {
    let mut receipts = JoinSet::new();
    while let Some(n) = queued.recv().await {
        let what = json!({"topic": topic, "producer": name, "n": n});
        let message = producer::Message {
            payload: format!("{name} {n}").into_bytes(),
            partition_key: has_key.then(|| format!("{name}/{}", n % KEYS)),
            ..Default::default()
        };
        say_of(&what, "sent", None);
        match producer.send_non_blocking(message).await {
            Ok(receipt) => {
                receipts.spawn(async move {
                    match receipt.await {
                        Ok(_) => say_of(&what, "receipted", None),
                        Err(error) => say_of(&what, "failed", Some(error.to_string())),
                    }
                });
            }
            Err(error) => say_of(&what, "failed", Some(error.to_string())),
        }
    }
    receipts.join_all().await;
}

// Receives until the end.
async fn consume(mut ended: watch::Receiver<bool>, client: Client, given: &HashMap<String, String>) -> Result<(), Error> {
    if given.contains_key("pattern") {
        return Err("this client is used for topics by name only".into());
    }
    let (name, subscription) = (option(given, "name")?, option(given, "subscription")?);
    let topics: Vec<String> = option(given, "topics")?.split(',').map(str::to_owned).collect();
    let kind = match option(given, "type")?.as_str() {
        "Exclusive" => SubType::Exclusive,
        "Shared" => SubType::Shared,
        "Failover" => SubType::Failover,
        "Key_Shared" => SubType::KeyShared,
        other => return Err(format!("no subscription type {other}").into()),
    };
    let mut consumer: Consumer<Vec<u8>, _> = client
        .consumer()
        .with_topics(&topics)
        .with_consumer_name(&name)
        .with_subscription(&subscription)
        .with_subscription_type(kind)
        .with_topic_refresh(TOPIC_REFRESH)
        .build()
        .await?;
    say(json!({
        "event": "ready", "subscription": subscription, "consumer": name, "type": option(given, "type")?, "topics": topics,
    }));
    loop {
        let message = tokio::select! {
            _ = ended.wait_for(|is_over| *is_over) => return Ok(()),
            message = consumer.next() => message.ok_or("the library gave the consumer up")??,
        };
        let at_ns = now_ns();
        let payload = String::from_utf8(message.payload.data.clone())?;
        let (producer, n) = payload.rsplit_once(' ').ok_or("a message of somebody else")?;
        let (topic, n) = (&message.topic, n.parse::<u64>()?);
        say(json!({
            "event": "received", "topic": topic, "subscription": subscription, "consumer": name, "producer": producer, "n": n,
            "at_ns": at_ns,
        }));
        consumer.ack(&message).await?;
    }
}

fn option(given: &HashMap<String, String>, name: &str) -> Result<String, Error> {
    given.get(name).cloned().ok_or(format!("--{name} is missing").into())
}

// One line, with the time unless it has one.
fn say(mut line: Value) {
    if line.get("at_ns").is_none() {
        line["at_ns"] = now_ns().into();
    }
    if line["event"] == "ready" {
        IS_READY.store(true, Ordering::SeqCst);
    }
    if writeln!(std::io::stdout().lock(), "{line}").is_err() {
        exit(1); // Nobody reads any more.
    }
}

fn say_of(what: &Value, event: &str, why: Option<String>) {
    let mut line = what.clone();
    line["event"] = event.into();
    if let Some(why) = why {
        line["why"] = why.into();
    }
    say(line);
}

// CLOCK_MONOTONIC, as in the programs of the other languages; the standard library does not show it.
fn now_ns() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

fn wait_for_the_end(end: watch::Sender<bool>) {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    if !IS_READY.load(Ordering::SeqCst) {
        eprintln!("error: told to end before it was ready");
        exit(1);
    }
    let _ = end.send(true);
}

struct StandardError;

impl log::Log for StandardError {
    fn enabled(&self, metadata: &log::Metadata) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record) {
        if self.enabled(record.metadata()) {
            eprintln!("{} {}", record.level(), record.args());
        }
    }

    fn flush(&self) {}
}
