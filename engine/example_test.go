package engine_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"time"

	"github.com/redrive-mq/redrive/engine"
	"github.com/redrive-mq/redrive/engine/durable"
	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/storage/storagetest"
)

// An engine of one's own: a certificate is renewed and handed out. Each step is executed at least once, the sleep between
// them survives a crash, and one run at a time works on a tenant.
func Example() {
	ctx := context.Background()
	dsn, drop, err := storagetest.NewDatabase(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = drop() }()
	store, err := storage.Open(storage.Options{DSN: dsn})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	runner, err := durable.New(store.DB(), durable.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	publisher, err := engine.Lookup(engine.Publisher)
	if err != nil {
		log.Fatal(err)
	}
	runtime, err := engine.NewRuntime(engine.RuntimeOptions{Context: publisher, Tables: store, Queue: noQueue{}, Durable: runner})
	if err != nil {
		log.Fatal(err)
	}

	err = runtime.Register(engine.Definition{
		Name: "tls",
		Steps: map[string]engine.Step{
			"renew": func(_ context.Context, call engine.Call) (any, error) {
				return "certificate of " + string(call.Input), nil // call.Key tells the authority about repetitions
			},
			"install": func(_ context.Context, call engine.Call) (any, error) {
				fmt.Println("installed:", string(call.Input))
				return nil, nil
			},
		},
		Run: func(r *engine.Run) (any, error) {
			var certificate string
			if err := r.Do("renew", r.InstanceID, &certificate); err != nil {
				return nil, err
			}
			if err := r.Sleep(50 * time.Millisecond); err != nil { // until it is valid everywhere
				return nil, err
			}
			return map[string]string{"installed": certificate}, r.Record("distribute", "install", certificate, nil, durable.Retry{Attempts: 3, Wait: time.Second})
		},
	})
	if err != nil {
		log.Fatal(err)
	}

	runtime.Start(ctx)
	// The broker does this for each message of tls-rotation-queue.
	job := storage.ClaimedJob{MessageID: "order-1", Body: []byte(`{"instanceId":"tenant-7","operation":"renew"}`)}
	fmt.Println("error:", runtime.Execute(ctx, "tls", job).Err)
	fmt.Println("again:", runtime.Execute(ctx, "tls", job).Err) // it finds the history, and does nothing
	if err := runtime.Stop(ctx); err != nil {
		log.Fatal(err)
	}

	entries, _, err := store.ListHistory(ctx, storage.HistoryFilter{CorrelationID: "order-1"}, nil, 10)
	if err != nil {
		log.Fatal(err)
	}
	for _, e := range entries {
		full, err := store.HistoryEntry(ctx, e.Engine, e.RowKey)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s %s %s %s.\n", e.InstanceID, e.Operation, e.Status, full.Output)
	}
	// Unordered output:
	// installed: "certificate of \"tenant-7\""
	// error: <nil>
	// again: <nil>
	// tenant-7 renew Succeeded {"installed":"certificate of \"tenant-7\""}.
	// tenant-7 distribute Succeeded .
}

// noQueue is for runtimes that get their messages by hand.
type noQueue struct{}

func (noQueue) Put(context.Context, string, string, string, []byte) (bool, error) { return true, nil }
