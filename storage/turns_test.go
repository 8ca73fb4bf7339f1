package storage_test

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

// Large transactions go on one at a time where that is wanted, but none waits for ever.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := storage.Open(storage.Options{DSN: "root@tcp(127.0.0.1:1)/nowhere", Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		began := time.Now()
		s.Turn(t.Context())
		s.Turn(t.Context())
		if took := time.Since(began); took != 0 {
			t.Errorf("waited %v for a turn that nobody wants", took)
		}

		s.TakeTurns(func() bool { return true })
		end := s.Turn(t.Context())
		ended := make(chan time.Duration)
		go func() {
			defer s.Turn(t.Context())()
			ended <- time.Since(began)
		}()
		time.AfterFunc(100*time.Millisecond, end)
		if at := <-ended; at != 100*time.Millisecond {
			t.Errorf("the second went on after %v", at)
		}

		synctest.Wait()
		defer s.Turn(t.Context())() // stands still
		began = time.Now()
		s.Turn(t.Context())()
		if took := time.Since(began); took != 250*time.Millisecond {
			t.Errorf("waited %v behind one that stands still", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		began = time.Now()
		s.Turn(ctx)()
		if took := time.Since(began); took != 0 {
			t.Errorf("waited %v after the caller had gone", took)
		}
	})
}

// A transaction that stands still is waited for once: whoever ran out of patience has the turn, and gives it on.
func TestTurnThatStandsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := storage.Open(storage.Options{DSN: "root@tcp(127.0.0.1:1)/nowhere", Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		s.TakeTurns(func() bool { return true })
		still := s.Turn(t.Context())
		began := time.Now()
		for range 10 {
			s.Turn(t.Context())()
		}
		if took := time.Since(began); took != 250*time.Millisecond {
			t.Errorf("ten turns behind one that stands still took %v", took)
		}

		end := s.Turn(t.Context())
		still() // at last: it is not the other's end
		time.AfterFunc(100*time.Millisecond, end)
		began = time.Now()
		s.Turn(t.Context())()
		if took := time.Since(began); took != 100*time.Millisecond {
			t.Errorf("waited %v for a turn that lasted 100ms", took)
		}
	})
}

// Each batch of a requeue and of a purge takes its own turn.
func TestDeadBatchesTakeTurns(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	k := w.consumer("k", storage.TypePush)
	w.dead(1100, k)
	var asked atomic.Int32
	w.TakeTurns(func() bool { asked.Add(1); return true })
	must(w.RequeueAll(w.ctx, k.Key, "consumer"))
	if n := asked.Swap(0); n != 2 {
		t.Errorf("a requeue of two batches asked for %d turns", n)
	}
	w.dead(1100, k)
	must(w.PurgeAll(w.ctx, k.Key, ourMaxRetry, "consumer"))
	if n := asked.Load(); n != 2 {
		t.Errorf("a purge of two batches asked for %d turns", n)
	}
	w.countsRight()
}
