package dlqsummary

import (
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

func TestAuditFindsAndRepairs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	high, low, right := w.consumer("high"), w.consumer("low"), w.consumer("right")
	for _, k := range []*storage.Consumer{high, low, right} {
		w.kill(k, 10)
	}
	var log lines
	s, reg := w.summary(func(o *Options) { o.Log = log.logger() })
	w.check(s.cycle(t.Context(), false, false))
	audit := func(wantHigh, wantLow int64) {
		t.Helper()
		found, err := s.Audit(t.Context())
		w.check(err)
		for _, d := range found {
			want := map[uint32]int64{high.Key: wantHigh, low.Key: wantLow}[d.ConsumerKey]
			if d.Drift != want || d.ChannelID != w.channel.ID {
				t.Errorf("audit of %s: %d, want %d", d.ConsumerID, d.Drift, want)
			}
			if got, ok := w.gauge(reg, "redrive_dead_jobs_drift", d.ChannelID, d.ConsumerID); !ok || got != float64(want) {
				t.Errorf("redrive_dead_jobs_drift of %s is %v (there: %t), want %d", d.ConsumerID, got, ok, want)
			}
		}
		if len(found) != 3 {
			t.Errorf("%d consumers audited, want 3", len(found))
		}
		counts, err := s.Counts(t.Context())
		w.check(err)
		if exact := wantHigh == 0 && wantLow == 0; counts.Exact != exact {
			t.Errorf("exact is %t, want %t", counts.Exact, exact)
		}
	}
	audit(0, 0)
	w.kill(right, 4) // uncounted jobs are no drift
	w.exec(`UPDATE dlq_summary SET dead_count = dead_count + 7 WHERE consumerId = ?`, high.Key)
	w.exec(`UPDATE job SET dlqCounted = 0 WHERE consumerId = ? ORDER BY id LIMIT 3`, low.Key) // will be counted twice
	w.exec(`UPDATE dlq_summary SET dead_count = dead_count - 5 WHERE consumerId = ?`, low.Key)
	audit(7, -2)
	audit(7, -2)
	if n := log.count("the number of dead jobs shown is wrong"); n != 2 {
		t.Errorf("%d lines about two drifts that were seen twice, want 2", n)
	}
	repaired, err := s.Repair(t.Context())
	w.check(err)
	if len(repaired) != 3 || repaired[0].Drift != 7 || repaired[1].Drift != -2 || repaired[2].Drift != 0 {
		t.Errorf("repaired %+v", repaired)
	}
	counts, err := s.Counts(t.Context())
	w.check(err)
	if !counts.Exact || w.shown(s, high) != 10 || w.shown(s, low) != 10 || w.shown(s, right) != 14 {
		t.Errorf("after the repair: exact %t, %d, %d and %d shown", counts.Exact, w.shown(s, high), w.shown(s, low), w.shown(s, right))
	}
	audit(0, 0)
	w.check(s.cycle(t.Context(), false, true))
	audit(0, 0)
}

// Dead letters that do not match the dead jobs are shown and told of once, do not make the counts doubtful, and are mended.
func TestAuditFindsLetterDrift(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k, right := w.consumer("k"), w.consumer("right")
	for _, c := range []*storage.Consumer{k, right} {
		w.kill(c, 10)
		_, err := w.store.RepairDeadCount(t.Context(), c.Key) // makes their dead letters
		w.check(err)
	}
	var log lines
	s, reg := w.summary(func(o *Options) { o.Log = log.logger() })
	audit := func(want storage.LetterDrift) {
		t.Helper()
		found, err := s.Audit(t.Context())
		w.check(err)
		for _, d := range found {
			want := want
			if d.ConsumerKey == right.Key {
				want = storage.LetterDrift{}
			}
			if d.Letters != want || d.Drift != 0 {
				t.Errorf("audit of %s: %+v, want %+v", d.ConsumerID, d, want)
			}
			if got, ok := w.gauge(reg, "redrive_dead_letters_drift", d.ChannelID, d.ConsumerID); !ok || got != float64(want.Missing+want.Stray) {
				t.Errorf("redrive_dead_letters_drift of %s is %v (there: %t), want %+v", d.ConsumerID, got, ok, want)
			}
		}
		counts, err := s.Counts(t.Context())
		w.check(err)
		if !counts.Exact || s.drift.calm() != (want == storage.LetterDrift{}) {
			t.Errorf("exact is %t, calm is %t", counts.Exact, s.drift.calm())
		}
	}
	audit(storage.LetterDrift{})
	w.exec(`DELETE FROM engineDlq WHERE InstanceId = 'k' ORDER BY RowKey LIMIT 3`)
	w.exec(`DELETE FROM job WHERE consumerId = ? ORDER BY id DESC LIMIT 2`, k.Key)
	audit(storage.LetterDrift{Missing: 3, Stray: 2})
	audit(storage.LetterDrift{Missing: 3, Stray: 2})
	_, err := s.Repair(t.Context())
	w.check(err)
	if !s.drift.calm() {
		t.Error("the repair did not calm")
	}
	audit(storage.LetterDrift{})
	w.exec(`DELETE FROM engineDlq WHERE InstanceId = 'k' LIMIT 1`)
	audit(storage.LetterDrift{Missing: 1})
	_, err = w.store.RepairDeadCount(t.Context(), k.Key) // by another process
	w.check(err)
	audit(storage.LetterDrift{})
	if bad, good := log.count("the dead letters are not those"), log.count("the dead letters are those"); bad != 2 || good != 1 {
		t.Errorf("%d lines about drifts, %d about their end, want 2 and 1", bad, good)
	}
}

