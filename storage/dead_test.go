package storage_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

// inEachStatus makes a job in every status but DEAD.
func (w *world) inEachStatus(k *storage.Consumer) []storage.ID {
	w.t.Helper()
	ids := w.accepted(1, k, w.lease(longLease))
	ids = append(ids, w.queued(1, k)[0], w.inStatus(k, storage.StatusDelivered, false), w.inStatus(k, storage.StatusShelved, false))
	return ids
}

func (w *world) rows(ids []storage.ID) []row {
	w.t.Helper()
	rows := make([]row, len(ids))
	for i, id := range ids {
		rows[i] = w.row(id)
	}
	return rows
}

func TestRequeueOne(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		k, other := w.consumer("k", storage.TypePush), w.consumer("other", storage.TypePush)
		alive := w.inEachStatus(k)
		foreign := w.dead(1, other)
		counted := w.dead(2, k)
		w.countAll()
		uncounted := w.dead(2, k)
		w.exec(`UPDATE job SET noRetry = 1, incrementalTimeout = 5 WHERE status = 1004`)
		untouched := append(slices.Clone(alive), foreign[0], counted[1], uncounted[1])
		before := w.rows(untouched)

		for _, id := range alive {
			if err := w.RequeueOne(w.ctx, k.Key, id, "consumer"); !errors.Is(err, storage.ErrNotDead) {
				t.Errorf("a job that is %d: %v", w.row(id).Status, err)
			}
		}
		for _, id := range []storage.ID{foreign[0], storage.NewID()} {
			if err := w.RequeueOne(w.ctx, k.Key, id, "consumer"); !errors.Is(err, storage.ErrNotFound) {
				t.Errorf("a job that is not the consumer's: %v", err)
			}
		}
		for _, id := range []storage.ID{counted[0], uncounted[0]} {
			w.ok(w.RequeueOne(w.ctx, k.Key, id, "consumer"))
			got := w.row(id)
			want := row{Status: 1001, ChangedAt: got.ChangedAt, Token: got.Token, ErrorClass: text("http_5xx"), Error: text("503")}
			if got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
			w.countsRight()
			if err := w.RequeueOne(w.ctx, k.Key, id, "consumer"); !errors.Is(err, storage.ErrNotDead) {
				t.Errorf("requeued twice: %v", err)
			}
		}
		if !slices.Equal(w.rows(untouched), before) {
			t.Error("other jobs changed")
		}
		if got := w.shown(k); got != 2 {
			t.Errorf("%d dead, want 2", got)
		}
		if jobs := must(w.Claim(w.ctx, k.Key, w.lease(longLease), 10)); len(jobs) != 3 {
			t.Errorf("%d jobs may be claimed, want the two that came back and the one that waited", len(jobs))
		}
	})
}

func TestPurgeOne(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		k, other := w.consumer("k", storage.TypePush), w.consumer("other", storage.TypePush)
		keep := append(w.inEachStatus(k), w.dead(1, other)...)
		early := w.dead(1, k)[0]
		w.exec(`UPDATE job SET retryAttemptCount = ? WHERE id = ?`, ourMaxRetry-1, early)
		keep = append(keep, early)
		for _, id := range append(keep, storage.NewID()) {
			if err := w.PurgeOne(w.ctx, k.Key, id, ourMaxRetry, "consumer"); !errors.Is(err, storage.ErrNotFound) {
				t.Error(err)
			}
		}
		for _, id := range keep {
			w.row(id) // it is still there
		}
		counted := w.dead(1, k)[0]
		w.countAll()
		uncounted := w.dead(1, k)[0]
		declared := w.inStatus(k, storage.StatusDead, false)
		for _, id := range []storage.ID{counted, uncounted, declared} {
			w.ok(w.PurgeOne(w.ctx, k.Key, id, ourMaxRetry, "consumer"))
			w.countsRight()
			if err := w.PurgeOne(w.ctx, k.Key, id, ourMaxRetry, "consumer"); !errors.Is(err, storage.ErrNotFound) {
				t.Errorf("purged twice: %v", err)
			}
		}
		if got := w.shown(k); got != 1 {
			t.Errorf("%d dead, want 1", got)
		}
	})
}

