package main

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	inFlightMax = 500
	turn        = 20 * time.Millisecond
)

// streaming is the idempotent producer that keeps sending.
var streaming struct {
	client  *kgo.Client
	isEnded atomic.Bool
	done    chan int
}

func startStream(given command) (any, error) {
	opts, err := options(given.Bootstrap, nil)
	if err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(append(
		opts, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MaxBufferedRecords(inFlightMax),
	)...)
	if err != nil {
		return nil, err
	}
	streaming.client = client
	streaming.isEnded.Store(false)
	streaming.done = make(chan int, 1)
	go sendOn(given)
	return nil, nil
}

// sendOn sends in turns without an end; Produce waits while so many records are in flight.
func sendOn(given command) {
	number := 0
	for !streaming.isEnded.Load() {
		for range inFlightMax {
			record := &kgo.Record{
				Topic: given.Topic, Partition: int32(number % given.Partitions),
				Value: []byte(strconv.Itoa(number)),
			}
			streaming.client.Produce(context.Background(), record, acknowledged)
			number++
		}
		time.Sleep(turn)
	}
	streaming.done <- number
}

func acknowledged(record *kgo.Record, err error) {
	if err != nil {
		say("fault", err.Error())
		return
	}
	say("acked", [][]any{{record.Partition, record.Offset, text(record.Value)}})
}

func endStream(command) (any, error) {
	streaming.isEnded.Store(true)
	count := <-streaming.done
	err := streaming.client.Flush(context.Background())
	streaming.client.Close()
	return count, err
}
