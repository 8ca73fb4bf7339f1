package storage_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

// TestJobStatusIsTheGroupBy holds the counters and probes against the statement that they replace.
func TestJobStatusIsTheGroupBy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	k, other := w.consumer("k", storage.TypePush), w.consumer("other", storage.TypePull)
	w.consumer("nothing", storage.TypePush)
	if got := must(w.JobStatus(w.ctx)); len(got) != 0 {
		t.Errorf("of no jobs: %+v", got)
	}
	for range 3 {
		w.inEachStatus(k)
		w.dead(2, k)
		w.countAll()
	}
	w.dead(1, k)
	w.inEachStatus(other)
	w.waiting(time.Hour, w.queued(2, other)...)

	type line struct {
		key    uint32
		status storage.Status
	}
	type value struct {
		n              int64
		oldest, newest time.Time
	}
	want := map[line]value{}
	rows, err := w.DB().QueryContext(w.ctx, `SELECT consumerId, status, COUNT(*), MIN(statusChangedAt), MAX(statusChangedAt) FROM job GROUP BY consumerId, status`)
	w.ok(err)
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var l line
		var v value
		w.ok(rows.Scan(&l.key, &l.status, &v.n, &v.oldest, &v.newest))
		want[l] = v
	}
	w.ok(rows.Err())
	got := must(w.JobStatus(w.ctx))
	for _, c := range got {
		if c.ChannelID != "orders" || c.ConsumerID != map[uint32]string{k.Key: "k", other.Key: "other"}[c.ConsumerKey] {
			t.Errorf("%+v", c)
		}
		if v := want[line{c.ConsumerKey, c.Status}]; c.Oldest == nil || c.Newest == nil || v != (value{c.Count, *c.Oldest, *c.Newest}) {
			t.Errorf("%v of %s: %+v, want %+v", c.Status, c.ConsumerID, c, v)
		}
	}
	if len(got) != len(want) || len(got) != 9 {
		t.Errorf("%d lines, want %d", len(got), len(want))
	}
	queued := must(w.QueuedJobCounts(w.ctx))
	if len(queued) != 2 || queued[0].ConsumerKey != k.Key || queued[0].Count != 3 || queued[1].Count != 3 {
		t.Errorf("%+v", queued)
	}
}

func TestStatusNames(t *testing.T) {
	t.Parallel()
	for _, s := range statuses {
		if back, ok := storage.ParseStatus(s.String()); !ok || back != s {
			t.Errorf("%v is read as %v, %v", s, back, ok)
		}
	}
	if _, ok := storage.ParseStatus("UNKNOWN"); ok || storage.Status(7).String() != "UNKNOWN" {
		t.Error("an unknown status has a name")
	}
}

func TestCountBatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	a, b := w.consumer("a", storage.TypePush), w.consumer("b", storage.TypePush)
	w.inEachStatus(a)
	if f := must(w.CountBatch(w.ctx, 10)); f != (storage.Folded{}) {
		t.Errorf("of nothing: %+v", f)
	}
	ids := w.dead(7, a)
	w.dead(5, b)
	for _, want := range []storage.Folded{{Read: 5, Counted: 5, More: true}, {Read: 5, Counted: 5, More: true}, {Read: 2, Counted: 2}, {}} {
		if f := must(w.CountBatch(w.ctx, 5)); f != want {
			t.Errorf("%+v, want %+v", f, want)
		}
		if w.shown(a) != 7 || w.shown(b) != 5 {
			t.Errorf("shown %d and %d", w.shown(a), w.shown(b))
		}
		w.countsRight()
	}
	// Somebody brought jobs back by hand: they leave the count.
	w.exec(`UPDATE job SET status = 1001 WHERE id IN (?, ?)`, ids[0], ids[1])
	w.dead(1, a)
	if n := w.shown(a); n != 6 {
		t.Errorf("%d dead, want 6", n)
	}
	if f := must(w.CountBatch(w.ctx, 10)); (f != storage.Folded{Read: 3, Counted: 1, Undone: 2}) {
		t.Errorf("%+v", f)
	}
	if n := w.number(`SELECT dead_count FROM dlq_summary WHERE consumerId = ?`, a.Key); n != 6 {
		t.Errorf("dead_count %d, want 6", n)
	}
	// A summary that was lost (a table restored, say) is made again with the names.
	w.exec(`DELETE FROM dlq_summary`)
	w.exec(`UPDATE job SET dlqCounted = 0`)
	w.countAll()
	w.countsRight()
	if c := must(w.DeadCounts(w.ctx)).Consumers; len(c) != 2 || c[0].Dead != 6 || c[1].Dead != 5 ||
		w.number(`SELECT COUNT(*) FROM dlq_summary WHERE consumerName = 'Consumer a' AND channelName = 'Orders' AND channelId = 'orders'`) != 1 {
		t.Errorf("%+v", c)
	}
}

