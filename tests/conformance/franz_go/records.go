package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"
)

const (
	// The client's default, which a larger record needs more than.
	batchBytes      = 1_000_012
	recordBytesMore = 1_000
	waitMax         = 45 * time.Second
	backoff         = 20 * time.Millisecond
)

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

// options returns the options of a client with the table's settings, which are librdkafka's.
func options(bootstrap string, settings map[string]string) ([]kgo.Opt, error) {
	given := []kgo.Opt{
		kgo.SeedBrokers(bootstrap),
		kgo.RetryBackoffFn(func(int) time.Duration { return backoff }),
		kgo.RequestRetries(int(waitMax / backoff)),
		kgo.MetadataMinAge(backoff),
		kgo.ProducerLinger(0),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.FetchMaxWait(10 * time.Millisecond),
	}
	// The last release of Kafka that knew only version 1 of transactions.
	if len(os.Args) > 1 && os.Args[1] == "v1" {
		given = append(given, kgo.MaxVersions(kversion.V3_9_0()))
	}
	isIdempotent := settings["acks"] == "" || settings["acks"] == "all"
	for name, value := range settings {
		switch name {
		case "compression.type":
			given = append(given, kgo.ProducerBatchCompression(codecs[value]))
		case "acks":
			switch value {
			case "0":
				given = append(given, kgo.RequiredAcks(kgo.NoAck()))
			case "1":
				given = append(given, kgo.RequiredAcks(kgo.LeaderAck()))
			}
		case "enable.idempotence":
			isIdempotent = value == "true"
		case "message.timeout.ms":
			timeout, err := milliseconds(value)
			if err != nil {
				return nil, err
			}
			given = append(given, kgo.RecordDeliveryTimeout(timeout))
		case "fetch.wait.max.ms":
			wait, err := milliseconds(value)
			if err != nil {
				return nil, err
			}
			given = append(given, kgo.FetchMaxWait(wait))
		case "fetch.max.bytes", "max.partition.fetch.bytes":
			size, err := strconv.Atoi(value)
			if err != nil {
				return nil, err
			}
			if name == "fetch.max.bytes" {
				given = append(given, kgo.FetchMaxBytes(int32(size)))
			} else {
				given = append(given, kgo.FetchMaxPartitionBytes(int32(size)))
			}
		case "client.rack":
			given = append(given, kgo.Rack(value))
		case "isolation.level":
			if value == "read_committed" {
				given = append(given, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
			}
		// An offset that does not exist is always an error, and batches are limited by size.
		case "auto.offset.reset", "batch.num.messages", "message.max.bytes":
		default:
			return nil, fmt.Errorf("unknown setting %s", name)
		}
	}
	if !isIdempotent {
		given = append(given, kgo.DisableIdempotentWrite())
	}
	return given, nil
}

func milliseconds(value string) (time.Duration, error) {
	count, err := strconv.Atoi(value)
	return time.Duration(count) * time.Millisecond, err
}

func produce(given command) (any, error) {
	opts, err := options(given.Bootstrap, given.Settings)
	if err != nil {
		return nil, err
	}
	opts = append(opts, kgo.AllowAutoTopicCreation())
	if given.Partition >= 0 {
		opts = append(opts, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	}
	records := make([]*kgo.Record, len(given.Records))
	size := batchBytes
	for i, line := range given.Records {
		if records[i], err = record(given, line); err != nil {
			return nil, err
		}
		size = max(size, len(records[i].Value)+recordBytesMore)
	}
	client, err := kgo.NewClient(append(opts, kgo.ProducerBatchMaxBytes(int32(size)))...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return nil, client.ProduceSync(context.Background(), records...).FirstErr()
}

// record reads [value, key, [[header, content]…], timestamp_ms].
func record(given command, line json.RawMessage) (*kgo.Record, error) {
	var value, key *string
	var headers [][2]*string
	var timestampMs int64
	if err := json.Unmarshal(line, &[]any{&value, &key, &headers, &timestampMs}); err != nil {
		return nil, err
	}
	made := &kgo.Record{
		Topic: given.Topic, Partition: given.Partition, Key: raw(key), Value: raw(value),
	}
	for _, header := range headers {
		made.Headers = append(made.Headers, kgo.RecordHeader{Key: *header[0], Value: raw(header[1])})
	}
	if timestampMs != 0 {
		made.Timestamp = time.UnixMilli(timestampMs)
	}
	return made, nil
}

func consume(given command) (any, error) {
	opts, err := options(given.Bootstrap, given.Settings)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), waitMax)
	defer cancel()
	admin, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	start, end, err := bounds(ctx, kadm.NewClient(admin), given)
	if err != nil {
		return nil, err
	}
	if given.Count == nil && start == end {
		return []any{}, nil
	}
	place := map[string]map[int32]kgo.Offset{
		given.Topic: {given.Partition: kgo.NewOffset().At(start)},
	}
	// Without control records a marker at the end would never be passed.
	client, err := kgo.NewClient(append(
		opts, kgo.ConsumePartitions(place), kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.KeepControlRecords(),
	)...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return read(ctx, client, given.Count, end)
}

// bounds returns the offset to start at and the end of a partition.
func bounds(ctx context.Context, admin *kadm.Client, given command) (int64, int64, error) {
	begins, err := admin.ListStartOffsets(ctx, given.Topic)
	if err != nil {
		return 0, 0, err
	}
	first, isKnown := begins.Lookup(given.Topic, given.Partition)
	if !isKnown {
		return 0, 0, kerr.UnknownTopicOrPartition
	}
	if first.Err != nil {
		return 0, 0, first.Err
	}
	ends, err := admin.ListEndOffsets(ctx, given.Topic)
	if err != nil {
		return 0, 0, err
	}
	last, _ := ends.Lookup(given.Topic, given.Partition)
	if last.Err != nil {
		return 0, 0, last.Err
	}
	var offset int64
	if json.Unmarshal(given.Start, &offset) == nil {
		if offset < 0 {
			offset = max(first.Offset, last.Offset+offset)
		}
		return offset, last.Offset, nil
	}
	var word string
	if err := json.Unmarshal(given.Start, &word); err != nil {
		return 0, 0, err
	}
	switch timestamp, isTime := strings.CutPrefix(word, "s@"); {
	case isTime:
		ms, err := strconv.ParseInt(timestamp, 10, 64)
		if err != nil {
			return 0, 0, err
		}
		found, err := admin.ListOffsetsAfterMilli(ctx, ms, given.Topic)
		if err != nil {
			return 0, 0, err
		}
		at, _ := found.Lookup(given.Topic, given.Partition)
		return at.Offset, last.Offset, at.Err
	case word == "end":
		return last.Offset, last.Offset, nil
	}
	return first.Offset, last.Offset, nil
}

// read returns so many records, or all before an offset if count is nil.
func read(ctx context.Context, client *kgo.Client, count *int, end int64) (any, error) {
	lines := []any{}
	for position := int64(0); ; {
		if count == nil && position >= end || count != nil && len(lines) >= *count {
			return lines, nil
		}
		fetches := client.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			return nil, err
		}
		for _, failed := range fetches.Errors() {
			return nil, failed.Err
		}
		for _, each := range fetches.Records() {
			position = each.Offset + 1
			if !each.Attrs.IsControl() && (count == nil || len(lines) < *count) {
				lines = append(lines, line(each))
			}
		}
	}
}

func line(found *kgo.Record) []any {
	headers := [][]any{}
	for _, header := range found.Headers {
		headers = append(headers, []any{header.Key, text(header.Value)})
	}
	return []any{
		found.Partition, found.Offset, text(found.Key), text(found.Value), headers,
		found.Timestamp.UnixMilli(),
	}
}