// betweenBatches is a store that calls do before every batch of a requeue or purge but the first.
func (w *world) betweenBatches(do func()) *storage.Store {
	w.t.Helper()
	batches := 0
	r := &recorder{before: func(query string) {
		if strings.Contains(query, "statusChangedAt >= ?") {
			if batches++; batches > 1 {
				do()
			}
		}
	}}
	s, err := storage.Open(storage.Options{DSN: w.dsn, WrapConnector: r.wrap})
	w.ok(err)
	w.t.Cleanup(func() { _ = s.Close() })
	return s
}

// TestRequeueAllTakesWhatIsDeadWhenItBegins has jobs die again, and others for the first time, between its batches.
func TestRequeueAllTakesWhatIsDeadWhenItBegins(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	k, other := w.consumer("k", storage.TypePush), w.consumer("other", storage.TypePush)
	const total = 2345 // three batches
	alive := w.inEachStatus(k)
	foreign := w.dead(3, other)
	ids := w.dead(1500, k)
	w.countAll()
	ids = append(ids, w.dead(total-1500, k)...)
	untouched := append(alive, foreign...)
	before := w.rows(untouched)

	diedAgain, diedNew := int64(0), int64(0)
	s := w.betweenBatches(func() {
		diedAgain += w.exec(`UPDATE job SET status = 1004, statusChangedAt = NOW(6), retryAttemptCount = 1 WHERE consumerId = ? AND status = 1001 AND leaseToken > 0 AND retryAttemptCount = 0`, k.Key)
		w.countAll()
		diedNew += int64(len(w.dead(2, k)))
		w.countsRight()
	})
	if n := must(s.RequeueAll(w.ctx, k.Key, "consumer")); n != total {
		t.Errorf("requeued %d, want %d", n, total)
	}
	if diedAgain != 2000 || diedNew != 4 {
		t.Fatalf("%d died again and %d for the first time: the test does not test what it means to", diedAgain, diedNew)
	}
	if n := w.shown(k); n != diedAgain+diedNew {
		t.Errorf("%d dead, want %d", n, diedAgain+diedNew)
	}
	if n := w.number(`SELECT COUNT(*) FROM job WHERE consumerId = ? AND status IN (1001, 1004) AND leaseToken > 0`, k.Key); n != int64(len(ids))+diedNew {
		t.Errorf("%d jobs are there", n)
	}
	if !slices.Equal(w.rows(untouched), before) {
		t.Error("other jobs changed")
	}
	w.countsRight()
	if n := must(w.RequeueAll(w.ctx, k.Key, "consumer")); n != diedAgain+diedNew {
		t.Errorf("then requeued %d", n)
	}
	if n := must(w.RequeueAll(w.ctx, k.Key, "consumer")); n != 0 {
		t.Errorf("requeued %d of none", n)
	}
	w.countsRight()
}

func TestPurgeAllTakesWhatIsExhausted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	k, other := w.consumer("k", storage.TypePush), w.consumer("other", storage.TypePush)
	keep := append(w.inEachStatus(k), w.dead(3, other)...)
	early := w.dead(1200, k)
	w.exec(`UPDATE job SET retryAttemptCount = ? WHERE consumerId = ? AND status = 1004`, ourMaxRetry-1, k.Key)
	keep = append(keep, early[:3]...)
	w.dead(1300, k)
	w.countAll()
	w.dead(900, k)
	declared := w.dead(5, k)
	for _, id := range declared {
		w.exec(`UPDATE job SET retryAttemptCount = 0, noRetry = 1 WHERE id = ?`, id)
	}
	before := w.rows(keep)
	diedNew := int64(0)
	s := w.betweenBatches(func() { diedNew += int64(len(w.dead(2, k))); w.countsRight() })
	if n := must(s.PurgeAll(w.ctx, k.Key, ourMaxRetry, "consumer")); n != 1300+900+5 {
		t.Errorf("purged %d", n)
	}
	if n := w.shown(k); n != 1200+diedNew || diedNew == 0 {
		t.Errorf("%d dead, want %d", n, 1200+diedNew)
	}
	if !slices.Equal(w.rows(keep), before) {
		t.Error("other jobs changed")
	}
	w.countsRight()
	if n := must(w.PurgeAll(w.ctx, k.Key, ourMaxRetry, "consumer")); n != diedNew {
		t.Errorf("then purged %d, want %d", n, diedNew)
	}
	w.countsRight()
}

