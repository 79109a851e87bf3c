// Produces or consumes numbered messages until standard input ends, or administers a cluster; README.md of the harness has the contract.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

const (
	keys           = 8
	unreceiptedMax = 10_000
	receiptsWait   = 10 * time.Second
	closeWait      = 5 * time.Second
)

var types = map[string]pulsar.SubscriptionType{
	"Exclusive":  pulsar.Exclusive,
	"Shared":     pulsar.Shared,
	"Failover":   pulsar.Failover,
	"Key_Shared": pulsar.KeyShared,
}

type options struct {
	url, topics, pattern, subscription, kind, name, token, ca string
	rate                                           float64
	batch                                          uint
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) == 0 {
		return errors.New("say produce, consume or administer")
	}
	given := options{}
	flags := flag.NewFlagSet(arguments[0], flag.ContinueOnError)
	flags.StringVar(&given.url, "url", "", "")
	flags.StringVar(&given.topics, "topics", "", "")
	flags.StringVar(&given.pattern, "pattern", "", "")
	flags.StringVar(&given.subscription, "subscription", "", "")
	flags.StringVar(&given.kind, "type", "", "")
	flags.StringVar(&given.name, "name", "", "")
	flags.StringVar(&given.token, "token", "", "")
	flags.StringVar(&given.ca, "ca", "", "")
	flags.Float64Var(&given.rate, "rate", 0, "")
	flags.UintVar(&given.batch, "batch", 0, "")
	if err := flags.Parse(arguments[1:]); err != nil {
		return err
	}
	if arguments[0] == "administer" {
		return administer(given.url)
	}
	ended, cancel := context.WithCancel(context.Background())
	lines := newLines(os.Stdout)
	go waitForTheEnd(cancel, lines)
	logger := logrus.New() // To standard error.
	logger.SetLevel(logrus.WarnLevel)
	settings := pulsar.ClientOptions{
		URL: given.url, Logger: log.NewLoggerWithLogrus(logger), TLSTrustCertsFilePath: given.ca, TLSValidateHostname: true,
	}
	if given.token != "" {
		settings.Authentication = pulsar.NewAuthenticationTokenFromFile(given.token)
	}
	client, err := pulsar.NewClient(settings)
	if err != nil {
		return err
	}
	defer lines.flush()
	if arguments[0] == "produce" {
		err = produce(ended, client, given, lines)
	} else {
		err = consume(ended, client, given, lines)
	}
	if err == nil {
		// The library may wait for brokers that are gone: the process ends without it then.
		within(closeWait, client.Close)
	}
	return err
}

// Sends by the clock until the end, then waits for the receipts that are missing.
func produce(ended context.Context, client pulsar.Client, given options, lines *lines) error {
	topics := strings.Split(given.topics, ",")
	producers := make([]pulsar.Producer, len(topics))
	for i, topic := range topics {
		producer, err := client.CreateProducer(pulsar.ProducerOptions{
			Topic: topic, Name: given.name, MaxPendingMessages: unreceiptedMax, DisableBlockIfQueueFull: true,
			DisableBatching: given.batch == 0, BatchingMaxMessages: given.batch,
		})
		if err != nil {
			return err
		}
		producers[i] = producer
	}
	lines.add(event{Event: "ready", Producer: given.name, Topics: &topics, AtNs: nowNs()})
	var unreceipted sync.WaitGroup
	interval := 1e9 / (given.rate * float64(len(topics)))
	began := time.Now()
	for number := 0; ; number++ {
		select {
		case <-ended.Done():
			within(receiptsWait, unreceipted.Wait)
			return nil
		case <-time.After(time.Until(began.Add(time.Duration(float64(number) * interval)))):
		}
		turn, n := number%len(topics), number/len(topics)
		// The number by which brokers' evidence names it, whatever else was given up.
		sequence := int64(n)
		message := &pulsar.ProducerMessage{Payload: fmt.Appendf(nil, "%s %d", given.name, n), SequenceID: &sequence}
		if given.batch == 0 {
			message.Key = fmt.Sprintf("%s/%d", given.name, n%keys)
		}
		what := event{Event: "sent", Topic: topics[turn], Producer: given.name, N: &n, AtNs: nowNs()}
		lines.add(what)
		unreceipted.Add(1)
		producers[turn].SendAsync(context.Background(), message, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			what.Event, what.AtNs = "receipted", nowNs()
			if err != nil {
				what.Event, what.Why = "failed", err.Error()
			}
			lines.add(what)
			unreceipted.Done()
		})
	}
}

// Receives until the end.
func consume(ended context.Context, client pulsar.Client, given options, lines *lines) error {
	if given.pattern != "" {
		return errors.New("this client looks only for persistent topics by pattern")
	}
	topics := strings.Split(given.topics, ",")
	kind, known := types[given.kind]
	if !known {
		return fmt.Errorf("no subscription type %q", given.kind)
	}
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		Topics: topics, SubscriptionName: given.subscription, Type: kind, Name: given.name,
	})
	if err != nil {
		return err
	}
	lines.add(event{
		Event: "ready", Subscription: given.subscription, Consumer: given.name, Type: given.kind, Topics: &topics, AtNs: nowNs(),
	})
	for {
		message, err := consumer.Receive(ended)
		if ended.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		at := nowNs()
		payload := string(message.Payload())
		space := strings.LastIndexByte(payload, ' ')
		n, err := strconv.Atoi(payload[space+1:])
		if err != nil {
			return err
		}
		lines.add(event{
			Event: "received", Topic: message.Topic(), Subscription: given.subscription, Consumer: given.name,
			Producer: payload[:space], N: &n, AtNs: at,
		})
		if err := consumer.Ack(message); err != nil {
			return err
		}
	}
}

func waitForTheEnd(end func(), lines *lines) {
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "standard input broke off:", err)
	}
	end()
	lines.changing.Lock()
	defer lines.changing.Unlock()
	if !lines.isReady { // The library is still at its beginning, which cannot be called off.
		fmt.Fprintln(os.Stderr, "error: told to end before it was ready")
		os.Exit(1)
	}
}

// Waits for work to end, and no longer than limit.
func within(limit time.Duration, work func()) {
	done := make(chan struct{})
	go func() {
		work()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(limit):
	}
}
