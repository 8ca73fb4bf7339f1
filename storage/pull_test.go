package storage_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

var statuses = []storage.Status{storage.StatusQueued, storage.StatusInflight, storage.StatusDelivered, storage.StatusDead, storage.StatusShelved}

// inStatus makes a pull consumer's job that is in the status; counted: dlq_summary has it where it is dead.
func (w *world) inStatus(k *storage.Consumer, status storage.Status, counted bool) storage.ID {
	w.t.Helper()
	id := w.queued(1, k)[0]
	pull := func(next storage.Status) {
		w.ok(w.SetPullState(w.ctx, storage.PullState{Job: id, Consumer: k, Next: next, Lease: time.Minute}))
	}
	switch status {
	case storage.StatusQueued:
	case storage.StatusShelved:
		w.exec(`UPDATE job SET status = 1005 WHERE id = ?`, id)
		w.exec(`INSERT INTO tally (kind, refId, shard, n) VALUES (4, ?, 0, 1) ON DUPLICATE KEY UPDATE n = n + 1`, k.Key)
	case storage.StatusInflight:
		pull(storage.StatusInflight)
	default:
		pull(storage.StatusInflight)
		pull(status)
	}
	if counted {
		w.countAll()
	}
	return id
}

// TestPullTransitions tries every state from every state.
func TestPullTransitions(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		k := w.consumer("k", storage.TypePull)
		allowed := map[[2]storage.Status]bool{
			{storage.StatusQueued, storage.StatusInflight}:    true,
			{storage.StatusInflight, storage.StatusDelivered}: true,
			{storage.StatusInflight, storage.StatusDead}:      true,
			{storage.StatusDead, storage.StatusInflight}:      true,
		}
		for _, counted := range []bool{false, true} {
			for _, from := range statuses {
				for _, to := range statuses {
					id := w.inStatus(k, from, counted)
					before := w.row(id)
					dead := w.shown(k)
					err := w.SetPullState(w.ctx, storage.PullState{Job: id, Consumer: k, Next: to, IncrementalTimeout: 30, Lease: time.Minute})
					after := w.row(id)
					switch {
					case from == to:
						if err != nil || after != before {
							t.Errorf("%v to the same: %v, %+v became %+v", from, err, before, after)
						}
					case !allowed[[2]storage.Status{from, to}]:
						if !errors.Is(err, storage.ErrBadTransition) || after != before {
							t.Errorf("%v to %v: %v, %+v became %+v", from, to, err, before, after)
						}
					default:
						if err != nil {
							t.Errorf("%v to %v: %v", from, to, err)
						}
						if problem := badPullRow(after, to); problem != "" {
							t.Errorf("%v to %v: %s: %+v", from, to, problem, after)
						}
						change := map[storage.Status]int64{from: -1, to: 1}[storage.StatusDead]
						if got := w.shown(k); got != dead+change {
							t.Errorf("%v to %v: %d dead became %d", from, to, dead, got)
						}
					}
					w.countsRight()
				}
			}
		}
	})
}

func badPullRow(r row, to storage.Status) string {
	switch {
	case r.Status != int(to):
		return "wrong status"
	case r.Owner != "":
		return "a pull consumer's job has an owner"
	case r.Counted != 0:
		return "counted"
	}
	switch to {
	case storage.StatusInflight:
		if !r.DueAt.Valid || r.DueAt.Time.Sub(r.ChangedAt) != 90*time.Second || r.IncrementalTimeout != 30 || r.NoRetry != 0 {
			return "wrong lease"
		}
	case storage.StatusDelivered:
		if r.DueAt.Valid {
			return "still due"
		}
	case storage.StatusDead:
		if r.DueAt.Valid || r.NoRetry != 1 || r.ErrorClass != text("declared") {
			return "not declared dead"
		}
	}
	return ""
}

func TestPullStateOfForeignJobs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	k, other := w.consumer("k", storage.TypePull), w.consumer("other", storage.TypePull)
	id := w.queued(1, other)[0]
	for _, job := range []storage.ID{id, storage.NewID()} {
		if err := w.SetPullState(w.ctx, storage.PullState{Job: job, Consumer: k, Next: storage.StatusInflight, Lease: time.Minute}); !errors.Is(err, storage.ErrNotFound) {
			t.Error(err)
		}
	}
	w.is(storage.StatusQueued, id)
}

