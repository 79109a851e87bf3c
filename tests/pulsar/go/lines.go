package main

import (
	"encoding/json"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The longest that a line waits before it is written, so that no callback waits for a pipe.
const flushPause = 10 * time.Millisecond

// One line; what an event has not is left out.
type event struct {
	Event        string    `json:"event"`
	Topic        string    `json:"topic,omitempty"`
	Subscription string    `json:"subscription,omitempty"`
	Type         string    `json:"type,omitempty"`
	Consumer     string    `json:"consumer,omitempty"`
	Topics       *[]string `json:"topics,omitempty"`
	Producer     string    `json:"producer,omitempty"`
	N            *int      `json:"n,omitempty"`
	Why          string    `json:"why,omitempty"`
	AtNs         int64     `json:"at_ns"`
}

// CLOCK_MONOTONIC, as in the programs of the other languages; the time package does not show it.
func nowNs() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err)
	}
	return now.Nano()
}

// Events on their way to standard output, from several goroutines.
type lines struct {
	out      io.Writer
	changing sync.Mutex
	writing  sync.Mutex
	waiting  []byte
	isReady  bool
}

func newLines(out io.Writer) *lines {
	made := &lines{out: out}
	go func() {
		for {
			time.Sleep(flushPause)
			made.flush()
		}
	}()
	return made
}

func (l *lines) add(what event) {
	line, err := json.Marshal(what)
	if err != nil {
		panic(err)
	}
	l.changing.Lock()
	defer l.changing.Unlock()
	l.waiting = append(append(l.waiting, line...), '\n')
	l.isReady = l.isReady || what.Event == "ready"
}

// Writes what waits, in the order of add; whoever no longer reads it ends this process.
func (l *lines) flush() {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.changing.Lock()
	data := l.waiting
	l.waiting = nil
	l.changing.Unlock()
	if _, err := l.out.Write(data); err != nil {
		os.Exit(1)
	}
}
