// Package dlqsummary keeps the number of dead jobs of every consumer: it folds new deaths into dlq_summary on every
// instance's behalf, shows the exact numbers to /dlq-status and Prometheus, and audits them now and then.
//
// It never decides whether a job is dead and changes no job but its mark "counted": the arithmetic that makes the
// numbers exact at every instant is storage's (see docs/architecture.md, Counting). What runs here only keeps reading
// them cheap.
package dlqsummary

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"github.com/redrive-mq/redrive/storage"
)

// The rows of the lock table that are taken here.
const (
	lockUpdater = "dlq-summary-updater"
	lockAudit   = "dlq-audit"
)

// maxOwner is the width of lock.owner.
const maxOwner = 64

// Options says how a Summary works. Only Store is required.
type Options struct {
	Store *storage.Store
	// Interval is the time between two counting cycles of the whole cluster; default 10 minutes.
	Interval time.Duration
	// Owner names this instance in the lock table, 1 to 64 bytes; default: a new id.
	Owner string
	// Registerer gets the metrics; nil: none are registered.
	Registerer prometheus.Registerer
	// Log gets a line for each cycle and what an operator should know; default slog.Default().
	Log *slog.Logger
	// BatchSize is how many rows a cycle reads at a time, and the most that one of its transactions changes;
	// 1 to 5000, default 1000.
	BatchSize int
	// FoldThreshold: a read of the counts that had to add up more uncounted rows than this wakes the counter before
	// its time, so that the next read is cheap; default 5000.
	FoldThreshold int64
	// AuditInterval is the time between two audits by this instance, some seconds for a million dead jobs, in
	// short statements; default 24 h, negative: no audits.
	AuditInterval time.Duration
	// LockTTL is how long a crashed instance's lock blocks the others; default 30 s, at least 100 ms. A living
	// holder renews it at a third of that.
	LockTTL time.Duration
	// ScrapeTimeout bounds the queries behind one scrape; default 5 s.
	ScrapeTimeout time.Duration
}

func (o *Options) complete() error {
	if o.Store == nil {
		return errors.New("dlqsummary: no store")
	}
	setDefault(&o.Interval, 10*time.Minute)
	setDefault(&o.Owner, storage.NewID().String())
	setDefault(&o.BatchSize, 1000)
	setDefault(&o.FoldThreshold, 5000)
	setDefault(&o.AuditInterval, 24*time.Hour)
	setDefault(&o.LockTTL, 30*time.Second)
	setDefault(&o.ScrapeTimeout, 5*time.Second)
	setDefault(&o.Log, slog.Default())
	switch {
	case o.Interval < 0:
		return fmt.Errorf("dlqsummary: the interval is %s, it must be positive", o.Interval)
	case len(o.Owner) > maxOwner:
		return fmt.Errorf("dlqsummary: the owner has %d bytes, it may have %d", len(o.Owner), maxOwner)
	case o.BatchSize < 1 || o.BatchSize > 5000:
		return fmt.Errorf("dlqsummary: the batch size is %d, it must be 1 to 5000", o.BatchSize)
	case o.FoldThreshold < 0:
		return fmt.Errorf("dlqsummary: the fold threshold is %d, it must be positive", o.FoldThreshold)
	case o.LockTTL < 100*time.Millisecond:
		return fmt.Errorf("dlqsummary: the lock's time to live is %s, it must be 100ms or more", o.LockTTL)
	case o.ScrapeTimeout < 0:
		return fmt.Errorf("dlqsummary: the scrape timeout is %s, it must be positive", o.ScrapeTimeout)
	}
	return nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Summary counts, shows and audits dead jobs. It is safe for use by several goroutines.
type Summary struct {
	o       Options
	store   *storage.Store
	log     *slog.Logger
	metrics *metrics
	flights singleflight.Group // concurrent scrapes share their queries
	drift   driftBook
	scrapes scrapeLog
	fold    chan struct{} // a read found too many uncounted rows

	mu      sync.Mutex // guards what follows
	cancel  context.CancelFunc
	stopped bool
	work    sync.WaitGroup
	done    chan struct{} // closed when Start's goroutines have ended; nil before Stop
}

// New validates the options and registers the metrics. It does not touch the database.
func New(o Options) (*Summary, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	s := &Summary{
		o: o, store: o.Store, log: o.Log.With("component", "dlqsummary"),
		metrics: newMetrics(), fold: make(chan struct{}, 1),
	}
	if o.Registerer != nil {
		for _, c := range append(s.metrics.all(), collector{s}) {
			if err := o.Registerer.Register(c); err != nil {
				return nil, fmt.Errorf("dlqsummary: %w", err)
			}
		}
	}
	return s, nil
}

// Start begins to count and to audit in the background, until Stop or until ctx ends. It does nothing when it was
// called before, or Stop was.
func (s *Summary) Start(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancel != nil || s.stopped {
		return
	}
	ctx, s.cancel = context.WithCancel(ctx)
	s.work.Go(func() { s.countForever(ctx) })
	if s.o.AuditInterval > 0 {
		s.work.Go(func() { s.auditForever(ctx) })
	}
}

// Stop ends the background work: a batch in progress is rolled back, a lock that is held is released. It returns when
// all of that is done, or with ctx's error when ctx ends first. It may be called again, and before Start.
func (s *Summary) Stop(ctx context.Context) error {
	s.mu.Lock()
	s.stopped = true
	if s.cancel != nil {
		s.cancel()
	}
	if s.done == nil {
		s.done = make(chan struct{})
		go func() { // ends with the goroutines of Start, which the cancel above ends
			s.work.Wait()
			close(s.done)
		}()
	}
	s.mu.Unlock()
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("dlqsummary: still at work: %w", ctx.Err())
	}
}

// Counts is the number of dead jobs of every consumer at one instant.
type Counts struct {
	storage.DeadCounts
	// Exact is true unless an audit found that somebody changed a count behind our back, and it was not repaired yet.
	Exact bool
}

// Counts reads the numbers of this instant from the database, in one statement whose cost grows with the rows that no
// cycle has counted yet. When they are many it wakes the counter, and does not wait for it.
func (s *Summary) Counts(ctx context.Context) (Counts, error) {
	counts, err := s.store.DeadCounts(ctx)
	if err != nil {
		return Counts{}, err
	}
	if counts.Uncounted > s.o.FoldThreshold {
		select {
		case s.fold <- struct{}{}:
		default: // it is awake already
		}
	}
	return Counts{DeadCounts: counts, Exact: s.drift.exact()}, nil
}
