package storage_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

// waiting turns queued jobs into retries that are due after d; before now where it is negative.
func (w *world) waiting(d time.Duration, ids ...storage.ID) {
	w.t.Helper()
	for i, id := range ids {
		w.exec(`UPDATE job SET dueAt = NOW(6) + INTERVAL ? MICROSECOND WHERE id = ?`, d.Microseconds()+int64(i), id)
	}
}

func claimedIDs(jobs []storage.ClaimedJob) []storage.ID {
	ids := make([]storage.ID, len(jobs))
	for i, j := range jobs {
		ids[i] = j.ID
	}
	return ids
}

// sameIDs tells whether both hold the same ids, in any order.
func sameIDs(a, b []storage.ID) bool {
	cmp := func(x, y storage.ID) int { return slices.Compare(x[:], y[:]) }
	a, b = slices.Clone(a), slices.Clone(b)
	slices.SortFunc(a, cmp)
	slices.SortFunc(b, cmp)
	return slices.Equal(a, b)
}

func TestClaimHandsOutWhatAnAttemptNeeds(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		k, other := w.consumer("k", storage.TypePush), w.consumer("other", storage.TypePush)
		m := w.message(k, other)
		m.Priority = 3
		w.ok(w.Accept(w.ctx, 0, storage.Lease{}, []*storage.NewMessage{m}))
		lease := w.lease(90 * time.Second)
		jobs := must(w.Claim(w.ctx, k.Key, lease, 10))
		if len(jobs) != 1 {
			t.Fatalf("%d jobs", len(jobs))
		}
		j := jobs[0]
		if j.ID != m.Jobs[0].ID || j.ConsumerKey != k.Key || j.ChannelKey != w.channel.Key || j.MessageID != m.MessageID || j.ContentType != m.ContentType ||
			j.Priority != 3 || string(j.Body) != string(m.Body) || j.Headers["X-Trace"] != "t1" || j.Token != lease.Token || j.RetryAttemptCount != 0 || j.ReceivedAt.IsZero() {
			t.Errorf("%+v", j)
		}
		r := w.row(j.ID)
		if r.Status != 1002 || r.Token != lease.Token || r.Owner != string(lease.Owner[:]) || r.DueAt.Time.Sub(r.ChangedAt) != 90*time.Second {
			t.Errorf("%+v", r)
		}
		w.is(storage.StatusQueued, m.Jobs[1].ID)
		for _, limit := range []int{10, 0, -1} {
			if again := must(w.Claim(w.ctx, k.Key, w.lease(time.Minute), limit)); len(again) != 0 {
				t.Errorf("claimed twice: %+v", again)
			}
		}
	})
}

func TestClaimOrder(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		k := w.consumer("k", storage.TypePush)
		var byPriority [3][]storage.ID
		for range 3 {
			for p := range 3 {
				m := w.message(k)
				m.Priority = uint32(p)
				w.ok(w.Accept(w.ctx, 0, storage.Lease{}, []*storage.NewMessage{m}))
				byPriority[p] = append(byPriority[p], m.Jobs[0].ID)
			}
		}
		want := slices.Concat(byPriority[2], byPriority[1], byPriority[0])
		var got []storage.ID
		for _, limit := range []int{1, 3, 2, 100} {
			got = append(got, claimedIDs(must(w.Claim(w.ctx, k.Key, w.lease(longLease), limit)))...)
		}
		if !slices.Equal(got, want) {
			t.Errorf("claimed %v, want the highest priority first and the oldest first within it: %v", got, want)
		}
	})
}

// TestClaimShares holds the share of due retries against fresh jobs: half of the limit, or all that the other leaves.
func TestClaimShares(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		for _, tt := range []struct{ due, ready, limit, wantDue, wantReady int }{
			{due: 10, ready: 10, limit: 4, wantDue: 2, wantReady: 2},
			{due: 10, ready: 10, limit: 5, wantDue: 3, wantReady: 2},
			{due: 10, ready: 10, limit: 1, wantDue: 1, wantReady: 0},
			{due: 10, ready: 1, limit: 6, wantDue: 5, wantReady: 1},
			{due: 1, ready: 10, limit: 6, wantDue: 1, wantReady: 5},
			{due: 0, ready: 10, limit: 6, wantDue: 0, wantReady: 6},
			{due: 10, ready: 0, limit: 6, wantDue: 6, wantReady: 0},
			{due: 2, ready: 2, limit: 100, wantDue: 2, wantReady: 2},
		} {
			k := w.consumer(storage.NewToken(), storage.TypePush)
			due, ready, future := w.queued(tt.due, k), w.queued(tt.ready, k), w.queued(3, k)
			w.waiting(-time.Hour, due...)
			w.waiting(time.Hour, future...)
			want := slices.Concat(due[:tt.wantDue], ready[:tt.wantReady])
			if got := claimedIDs(must(w.Claim(w.ctx, k.Key, w.lease(longLease), tt.limit))); !sameIDs(got, want) {
				t.Errorf("%+v: claimed %v, want the longest due and the oldest: %v", tt, got, want)
			}
			w.is(storage.StatusQueued, future...)
		}
	})
}

