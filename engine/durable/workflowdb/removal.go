package workflowdb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/cschleiden/go-workflows/backend"
	"github.com/cschleiden/go-workflows/workflow"

	"github.com/redrive-mq/redrive/storage"
)

// RemoveWorkflowInstance implements backend.Backend.
func (b *Backend) RemoveWorkflowInstance(ctx context.Context, instance *workflow.Instance) error {
	id, err := row(ctx, b.db, instance)
	if err != nil {
		return err
	}
	return storage.InTx(ctx, b.db, func(tx *sql.Tx) error {
		var state string
		err := tx.QueryRowContext(ctx, "SELECT state FROM workflow_instance WHERE id = ? FOR UPDATE", id).Scan(&state)
		if errors.Is(err, sql.ErrNoRows) {
			return backend.ErrInstanceNotFound
		}
		if err != nil {
			return err
		}
		if state == stateActive {
			return backend.ErrInstanceNotFinished
		}
		return remove(ctx, tx, id)
	})
}

// remove deletes an instance and all that belongs to it.
func remove(ctx context.Context, tx *sql.Tx, id uint64) error {
	for _, statement := range []string{
		"DELETE FROM workflow_instance WHERE id = ?", // first, as everywhere
		"DELETE FROM workflow_event WHERE instance = ?",
		"DELETE FROM workflow_activity WHERE instance = ?",
		"DELETE FROM workflow_history WHERE instance = ?",
	} {
		if err := exec(ctx, tx, statement, id); err != nil {
			return err
		}
	}
	return nil
}

// RemoveWorkflowInstances implements backend.Backend: it removes instances that ended before a time of this process's
// clock, each in a transaction of its own, until none is left. Without a time it removes none.
func (b *Backend) RemoveWorkflowInstances(ctx context.Context, options ...backend.RemovalOption) error {
	o := backend.DefaultRemovalOptions
	for _, option := range options {
		option(&o)
	}
	if o.FinishedBefore.IsZero() {
		return nil
	}
	_, err := b.RemoveEnded(ctx, time.Since(o.FinishedBefore), o.BatchSize)
	return err
}

// RemoveEnded removes the instances that ended longer ago than age, batch of them read at a time, and returns how many
// it removed, also with an error.
func (b *Backend) RemoveEnded(ctx context.Context, age time.Duration, batch int) (removed int64, err error) {
	if batch < 1 {
		return 0, fmt.Errorf("batches of %d instances: must be at least 1", batch)
	}
	for {
		ids, err := collect(ctx, b.db, func(rows *sql.Rows) (id uint64, err error) {
			return id, rows.Scan(&id)
		}, "SELECT id FROM workflow_instance WHERE completedAt < NOW(6) - INTERVAL ? MICROSECOND ORDER BY completedAt LIMIT ?",
			micros(age), batch)
		if err != nil || len(ids) == 0 {
			return removed, err
		}
		for _, id := range ids {
			// Ended is for good, so there is nothing to look at again.
			if err := storage.InTx(ctx, b.db, func(tx *sql.Tx) error { return remove(ctx, tx, id) }); err != nil {
				return removed, err
			}
			removed++
		}
	}
}

// GetStats implements backend.Backend. It reads the instances that have not ended and the activities that have not.
// Pending are instances that have something to take in and are not being worked on, and activities whether or not
// somebody is at them.
func (b *Backend) GetStats(ctx context.Context) (*backend.Stats, error) {
	stats := &backend.Stats{
		PendingWorkflowTasks: map[workflow.Queue]int64{},
		PendingActivityTasks: map[workflow.Queue]int64{},
	}
	type count struct {
		queue      workflow.Queue
		all, ready int64
	}
	found, err := collect(ctx, b.db, func(rows *sql.Rows) (c count, err error) {
		return c, rows.Scan((*string)(&c.queue), &c.all, &c.ready)
	}, `SELECT queue, COUNT(*), COALESCE(SUM(dueAt <= NOW(6)), 0) FROM workflow_instance WHERE activeId IS NOT NULL GROUP BY queue`)
	if err != nil {
		return nil, err
	}
	for _, c := range found {
		stats.ActiveWorkflowInstances += c.all
		if c.ready > 0 {
			stats.PendingWorkflowTasks[c.queue] = c.ready
		}
	}
	found, err = collect(ctx, b.db, func(rows *sql.Rows) (c count, err error) {
		return c, rows.Scan((*string)(&c.queue), &c.all)
	}, "SELECT queue, COUNT(*) FROM workflow_activity GROUP BY queue")
	for _, c := range found {
		stats.PendingActivityTasks[c.queue] = c.all
	}
	return stats, err
}
