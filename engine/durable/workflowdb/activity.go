package workflowdb

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/cschleiden/go-workflows/backend"
	"github.com/cschleiden/go-workflows/backend/history"
	"github.com/cschleiden/go-workflows/workflow"

	"github.com/redrive-mq/redrive/storage"
)

// PrepareActivityQueues implements backend.Backend: from now on work in these queues is looked for.
func (b *Backend) PrepareActivityQueues(_ context.Context, queues []workflow.Queue) error {
	b.watch(activities, queues)
	return nil
}

// GetActivityTask implements backend.Backend. It waits for work until ctx ends and then returns nil without an error.
func (b *Backend) GetActivityTask(ctx context.Context, queues []workflow.Queue) (*backend.ActivityTask, error) {
	b.watch(activities, queues)
	return await(ctx, &b.activities, func() (*backend.ActivityTask, error) {
		return taken(ctx, b, activities, queues, b.options.ActivityLockTimeout, b.readActivity)
	})
}

func (b *Backend) readActivity(ctx context.Context, l lease) (*backend.ActivityTask, error) {
	var instance uint64
	var queue, instanceID, executionID string
	var data, parent []byte
	err := b.db.QueryRowContext(ctx, `SELECT i.id, a.queue, a.event, i.instanceId, i.executionId, i.parent
		FROM workflow_activity a JOIN workflow_instance i ON i.id = a.instance WHERE a.id = ? AND a.leaseToken = ?`, l.id, l.token[:]).
		Scan(&instance, &queue, &data, &instanceID, &executionID, &parent)
	if errors.Is(err, sql.ErrNoRows) { // its instance was removed meanwhile, and the activity with it
		b.forget(l)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	task := &backend.ActivityTask{ID: activityID(l, instance), Queue: workflow.Queue(queue), Event: new(history.Event)}
	if err := json.Unmarshal(data, task.Event); err != nil {
		return nil, err
	}
	task.ActivityID = task.Event.ID
	task.WorkflowInstance, _, err = readInstance(instanceID, executionID, parent, nil)
	return task, err
}

// activityID is a task's id: its lease, and workflow_instance.id, so that completing it need not look that up.
func activityID(l lease, instance uint64) string { return fmt.Sprintf("%s-%d", l, instance) }

func parseActivity(id string) (l lease, instance uint64, err error) {
	end := max(0, strings.LastIndexByte(id, '-'))
	if l, err = parseLease(activities, id[:end]); err != nil {
		return l, 0, err
	}
	instance, err = strconv.ParseUint(id[end+1:], 10, 64)
	return l, instance, err
}

// ExtendActivityTask implements backend.Backend.
func (b *Backend) ExtendActivityTask(ctx context.Context, task *backend.ActivityTask) error {
	l, _, err := parseActivity(task.ID)
	if err != nil {
		return err
	}
	return b.extend(ctx, l, b.options.ActivityLockTimeout)
}

// CompleteActivityTask implements backend.Backend. The result of an instance that has ended is dropped. After Drain a
// failure hands the activity back instead.
func (b *Backend) CompleteActivityTask(ctx context.Context, task *backend.ActivityTask, result *history.Event) error {
	l, instance, err := parseActivity(task.ID)
	if err != nil {
		return err
	}
	if b.draining.Load() && result.Type == history.EventType_ActivityFailed {
		return b.release(ctx, l)
	}
	err = storage.InTx(ctx, b.db, func(tx *sql.Tx) error {
		// The instance is locked first, as everywhere. An error below takes the event back again.
		if _, err := send(ctx, tx, instance, result); err != nil {
			return err
		}
		n, err := affected(ctx, tx, "DELETE FROM workflow_activity WHERE id = ? AND leaseToken = ?", l.id, l.token[:])
		if err == nil && n == 0 {
			return ErrLeaseLost
		}
		return err
	})
	if err == nil || errors.Is(err, ErrLeaseLost) {
		b.forget(l)
	}
	if err == nil {
		b.workflows.all()
	}
	return err
}