// TestClaimAtOnce lets several instances claim from one backlog: every job goes to one of them.
func TestClaimAtOnce(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		k := w.consumer("k", storage.TypePush)
		ids := w.queued(300, k)
		w.waiting(-time.Hour, ids[:150]...)
		const instances = 5
		taken := make([][]storage.ID, instances)
		errs := make([]error, instances)
		var wg sync.WaitGroup
		for i := range instances {
			s := w.another()
			wg.Go(func() {
				for {
					jobs, err := s.Claim(w.ctx, k.Key, w.lease(longLease), 7)
					if err != nil {
						errs[i] = err
						return
					}
					if len(jobs) == 0 {
						// With SKIP LOCKED an empty answer may mean that the rest is locked just now.
						var left int
						if errs[i] = s.DB().QueryRowContext(w.ctx, `SELECT COUNT(*) FROM job WHERE status = 1001`).Scan(&left); errs[i] != nil || left == 0 {
							return
						}
					}
					taken[i] = append(taken[i], claimedIDs(jobs)...)
				}
			})
		}
		wg.Wait()
		w.ok(errors.Join(errs...))
		if all := slices.Concat(taken...); !sameIDs(all, ids) {
			t.Errorf("%d jobs were claimed %d times", len(ids), len(all))
		}
		w.is(storage.StatusInflight, ids...)
	})
}

func TestFindWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	idle, ready, retry, due, leased, lost, mixed := w.consumer("idle", storage.TypePush), w.consumer("ready", storage.TypePush),
		w.consumer("retry", storage.TypePush), w.consumer("due", storage.TypePush), w.consumer("leased", storage.TypePush), w.consumer("lost", storage.TypePush), w.consumer("mixed", storage.TypePull)
	w.dead(1, idle)
	w.queued(2, ready)
	w.waiting(time.Minute, w.queued(2, retry)...)
	w.waiting(-time.Minute, w.queued(1, due)...)
	w.waiting(time.Minute, w.queued(1, due)...)
	w.accepted(2, leased, w.lease(time.Minute))
	w.accepted(1, lost, w.lease(-time.Minute))
	w.accepted(1, lost, w.lease(time.Minute))
	w.queued(1, mixed)
	w.waiting(-time.Minute, w.queued(1, mixed)...)
	w.accepted(1, mixed, w.lease(time.Minute))

	near := func(d *time.Duration, want time.Duration) bool {
		return d != nil && *d <= want && *d > want-patience
	}
	for _, tt := range []struct {
		k    *storage.Consumer
		want time.Duration
	}{{retry, time.Minute}, {due, -time.Minute}, {mixed, -time.Minute}} {
		if d := must(w.NextDue(w.ctx, tt.k.Key)); !near(d, tt.want) {
			t.Errorf("%s: next due in %v, want %v", tt.k.ID, d, tt.want)
		}
	}
	for _, k := range []*storage.Consumer{idle, ready, leased, lost} {
		if d := must(w.NextDue(w.ctx, k.Key)); d != nil {
			t.Errorf("%s: next due in %v", k.ID, *d)
		}
	}
	work := map[uint32]storage.Work{}
	for _, v := range must(w.FindWork(w.ctx)) {
		work[v.ConsumerKey] = v
	}
	if len(work) != 7 {
		t.Errorf("%d consumers", len(work))
	}
	for name, ok := range map[string]bool{
		"idle":   work[idle.Key] == storage.Work{ConsumerKey: idle.Key},
		"ready":  work[ready.Key] == storage.Work{ConsumerKey: ready.Key, Ready: true},
		"retry":  !work[retry.Key].Ready && near(work[retry.Key].NextDue, time.Minute) && work[retry.Key].LeaseEnds == nil,
		"due":    !work[due.Key].Ready && near(work[due.Key].NextDue, -time.Minute),
		"leased": !work[leased.Key].Ready && work[leased.Key].NextDue == nil && near(work[leased.Key].LeaseEnds, time.Minute),
		"lost":   near(work[lost.Key].LeaseEnds, -time.Minute),
		"mixed":  work[mixed.Key].Ready && work[mixed.Key].NextDue == nil && near(work[mixed.Key].LeaseEnds, time.Minute),
	} {
		if !ok {
			t.Errorf("%s: %+v", name, work)
		}
	}
}
