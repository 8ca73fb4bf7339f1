package dlqsummary

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/storage/storagetest"
)

func TestOptions(t *testing.T) {
	t.Parallel()
	store := &storage.Store{}
	for _, c := range []struct {
		name string
		o    Options
		want string // part of the error; empty: none
	}{
		{"defaults", Options{Store: store}, ""},
		{"no store", Options{}, "no store"},
		{"interval", Options{Store: store, Interval: -time.Second}, "-1s"},
		{"owner", Options{Store: store, Owner: strings.Repeat("x", 65)}, "65 bytes"},
		{"batch", Options{Store: store, BatchSize: 5001}, "5001"},
		{"threshold", Options{Store: store, FoldThreshold: -1}, "-1"},
		{"lock", Options{Store: store, LockTTL: time.Millisecond}, "1ms"},
		{"scrape", Options{Store: store, ScrapeTimeout: -time.Second}, "-1s"},
	} {
		_, err := New(c.o)
		if (err == nil) != (c.want == "") || (err != nil && !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want an error with %q", c.name, err, c.want)
		}
	}
}

func TestStopWithoutStart(t *testing.T) {
	t.Parallel()
	s, err := New(Options{Store: &storage.Store{}})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.Start(t.Context()) // after Stop it does nothing
	if s.cancel != nil {
		t.Error("it started after Stop")
	}
}

// Several instances that start at once count everything once, and one cycle an interval is enough for all of them.
func TestInstancesShareTheWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.consumer("a"), w.consumer("b")
	w.kill(a, 700)
	w.kill(b, 300)
	var all []*Summary
	for range 4 {
		s, _ := w.summary(func(o *Options) { o.BatchSize = 50; o.LockTTL = 200 * time.Millisecond })
		s.Start(t.Context())
		all = append(all, s)
	}
	sum := func(result string) (n int) {
		for _, s := range all {
			n += cycles(s, result)
		}
		return n
	}
	// Who found the lock taken comes back when it may have run out, and finds the work done.
	soon(t, "one instance counted and the others saw it", func() bool { return sum("done") == 1 && sum("skipped") == 3 })
	if got := w.counted(); got != 1000 || w.uncounted() != 0 {
		t.Errorf("%d counted, %d uncounted, want 1000 and 0", got, w.uncounted())
	}
	for _, s := range all {
		if w.shown(s, a) != 700 || w.shown(s, b) != 300 {
			t.Errorf("shown: %d and %d, want 700 and 300", w.shown(s, a), w.shown(s, b))
		}
	}
}

