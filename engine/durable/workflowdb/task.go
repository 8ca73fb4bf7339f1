package workflowdb

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cschleiden/go-workflows/backend"
	"github.com/cschleiden/go-workflows/backend/history"
	"github.com/cschleiden/go-workflows/core"
	"github.com/cschleiden/go-workflows/workflow"

	"github.com/redrive-mq/redrive/storage"
)

// eventsPerTask bounds what one slice of an orchestration takes in; the rest is for the next one.
const eventsPerTask = 500

// taskData is what a workflow task carries for its completion.
type taskData struct {
	lease  lease
	events []uint64 // workflow_event.id of those handed out
}

// PrepareWorkflowQueues implements backend.Backend: from now on work in these queues is looked for.
func (b *Backend) PrepareWorkflowQueues(_ context.Context, queues []workflow.Queue) error {
	b.watch(instances, queues)
	return nil
}

// GetWorkflowTask implements backend.Backend. It waits for work until ctx ends and then returns nil without an error.
func (b *Backend) GetWorkflowTask(ctx context.Context, queues []workflow.Queue) (*backend.WorkflowTask, error) {
	b.watch(instances, queues)
	return await(ctx, &b.workflows, func() (*backend.WorkflowTask, error) {
		return taken(ctx, b, instances, queues, b.options.WorkflowLockTimeout, b.readTask)
	})
}

