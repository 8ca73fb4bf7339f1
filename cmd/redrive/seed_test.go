package main

import (
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

// seedling is a database with the channel "orders" and the push consumer "erp", whose jobs are to be dead.
type seedling struct {
	store    *storage.Store
	producer *storage.Producer
	channel  *storage.Channel
	consumer *storage.Consumer
}

// seeded has three dead jobs.
func seeded(t *testing.T, dsn string) *seedling {
	t.Helper()
	store, err := storage.Open(storage.Options{DSN: dsn, MaxOpenConns: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	s := &seedling{store: store}
	ctx := t.Context()
	if s.producer, err = store.PutProducer(ctx, storage.PutStakeholder{ID: "shop", Name: "shop", Token: "t"}); err != nil {
		t.Fatal(err)
	}
	if s.channel, err = store.PutChannel(ctx, storage.PutStakeholder{ID: "orders", Name: "orders", Token: "t"}); err != nil {
		t.Fatal(err)
	}
	if s.consumer, err = store.PutConsumer(ctx, storage.PutConsumer{
		PutStakeholder: storage.PutStakeholder{ID: "erp", Name: "erp", Token: "t"},
		ChannelKey:     s.channel.Key, Type: storage.TypePush, CallbackURL: "https://erp.example/",
	}); err != nil {
		t.Fatal(err)
	}
	s.kill(t, 3)
	return s
}

// kill makes n more dead jobs, with more retries behind them than any default asks for.
func (s *seedling) kill(t *testing.T, n int) {
	t.Helper()
	for range n {
		id := storage.NewID()
		if err := s.store.Accept(t.Context(), 0, storage.Lease{For: time.Minute}, []*storage.NewMessage{{
			Key: id, ChannelKey: s.channel.Key, ProducerKey: s.producer.Key, MessageID: id.String(), ContentType: "text/plain",
			Jobs: []storage.NewJob{{ID: storage.NewID(), ConsumerKey: s.consumer.Key}},
		}}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.store.DB().ExecContext(t.Context(),
			`UPDATE job SET status = 1004, statusChangedAt = NOW(6), retryAttemptCount = 100 WHERE messageId = ?`, id[:]); err != nil {
			t.Fatal(err)
		}
	}
}

// falsify writes a wrong count and a dead letter without a job, as somebody with a database client might.
func (s *seedling) falsify(t *testing.T) {
	t.Helper()
	for _, statement := range []string{
		`UPDATE dlq_summary SET dead_count = dead_count + 5`,
		`INSERT INTO engineDlq (PartitionKey, RowKey, InstanceId, OriginalQueue, ErrorMessage, DequeueCount, FirstFailureAtUtc, LastFailureAtUtc, Status, CorrelationId, JobId)
		 VALUES ('delivery', 'r', 'erp', 'orders', '', 1, '2026-01-01', NOW(6), 'Pending', '', 'abcdefghijkl')`,
	} {
		if _, err := s.store.DB().ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
}

// killEngine makes a dead job of the engine hmac, after its first attempt.
func (s *seedling) killEngine(t *testing.T) {
	t.Helper()
	if _, err := s.store.PutEngineQueue(t.Context(), "hmac", "hmac-rotation-queue"); err != nil {
		t.Fatal(err)
	}
	key, _, err := s.store.Enqueue(t.Context(), storage.Enqueued{Queue: "hmac-rotation-queue"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.store.DB().ExecContext(t.Context(), `UPDATE job SET status = 1004, statusChangedAt = NOW(6) WHERE messageId = ?`, key[:]); err != nil {
		t.Fatal(err)
	}
}
