// Package archive moves messages that are done with out of the database: when all jobs of a message are DELIVERED and
// it is older than the retention, it is written as a JSON line (see Record) to a file of a local folder, an S3 bucket
// or a GCS bucket, and deleted.
//
// A message is deleted only after the file with its line is closed and durable. A crash in between archives it twice;
// nothing loses it. A message with a dead, shelved or waiting job stays, however old it is. In a local folder a crash
// may leave an unfinished file, whose name ends in .tmp; nobody needs it.
package archive

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"gocloud.dev/blob"

	"github.com/redrive-mq/redrive/storage"
)

// lockPruner is the row of the lock table under which one instance at a time prunes.
const lockPruner = "pruner"

const (
	maxOwner      = 64          // the width of lock.owner
	maxNode       = 200         // of the 255 bytes that a file name may have
	maxRetention  = 100 * 365   // days
	pageSize      = 100         // messages in memory at once, of up to some MiB each
	deleteChunk   = 500         // messages of one deleting transaction, at most
	deleteJobs    = 2000        // jobs in it, unless a single message has more
	firstRetry    = time.Second // after an error; doubles up to lastRetry
	lastRetry     = time.Minute
	openTimeout   = 30 * time.Second
	defaultMax    = 100 << 20
	defaultTTL    = 30 * time.Second
	defaultPeriod = time.Hour
)

// Store is what archiving needs of the database; *storage.Store has it.
type Store interface {
	Catalog(ctx context.Context) (*storage.Catalog, error)
	Prunable(ctx context.Context, age time.Duration, after storage.ID, limit int) (storage.PrunePage, error)
	Prune(ctx context.Context, shard uint8, msgs []storage.PrunedMessage) error
	Hold(ctx context.Context, lockID, owner string, ttl time.Duration, fn func(ctx context.Context) error) error
}

// Options says what is archived and where to.
type Options struct {
	Store Store
	// RetentionDays: messages dispatched longer ago than this many days of 24 hours leave the database; at most
	// 36500; 0: none, and everything else here is ignored.
	RetentionDays int
	// Destination is a local folder (a path or file:///path), made if it is not there, or s3://bucket/folder or
	// gs://bucket/folder with the query parameters of gocloud.dev/blob (such as ?region=).
	Destination string
	// Bucket is used in place of Destination where it is set; Stop does not close it.
	Bucket *blob.Bucket
	// Node begins the name of every file; characters other than A-Z a-z 0-9 . _ - become '-'. Default: the host's name.
	Node string
	// Interval is the time between two runs of this instance; default 1 h.
	Interval time.Duration
	// MaxFileBytes: a file that has reached this size is closed and another one begun; default 100 MiB.
	MaxFileBytes int64
	// Owner names this instance in the lock table, 1 to 64 bytes; default: a new id.
	Owner string
	// LockTTL is how long a crashed instance's lock blocks the others; default 30 s, at least 100 ms. A living
	// holder renews it at a third of that.
	LockTTL time.Duration
	// Registerer gets the metrics; nil: none are registered.
	Registerer prometheus.Registerer
	// Log gets a line for each run that archived something; default slog.Default().
	Log *slog.Logger
}

func (o *Options) complete() error {
	setDefault(&o.Owner, storage.NewID().String())
	setDefault(&o.Interval, defaultPeriod)
	setDefault(&o.MaxFileBytes, defaultMax)
	setDefault(&o.LockTTL, defaultTTL)
	setDefault(&o.Log, slog.Default())
	if o.Node == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("archive: no node name is given and the host has none: %w", err)
		}
		o.Node = host
	}
	switch {
	case o.RetentionDays < 0 || o.RetentionDays > maxRetention:
		return fmt.Errorf("archive: the retention is %d days, it must be 0 (off) to %d", o.RetentionDays, maxRetention)
	case o.RetentionDays == 0:
		return nil
	case o.Store == nil:
		return errors.New("archive: no store")
	case o.Destination == "" && o.Bucket == nil:
		return errors.New("archive: no destination; it must be a folder, an s3:// or a gs:// URL")
	case o.Interval < 0:
		return fmt.Errorf("archive: the interval is %s, it must be positive", o.Interval)
	case o.MaxFileBytes < 0:
		return fmt.Errorf("archive: the greatest file size is %d, it must be positive", o.MaxFileBytes)
	case len(o.Node) > maxNode:
		return fmt.Errorf("archive: the node name has %d bytes, it may have %d", len(o.Node), maxNode)
	case len(o.Owner) > maxOwner:
		return fmt.Errorf("archive: the owner has %d bytes, it may have %d", len(o.Owner), maxOwner)
	case o.LockTTL < 100*time.Millisecond:
		return fmt.Errorf("archive: the lock's time to live is %s, it must be 100ms or more", o.LockTTL)
	}
	return nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Archive prunes in the background. It is safe for use by several goroutines.