func (b *Backend) readTask(ctx context.Context, l lease) (*backend.WorkflowTask, error) {
	var instanceID, executionID, queue, state string
	var parent, meta []byte
	task := &backend.WorkflowTask{ID: l.String()}
	err := b.db.QueryRowContext(ctx, `SELECT instanceId, executionId, queue, state, parent, metadata, lastSequence
		FROM workflow_instance WHERE id = ? AND leaseToken = ?`, l.id, l.token[:]).
		Scan(&instanceID, &executionID, &queue, &state, &parent, &meta, &task.LastSequenceID)
	if errors.Is(err, sql.ErrNoRows) {
		b.forget(l)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	task.Queue = workflow.Queue(queue)
	if task.WorkflowInstanceState, err = stateOf(state); err != nil {
		return nil, err
	}
	if task.WorkflowInstance, task.Metadata, err = readInstance(instanceID, executionID, parent, meta); err != nil {
		return nil, err
	}
	data := &taskData{lease: l}
	task.CustomData = data
	task.NewEvents, data.events, err = b.visibleEvents(ctx, l.id)
	if err != nil {
		return nil, fmt.Errorf("events of the instance %q: %w", instanceID, err)
	}
	if len(task.NewEvents) == 0 {
		return nil, b.settle(ctx, l)
	}
	return task, nil
}

// visibleEvents returns what an instance has to take in now, in the order in which it came or fired.
func (b *Backend) visibleEvents(ctx context.Context, instance uint64) ([]*history.Event, []uint64, error) {
	var ids []uint64
	events, err := collect(ctx, b.db, func(rows *sql.Rows) (*history.Event, error) {
		var id uint64
		var data []byte
		if err := rows.Scan(&id, &data); err != nil {
			return nil, err
		}
		ids = append(ids, id)
		event := new(history.Event)
		return event, json.Unmarshal(data, event)
	}, `SELECT id, event FROM workflow_event WHERE instance = ? AND visibleAt <= NOW(6) ORDER BY visibleAt, id LIMIT ?`,
		instance, eventsPerTask)
	if err != nil {
		return nil, nil, err
	}
	// The start comes first whatever the database's clock did: no other event can be taken in before it.
	slices.SortStableFunc(events, func(a, b *history.Event) int {
		return startFirst(a) - startFirst(b)
	})
	return events, ids, nil
}

func startFirst(e *history.Event) int {
	if e.Type == history.EventType_WorkflowExecutionStarted {
		return 0
	}
	return 1
}

// settle ends the lease of an instance that has nothing to take in now, and sets when it will have.
func (b *Backend) settle(ctx context.Context, l lease) error {
	b.forget(l)
	return storage.InTx(ctx, b.db, func(tx *sql.Tx) error {
		n, err := affected(ctx, tx, "UPDATE workflow_instance SET leaseToken = NULL WHERE id = ? AND leaseToken = ?", l.id, l.token[:])
		if err != nil || n == 0 {
			return err
		}
		return schedule(ctx, tx, l.id)
	})
}

// schedule sets when an instance is due by the events that it has. Its row must be locked, and not be leased.
func schedule(ctx context.Context, tx *sql.Tx, id uint64) error {
	return exec(ctx, tx, `UPDATE workflow_instance SET dueAt = (SELECT MIN(visibleAt) FROM workflow_event WHERE instance = ?)
		WHERE id = ?`, id, id)
}

// ExtendWorkflowTask implements backend.Backend.
func (b *Backend) ExtendWorkflowTask(ctx context.Context, task *backend.WorkflowTask) error {
	data, err := dataOf(task)
	if err != nil {
		return err
	}
	return b.extend(ctx, data.lease, b.options.WorkflowLockTimeout)
}

func dataOf(task *backend.WorkflowTask) (*taskData, error) {
	if data, ok := task.CustomData.(*taskData); ok {
		return data, nil
	}
	return nil, fmt.Errorf("workflow task %q is not one of this backend", task.ID)
}

// slice is what one slice of an orchestration leads to.
type slice struct {
	task       *backend.WorkflowTask
	data       *taskData
	state      string
	executed   []*history.Event
	activities []*history.Event
	timers     []*history.Event
	outgoing   []*history.WorkflowEvent
}

// CompleteWorkflowTask implements backend.Backend. All of it is stored or, with ErrLeaseLost or another error, nothing.
func (b *Backend) CompleteWorkflowTask(
	ctx context.Context, task *backend.WorkflowTask, state core.WorkflowInstanceState,
	executedEvents, activityEvents, timerEvents []*history.Event, workflowEvents []*history.WorkflowEvent,
) error {
	data, err := dataOf(task)
	if err != nil {
		return err
	}
	name, err := stateName(state)
	if err != nil {
		return err
	}
	s := slice{task, data, name, executedEvents, activityEvents, timerEvents, workflowEvents}
	err = storage.InTx(ctx, b.db, func(tx *sql.Tx) error { return b.checkpoint(ctx, tx, s) })
	if err == nil || errors.Is(err, ErrLeaseLost) {
		b.forget(data.lease)
	}
	if err != nil {
		return err
	}
	if name != stateActive {
		b.finished.all()
	}
	if len(activityEvents) > 0 {
		b.activities.all()
	}
	for _, timer := range timerEvents {
		if timer.VisibleAt != nil {
			b.poller.within(time.Until(*timer.VisibleAt))
		}
	}
	b.workflows.all() // for others, and for this one, which may have got events meanwhile
	return nil
}

func (b *Backend) checkpoint(ctx context.Context, tx *sql.Tx, s slice) error {
	last := s.task.LastSequenceID
	for _, event := range s.executed {
		last = max(last, event.SequenceID)
	}
	id := s.data.lease.id
	n, err := affected(ctx, tx, `UPDATE workflow_instance SET state = ?, lastSequence = ?, leaseToken = NULL, dueAt = NULL,
		completedAt = CASE WHEN ? THEN NULL ELSE NOW(6) END WHERE id = ? AND leaseToken = ?`,
		s.state, last, s.state == stateActive, id, s.data.lease.token[:])
	if err != nil {
		return err
	}
	if n == 0 {
		return ErrLeaseLost
	}
	if err := s.takeEvents(ctx, tx); err != nil {
		return err
	}
	if err := s.storeHistory(ctx, tx); err != nil {
		return err
	}
	if err := s.storeActivities(ctx, tx); err != nil {
		return err
	}
	if s.state == stateActive {
		if err := addEvents(ctx, tx, id, s.timers...); err != nil {
			return err
		}
	}
	if err := b.sendOut(ctx, tx, s); err != nil {
		return err
	}
	switch {
	case s.state == stateActive:
		return schedule(ctx, tx, id)
	case s.state == stateContinued && b.options.RemoveContinuedAsNewInstances:
		return remove(ctx, tx, id)
	}
	return nil
}

// takeEvents deletes what was taken in and the timers that were cancelled; of an instance that ended, everything.
func (s slice) takeEvents(ctx context.Context, tx *sql.Tx) error {
	id := s.data.lease.id
	if s.state != stateActive {
		return exec(ctx, tx, "DELETE FROM workflow_event WHERE instance = ?", id)
	}
	if n := len(s.data.events); n > 0 {
		args := make([]any, n)
		for i, event := range s.data.events {
			args[i] = event
		}
		if err := exec(ctx, tx, "DELETE FROM workflow_event WHERE id IN ("+marks(n)+")", args...); err != nil {
			return err
		}
	}
	cancelled := []any{id}
	for _, event := range s.executed {
		if event.Type == history.EventType_TimerCanceled {
			cancelled = append(cancelled, event.ScheduleEventID)
		}
	}
	if len(cancelled) == 1 {
		return nil
	}
	return exec(ctx, tx, "DELETE FROM workflow_event WHERE instance = ? AND timer IN ("+marks(len(cancelled)-1)+")", cancelled...)
}

func (s slice) storeHistory(ctx context.Context, tx *sql.Tx) error {
	rows := make([][]any, len(s.executed))
	for i, event := range s.executed {
		data, err := json.Marshal(event)
		if err != nil {
			return err
		}
		rows[i] = []any{s.data.lease.id, event.SequenceID, data}
	}
	return insertAll(ctx, tx, "INSERT INTO workflow_history (instance, sequence, event) VALUES ", "(?, ?, ?)", rows)
}

// storeActivities queues the activities that were scheduled. They are done even if the instance has ended.
func (s slice) storeActivities(ctx context.Context, tx *sql.Tx) error {
	rows := make([][]any, len(s.activities))
	for i, event := range s.activities {
		data, err := json.Marshal(event)
		if err != nil {
			return err
		}
		queue := s.task.Queue
		if a, ok := event.Attributes.(*history.ActivityScheduledAttributes); ok && a.Queue != "" {
			queue = a.Queue
		}
		rows[i] = []any{s.data.lease.id, string(queue), data}
	}
	return insertAll(ctx, tx, "INSERT INTO workflow_activity (instance, queue, dueAt, event) VALUES ", "(?, ?, NOW(6), ?)", rows)
}

// sendOut starts other instances and gives them events. What is sent to an instance that has ended is dropped.
func (b *Backend) sendOut(ctx context.Context, tx *sql.Tx, s slice) error {
	for _, out := range s.outgoing {
		to, event := out.WorkflowInstance, out.HistoryEvent
		if event.Type == history.EventType_WorkflowExecutionStarted {
			err := create(ctx, tx, to, event, s.task.Queue)
			if !errors.Is(err, backend.ErrInstanceAlreadyExists) || to.Parent == nil || s.state == stateContinued {
				if err != nil {
					return err
				}
				continue
			}
			to, event = to.Parent, startFailed(to, err)
		}
		id, err := row(ctx, tx, to)
		if err != nil {
			return err
		}
		if _, err := send(ctx, tx, id, event); err != nil {
			return err
		}
	}
	return nil
}

// startFailed is what a parent gets for a child that could not be started.
func startFailed(child *core.WorkflowInstance, err error) *history.Event {
	attributes := &history.SubWorkflowFailedAttributes{}
	errors.As(workflow.NewError(err), &attributes.Error)
	return history.NewPendingEvent(time.Now(), history.EventType_SubWorkflowFailed, attributes, history.ScheduleEventID(child.ParentEventID))
}
