package durable

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cschleiden/go-workflows/backend"
	"github.com/cschleiden/go-workflows/backend/history"
	"github.com/cschleiden/go-workflows/core"

	"github.com/redrive-mq/redrive/engine/durable/workflowdb"
)

// checkpoints is the backend that the worker sees: it carries what was done over a database that is away for a moment.
// The worker itself would drop a result at the first error, and break an activity off.
type checkpoints struct {
	*workflowdb.Backend
	cache *executorCache
	log   *slog.Logger
	lease time.Duration
	stop  context.Context // ends when nobody may wait any more
}

// tryAgain is the pause after a write that failed.
const tryAgain = 500 * time.Millisecond

// insist writes until that succeeds or the lease is lost, for as long as a lease. All writes are fenced by their lease,
// so one whose answer was lost may be tried again.
func (c checkpoints) insist(ctx context.Context, what string, write func() error) error {
	until := time.Now().Add(c.lease)
	for {
		err := write()
		if err == nil || errors.Is(err, workflowdb.ErrLeaseLost) || time.Now().After(until) {
			return err
		}
		c.log.Warn("could not store "+what+", trying again", "error", err)
		select {
		case <-time.After(tryAgain):
		case <-c.stop.Done():
			return err
		case <-ctx.Done():
			return err
		}
	}
}

// CompleteWorkflowTask implements backend.Backend. An execution whose slice could not be stored does not stay in memory:
// it is ahead of the history, or has gone another way than the one who took it over.
func (c checkpoints) CompleteWorkflowTask(
	ctx context.Context, task *backend.WorkflowTask, state core.WorkflowInstanceState,
	executed, activities, timers []*history.Event, outgoing []*history.WorkflowEvent,
) error {
	err := c.insist(ctx, "a slice of "+task.WorkflowInstance.InstanceID, func() error {
		return c.Backend.CompleteWorkflowTask(ctx, task, state, executed, activities, timers, outgoing)
	})
	if err == nil && state == core.WorkflowInstanceStateActive {
		c.cache.keep(task.WorkflowInstance)
	}
	return err
}

// CompleteActivityTask implements backend.Backend.
func (c checkpoints) CompleteActivityTask(ctx context.Context, task *backend.ActivityTask, result *history.Event) error {
	return c.insist(ctx, "a result for "+task.WorkflowInstance.InstanceID, func() error {
		return c.Backend.CompleteActivityTask(ctx, task, result)
	})
}

// ExtendWorkflowTask implements backend.Backend. A lease that was lost is no error here: the runtime would end the task's
// context, at whose end it must be done with the executor, and could not break the slice off. It cannot be stored.
func (c checkpoints) ExtendWorkflowTask(ctx context.Context, task *backend.WorkflowTask) error {
	err := c.extended(ctx, c.Backend.ExtendWorkflowTask(ctx, task))
	if errors.Is(err, workflowdb.ErrLeaseLost) {
		return nil
	}
	return err
}

// ExtendActivityTask implements backend.Backend.
func (c checkpoints) ExtendActivityTask(ctx context.Context, task *backend.ActivityTask) error {
	return c.extended(ctx, c.Backend.ExtendActivityTask(ctx, task))
}

// extended is an error only of a lease that was lost, for which the task is broken off. Otherwise the next time will
// tell: nobody else can have the lease while the database is away.
func (c checkpoints) extended(ctx context.Context, err error) error {
	if err == nil || errors.Is(err, workflowdb.ErrLeaseLost) || ctx.Err() != nil {
		return err
	}
	c.log.Warn("could not extend a lease, trying again", "error", err)
	return nil
}
