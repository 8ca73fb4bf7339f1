package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-mq/redrive/storage"
)

const (
	lockRetention  = "engine-retention"
	retentionBatch = 1000 // dead letters in a transaction
	partitionsMade = 7    // days ahead that history has partitions for
	retentionRetry = time.Minute
	day            = 24 * time.Hour
)

// RetentionStore is what Retention works on: storage.Store.
type RetentionStore interface {
	Hold(ctx context.Context, lockID, owner string, ttl time.Duration, fn func(ctx context.Context) error) error
	Now(ctx context.Context) (time.Time, error)
	PruneDeadLetters(ctx context.Context, olderThan time.Duration, limit int, dryRun bool) (n int64, more bool, err error)
	EnsureHistoryPartitions(ctx context.Context, daysAhead int) error
	DropHistoryPartitions(ctx context.Context, before time.Time, dryRun bool) (dropped []string, rows int64, err error)
}

// RetentionOptions configures a Retention. Zero values mean the default that is named.
type RetentionOptions struct {
	Store      RetentionStore        // required
	Owner      string                // of the lock: this instance
	Days       int                   // resolved and expired dead letters and history entries stay as long; default 90
	Interval   time.Duration         // between two runs of all instances; default 1 h
	LockTTL    time.Duration         // how long a crashed instance's lock blocks the others; default 1 min
	Registerer prometheus.Registerer // default: none
	Log        *slog.Logger          // default slog.Default()
}

// Removed is what a retention run removed, or would.
type Removed struct {
	DeadLetters int64
	History     int64    // entries, in Partitions
	Partitions  []string // days
}

// Retention removes what RFC-72 (1.3, 3.3) says may go: dead letters that were resolved or expired, with the jobs that
// were shelved with them, and history entries, all of them older than the retention. Pending dead letters stay.
type Retention struct {
	o        RetentionOptions
	removed  *prometheus.CounterVec
	failures prometheus.Counter
	cancel   context.CancelFunc
	work     sync.WaitGroup
}

// NewRetention checks the options and registers the metrics.
func NewRetention(o RetentionOptions) (*Retention, error) {
	if o.Store == nil {
		return nil, errors.New("engine: retention without a store")
	}
	if o.Days == 0 {
		o.Days = DefaultRetentionDays
	}
	if o.Days < 0 || o.Days > maxRetentionDays {
		return nil, fmt.Errorf("engine: a retention of %d days, it may be 1 to %d", o.Days, maxRetentionDays)
	}
	if o.Interval == 0 {
		o.Interval = time.Hour
	}
	if o.LockTTL == 0 {
		o.LockTTL = time.Minute
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	r := &Retention{o: o,
		removed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "redrive_retention_removed_total",
			Help: "Rows that this instance removed because their retention was over."}, []string{"table"}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "redrive_retention_failures_total",
			Help: "Retention runs of this instance that ended with an error."}),
	}
	if o.Registerer != nil {
		for _, c := range []prometheus.Collector{r.removed, r.failures} {
			if err := o.Registerer.Register(c); err != nil {
				return nil, fmt.Errorf("engine: %w", err)
			}
		}
	}
	return r, nil
}

// Start runs it at once and then at each interval, until Stop or ctx's end. It is called once.
func (r *Retention) Start(ctx context.Context) {
	ctx, r.cancel = context.WithCancel(ctx)
	r.work.Go(func() { r.forever(ctx) })
}

// Stop ends the background work and waits for it, at most until ctx ends; what was committed stays.
func (r *Retention) Stop(ctx context.Context) error {
	if r.cancel != nil {
		r.cancel()
	}
	ended := make(chan struct{})
	go func() { r.work.Wait(); close(ended) }()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("retention: still at work: %w", ctx.Err())
	}
}

func (r *Retention) forever(ctx context.Context) {
	var trouble string // the class of the failure that was logged last; empty: none since it last worked
	for {
		sleep := r.o.Interval + rand.N(r.o.Interval/10+1)
		_, err := r.Run(ctx, false)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, storage.ErrLocked):
			// Another instance is at it, which says nothing of this one.
		case err != nil:
			r.failures.Inc()
			if class := failureClass(err); class != trouble {
				trouble = class
				r.o.Log.Error("what is past its retention could not be removed, trying again", "error", err)
			}
			sleep = min(sleep, retentionRetry)
		case trouble != "":
			trouble = ""
			r.o.Log.Info("removes again what is past its retention")
		}
		timer := time.NewTimer(sleep)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// stepError is the failure of a step of a run.
type stepError struct {
	step string
	err  error
}

func (e *stepError) Error() string { return e.step + ": " + e.err.Error() }
func (e *stepError) Unwrap() error { return e.err }

// failureClass is what tells failures apart that an operator treats differently: the step that failed, and whether the
// database was away or refused it. Texts do not: addresses and ports are in them.
func failureClass(err error) string {
	class := "other"
	switch {
	case storage.IsUnavailable(err):
		class = "unavailable"
	case storage.IsRejected(err):
		class = "rejected"
	}
	if step, ok := errors.AsType[*stepError](err); ok {
		class = step.step + ", " + class
	}
	return class
}

// Run removes what is past its retention, in bounded transactions under a lock, and makes the history's partitions of the
// coming days. A dry run removes nothing and tells what would go. storage.ErrLocked: another instance is at it. What
// was removed before an error is in the result.
func (r *Retention) Run(ctx context.Context, dryRun bool) (Removed, error) {
	if dryRun {
		return r.remove(ctx, true)
	}
	var out Removed
	err := r.o.Store.Hold(ctx, lockRetention, r.o.Owner, r.o.LockTTL, func(ctx context.Context) (err error) {
		if err := r.o.Store.EnsureHistoryPartitions(ctx, partitionsMade); err != nil {
			return &stepError{"make the history's partitions", err}
		}
		out, err = r.remove(ctx, false)
		return err
	})
	r.removed.WithLabelValues("dlq").Add(float64(out.DeadLetters))
	r.removed.WithLabelValues("history").Add(float64(out.History))
	if out.DeadLetters > 0 || out.History > 0 {
		r.o.Log.Info("removed what was past its retention", "deadLetters", out.DeadLetters, "historyEntries", out.History,
			"partitions", out.Partitions, "days", r.o.Days)
	}
	return out, err
}

func (r *Retention) remove(ctx context.Context, dryRun bool) (out Removed, err error) {
	for more := true; more; {
		var n int64
		if n, more, err = r.o.Store.PruneDeadLetters(ctx, time.Duration(r.o.Days)*day, retentionBatch, dryRun); err != nil {
			return out, &stepError{"remove dead letters", err}
		}
		out.DeadLetters += n
		if dryRun {
			break // it counts all of them at once
		}
	}
	now, err := r.o.Store.Now(ctx)
	if err != nil {
		return out, err
	}
	out.Partitions, out.History, err = r.o.Store.DropHistoryPartitions(ctx, now.Add(-time.Duration(r.o.Days)*day), dryRun)
	if err != nil {
		return out, &stepError{"drop the history's partitions", err}
	}
	return out, nil
}