// A summary row that somebody deleted is made again by the repair, with the jobs that had been counted in it.
func TestRepairOfAMissingRow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.consumer("k")
	w.kill(k, 10)
	s, _ := w.summary()
	w.check(s.cycle(t.Context(), false, false))
	w.kill(k, 2)
	w.exec(`DELETE FROM dlq_summary WHERE consumerId = ?`, k.Key)
	if w.shown(s, k) != 2 {
		t.Fatalf("%d shown without the row, want what it does not hold", w.shown(s, k))
	}
	repaired, err := s.Repair(t.Context())
	w.check(err)
	if len(repaired) != 1 || repaired[0].Drift != -10 || w.shown(s, k) != 12 {
		t.Errorf("repaired %+v, %d shown, want 12", repaired, w.shown(s, k))
	}
	w.check(s.cycle(t.Context(), false, true))
	if n := w.number(`SELECT dead_count FROM dlq_summary`); n != 12 || w.shown(s, k) != 12 {
		t.Errorf("%d counted, %d shown", n, w.shown(s, k))
	}
}

// A repair by another process is noticed, and a consumer that is deleted takes its drift with it.
func TestDriftThatGoesAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k, gone := w.consumer("k"), w.consumer("gone")
	s, reg := w.summary(func(o *Options) { o.AuditInterval = 50 * time.Millisecond })
	s.Start(t.Context())
	exact := func(want bool) func() bool {
		return func() bool {
			counts, err := s.Counts(t.Context())
			w.check(err)
			return counts.Exact == want
		}
	}
	w.exec(`UPDATE dlq_summary SET dead_count = dead_count + 1 WHERE consumerId = ?`, k.Key)
	soon(t, "the background audit finds it", exact(false))
	operator, _ := w.summary()
	_, err := operator.Repair(t.Context())
	w.check(err)
	soon(t, "the background audit finds it repaired", exact(true))

	w.exec(`UPDATE dlq_summary SET dead_count = dead_count + 1 WHERE consumerId = ?`, gone.Key)
	soon(t, "the background audit finds the other", exact(false))
	w.check(w.store.DeleteConsumer(t.Context(), gone.Key, gone.ChangedAt))
	soon(t, "the deleted consumer's drift is forgotten", exact(true))
	soon(t, "and its series", func() bool { // by the next audit, where one was at it as it was deleted
		_, ok := w.gauge(reg, "redrive_dead_jobs_drift", w.channel.ID, gone.ID)
		return !ok
	})
}

// One instance audits at a time.
func TestAuditLock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.consumer("k")
	w.exec(`UPDATE dlq_summary SET dead_count = dead_count + 1 WHERE consumerId = ?`, k.Key)
	lock, err := w.store.AcquireLock(t.Context(), lockAudit, "somebody", time.Hour)
	w.check(err)
	s, _ := w.summary(func(o *Options) { o.AuditInterval, o.LockTTL = 20*time.Millisecond, 100*time.Millisecond })
	s.Start(t.Context())
	soon(t, "its first cycle", func() bool { return cycles(s, "done") == 1 })
	if !s.drift.exact() {
		t.Error("it audited without the lock")
	}
	w.check(w.store.ReleaseLock(t.Context(), lock))
	soon(t, "its audit", func() bool { return !s.drift.exact() })
}
