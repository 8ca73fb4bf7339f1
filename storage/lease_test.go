package storage_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

func TestReapLeases(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		for _, tt := range []struct {
			name    string
			kind    storage.ConsumerType
			retries int
			lease   time.Duration
			want    storage.Reaped
			row     row // but for ChangedAt and Token
		}{
			{name: "push", kind: storage.TypePush, retries: 1, lease: -time.Second, want: storage.Reaped{Requeued: 1},
				row: row{Status: 1001, RetryCount: 2, ErrorClass: text("lease_lost"), Error: text("the instance that had it in flight was lost")}},
			{name: "push, last attempt", kind: storage.TypePush, retries: 5, lease: -time.Second, want: storage.Reaped{Dead: 1},
				row: row{Status: 1004, RetryCount: 5, ErrorClass: text("lease_lost"), Error: text("the instance that made the last attempt was lost: the outcome is unknown")}},
			{name: "push, beyond the last attempt", kind: storage.TypePush, retries: 9, lease: -time.Second, want: storage.Reaped{Dead: 1},
				row: row{Status: 1004, RetryCount: 9, ErrorClass: text("lease_lost"), Error: text("the instance that made the last attempt was lost: the outcome is unknown")}},
			{name: "pull", kind: storage.TypePull, retries: 1, lease: -time.Second, want: storage.Reaped{Requeued: 1}, row: row{Status: 1001, RetryCount: 1}},
			{name: "pull, whatever its retries", kind: storage.TypePull, retries: 9, lease: -time.Second, want: storage.Reaped{Requeued: 1}, row: row{Status: 1001, RetryCount: 9}},
			{name: "engine", kind: storage.TypeEngine, retries: 1, lease: -time.Second, want: storage.Reaped{Requeued: 1}, row: row{Status: 1001, RetryCount: 1}},
			{name: "engine, whatever its retries", kind: storage.TypeEngine, retries: 9, lease: -time.Second, want: storage.Reaped{Requeued: 1}, row: row{Status: 1001, RetryCount: 9}},
			{name: "engine, held", kind: storage.TypeEngine, lease: time.Hour},
			{name: "push, held", kind: storage.TypePush, lease: time.Hour},
			{name: "pull, held", kind: storage.TypePull, lease: time.Hour},
		} {
			k := w.consumer(strings.ReplaceAll(tt.name, " ", "-"), tt.kind)
			id := w.accepted(1, k, w.lease(tt.lease))[0]
			w.exec(`UPDATE job SET retryAttemptCount = ?, incrementalTimeout = 9 WHERE id = ?`, tt.retries, id)
			w.queued(1, k)
			w.waiting(-time.Hour, w.queued(1, k)...)
			w.dead(1, k)
			before := w.row(id)
			policy := storage.LeasePolicy{MaxRetry: 5, Type: tt.kind, Limit: 10}
			if got := must(w.ReapLeases(w.ctx, k.Key, policy)); got != tt.want {
				t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
			}
			got := w.row(id)
			if tt.want == (storage.Reaped{}) {
				if got != before {
					t.Errorf("%s: changed %+v to %+v", tt.name, before, got)
				}
				continue
			}
			if !got.ChangedAt.After(before.ChangedAt) {
				t.Errorf("%s: changed at %v", tt.name, got.ChangedAt)
			}
			tt.row.ChangedAt, tt.row.Token = got.ChangedAt, got.Token
			if tt.row.Status == 1004 {
				tt.row.IncrementalTimeout = 9
			}
			if got != tt.row {
				t.Errorf("%s: %+v, want %+v", tt.name, got, tt.row)
			}
			if again := must(w.ReapLeases(w.ctx, k.Key, policy)); again != (storage.Reaped{}) {
				t.Errorf("%s: reaped twice: %+v", tt.name, again)
			}
			w.countsRight()
		}
	})
}

func TestReapLeasesByBatchesFromSeveralInstances(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		k := w.consumer("k", storage.TypePush)
		lease := w.lease(-time.Second)
		ids := w.accepted(200, k, lease)
		w.exec(`UPDATE job SET retryAttemptCount = 5 WHERE leaseToken = ? ORDER BY id LIMIT 50`, lease.Token)
		var mu sync.Mutex
		var sum storage.Reaped
		var errs []error
		var wg sync.WaitGroup
		for range 4 {
			s := w.another()
			wg.Go(func() {
				for {
					got, err := s.ReapLeases(w.ctx, k.Key, storage.LeasePolicy{MaxRetry: 5, Type: storage.TypePush, Limit: 9})
					mu.Lock()
					sum.Requeued, sum.Dead, errs = sum.Requeued+got.Requeued, sum.Dead+got.Dead, append(errs, err)
					done := err != nil || sum.Requeued+sum.Dead >= len(ids)
					mu.Unlock()
					if got.Requeued+got.Dead > 9 {
						t.Errorf("%+v in a batch of 9", got)
					}
					if done {
						return
					}
				}
			})
		}
		wg.Wait()
		w.ok(errors.Join(errs...))
		if (sum != storage.Reaped{Requeued: 150, Dead: 50}) {
			t.Errorf("%+v", sum)
		}
		if n := w.number(`SELECT SUM(retryAttemptCount) FROM job WHERE status = 1001`); n != 150 {
			t.Errorf("150 lost attempts were counted as %d", n)
		}
		w.countsRight()
	})
}
