package storage_test

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

func (w *world) finish(outcomes ...storage.Outcome) (lost []storage.Outcome) {
	w.t.Helper()
	return must(w.Finish(w.ctx, 3, outcomes))
}

func jobIDs(outcomes []storage.Outcome) []storage.ID {
	var ids []storage.ID
	for _, o := range outcomes {
		ids = append(ids, o.JobID)
	}
	return ids
}

func TestFinishVerdicts(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		k := w.consumer("k", storage.TypePush)
		long := strings.Repeat("é", 600) + "\xff"
		for _, tt := range []struct {
			name    string
			outcome storage.Outcome
			want    row // but for ChangedAt, Token and DueAt
			delay   time.Duration
		}{
			{name: "delivered", outcome: storage.Outcome{Verdict: storage.Delivered, Error: "not kept", ErrorClass: "not_kept", Delay: time.Hour},
				want: row{Status: 1003, RetryCount: 2}},
			{name: "retry later", outcome: storage.Outcome{Verdict: storage.RetryLater, Delay: 90 * time.Second, ErrorClass: "timeout", Error: "no answer"},
				want: row{Status: 1001, RetryCount: 3, ErrorClass: text("timeout"), Error: text("no answer")}, delay: 90 * time.Second},
			{name: "retry at once", outcome: storage.Outcome{Verdict: storage.RetryLater, Delay: time.Microsecond, ErrorClass: "http_5xx"},
				want: row{Status: 1001, RetryCount: 3, ErrorClass: text("http_5xx"), Error: text("")}, delay: time.Microsecond},
			{name: "die", outcome: storage.Outcome{Verdict: storage.Die, ErrorClass: "http_4xx", Error: long},
				want: row{Status: 1004, RetryCount: 2, ErrorClass: text("http_4xx"), Error: text(long[:2*512])}},
			{name: "hand back", outcome: storage.Outcome{Verdict: storage.HandBack, Error: "not kept", ErrorClass: "not_kept"},
				want: row{Status: 1001, RetryCount: 2}},
			{name: "hand back for later", outcome: storage.Outcome{Verdict: storage.HandBack, Error: "not kept", ErrorClass: "not_kept", Delay: time.Hour},
				want: row{Status: 1001, RetryCount: 2}, delay: time.Hour},
		} {
			// One alone, then several that one statement writes, then several of which each needs its own.
			for _, shape := range []struct {
				n    int
				each bool
			}{{1, false}, {3, false}, {3, true}} {
				lease := w.lease(longLease)
				ids := w.accepted(shape.n, k, lease)
				w.exec(`UPDATE job SET retryAttemptCount = 2 WHERE leaseToken = ?`, lease.Token)
				var outcomes []storage.Outcome
				for i, id := range ids {
					o := tt.outcome
					o.JobID, o.Token, o.ConsumerKey = id, lease.Token, k.Key
					if shape.each && tt.want.Error.Valid {
						o.Error = string(rune('a' + i))
					}
					outcomes = append(outcomes, o)
				}
				if lost := w.finish(outcomes...); len(lost) != 0 {
					t.Fatalf("%s: lost %v", tt.name, lost)
				}
				for i, id := range ids {
					got, want := w.row(id), tt.want
					if shape.each && want.Error.Valid {
						want.Error = text(outcomes[i].Error)
					}
					if got.DueAt.Valid != (tt.delay > 0) || got.DueAt.Valid && got.DueAt.Time.Sub(got.ChangedAt) != tt.delay {
						t.Errorf("%s: due at %v, changed at %v", tt.name, got.DueAt, got.ChangedAt)
					}
					want.ChangedAt, want.Token, want.DueAt = got.ChangedAt, got.Token, got.DueAt
					if got != want {
						t.Errorf("%s: %+v, want %+v", tt.name, got, want)
					}
				}
				w.countsRight()
			}
		}
		if got := w.shown(k); got != 7 {
			t.Errorf("%d dead, want 7", got)
		}
		if lost := w.finish(); len(lost) != 0 {
			t.Errorf("nothing to finish: lost %v", lost)
		}
	})
}