type Archive struct {
	o     Options
	log   *slog.Logger
	dest  destination // its bucket is nil when the retention is 0
	names fileNames
	owed  []archived // in durable files, and not deleted yet; of prune, which runs once at a time

	pruned   prometheus.Counter
	bytes    prometheus.Counter
	failures prometheus.Counter

	mu      sync.Mutex // guards what follows
	cancel  context.CancelFunc
	stopped bool
	work    sync.WaitGroup
	done    chan struct{} // closed when everything has ended; nil before Stop
}

// New validates the options, opens the destination (which makes a local folder) and registers the metrics.
func New(o Options) (*Archive, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	a := &Archive{
		o: o, log: o.Log.With("component", "archive"), names: fileNames{node: safeName(o.Node), now: time.Now},
		pruned: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "redrive_pruned_messages_total", Help: "Messages that were archived and deleted by this instance.",
		}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "redrive_archive_bytes_total", Help: "Bytes of finished archive files that this instance wrote.",
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "redrive_prune_failures_total", Help: "Pruning runs of this instance that ended with an error.",
		}),
	}
	if o.RetentionDays > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
		defer cancel()
		dest, err := openDestination(ctx, o)
		if err != nil {
			return nil, err
		}
		a.dest = dest
	}
	if o.Registerer != nil {
		for _, c := range []prometheus.Collector{a.pruned, a.bytes, a.failures} {
			if err := o.Registerer.Register(c); err != nil {
				return nil, errors.Join(fmt.Errorf("archive: %w", err), a.dest.close())
			}
		}
	}
	return a, nil
}

// Start begins to prune in the background, until Stop or until ctx ends: at once, and then every interval. With a
// retention of 0 it does nothing, nor when it was called before, or Stop was.
func (a *Archive) Start(ctx context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cancel != nil || a.stopped || a.o.RetentionDays == 0 {
		return
	}
	ctx, a.cancel = context.WithCancel(ctx)
	a.work.Go(func() { a.pruneForever(ctx) })
}

// Stop ends the background work: a file that is not finished is given up, and its messages stay in the database. It
// returns when all of that is done, or with ctx's error when ctx ends first. It may be called again, and before Start.
func (a *Archive) Stop(ctx context.Context) error {
	a.mu.Lock()
	a.stopped = true
	if a.cancel != nil {
		a.cancel()
	}
	if a.done == nil {
		a.done = make(chan struct{})
		go func() { // ends with the goroutine of Start, which the cancel above ends
			defer close(a.done)
			a.work.Wait()
			if err := a.dest.close(); err != nil {
				a.log.Warn("the archive was not closed", "error", err)
			}
		}()
	}
	a.mu.Unlock()
	select {
	case <-a.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("archive: still at work: %w", ctx.Err())
	}
}

func (a *Archive) pruneForever(ctx context.Context) {
	var failing time.Duration // the last pause of a row of failures
	for {
		sleep := a.o.Interval + rand.N(a.o.Interval/10+1)
		err := a.o.Store.Hold(ctx, lockPruner, a.o.Owner, a.o.LockTTL, a.prune)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, storage.ErrLocked):
			// Another instance prunes.
		case err != nil:
			a.failures.Inc()
			if failing == 0 {
				a.log.ErrorContext(ctx, "messages could not be archived; nothing was deleted that is not archived, and it is tried again until it works", "error", err)
			}
			failing = min(max(2*failing, firstRetry), lastRetry)
			sleep = min(sleep, failing/2+rand.N(failing/2))
		case failing > 0:
			a.log.InfoContext(ctx, "messages are archived again")
			failing = 0
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
