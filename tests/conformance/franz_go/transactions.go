package main

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// producer is the transactional producer of this program.
var producer *kgo.Client

func transactional(given command) ([]kgo.Opt, error) {
	opts, err := options(given.Bootstrap, nil)
	return append(
		opts,
		kgo.TransactionalID(given.ID),
		kgo.TransactionTimeout(time.Duration(given.TimeoutMs)*time.Millisecond),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	), err
}

func initTransactions(given command) (any, error) {
	opts, err := transactional(given)
	if err != nil {
		return nil, err
	}
	made, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, err
	}
	// It would request its producer id with its first record only.
	if _, _, err := made.ProducerID(context.Background()); err != nil {
		made.Close()
		return nil, err
	}
	producer = made
	return nil, nil
}

func begin(command) (any, error) {
	return nil, producer.BeginTransaction()
}

func send(given command) (any, error) {
	records := make([]*kgo.Record, len(given.Records))
	for i, line := range given.Records {
		var partition int32
		var value *string
		if err := json.Unmarshal(line, &[]any{&partition, &value}); err != nil {
			return nil, err
		}
		records[i] = &kgo.Record{Topic: given.Topic, Partition: partition, Value: raw(value)}
	}
	placed := [][2]int64{}
	for _, sent := range producer.ProduceSync(context.Background(), records...) {
		if sent.Err != nil {
			return nil, sent.Err
		}
		placed = append(placed, [2]int64{int64(sent.Record.Partition), sent.Record.Offset})
	}
	return placed, nil
}

func end(given command) (any, error) {
	if !given.Commit {
		if err := producer.AbortBufferedRecords(context.Background()); err != nil {
			return nil, err
		}
	}
	return nil, producer.EndTransaction(context.Background(), kgo.TransactionEndTry(given.Commit))
}

func retire(command) (any, error) {
	if producer != nil {
		producer.Close()
		producer = nil
	}
	if session != nil {
		session.Close()
		session = nil
	}
	return nil, nil
}

// session consumes as a member of a group, and commits its position with what it produces.
var session *kgo.GroupTransactSession

const (
	sessionTimeout = time.Second
	pollMax        = 500 * time.Millisecond
)

func openSession(given command) error {
	opts, err := transactional(given)
	if err != nil {
		return err
	}
	session, err = kgo.NewGroupTransactSession(append(
		opts,
		kgo.ConsumerGroup(given.Group),
		kgo.ConsumeTopics(given.Source),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.SessionTimeout(sessionTimeout),
		kgo.HeartbeatInterval(sessionTimeout/10),
	)...)
	return err
}

// copyRecords copies up to so many records in one transaction, and returns their number if it was
// committed, or left open: 0 if there was none for a while, and after an abort.
func copyRecords(given command) (any, error) {
	if session == nil {
		if err := openSession(given); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), pollMax)
	defer cancel()
	fetches := session.PollRecords(ctx, *given.Count)
	for _, failed := range fetches.Errors() {
		if errors.Is(failed.Err, context.DeadlineExceeded) {
			return 0, nil
		}
		return nil, failed.Err
	}
	if err := session.Begin(); err != nil {
		return nil, err
	}
	failed := kgo.AbortingFirstErrPromise(session.Client())
	for _, each := range fetches.Records() {
		number, err := strconv.Atoi(string(each.Value))
		if err != nil {
			return nil, err
		}
		session.Produce(context.Background(), &kgo.Record{
			Topic: given.Sink, Partition: int32(number % given.Partitions), Value: each.Value,
		}, failed.Promise())
	}
	if err := session.Client().Flush(context.Background()); err != nil {
		return nil, err
	}
	isWhole := failed.Err() == nil
	if given.How == "leave" {
		return fetches.NumRecords(), nil
	}
	committed, err := session.End(
		context.Background(), kgo.TransactionEndTry(isWhole && given.How == "commit"))
	if err != nil || !committed {
		return 0, err
	}
	return fetches.NumRecords(), nil
}