// TestFinishOfALostLease has attempts end after their job was taken away from them, in each way: nothing changes, and
// exactly they are reported, alone and among others that hold.
func TestFinishOfALostLease(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		k := w.consumer("k", storage.TypePush)
		reap := func() {
			must(w.ReapLeases(w.ctx, k.Key, storage.LeasePolicy{MaxRetry: ourMaxRetry, Type: storage.TypePush, Limit: 100}))
		}
		losses := map[string]func(id storage.ID, token uint64){
			"reaped":               func(storage.ID, uint64) { reap() },
			"reaped and claimed":   func(storage.ID, uint64) { reap(); must(w.Claim(w.ctx, k.Key, w.lease(longLease), 100)) },
			"delivered by another": func(id storage.ID, token uint64) { w.finish(outcome(id, token, k, storage.Delivered)) },
			"dead by another":      func(id storage.ID, token uint64) { w.finish(outcome(id, token, k, storage.Die)) },
			"handed back":          func(id storage.ID, token uint64) { w.finish(outcome(id, token, k, storage.HandBack)) },
			"dead by hand":         func(id storage.ID, _ uint64) { w.exec(`UPDATE job SET status = 1004 WHERE id = ?`, id) },
			"under another's token": func(id storage.ID, _ uint64) {
				w.exec(`UPDATE job SET leaseToken = leaseToken + 1000000 WHERE id = ?`, id)
			},
			"deleted": func(id storage.ID, _ uint64) {
				w.exec(`DELETE FROM job WHERE id = ?`, id)
				w.exec(`UPDATE tally SET n = n - 1 WHERE kind = 1 AND refId = ? AND shard = 0`, k.Key)
			},
		}
		for name, lose := range losses {
			for _, verdict := range []storage.Verdict{storage.Delivered, storage.RetryLater, storage.Die, storage.HandBack} {
				for _, company := range []int{0, 3} {
					lease := w.lease(-time.Second)
					id := w.accepted(1, k, lease)[0]
					lose(id, lease.Token)
					held := w.lease(longLease)
					outcomes := []storage.Outcome{outcome(id, lease.Token, k, verdict)}
					for i, other := range w.accepted(company, k, held) {
						v := storage.Delivered
						if i == 0 {
							v = verdict // in one statement with the lost one
						}
						outcomes = append(outcomes, outcome(other, held.Token, k, v))
					}
					exists := w.number(`SELECT COUNT(*) FROM job WHERE id = ?`, id) == 1
					var before row
					if exists {
						before = w.row(id)
					}
					lost := w.finish(outcomes...)
					if !slices.Equal(lost, outcomes[:1]) {
						t.Errorf("%s, verdict %d, %d others: lost %v", name, verdict, company, jobIDs(lost))
					}
					if exists && w.row(id) != before {
						t.Errorf("%s, verdict %d, %d others: changed %+v to %+v", name, verdict, company, before, w.row(id))
					}
					for _, o := range outcomes[1:] {
						if w.row(o.JobID).Status == int(storage.StatusInflight) {
							t.Errorf("%s: a job whose lease held was not finished", name)
						}
					}
					w.countsRight()
				}
			}
		}
	})
}

func TestFinishOfOneJobTwice(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		k := w.consumer("k", storage.TypePush)
		lease := w.lease(longLease)
		ids := w.accepted(2, k, lease)
		twice := []storage.Outcome{
			outcome(ids[0], lease.Token, k, storage.Delivered),
			outcome(ids[1], lease.Token, k, storage.Delivered),
			outcome(ids[0], lease.Token, k, storage.Delivered),
		}
		if lost := w.finish(twice...); len(lost) != 1 || lost[0] != twice[2] {
			t.Errorf("lost %+v", lost)
		}
		w.is(storage.StatusDelivered, ids...)
		w.countsRight()

		// Two verdicts on one job: the first counts.
		id := w.accepted(1, k, lease)[0]
		two := []storage.Outcome{outcome(id, lease.Token, k, storage.Die), outcome(id, lease.Token, k, storage.Delivered)}
		if lost := w.finish(two...); len(lost) != 1 || lost[0] != two[1] {
			t.Errorf("lost %+v", lost)
		}
		w.is(storage.StatusDead, id)
		w.countsRight()
	})
}

func TestFinishNeedsAVerdict(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	k := w.consumer("k", storage.TypePush)
	lease := w.lease(longLease)
	ids := w.accepted(2, k, lease)
	if _, err := w.Finish(w.ctx, 0, []storage.Outcome{outcome(ids[0], lease.Token, k, storage.Delivered), outcome(ids[1], lease.Token, k, 0)}); err == nil {
		t.Error("an outcome without a verdict was taken")
	}
	w.is(storage.StatusInflight, ids...)
	w.countsRight()
}

// TestFinishRaces lets the holder of a lease, a stale one and the reaper end the same jobs at once: every job is ended
// once, and each loss is reported.
func TestFinishRaces(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		k := w.consumer("k", storage.TypePush)
		for range 5 {
			lease := w.lease(-time.Second)
			ids := w.accepted(20, k, lease)
			verdicts := []storage.Verdict{storage.Delivered, storage.Die, storage.RetryLater, storage.HandBack}
			lost := make([]int, len(verdicts))
			var reaped storage.Reaped
			var wg sync.WaitGroup
			for i, v := range verdicts {
				s := w.another()
				wg.Go(func() {
					var all []storage.Outcome
					for n := range ids {
						all = append(all, outcome(ids[(n*7+i*3)%len(ids)], lease.Token, k, v))
					}
					for chunk := range slices.Chunk(all, 5) {
						l, err := s.Finish(w.ctx, uint8(i), chunk)
						if err != nil {
							t.Error(err)
						}
						lost[i] += len(l)
					}
				})
			}
			wg.Go(func() {
				var err error
				reaped, err = w.ReapLeases(w.ctx, k.Key, storage.LeasePolicy{MaxRetry: ourMaxRetry, Type: storage.TypePush, Limit: 7})
				if err != nil {
					t.Error(err)
				}
			})
			wg.Wait()
			won := reaped.Requeued + reaped.Dead
			for _, n := range lost {
				won += len(ids) - n
			}
			if won != len(ids) {
				t.Errorf("%d jobs were ended %d times", len(ids), won)
			}
			w.countsRight()
		}
	})
}

func outcome(id storage.ID, token uint64, k *storage.Consumer, v storage.Verdict) storage.Outcome {
	o := storage.Outcome{JobID: id, Token: token, ConsumerKey: k.Key, Verdict: v}
	if v == storage.RetryLater || v == storage.Die {
		o.Delay, o.ErrorClass, o.Error = time.Hour, "timeout", "no answer"
	}
	return o
}