// TestRequeueAllInterrupted stops a requeue and a purge in the middle: what was committed is reported and counted.
func TestRequeueAllInterrupted(t *testing.T) {
	t.Parallel()
	for name, all := range map[string]func(context.Context, *storage.Store, uint32) (int64, error){
		"requeue": func(ctx context.Context, s *storage.Store, k uint32) (int64, error) {
			return s.RequeueAll(ctx, k, "consumer")
		},
		"purge": func(ctx context.Context, s *storage.Store, k uint32) (int64, error) {
			return s.PurgeAll(ctx, k, ourMaxRetry, "consumer")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil)
			k := w.consumer("k", storage.TypePush)
			w.dead(2100, k)
			w.countAll()
			ctx, cancel := context.WithCancel(w.ctx)
			defer cancel()
			n, err := all(ctx, w.betweenBatches(cancel), k.Key)
			if n != 1000 || !errors.Is(err, context.Canceled) {
				t.Errorf("%d, %v", n, err)
			}
			if n := w.shown(k); n != 1100 {
				t.Errorf("%d dead, want 1100", n)
			}
			w.countsRight()
		})
	}
}

// TestRequeueAndPurgeAtOnce lets several instances requeue and purge the same dead jobs: each moves once.
func TestRequeueAndPurgeAtOnce(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		k := w.consumer("k", storage.TypePush)
		ids := w.dead(800, k)
		w.countAll()
		ids = append(ids, w.dead(800, k)...)
		var requeued, purged, one int64
		var mu sync.Mutex
		var wg sync.WaitGroup
		run := func(sum *int64, f func(s *storage.Store) (int64, error)) {
			s := w.another()
			wg.Go(func() {
				n, err := f(s)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				*sum += n
			})
		}
		for range 2 {
			run(&requeued, func(s *storage.Store) (int64, error) { return s.RequeueAll(w.ctx, k.Key, "consumer") })
			run(&purged, func(s *storage.Store) (int64, error) { return s.PurgeAll(w.ctx, k.Key, ourMaxRetry, "consumer") })
		}
		run(&one, func(s *storage.Store) (n int64, err error) {
			for _, id := range ids[1500:] {
				if err := s.RequeueOne(w.ctx, k.Key, id, "consumer"); err == nil {
					n++
				} else if !errors.Is(err, storage.ErrNotDead) && !errors.Is(err, storage.ErrNotFound) {
					return n, err
				}
			}
			return n, nil
		})
		run(new(int64), func(s *storage.Store) (int64, error) { f, err := s.CountBatch(w.ctx, 500); return int64(f.Read), err })
		wg.Wait()
		if queued := w.number(`SELECT COUNT(*) FROM job WHERE status = 1001`); queued != requeued+one || queued+purged != int64(len(ids)) {
			t.Errorf("%d requeued, %d singly, %d purged; %d are queued", requeued, one, purged, queued)
		}
		if n := w.shown(k); n != 0 {
			t.Errorf("%d dead", n)
		}
		w.countsRight()
	})
}

func TestDeadJobs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	k := w.consumer("k", storage.TypePush)
	id := w.dead(1, k)[0]
	w.inEachStatus(k)
	w.dead(1, w.consumer("other", storage.TypePush))
	jobs, paging, err := w.DeadJobs(w.ctx, k.Key, nil, 25)
	w.ok(err)
	if len(jobs) != 1 || jobs[0].ID != id || jobs[0].Status != storage.StatusDead || jobs[0].LastErrorClass != "http_5xx" || jobs[0].LastError != "503" ||
		jobs[0].RetryAttemptCount != ourMaxRetry || jobs[0].MessageID == "" || jobs[0].ProducerKey != w.producer.Key || (paging != storage.Paging{}) {
		t.Errorf("%+v, %+v", jobs, paging)
	}
	if one := must(w.Job(w.ctx, id)); *one != jobs[0] {
		t.Errorf("%+v, want %+v", one, jobs[0])
	}
	if off := time.Since(jobs[0].StatusChangedAt).Abs(); off > time.Hour || jobs[0].StatusChangedAt.Location() != time.UTC {
		t.Errorf("changed at %v", jobs[0].StatusChangedAt)
	}
}
