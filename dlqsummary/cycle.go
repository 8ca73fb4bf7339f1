package dlqsummary

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

const (
	firstRetry    = time.Second // after an error; doubles up to lastRetry
	lastRetry     = 30 * time.Second
	progressEvery = 5 * time.Second // a long cycle says how far it is
)

// countForever runs a cycle at once and then one every interval, and folds early when a read asks for it.
func (s *Summary) countForever(ctx context.Context) {
	watch := outage{log: s.log, doing: "counting dead jobs"}
	due := time.Now()
	for {
		timer := time.NewTimer(time.Until(due))
		early := false
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-s.fold:
			timer.Stop()
			early = true
		}
		next, err := s.wake(ctx, early)
		if ctx.Err() != nil {
			return
		}
		if !early {
			due = time.Now().Add(next)
		}
		if retry, failed := watch.note(ctx, err); failed {
			due = sooner(due, time.Now().Add(retry))
		}
	}
}

func sooner(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// wake does what there is to do, counts the result and returns how long to sleep until the next cycle.
func (s *Summary) wake(ctx context.Context, early bool) (sleep time.Duration, err error) {
	start := time.Now()
	// Past the interval, never short of it: who wakes too early finds the work done and sleeps once more.
	sleep = s.o.Interval + spread(s.o.Interval/10)
	result := "done"
	err = s.store.Hold(ctx, lockUpdater, s.o.Owner, s.o.LockTTL, func(ctx context.Context) error {
		since, counted, err := s.store.SinceLastCycle(ctx)
		if err != nil {
			return err
		}
		if !early && counted && since < s.o.Interval {
			result = "skipped"
			sleep -= since
			return nil
		}
		return s.cycle(ctx, early, counted)
	})
	switch {
	case errors.Is(err, storage.ErrLocked):
		result, err = "locked", nil
		// If its holder crashed, somebody should take over as soon as the lock has run out.
		sleep = min(sleep, s.o.LockTTL+spread(s.o.LockTTL/10))
	case err != nil && ctx.Err() != nil:
		return sleep, err // stopped, which is no failure
	case err != nil:
		result = "error"
	}
	s.metrics.cycles.WithLabelValues(result).Inc()
	if result == "done" || result == "error" {
		s.metrics.duration.Observe(time.Since(start).Seconds())
	}
	return sleep, err
}

// cycle folds batch after batch until nothing is owed. Every batch is committed for itself, so a crash loses nothing
// and the next cycle, anybody's, goes on where this one ended; the first one over millions of rows is no exception.
func (s *Summary) cycle(ctx context.Context, early, countedBefore bool) error {
	start, said := time.Now(), time.Now()
	var sum storage.Folded
	log := s.log.With("early", early, "first", !countedBefore)
	for {
		f, err := s.store.CountBatch(ctx, s.o.BatchSize)
		s.metrics.rowsRead.Add(float64(f.Read))
		sum.Read += f.Read
		sum.Counted += f.Counted
		sum.Undone += f.Undone
		if err != nil {
			return err
		}
		if !f.More {
			break
		}
		if time.Since(said) >= progressEvery {
			said = time.Now()
			log.InfoContext(ctx, "still counting dead jobs", "read", sum.Read, "counted", sum.Counted, "undone", sum.Undone,
				"took", time.Since(start).Round(time.Millisecond))
		}
	}
	if !early {
		if err := s.store.StampCycle(ctx); err != nil {
			return err
		}
	}
	log.InfoContext(ctx, "dead jobs counted", "read", sum.Read, "counted", sum.Counted, "undone", sum.Undone,
		"took", time.Since(start).Round(time.Microsecond))
	return nil
}

// spread is a random part of d, so that instances that were started together do not stay together.
func spread(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return rand.N(d)
}

// outage logs the first of a row of errors and the end of the row, and paces the retries.
type outage struct {
	log   *slog.Logger
	doing string
	since time.Time
	pause time.Duration
}

// note takes in a result; where it failed, retry is how long to wait before the next attempt.
func (o *outage) note(ctx context.Context, err error) (retry time.Duration, failed bool) {
	switch {
	case err == nil && o.since.IsZero():
		return 0, false
	case err == nil:
		o.log.InfoContext(ctx, o.doing+" works again", "failedFor", time.Since(o.since).Round(time.Millisecond))
		o.since, o.pause = time.Time{}, 0
		return 0, false
	case o.since.IsZero():
		o.since, o.pause = time.Now(), firstRetry
		o.log.ErrorContext(ctx, o.doing+" failed; it is tried again until it works", "error", err, "unavailable", storage.IsUnavailable(err))
	default:
		o.pause = min(2*o.pause, lastRetry)
	}
	return o.pause/2 + spread(o.pause/2), true
}
