package workflowdb

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cschleiden/go-workflows/backend"
	"github.com/cschleiden/go-workflows/backend/history"
	"github.com/cschleiden/go-workflows/backend/metadata"
	"github.com/cschleiden/go-workflows/core"
	"github.com/cschleiden/go-workflows/workflow"

	"github.com/redrive-mq/redrive/storage"
)

// Values of workflow_instance.state.
const (
	stateActive    = "active"
	stateFinished  = "finished"
	stateContinued = "continued"
)

func stateName(s core.WorkflowInstanceState) (string, error) {
	switch s {
	case core.WorkflowInstanceStateActive:
		return stateActive, nil
	case core.WorkflowInstanceStateFinished:
		return stateFinished, nil
	case core.WorkflowInstanceStateContinuedAsNew:
		return stateContinued, nil
	}
	return "", fmt.Errorf("unknown state %d of an instance", s)
}

func stateOf(name string) (core.WorkflowInstanceState, error) {
	switch name {
	case stateActive:
		return core.WorkflowInstanceStateActive, nil
	case stateFinished:
		return core.WorkflowInstanceStateFinished, nil
	case stateContinued:
		return core.WorkflowInstanceStateContinuedAsNew, nil
	}
	return 0, fmt.Errorf("unknown state %q of an instance", name)
}

// CreateWorkflowInstance implements backend.Backend. While an instance of that id has not ended, the error is
// backend.ErrInstanceAlreadyExists.
func (b *Backend) CreateWorkflowInstance(ctx context.Context, instance *workflow.Instance, event *history.Event) error {
	err := storage.InTx(ctx, b.db, func(tx *sql.Tx) error {
		return create(ctx, tx, instance, event, workflow.QueueDefault)
	})
	if err == nil {
		b.workflows.all()
	}
	return err
}

// create inserts an instance and its first event. queue is where it goes if the event names none.
func create(ctx context.Context, tx *sql.Tx, instance *core.WorkflowInstance, event *history.Event, queue core.Queue) error {
	started, ok := event.Attributes.(*history.ExecutionStartedAttributes)
	if !ok {
		return fmt.Errorf("an instance begins with %s, not with %s", history.EventType_WorkflowExecutionStarted, event.Type)
	}
	if started.Queue != "" {
		queue = started.Queue
	}
	parent, err := jsonOrNull(instance.Parent)
	if err != nil {
		return err
	}
	if parent != nil {
		// The event of the parent that it answers is kept with it.
		if parent, err = json.Marshal(parentRef{instance.Parent, instance.ParentEventID}); err != nil {
			return err
		}
	}
	meta, err := jsonOrNull(started.Metadata)
	if err != nil {
		return err
	}
	res, err := tx.ExecContext(ctx, `INSERT INTO workflow_instance (instanceId, executionId, state, queue, parent, metadata, dueAt, createdAt)
		VALUES (?, ?, ?, ?, ?, ?, NOW(6), NOW(6))`, instance.InstanceID, instance.ExecutionID, stateActive, string(queue), parent, meta)
	if isDuplicate(err) {
		return backend.ErrInstanceAlreadyExists
	}
	if err != nil {
		return err
	}
	id, err := res.LastInsertId()
	if err != nil {
		return err
	}
	return addEvents(ctx, tx, uint64(id), event)
}

type parentRef struct {
	Instance *core.WorkflowInstance `json:"instance"`
	EventID  int64                  `json:"eventId"`
}

func jsonOrNull[T any](v *T) ([]byte, error) {
	if v == nil {
		return nil, nil
	}
	return json.Marshal(v)
}

// addEvents stores events that an instance has to take in. Its row must be locked.
func addEvents(ctx context.Context, tx *sql.Tx, id uint64, events ...*history.Event) error {
	rows := make([][]any, len(events))
	for i, event := range events {
		data, err := json.Marshal(event)
		if err != nil {
			return err
		}
		var wait time.Duration
		var timer *int64
		if event.VisibleAt != nil {
			wait, timer = max(0, time.Until(*event.VisibleAt)), &event.ScheduleEventID
		}
		rows[i] = []any{id, micros(wait), timer, data}
	}
	return insertAll(ctx, tx, "INSERT INTO workflow_event (instance, visibleAt, timer, event) VALUES ",
		"(?, NOW(6) + INTERVAL ? MICROSECOND, ?, ?)", rows)
}

// row finds an execution; 0 without an error: there is none.
func row(ctx context.Context, q querier, instance *core.WorkflowInstance) (id uint64, err error) {
	err = q.QueryRowContext(ctx, "SELECT id FROM workflow_instance WHERE instanceId = ? AND executionId = ?",
		instance.InstanceID, instance.ExecutionID).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return id, err
}

