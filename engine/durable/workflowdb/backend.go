// Package workflowdb keeps durable orchestrations in MySQL 8.0+ or MariaDB 10.6+: it is the backend that the runtime of
// github.com/cschleiden/go-workflows works on. Only package durable imports it.
//
// Four tables: workflow_instance (one row an execution), workflow_event (what an execution has still to take in),
// workflow_history (what it took in and decided) and workflow_activity (activities that have not ended).
//
//   - An instance id is active at most once: a unique key over the instances that have not ended decides, so of any
//     number of creators at once one wins and the others get ErrInstanceAlreadyExists.
//   - Work is claimed by one guarded update by primary key, which also writes a new lease token. Extending and
//     completing are guarded by that token: who lost the lease changes nothing and gets ErrLeaseLost. No claim
//     waits for another one's row, so SKIP LOCKED is not needed.
//   - A slice of an orchestration is stored in one transaction: its history, the activities and timers that it
//     scheduled, what it sends to other instances, and the events that it took in, which go. Everything that adds an
//     event locks the instance's row first.
//   - Time is the database's: leases, timers and retention are NOW(6) and an interval. A timer is stored as the time
//     from now by this process's clock, so the two clocks may differ.
//   - Writes of this process wake its own pollers at once. What other processes write, and leases that end, are
//     found by one statement each Options.Idle, which covers all queues and both kinds of work, and earlier when
//     something is known to become due.
//
// The pool that it is given must have the sessions of package storage: READ COMMITTED, UTC, strict mode, rows
// affected meaning rows changed.
package workflowdb

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cschleiden/go-workflows/backend"
	"github.com/cschleiden/go-workflows/backend/metrics"
	"github.com/rs/xid"
	"go.opentelemetry.io/otel/trace"
)

// ErrLeaseLost says that a task is no longer this process's: its lease ended and somebody else took it up, or it was
// completed already. Nothing was changed.
var ErrLeaseLost = errors.New("the lease of this task was lost")

// Options of a Backend.
type Options struct {
	// Idle is the longest time between two looks for work of other processes; default 1 s.
	Idle time.Duration
	// Log gets failed looks; default slog.Default().
	Log *slog.Logger
}

// Backend implements backend.Backend. It is safe for use by several goroutines; Close ends it.
type Backend struct {
	db      *sql.DB
	log     *slog.Logger
	options *backend.Options

	workflows  wake // there may be work for orchestrations
	activities wake // there may be activities to do
	finished   wake // an instance ended, in this process
	poller     poller

	draining atomic.Bool

	heldMu    sync.Mutex
	held      map[lease]bool // leases of this process
	unsettled []lease        // that may be, and must be given back
}

var _ backend.Backend = (*Backend)(nil)

// New returns a backend on a database that has the schema. It does not touch the database yet, and does not close db.
func New(db *sql.DB, o Options, opts ...backend.BackendOption) *Backend {
	if o.Idle <= 0 {
		o.Idle = time.Second
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	b := &Backend{
		db: db, log: o.Log, options: backend.ApplyOptions(append([]backend.BackendOption{backend.WithLogger(o.Log)}, opts...)...),
		held: map[lease]bool{},
	}
	b.poller.init(o.Idle)
	return b
}

// Tracer implements backend.Backend.
func (b *Backend) Tracer() trace.Tracer { return b.options.TracerProvider.Tracer(backend.TracerName) }

// Metrics implements backend.Backend.
func (b *Backend) Metrics() metrics.Client { return b.options.Metrics }

// Options implements backend.Backend.
func (b *Backend) Options() *backend.Options { return b.options }

// FeatureSupported implements backend.Backend: ended instances can be removed by age.
func (b *Backend) FeatureSupported(f backend.Feature) bool {
	return f == backend.Feature_Expiration
}

// Finished returns a channel that is closed once an instance has ended in this process. Take it before looking.
func (b *Backend) Finished() <-chan struct{} { return b.finished.listen() }

// Drain is for a process that is about to stop and breaks its activities off: from now on an activity that failed is
// handed back, to be done again by whoever is there, instead of having failed.
func (b *Backend) Drain() { b.draining.Store(true) }

// Close ends the looking for work. It leaves the pool open, and the leases as they are.
func (b *Backend) Close() error {
	b.poller.stop()
	return nil
}

// HandBack gives back what this process still holds, so that others need not wait for the end of its leases. Call it
// when no worker uses the backend any more.
func (b *Backend) HandBack(ctx context.Context) error {
	b.heldMu.Lock()
	held := b.held
	for _, l := range b.unsettled {
		held[l] = true
	}
	b.held, b.unsettled = map[lease]bool{}, nil
	b.heldMu.Unlock()
	var errs []error
	for l := range held {
		errs = append(errs, b.release(ctx, l))
	}
	return errors.Join(errs...)
}

// lease is what the holder of a task shows. Its table is one of the constants below.
type lease struct {
	table table
	id    uint64
	token xid.ID
}

type table string

const (
	instances  table = "workflow_instance"
	activities table = "workflow_activity"
)

func (l lease) String() string { return fmt.Sprintf("%d-%s", l.id, hex.EncodeToString(l.token[:])) }

func parseLease(t table, s string) (lease, error) {
	l := lease{table: t}
	var token []byte
	if n, err := fmt.Sscanf(s, "%d-%x", &l.id, &token); err != nil || n != 2 || len(token) != len(l.token) {
		return lease{}, fmt.Errorf("task %q is not one of this backend", s)
	}
	copy(l.token[:], token)
	return l, nil
}

func (b *Backend) hold(l lease) {
	b.heldMu.Lock()
	defer b.heldMu.Unlock()
	b.held[l] = true
}

func (b *Backend) forget(l lease) {
	b.heldMu.Lock()
	defer b.heldMu.Unlock()
	delete(b.held, l)
}