// TestManyCountersAreOneCounter lets several instances count the same deaths.
func TestManyCountersAreOneCounter(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		a, b := w.consumer("a", storage.TypePush), w.consumer("b", storage.TypePush)
		w.dead(300, a)
		w.dead(200, b)
		var mu sync.Mutex
		counted := 0
		var errs []error
		var wg sync.WaitGroup
		for range 5 {
			s := w.another()
			wg.Go(func() {
				for {
					f, err := s.CountBatch(w.ctx, 60)
					mu.Lock()
					counted += f.Counted
					errs = append(errs, err)
					mu.Unlock()
					if err != nil || !f.More {
						return
					}
				}
			})
		}
		wg.Wait()
		w.ok(errors.Join(errs...))
		if counted != 500 || w.number(`SELECT SUM(dead_count) FROM dlq_summary`) != 500 {
			t.Errorf("counted %d of 500", counted)
		}
		w.countsRight()
	})
}

func TestCycleStamp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	if _, ok, err := w.SinceLastCycle(w.ctx); ok || err != nil {
		t.Errorf("a cycle before the first consumer: %v, %v", ok, err)
	}
	w.consumer("k", storage.TypePush)
	if _, ok, err := w.SinceLastCycle(w.ctx); ok || err != nil {
		t.Errorf("a cycle before the first one: %v, %v", ok, err)
	}
	w.ok(w.StampCycle(w.ctx))
	if d, ok, err := w.SinceLastCycle(w.ctx); !ok || err != nil || d < 0 || d > patience {
		t.Errorf("%v, %v, %v", d, ok, err)
	}
	w.exec(`UPDATE dlq_summary SET last_checked_at = last_checked_at - INTERVAL 1 HOUR`)
	w.consumer("new", storage.TypePush) // not covered by any cycle yet
	if d, ok, err := w.SinceLastCycle(w.ctx); !ok || err != nil || d < time.Hour || d > time.Hour+patience {
		t.Errorf("%v, %v, %v", d, ok, err)
	}
	c := must(w.DeadCounts(w.ctx))
	if c.LastCheckedAt == nil || c.AsOf.Sub(*c.LastCheckedAt) < time.Hour || c.Consumers[0].LastCheckedAt == nil || c.Consumers[1].LastCheckedAt != nil {
		t.Errorf("%+v", c)
	}
}

func TestDeadCountsOfNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	if c := must(w.DeadCounts(w.ctx)); len(c.Consumers) != 0 || c.AsOf.IsZero() {
		t.Errorf("%+v", c)
	}
}