// send gives an active instance an event to take in. False: it has ended, or is not there.
func send(ctx context.Context, tx *sql.Tx, id uint64, event *history.Event) (bool, error) {
	var state string
	var rests bool // with nobody at it, and nothing to take in now
	err := tx.QueryRowContext(ctx, `SELECT state, leaseToken IS NULL AND (dueAt IS NULL OR dueAt > NOW(6))
		FROM workflow_instance WHERE id = ? FOR UPDATE`, id).Scan(&state, &rests)
	if errors.Is(err, sql.ErrNoRows) || err == nil && state != stateActive {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	err = addEvents(ctx, tx, id, event)
	if err != nil || !rests {
		// While it is leased dueAt is the lease's end; completing the task will look for what came meanwhile.
		return err == nil, err
	}
	return true, exec(ctx, tx, "UPDATE workflow_instance SET dueAt = NOW(6) WHERE id = ?", id)
}

// deliver is send in a transaction of its own.
func (b *Backend) deliver(ctx context.Context, id uint64, event *history.Event) error {
	var there bool
	err := storage.InTx(ctx, b.db, func(tx *sql.Tx) (err error) {
		there, err = send(ctx, tx, id, event)
		return err
	})
	if err != nil {
		return err
	}
	if !there {
		return backend.ErrInstanceNotFound
	}
	b.workflows.all()
	return nil
}

// CancelWorkflowInstance implements backend.Backend. An instance that has ended is not found.
func (b *Backend) CancelWorkflowInstance(ctx context.Context, instance *workflow.Instance, cancelEvent *history.Event) error {
	id, err := row(ctx, b.db, instance)
	if err != nil {
		return err
	}
	return b.deliver(ctx, id, cancelEvent)
}

// SignalWorkflow implements backend.Backend. An instance that has ended is not found.
func (b *Backend) SignalWorkflow(ctx context.Context, instanceID string, event *history.Event) error {
	var id uint64
	// Found without a lock: locks are taken by primary key alone, and send looks again.
	err := b.db.QueryRowContext(ctx, "SELECT id FROM workflow_instance WHERE activeId = ?", instanceID).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return backend.ErrInstanceNotFound
	}
	if err != nil {
		return err
	}
	return b.deliver(ctx, id, event)
}

// Running is an instance that has not ended.
type Running struct {
	Instance *core.WorkflowInstance
	Age      time.Duration  // since it was created, by the database's clock
	Started  *history.Event // with which it was created
}

// Active returns the execution of an instance id that has not ended; nil: there is none.
func (b *Backend) Active(ctx context.Context, instanceID string) (*Running, error) {
	var id uint64
	var executionID string
	var age int64
	err := b.db.QueryRowContext(ctx, `SELECT id, executionId, TIMESTAMPDIFF(MICROSECOND, createdAt, NOW(6))
		FROM workflow_instance WHERE activeId = ?`, instanceID).Scan(&id, &executionID, &age)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	// Its first event is still to be taken in, or was among the first that were.
	events, err := collect(ctx, b.db, scanEvent, `(SELECT event FROM workflow_history WHERE instance = ? ORDER BY sequence LIMIT 4)
		UNION ALL (SELECT event FROM workflow_event WHERE instance = ? ORDER BY id LIMIT 4)`, id, id)
	if err != nil {
		return nil, err
	}
	for _, event := range events {
		if event.Type == history.EventType_WorkflowExecutionStarted {
			return &Running{core.NewWorkflowInstance(instanceID, executionID), time.Duration(age) * time.Microsecond, event}, nil
		}
	}
	return nil, nil // it ended and was removed meanwhile
}

// Age is how long ago an execution was created, by the database's clock. backend.ErrInstanceNotFound.
func (b *Backend) Age(ctx context.Context, instance *core.WorkflowInstance) (time.Duration, error) {
	var age int64
	err := b.db.QueryRowContext(ctx, `SELECT TIMESTAMPDIFF(MICROSECOND, createdAt, NOW(6)) FROM workflow_instance WHERE instanceId = ? AND executionId = ?`,
		instance.InstanceID, instance.ExecutionID).Scan(&age)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, backend.ErrInstanceNotFound
	}
	return time.Duration(age) * time.Microsecond, err
}

// GetWorkflowInstanceState implements backend.Backend.
func (b *Backend) GetWorkflowInstanceState(ctx context.Context, instance *workflow.Instance) (core.WorkflowInstanceState, error) {
	var name string
	err := b.db.QueryRowContext(ctx, "SELECT state FROM workflow_instance WHERE instanceId = ? AND executionId = ?",
		instance.InstanceID, instance.ExecutionID).Scan(&name)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, backend.ErrInstanceNotFound
	}
	if err != nil {
		return 0, err
	}
	return stateOf(name)
}

// GetWorkflowInstanceHistory implements backend.Backend.
func (b *Backend) GetWorkflowInstanceHistory(ctx context.Context, instance *workflow.Instance, lastSequenceID *int64) ([]*history.Event, error) {
	id, err := row(ctx, b.db, instance)
	if err != nil {
		return nil, err
	}
	if id == 0 {
		return nil, backend.ErrInstanceNotFound
	}
	after := int64(-1)
	if lastSequenceID != nil {
		after = *lastSequenceID
	}
	return collect(ctx, b.db, scanEvent,
		"SELECT event FROM workflow_history WHERE instance = ? AND sequence > ? ORDER BY sequence", id, after)
}

func scanEvent(rows *sql.Rows) (*history.Event, error) {
	var data []byte
	if err := rows.Scan(&data); err != nil {
		return nil, err
	}
	event := new(history.Event)
	return event, json.Unmarshal(data, event)
}

// readInstance makes an instance and its metadata of the columns instanceId, executionId, parent and metadata.
func readInstance(instanceID, executionID string, parent, meta []byte) (*core.WorkflowInstance, *metadata.WorkflowMetadata, error) {
	instance := core.NewWorkflowInstance(instanceID, executionID)
	if parent != nil {
		var ref parentRef
		if err := json.Unmarshal(parent, &ref); err != nil {
			return nil, nil, err
		}
		instance.Parent, instance.ParentEventID = ref.Instance, ref.EventID
	}
	values := metadata.WorkflowMetadata{} // never nil: what carries contexts over reads it
	if meta != nil {
		if err := json.Unmarshal(meta, &values); err != nil {
			return nil, nil, err
		}
	}
	return instance, &values, nil
}