// N counters are one counter, even where the lock keeps nobody out, while jobs die and leave.
func TestCountersWithoutLock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.consumer("a"), w.consumer("b")
	s, _ := w.summary(func(o *Options) { o.BatchSize = 20 })
	ctx, stop := context.WithCancel(t.Context())
	var counters, actors sync.WaitGroup
	for range 3 {
		other, _ := w.summary(func(o *Options) { o.BatchSize = 20 })
		counters.Go(func() {
			for ctx.Err() == nil {
				if err := other.cycle(ctx, false, true); err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for _, k := range []*storage.Consumer{a, b} {
		actors.Go(func() {
			for range 30 {
				w.kill(k, 37)
			}
		})
		actors.Go(func() {
			for i := range 8 {
				var err error
				if i%2 == 0 {
					_, err = w.store.RequeueAll(t.Context(), k.Key, "consumer")
				} else {
					_, err = w.store.PurgeAll(t.Context(), k.Key, 5, "consumer")
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
		actors.Go(func() {
			for range 40 {
				if drift, err := s.store.DeadDrift(t.Context(), k.Key); err != nil || drift != 0 {
					t.Errorf("drift %d (%v) in a snapshot, want 0", drift, err)
				}
			}
		})
	}
	actors.Wait()
	stop()
	counters.Wait()
	w.check(s.cycle(t.Context(), false, true))
	for _, k := range []*storage.Consumer{a, b} {
		dead := w.number(`SELECT COUNT(*) FROM job WHERE consumerId = ? AND status = 1004`, k.Key)
		inSummary := w.number(`SELECT dead_count FROM dlq_summary WHERE consumerId = ?`, k.Key)
		if dead != inSummary || dead != w.shown(s, k) {
			t.Errorf("%s: %d dead, %d in the summary, %d shown", k.ID, dead, inSummary, w.shown(s, k))
		}
	}
	if n := w.uncounted(); n != 0 {
		t.Errorf("%d rows are owed at rest", n)
	}
}

// A restart within the interval counts nothing: what is shown is exact without it.
func TestRecentCycleIsSkipped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.consumer("k")
	first, _ := w.summary()
	first.Start(t.Context())
	soon(t, "the first cycle", func() bool { return cycles(first, "done") == 1 })
	w.kill(k, 5)
	second, reg := w.summary()
	second.Start(t.Context())
	soon(t, "the skip", func() bool { return cycles(second, "skipped") == 1 })
	if w.counted() != 0 || w.shown(second, k) != 5 {
		t.Errorf("%d counted and %d shown, want 0 and 5", w.counted(), w.shown(second, k))
	}
	w.wantGauge(reg, 5, k)
	if got, _ := w.gauge(reg, "redrive_dlq_uncounted_jobs"); got != 5 {
		t.Errorf("redrive_dlq_uncounted_jobs is %v, want 5", got)
	}
}

// A cycle comes every interval, and not before the interval is over.
func TestCyclesRepeat(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.consumer("k")
	s, _ := w.summary(func(o *Options) { o.Interval = 50 * time.Millisecond })
	s.Start(t.Context())
	soon(t, "three cycles", func() bool { return cycles(s, "done") >= 3 })
	w.kill(k, 3)
	soon(t, "the deaths are counted", func() bool { return w.counted() == 3 })
	counts, err := s.Counts(t.Context())
	w.check(err)
	if counts.LastCheckedAt == nil || !counts.Exact {
		t.Errorf("last checked at %v, exact %t", counts.LastCheckedAt, counts.Exact)
	}
}

// A read that had much to add up has it folded, without a cycle's stamp and without waiting for its time.
func TestReadFoldsEarly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.consumer("k")
	s, _ := w.summary(func(o *Options) { o.FoldThreshold = 100 })
	s.Start(t.Context())
	soon(t, "the first cycle", func() bool { return cycles(s, "done") == 1 })
	stamp := w.number(`SELECT CAST(UNIX_TIMESTAMP(MAX(last_checked_at)) * 1000000 AS SIGNED) FROM dlq_summary`)

	w.kill(k, 100)
	if got := w.shown(s, k); got != 100 {
		t.Fatalf("%d shown, want 100", got)
	}
	if n := w.uncounted(); n != 100 || len(s.fold) != 0 {
		t.Fatalf("a read at the threshold woke the counter (%d uncounted)", n)
	}
	w.kill(k, 1)
	if got := w.shown(s, k); got != 101 {
		t.Fatalf("%d shown, want 101", got)
	}
	soon(t, "the fold", func() bool { return w.counted() == 101 && cycles(s, "done") == 2 })
	if got := w.number(`SELECT CAST(UNIX_TIMESTAMP(MAX(last_checked_at)) * 1000000 AS SIGNED) FROM dlq_summary`); got != stamp {
		t.Error("an early fold moved the time of the last cycle")
	}
	if got := w.shown(s, k); got != 101 {
		t.Fatalf("%d shown after the fold, want 101", got)
	}
}

// The lock of a cycle that takes several times its time to live stays with its holder.
func TestLockOutlivesSlowCycle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.consumer("k")
	w.kill(k, 10)
	const ttl = 300 * time.Millisecond
	slow, _ := w.summary(func(o *Options) { o.LockTTL = ttl; o.Owner = "slow" })
	release := w.inTx(`SELECT consumerId FROM dlq_summary WHERE consumerId = ? FOR UPDATE`, k.Key)
	slow.Start(t.Context())
	held := "SELECT COUNT(*) FROM `lock` WHERE lockId = 'dlq-summary-updater' AND owner = 'slow' AND token = 1 AND expiresAt > NOW(6)"
	soon(t, "the slow cycle holds the lock", func() bool { return w.number(held) == 1 })

	other, _ := w.summary(func(o *Options) { o.LockTTL = ttl; o.Owner = "other" })
	other.Start(t.Context())
	// The other comes back whenever the lock may have run out.
	soon(t, "the other met the lock four times", func() bool {
		if w.number(held) != 1 {
			t.Fatal("the lock ran out under its living holder")
		}
		return cycles(other, "locked") >= 4
	})
	release()
	soon(t, "the slow cycle ends", func() bool { return cycles(slow, "done") == 1 })
	soon(t, "the other sees that it was done", func() bool { return cycles(other, "skipped") == 1 })
	if cycles(slow, "error") != 0 || w.counted() != 10 {
		t.Errorf("%d errors, %d counted, want 0 and 10", cycles(slow, "error"), w.counted())
	}
}

// A holder that lost its lock stops, and leaves the new holder's lock alone.
func TestLostLockEndsCycle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, _ := w.summary(func(o *Options) { o.LockTTL = 150 * time.Millisecond })
	err := s.store.Hold(t.Context(), lockUpdater, s.o.Owner, s.o.LockTTL, func(ctx context.Context) error {
		w.exec("UPDATE `lock` SET owner = 'thief', token = token + 1, expiresAt = NOW(6) + INTERVAL 1 HOUR WHERE lockId = ?", lockUpdater)
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, storage.ErrLockLost) || errors.Is(err, storage.ErrLocked) {
		t.Errorf("got %v, want %v", err, storage.ErrLockLost)
	}
	if n := w.number("SELECT COUNT(*) FROM `lock` WHERE owner = 'thief'"); n != 1 {
		t.Error("the new holder's lock is gone")
	}
}

// Who crashes in the middle of the first count leaves exact numbers, and another instance goes on where it ended.
func TestCrashDuringBootstrap(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.consumer("a"), w.consumer("b")
	w.kill(a, 6000)
	w.kill(b, 4000)
	store := w.open(storage.Options{})
	crashing, _ := w.summary(func(o *Options) { o.Store = store; o.BatchSize = 100; o.LockTTL = 300 * time.Millisecond })
	release := w.inTx(`SELECT consumerId FROM dlq_summary WHERE consumerId = ? FOR UPDATE`, b.Key) // it gets no further than a
	crashing.Start(t.Context())
	soon(t, "the batches of the first consumer", func() bool { return w.counted() == 6000 })
	_ = store.Close() // from here on it reaches the database no more, not even to release its lock
	w.check(crashing.Stop(t.Context()))
	release()
	if n := w.number("SELECT COUNT(*) FROM `lock` WHERE owner <> ''"); n != 1 {
		t.Fatal("the crashed instance released its lock")
	}

	var log lines
	next, _ := w.summary(func(o *Options) { o.LockTTL = 300 * time.Millisecond; o.Log = log.logger() })
	if w.shown(next, a) != 6000 || w.shown(next, b) != 4000 {
		t.Errorf("shown: %d and %d, want 6000 and 4000", w.shown(next, a), w.shown(next, b))
	}
	next.Start(t.Context())
	soon(t, "the rest is counted", func() bool { return cycles(next, "done") == 1 })
	if log.count(`msg="dead jobs counted" component=dlqsummary early=false first=true read=4000`) != 1 {
		t.Errorf("the log does not tell of the first count: %s", &log.buf)
	}
	if read := testutil.ToFloat64(next.metrics.rowsRead); read != 4000 {
		t.Errorf("the second instance read %v rows, 4000 were left", read)
	}
	if w.counted() != 10000 || w.shown(next, a) != 6000 || w.shown(next, b) != 4000 {
		t.Errorf("%d counted, shown %d and %d", w.counted(), w.shown(next, a), w.shown(next, b))
	}
}

// I7: a cycle's cost follows the new deaths, whatever has died before.
func TestCycleReadsNewDeathsOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.consumer("k")
	w.kill(k, 20000)
	// One connection, so that its session's counters are the cycle's.
	store := w.open(storage.Options{MaxOpenConns: 1})
	s, _ := w.summary(func(o *Options) { o.Store = store })
	w.check(s.cycle(t.Context(), false, false))
	handlerReads := func() (n int64) {
		t.Helper()
		rows, err := store.DB().QueryContext(t.Context(), `SHOW SESSION STATUS LIKE 'Handler_read%'`)
		w.check(err)
		defer rows.Close()
		for rows.Next() {
			var name string
			var value int64
			w.check(rows.Scan(&name, &value))
			n += value
		}
		w.check(rows.Err())
		return n
	}
	cost := func() int64 {
		t.Helper()
		before := handlerReads()
		w.check(s.cycle(t.Context(), false, true))
		return handlerReads() - before
	}
	atRest := cost()
	for _, deaths := range []int64{1, 100, 1000} {
		w.kill(k, deaths)
		read := testutil.ToFloat64(s.metrics.rowsRead)
		got := cost()
		if read = testutil.ToFloat64(s.metrics.rowsRead) - read; int64(read) != deaths {
			t.Errorf("%v rows read for %d deaths", read, deaths)
		}
		// A row is read once to find it and once or twice to flip it.
		if limit := 4*deaths + 50; got > limit {
			t.Errorf("%d handler reads for %d deaths, want %d at most", got, deaths, limit)
		}
	}
	if atRest > 50 {
		t.Errorf("%d handler reads for no death at all", atRest)
	}
}

// Everything goes on by itself when the database is back, and one line tells of the outage.
func TestDatabaseOutage(t *testing.T) {
	t.Parallel()
	server := storagetest.Server(t)
	w := newWorld(t, storagetest.On(server))
	k := w.consumer("k")
	var log lines
	s, reg := w.summary(func(o *Options) {
		o.Interval, o.LockTTL, o.AuditInterval = 100*time.Millisecond, 500*time.Millisecond, 100*time.Millisecond
		o.ScrapeTimeout, o.Log = 2*time.Second, log.logger()
	})
	s.Start(t.Context())
	w.kill(k, 7)
	soon(t, "the first deaths", func() bool { return w.counted() == 7 })
	server.Kill()
	soon(t, "failed cycles", func() bool { return cycles(s, "error") >= 2 })
	if _, err := s.Counts(t.Context()); !storage.IsUnavailable(err) {
		t.Errorf("counts without a database: %v", err)
	}
	if _, ok := w.gauge(reg, "dead_job_count", w.channel.ID, k.ID); ok {
		t.Error("a scrape without a database has a number of dead jobs")
	}
	if n := testutil.ToFloat64(s.metrics.scrapeErrors); n < 2 {
		t.Errorf("redrive_dlq_scrape_errors_total is %v, want 2", n)
	}
	w.gauge(reg, "dead_job_count")
	if n := log.count("level=WARN msg=\"dead_job_count or queued_job_count is missing"); n != 1 {
		t.Errorf("%d warnings of two scrapes without a database, want 1", n)
	}
	w.check(server.Restart(t.Context()))
	w.kill(k, 5)
	soon(t, "the deaths after the outage", func() bool { return w.counted() == 12 })
	w.wantGauge(reg, 12, k)
	w.wantGauge(reg, 12, k)
	if n := log.count("are in scrapes again"); n != 1 {
		t.Errorf("%d lines of scrapes that are whole again, want 1", n)
	}
	soon(t, "the line of the recovery", func() bool { return log.count("counting dead jobs works again") == 1 })
	if n := log.count("counting dead jobs failed"); n != 1 {
		t.Errorf("%d lines of the outage, want 1", n)
	}
}