func TestPullAtOnce(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		k := w.consumer("k", storage.TypePull)
		for range 10 {
			id := w.inStatus(k, storage.StatusInflight, false)
			verdicts := []storage.Status{storage.StatusDelivered, storage.StatusDead, storage.StatusDelivered, storage.StatusDead}
			errs := make([]error, len(verdicts))
			var wg sync.WaitGroup
			for i, v := range verdicts {
				wg.Go(func() {
					errs[i] = w.SetPullState(w.ctx, storage.PullState{Job: id, Consumer: k, Next: v, Lease: time.Minute})
				})
			}
			wg.Wait()
			won := storage.Status(w.row(id).Status)
			for i, err := range errs {
				if verdicts[i] == won && err != nil || verdicts[i] != won && !errors.Is(err, storage.ErrBadTransition) {
					t.Errorf("%v won, %v got %v", won, verdicts[i], err)
				}
			}
			w.countsRight()
		}
	})
}

// A page of large bodies is cut by their size, and never to nothing.
func TestQueuedJobsAreBoundedByBytes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	k := w.consumer("k", storage.TypePull)
	const mib = 1 << 20
	var want []storage.ID
	for i, size := range []int{0, storage.QueuedBytes + 1, 3 * mib, 4 * mib, mib, 1, 0} {
		m := w.message(k)
		m.Body, m.Priority = bytes.Repeat([]byte("x"), size), uint32(100-i)
		w.ok(w.Accept(w.ctx, 0, storage.Lease{}, []*storage.NewMessage{m}))
		want = append(want, m.Jobs[0].ID)
	}
	page := func(want ...storage.ID) {
		t.Helper()
		var got []storage.ID
		for _, j := range must(w.QueuedJobs(w.ctx, k.Key, 100)) {
			got = append(got, j.ID)
		}
		if !slices.Equal(got, want) {
			t.Errorf("a page has %v, want %v", got, want)
		}
		for _, id := range got {
			w.ok(w.SetPullState(w.ctx, storage.PullState{Job: id, Consumer: k, Next: storage.StatusInflight, Lease: time.Hour}))
		}
	}
	page(want[0])
	page(want[1])
	page(want[2:5]...)
	page(want[5:]...)
	page()
}

func TestQueuedJobs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	k, other := w.consumer("k", storage.TypePull), w.consumer("other", storage.TypePull)
	w.queued(2, other)
	var byPriority [2][]storage.ID
	for range 3 {
		for p := range 2 {
			m := w.message(k)
			m.Priority = uint32(p)
			m.Body = fmt.Append(nil, p)
			w.ok(w.Accept(w.ctx, 0, storage.Lease{}, []*storage.NewMessage{m}))
			byPriority[p] = append(byPriority[p], m.Jobs[0].ID)
		}
	}
	// It was a push consumer once: its retries are listed when their time has come.
	late, future := byPriority[1][1], byPriority[0][2]
	w.waiting(-time.Minute, late)
	w.waiting(time.Hour, future)
	w.inStatus(k, storage.StatusInflight, false)
	w.inStatus(k, storage.StatusDead, false)
	want := slices.Concat(byPriority[1], byPriority[0][:2])
	for _, limit := range []int{100, 5, 4, 2, 1, 0} {
		jobs := must(w.QueuedJobs(w.ctx, k.Key, limit))
		var got []storage.ID
		for _, j := range jobs {
			got = append(got, j.ID)
			if string(j.Body) != fmt.Sprint(j.Priority) || j.ContentType != "application/json" || j.Headers["X-Trace"] != "t1" || j.Status != storage.StatusQueued || j.MessageID == "" {
				t.Errorf("%+v", j)
			}
		}
		if !slices.Equal(got, want[:min(limit, len(want))]) {
			t.Errorf("limit %d: %v, want the highest priority first, then the oldest: %v", limit, got, want)
		}
	}
}
