package workflowdb_test

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/cschleiden/go-workflows/backend"
	"github.com/cschleiden/go-workflows/backend/history"
	"github.com/cschleiden/go-workflows/core"
)

// patient gives the end-to-end suite the time that a busy machine needs. Its clients give up after 5 to 20 s, and after
// ten looks 100 ms apart for what is to be removed; so a look is answered once there is news. AutoExpiration removes what
// ended 1 ms ago and fails when that is gone before its client has read the result, a race that no backend wins; so
// nothing is removed before.
type patient struct {
	suiteBackend
	read *atomic.Bool // a client read a result: each test has one instance that it looks at
}

const (
	standstill = 3 * time.Second // an instance in which so long nothing moves waits for something else than a slow machine
	removal    = 2 * time.Second // of waiting for the removal of what ended, each look
)

// GetWorkflowInstanceState answers when the instance has ended or stands still, and later when it is gone.
func (b patient) GetWorkflowInstanceState(ctx context.Context, instance *core.WorkflowInstance) (core.WorkflowInstanceState, error) {
	var at, before [3]int64
	since := time.Now()
	for {
		ended := b.Finished()
		state, err := b.suiteBackend.GetWorkflowInstanceState(ctx, instance)
		if err != nil {
			return state, err
		}
		patience := removal
		if state == core.WorkflowInstanceStateActive {
			patience = standstill
			if at, err = b.progress(ctx, instance); err != nil {
				return state, err
			}
		} else if !b.read.Load() {
			return state, nil
		}
		if at != before {
			before, since = at, time.Now()
		}
		if time.Since(since) > patience {
			return state, nil
		}
		select {
		case <-ended:
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return state, ctx.Err()
		}
	}
}

// progress is what changes while an instance gets on.
func (b patient) progress(ctx context.Context, instance *core.WorkflowInstance) (at [3]int64, err error) {
	err = b.db.QueryRowContext(ctx, `SELECT COALESCE(MAX(lastSequence), 0), (SELECT COUNT(*) FROM workflow_activity),
		(SELECT COALESCE(MAX(id), 0) FROM workflow_event) FROM workflow_instance WHERE instanceId = ? AND executionId = ?`,
		instance.InstanceID, instance.ExecutionID).Scan(&at[0], &at[1], &at[2])
	return at, err
}

// GetWorkflowInstanceHistory notes that a client has asked, who reads a result; the worker names a sequence.
func (b patient) GetWorkflowInstanceHistory(ctx context.Context, instance *core.WorkflowInstance, last *int64) ([]*history.Event, error) {
	events, err := b.suiteBackend.GetWorkflowInstanceHistory(ctx, instance, last)
	if err == nil && last == nil {
		b.read.Store(true)
	}
	return events, err
}

func (b patient) RemoveWorkflowInstances(ctx context.Context, options ...backend.RemovalOption) error {
	if !b.read.Load() {
		return nil
	}
	return b.suiteBackend.RemoveWorkflowInstances(ctx, options...)
}
