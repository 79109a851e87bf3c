package equipoise.harness;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.RegexSubscriptionMode;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TypedMessageBuilder;

/** Produces or consumes numbered messages until standard input ends; README.md of the harness has the contract. */
public final class Client {
    private static final int KEYS = 8;
    private static final int UNRECEIPTED_MAX = 10_000;
    private static final long RECEIPTS_S = 10;
    private static final long CLOSE_S = 5;
    private static final Map<String, SubscriptionType> TYPES =
            Map.of(
                    "Exclusive", SubscriptionType.Exclusive,
                    "Shared", SubscriptionType.Shared,
                    "Failover", SubscriptionType.Failover,
                    "Key_Shared", SubscriptionType.Key_Shared);

    private final Map<String, String> options;
    private final Lines lines = new Lines(System.out);
    private final CountDownLatch ended = new CountDownLatch(1);

    private Client(Map<String, String> options) {
        this.options = options;
    }

    public static void main(String[] arguments) throws InterruptedException {
        Map<String, String> options = new HashMap<>();
        for (int i = 1; i + 1 < arguments.length; i += 2) {
            options.put(arguments[i].substring("--".length()), arguments[i + 1]);
        }
        Client client = new Client(options);
        inAThread(client::waitForTheEnd);
        int code = 0;
        try {
            PulsarClient pulsar = client.connect();
            if (arguments[0].equals("produce")) {
                client.produce(pulsar);
            } else {
                client.consume(pulsar);
            }
            inAThread(() -> closeQuietly(pulsar)).join(TimeUnit.SECONDS.toMillis(CLOSE_S));
        } catch (PulsarClientException | IllegalArgumentException error) {
            System.err.println("error: " + error);
            code = 1;
        }
        client.lines.flush();
        // The library may still be at its closing, and waits for brokers that are gone.
        Runtime.getRuntime().halt(code);
    }

    private PulsarClient connect() throws PulsarClientException {
        ClientBuilder builder = PulsarClient.builder().serviceUrl(option("url")).statsInterval(0, TimeUnit.SECONDS);
        if (options.containsKey("token")) {
            Path token = Path.of(option("token"));
            builder.authentication(AuthenticationFactory.token(() -> read(token)));
        }
        if (options.containsKey("ca")) {
            builder.tlsTrustCertsFilePath(option("ca")).enableTlsHostnameVerification(true);
        }
        return builder.build();
    }

    private static String read(Path file) {
        try {
            return Files.readString(file);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private String option(String name) {
        String value = options.get(name);
        if (value == null) {
            throw new IllegalArgumentException("--" + name + " is missing");
        }
        return value;
    }

    /** Sends by the clock until the end of standard input, then waits for the receipts that are missing. */
    private void produce(PulsarClient pulsar) throws PulsarClientException, InterruptedException {
        String name = option("name");
        List<String> topics = List.of(option("topics").split(","));
        int batch = Integer.parseInt(options.getOrDefault("batch", "0"));
        List<Producer<byte[]>> producers = new ArrayList<>();
        for (String topic : topics) {
            producers.add(producer(pulsar, topic, name, batch));
        }
        lines.add("ready", Lines.text("producer", name) + Lines.texts("topics", topics), System.nanoTime());
        Semaphore receipted = new Semaphore(0);
        double intervalNs = 1e9 / (Double.parseDouble(option("rate")) * topics.size());
        long beganNs = System.nanoTime();
        int number = 0;
        while (!ended.await(beganNs + (long) (number * intervalNs) - System.nanoTime(), TimeUnit.NANOSECONDS)) {
            int turn = number % topics.size();
            int n = number / topics.size();
            String fields = Lines.text("topic", topics.get(turn)) + Lines.text("producer", name) + Lines.number("n", n);
            TypedMessageBuilder<byte[]> message = producers.get(turn).newMessage();
            message.value((name + " " + n).getBytes(StandardCharsets.UTF_8));
            // The number by which brokers' evidence names it, whatever else was given up.
            message.sequenceId(n);
            if (batch == 0) {
                message.key(name + "/" + n % KEYS);
            }
            lines.add("sent", fields, System.nanoTime());
            message.sendAsync()
                    .whenComplete(
                            (id, error) -> {
                                long atNs = System.nanoTime();
                                if (error == null) {
                                    lines.add("receipted", fields, atNs);
                                } else {
                                    lines.add("failed", fields + Lines.text("why", String.valueOf(error)), atNs);
                                }
                                receipted.release();
                            });
            number++;
        }
        receipted.tryAcquire(number, RECEIPTS_S, TimeUnit.SECONDS);
    }

    private static Producer<byte[]> producer(PulsarClient pulsar, String topic, String name, int batch) throws PulsarClientException {
        ProducerBuilder<byte[]> builder =
                pulsar.newProducer().topic(topic).producerName(name).maxPendingMessages(UNRECEIPTED_MAX).blockIfQueueFull(false);
        builder.enableBatching(batch > 0);
        if (batch > 0) {
            builder.batchingMaxMessages(batch);
        }
        return builder.create();
    }

    /** Receives until the end of standard input. */
    private void consume(PulsarClient pulsar) throws PulsarClientException {
        String type = option("type");
        String who = Lines.text("subscription", option("subscription")) + Lines.text("consumer", option("name"));
        ConsumerBuilder<byte[]> builder =
                pulsar.newConsumer()
                        .subscriptionName(option("subscription"))
                        .subscriptionType(TYPES.get(type))
                        .consumerName(option("name"));
        String topics;
        if (options.containsKey("pattern")) {
            builder.topicsPattern(Pattern.compile(option("pattern")))
                    .subscriptionTopicsMode(RegexSubscriptionMode.NonPersistentOnly)
                    .patternAutoDiscoveryPeriod(1, TimeUnit.SECONDS);
            topics = ", \"topics\": null";
        } else {
            List<String> names = List.of(option("topics").split(","));
            builder.topics(names);
            topics = Lines.texts("topics", names);
        }
        Consumer<byte[]> consumer = builder.subscribe();
        lines.add("ready", who + Lines.text("type", type) + topics, System.nanoTime());
        while (ended.getCount() > 0) {
            Message<byte[]> message = consumer.receive(50, TimeUnit.MILLISECONDS);
            if (message != null) {
                long atNs = System.nanoTime();
                String payload = new String(message.getValue(), StandardCharsets.UTF_8);
                int space = payload.lastIndexOf(' ');
                String what = Lines.text("producer", payload.substring(0, space)) + ", \"n\": " + payload.substring(space + 1);
                lines.add("received", Lines.text("topic", message.getTopicName()) + who + what, atNs);
                consumer.acknowledgeAsync(message);
            }
        }
    }

    private void waitForTheEnd() {
        try {
            while (System.in.read() >= 0) {
                continue;
            }
        } catch (IOException error) {
            System.err.println("standard input broke off: " + error);
        }
        ended.countDown();
        if (!lines.isReady()) { // The library is still at its beginning, which cannot be called off.
            System.err.println("error: told to end before it was ready");
            Runtime.getRuntime().halt(1);
        }
    }

    private static void closeQuietly(PulsarClient pulsar) {
        try {
            pulsar.close();
        } catch (PulsarClientException error) {
            System.err.println("at its closing: " + error);
        }
    }

    private static Thread inAThread(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        thread.start();
        return thread;
    }
}