// TestDrift has somebody write to the counts past this package, in each way.
func TestDrift(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	k, other := w.consumer("k", storage.TypePush), w.consumer("other", storage.TypePush)
	w.dead(3, other)
	counted := w.dead(6, k)
	w.countAll()
	w.dead(3, k)
	if d := must(w.DeadDrift(w.ctx, k.Key)); d != 0 {
		t.Errorf("a drift of %d where nothing is wrong", d)
	}
	if d := must(w.RepairDeadCount(w.ctx, k.Key)); d != 0 || w.shown(k) != 9 {
		t.Errorf("repaired %d to %d", d, w.shown(k))
	}
	for name, tt := range map[string]struct {
		harm  string
		args  []any
		drift int64
		dead  int64
	}{
		"count raised":          {`UPDATE dlq_summary SET dead_count = dead_count + 5 WHERE consumerId = ?`, []any{k.Key}, 5, 9},
		"count lost":            {`UPDATE dlq_summary SET dead_count = 0 WHERE consumerId = ?`, []any{k.Key}, -6, 9},
		"count below zero":      {`UPDATE dlq_summary SET dead_count = -7 WHERE consumerId = ?`, []any{k.Key}, -13, 9},
		"marked as not counted": {`UPDATE job SET dlqCounted = 0 WHERE id = ?`, []any{counted[0]}, 1, 9},
		"marked as counted":     {`UPDATE job SET dlqCounted = 1 WHERE consumerId = ? AND dlqCounted = 0 LIMIT 2`, []any{k.Key}, -2, 9},
	} {
		t.Run(name, func(t *testing.T) {
			w.exec(tt.harm, tt.args...)
			if d := must(w.DeadDrift(w.ctx, k.Key)); d != tt.drift {
				t.Errorf("a drift of %d, want %d", d, tt.drift)
			}
			if d := must(w.DeadDrift(w.ctx, other.Key)); d != 0 {
				t.Errorf("the other consumer drifts by %d", d)
			}
			if d := must(w.RepairDeadCount(w.ctx, k.Key)); d != tt.drift {
				t.Errorf("repaired %d, want %d", d, tt.drift)
			}
			if w.shown(k) != tt.dead || w.shown(other) != 3 {
				t.Errorf("%d and %d dead after the repair", w.shown(k), w.shown(other))
			}
			w.countsRight()
			w.countAll()
			w.countsRight()
			// As it was: six counted, three not.
			w.exec(`UPDATE job SET dlqCounted = (id <= ?) WHERE consumerId = ?`, counted[5], k.Key)
			w.exec(`UPDATE dlq_summary SET dead_count = 6 WHERE consumerId = ?`, k.Key)
		})
	}
	// A row that is missing is made.
	w.exec(`DELETE FROM dlq_summary WHERE consumerId = ?`, k.Key)
	if d := must(w.DeadDrift(w.ctx, k.Key)); d != -6 {
		t.Errorf("without a row, a drift of %d", d)
	}
	if d := must(w.RepairDeadCount(w.ctx, k.Key)); d != -6 || w.shown(k) != 9 {
		t.Errorf("repaired %d to %d", d, w.shown(k))
	}
	w.countsRight()
	if _, err := w.RepairDeadCount(w.ctx, 4711); !errors.Is(err, storage.ErrNotFound) {
		t.Error(err)
	}
}

// TestRepairAmongWriters repairs while jobs die, are counted, and come back: it must find nothing to repair.
func TestRepairAmongWriters(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	k := w.consumer("k", storage.TypePush)
	w.dead(40, k)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for _, act := range []func(s *storage.Store) error{
		func(s *storage.Store) error { _, err := s.CountBatch(w.ctx, 10); return err },
		func(s *storage.Store) error {
			_, err := s.DB().ExecContext(w.ctx, `UPDATE job SET status = 1004, statusChangedAt = NOW(6) WHERE consumerId = ? AND status = 1001 LIMIT 3`, k.Key)
			if isDeadlock(err) {
				return nil
			}
			return err
		},
		func(s *storage.Store) error { _, err := s.RequeueAll(w.ctx, k.Key, "consumer"); return err },
	} {
		s := w.another()
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					if err := act(s); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	for range 50 {
		if d, err := w.RepairDeadCount(w.ctx, k.Key); d != 0 || err != nil {
			t.Errorf("repaired %d where nothing was wrong: %v", d, err)
		}
	}
	close(stop)
	wg.Wait()
	w.countsRight()
}
