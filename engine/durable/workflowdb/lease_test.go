package workflowdb_test

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cschleiden/go-workflows/backend"
	"github.com/cschleiden/go-workflows/backend/history"
	"github.com/cschleiden/go-workflows/core"
	"github.com/cschleiden/go-workflows/workflow"
	"github.com/go-sql-driver/mysql"

	"github.com/redrive-mq/redrive/engine/durable/workflowdb"
	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/storage/storagetest"
)

var queues = []workflow.Queue{"here"}

type tester struct {
	*testing.T
	*workflowdb.Backend
}

func newBackend(t *testing.T, db *sql.DB, o workflowdb.Options, lease time.Duration) tester {
	if o.Log == nil {
		o.Log = quiet
	}
	b := workflowdb.New(db, o, backend.WithWorkflowLockTimeout(lease), backend.WithActivityLockTimeout(lease))
	t.Cleanup(func() { _ = b.Close() })
	return tester{t, b}
}

func (b tester) ok(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b tester) create(id string) *core.WorkflowInstance {
	b.Helper()
	instance := core.NewWorkflowInstance(id, "execution of "+id)
	b.ok(b.CreateWorkflowInstance(b.T.Context(), instance, history.NewPendingEvent(time.Now(), history.EventType_WorkflowExecutionStarted,
		&history.ExecutionStartedAttributes{Queue: queues[0]})))
	return instance
}

func (b tester) signal(id string) error {
	return b.SignalWorkflow(b.T.Context(), id, history.NewPendingEvent(time.Now(), history.EventType_SignalReceived,
		&history.SignalReceivedAttributes{Name: "go on"}))
}

// task waits for a slice to execute, at most 20 s.
func (b tester) task() *backend.WorkflowTask {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.T.Context(), 20*time.Second)
	defer cancel()
	task, err := b.GetWorkflowTask(ctx, queues)
	b.ok(err)
	if task == nil {
		b.Fatal("there is no slice to execute")
	}
	return task
}

func (b tester) activity() *backend.ActivityTask {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.T.Context(), 20*time.Second)
	defer cancel()
	task, err := b.GetActivityTask(ctx, queues)
	b.ok(err)
	if task == nil {
		b.Fatal("there is no activity to execute")
	}
	return task
}

// complete stores a slice that took in its events and scheduled an activity.
func (b tester) complete(task *backend.WorkflowTask, state core.WorkflowInstanceState, timers ...*history.Event) error {
	scheduled := history.NewPendingEvent(time.Now(), history.EventType_ActivityScheduled,
		&history.ActivityScheduledAttributes{Name: "act"}, history.ScheduleEventID(1))
	events := append(task.NewEvents, scheduled)
	for i, event := range events {
		event.SequenceID = task.LastSequenceID + int64(i) + 1
	}
	return b.CompleteWorkflowTask(b.T.Context(), task, state, events, []*history.Event{scheduled}, timers, nil)
}

func completed() *history.Event {
	return history.NewPendingEvent(time.Now(), history.EventType_ActivityCompleted, &history.ActivityCompletedAttributes{}, history.ScheduleEventID(1))
}

func count(t *testing.T, db *sql.DB, table string) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// Who lost a lease changes nothing.
func TestLostLease(t *testing.T) {
	t.Parallel()
	db := pool(t, portable(t))
	options := workflowdb.Options{Idle: 20 * time.Millisecond}
	late, next := newBackend(t, db, options, 100*time.Millisecond), newBackend(t, db, options, time.Hour)
	late.create("one")

	lost := late.task()
	taken := next.task() // once the lease has ended
	if lost.ID == taken.ID || len(taken.NewEvents) != 1 {
		t.Fatalf("task %s after %s, with %d events", taken.ID, lost.ID, len(taken.NewEvents))
	}
	for name, err := range map[string]error{
		"extended":  late.ExtendWorkflowTask(t.Context(), lost),
		"completed": late.complete(lost, core.WorkflowInstanceStateFinished),
	} {
		if !errors.Is(err, workflowdb.ErrLeaseLost) {
			t.Errorf("a lost slice is %s: %v", name, err)
		}
	}
	if n := count(t, db, "workflow_history"); n != 0 {
		t.Errorf("a lost slice left %d events in the history", n)
	}
	next.ok(next.ExtendWorkflowTask(t.Context(), taken))
	next.ok(next.complete(taken, core.WorkflowInstanceStateActive))

	lostActivity := late.activity()
	takenActivity := next.activity()
	for name, err := range map[string]error{
		"extended":  late.ExtendActivityTask(t.Context(), lostActivity),
		"completed": late.CompleteActivityTask(t.Context(), lostActivity, completed()),
	} {
		if !errors.Is(err, workflowdb.ErrLeaseLost) {
			t.Errorf("a lost activity is %s: %v", name, err)
		}
	}
	if n := count(t, db, "workflow_event"); n != 0 {
		t.Errorf("a lost activity has %d results", n)
	}
	next.ok(next.ExtendActivityTask(t.Context(), takenActivity))
	next.ok(next.CompleteActivityTask(t.Context(), takenActivity, completed()))
	if task := next.task(); len(task.NewEvents) != 1 || task.NewEvents[0].Type != history.EventType_ActivityCompleted || task.LastSequenceID != 2 {
		t.Errorf("the next slice takes in %v after %d", task.NewEvents, task.LastSequenceID)
	}
}

// What comes while a slice is executed is for the next one, and of an instance that has ended nothing stays.
func TestEventsWhileLeased(t *testing.T) {
	t.Parallel()
	db := pool(t, portable(t))
	b := newBackend(t, db, workflowdb.Options{Idle: time.Hour}, time.Hour)
	b.create("one")
	task := b.task()
	for range 3 {
		b.ok(b.signal("one"))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if again, err := b.GetWorkflowTask(ctx, queues); again != nil || err != nil {
		t.Errorf("a slice that is being executed is handed out again (%v)", err)
	}
	timer := history.NewPendingEvent(time.Now(), history.EventType_TimerFired, &history.TimerFiredAttributes{},
		history.ScheduleEventID(2), history.VisibleAt(time.Now().Add(time.Hour)))
	b.ok(b.complete(task, core.WorkflowInstanceStateActive, timer))
	if task = b.task(); len(task.NewEvents) != 3 {
		t.Fatalf("%d events, want the 3 signals", len(task.NewEvents))
	}
	b.ok(b.signal("one"))
	b.ok(b.complete(task, core.WorkflowInstanceStateFinished))
	if n := count(t, db, "workflow_event"); n != 0 {
		t.Errorf("%d events of an instance that has ended", n)
	}
	if err := b.signal("one"); !errors.Is(err, backend.ErrInstanceNotFound) {
		t.Errorf("a signal to an instance that has ended: %v", err)
	}
	// Its activities are done all the same; their results are nobody's.
	b.ok(b.CompleteActivityTask(t.Context(), b.activity(), completed()))
	if n := count(t, db, "workflow_event"); n != 0 {
		t.Errorf("%d results for an instance that has ended", n)
	}
}

// Timers wait by the database's clock for as long as they would by the process's.
func TestTimerOfAnotherClock(t *testing.T) {
	t.Parallel()
	aDayAhead := func(c driver.Connector) driver.Connector {
		return storagetest.Intercept(c, func(query string) (string, error) {
			return strings.ReplaceAll(query, "NOW(6)", "(NOW(6) + INTERVAL 1 DAY)"), nil
		})
	}
	b := newBackend(t, pool(t, aDayAhead), workflowdb.Options{Idle: 20 * time.Millisecond}, time.Hour)
	b.create("one")
	since := time.Now()
	timer := history.NewPendingEvent(since, history.EventType_TimerFired, &history.TimerFiredAttributes{},
		history.ScheduleEventID(2), history.VisibleAt(since.Add(300*time.Millisecond)))
	b.ok(b.complete(b.task(), core.WorkflowInstanceStateActive, timer))
	task := b.task()
	if took := time.Since(since); took < 300*time.Millisecond || took > 10*time.Second || task.NewEvents[0].Type != history.EventType_TimerFired {
		t.Errorf("%v after %s", task.NewEvents[0].Type, took)
	}
}

// No call reads more than a few rows of tables with thousands.
func TestReadsFewRows(t *testing.T) {
	t.Parallel()
	store, err := storage.Open(storage.Options{DSN: storagetest.DSN(t), MaxOpenConns: 1}) // its counters tell
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	db := store.DB()
	b := newBackend(t, db, workflowdb.Options{Idle: 20 * time.Millisecond}, time.Hour)
	fill(t, db)
	reads := func() (sum int64) {
		rows, err := db.QueryContext(t.Context(), `SHOW SESSION STATUS LIKE 'Handler_read%'`)
		b.ok(err)
		defer rows.Close()
		for rows.Next() {
			var name string
			var n int64
			b.ok(rows.Scan(&name, &n))
			sum += n
		}
		b.ok(rows.Err())
		return sum
	}
	var task *backend.WorkflowTask
	var activity *backend.ActivityTask
	var one *core.WorkflowInstance
	for _, call := range []struct {
		name string
		do   func() error
	}{
		{"idle", func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			task, err := b.GetWorkflowTask(ctx, queues)
			if task != nil {
				t.Error("there is work")
			}
			return err
		}},
		{"create", func() error { one = b.create("one"); return nil }},
		{"signal", func() error { return b.signal("one") }},
		{"claim", func() error { task = b.task(); return nil }},
		{"extend", func() error { return b.ExtendWorkflowTask(t.Context(), task) }},
		{"complete", func() error { return b.complete(task, core.WorkflowInstanceStateActive) }},
		{"claim an activity", func() error { activity = b.activity(); return nil }},
		{"complete an activity", func() error { return b.CompleteActivityTask(t.Context(), activity, completed()) }},
		{"history", func() error { _, err := b.GetWorkflowInstanceHistory(t.Context(), one, nil); return err }},
		{"state", func() error { _, err := b.GetWorkflowInstanceState(t.Context(), one); return err }},
		{"active", func() error { _, err := b.Active(t.Context(), "one"); return err }},
		{"finish", func() error { return b.complete(b.task(), core.WorkflowInstanceStateFinished) }},
		{"remove", func() error { return b.RemoveWorkflowInstance(t.Context(), one) }},
		{"remove by age", func() error { _, err := b.RemoveEnded(t.Context(), 100*time.Hour, 100); return err }},
	} {
		reads()
		before := reads()
		own := reads() - before
		before = reads()
		b.ok(call.do())
		if n := reads() - before - own; n > 50 {
			t.Errorf("%s: %d rows and index entries were read", call.name, n)
		}
	}
}

// fill makes 20,000 instances, most of which have ended, each with history and activities, and of the others events.
func fill(t *testing.T, db *sql.DB) {
	t.Helper()
	digits := "(SELECT 0 AS d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)"
	for _, statement := range []string{
		fmt.Sprintf(`INSERT INTO workflow_instance (instanceId, executionId, state, queue, dueAt, createdAt, completedAt)
			SELECT CONCAT('i', n), 'x', IF(n < 2000, 'active', 'finished'), IF(n %% 2 = 0, 'here', 'there'),
				IF(n < 2000, NOW(6) + INTERVAL IF(n %% 2 = 0, 1, -1) HOUR, NULL), NOW(6), IF(n < 2000, NULL, NOW(6))
			FROM (SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d AS n FROM %[1]s a, %[1]s b, %[1]s c, %[1]s e, %[1]s f) numbers
			WHERE n < 20000`, digits),
		`INSERT INTO workflow_history (instance, sequence, event) SELECT id, 1, '{}' FROM workflow_instance`,
		`INSERT INTO workflow_activity (instance, queue, dueAt, event) SELECT id, queue, NOW(6) + INTERVAL IF(queue = 'here', 1, -1) HOUR, '{}' FROM workflow_instance`,
		`INSERT INTO workflow_event (instance, visibleAt, timer, event) SELECT id, dueAt, 1, '{}' FROM workflow_instance WHERE dueAt IS NOT NULL`,
		"ANALYZE TABLE workflow_instance, workflow_history, workflow_activity, workflow_event",
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
}

// What was claimed and could not be read, because the database was away just then, is given back with the next look, and
// does not wait for the end of its lease.
func TestClaimThatNobodyGot(t *testing.T) {
	t.Parallel()
	var fail atomic.Bool
	var failed atomic.Int32
	dsn := storagetest.DSN(t)
	store, err := storage.Open(storage.Options{DSN: dsn, WrapConnector: func(c driver.Connector) driver.Connector {
		return storagetest.Intercept(c, func(query string) (string, error) {
			reads := strings.HasPrefix(query, "SELECT i.id, a.queue, a.event") || strings.HasPrefix(query, "SELECT event")
			if reads && fail.CompareAndSwap(true, false) {
				failed.Add(1)
				return "", mysql.ErrInvalidConn
			}
			return query, nil
		})
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	b := newBackend(t, store.DB(), workflowdb.Options{Idle: 20 * time.Millisecond}, time.Hour)
	b.create("one")
	b.ok(b.complete(b.task(), core.WorkflowInstanceStateActive))
	fail.Store(true)
	if task, err := b.GetActivityTask(t.Context(), queues); err == nil {
		t.Fatalf("it got %v", task)
	}
	b.activity()
	if failed.Load() != 1 {
		t.Errorf("%d reads failed", failed.Load())
	}
}

// An outage is told of when it begins and when it is over, not at each look.
func TestOutageIsLoggedOnce(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var looks atomic.Int32
	store, err := storage.Open(storage.Options{DSN: storagetest.DSN(t), WrapConnector: func(c driver.Connector) driver.Connector {
		return storagetest.Intercept(c, func(query string) (string, error) {
			if strings.Contains(query, "TIMESTAMPDIFF(MICROSECOND, NOW(6), dueAt)") {
				switch n := looks.Add(1); {
				case n <= 5:
					return "", mysql.ErrInvalidConn
				case n == 8:
					cancel()
				}
			}
			return query, nil
		})
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	var log bytes.Buffer
	b := newBackend(t, store.DB(), workflowdb.Options{Idle: 20 * time.Millisecond, Log: slog.New(slog.NewTextHandler(&log, nil))}, time.Hour)
	if task, err := b.GetWorkflowTask(ctx, queues); task != nil || err != nil {
		t.Fatalf("it got %v, %v", task, err)
	}
	b.ok(b.Close()) // nothing is logged any more
	for _, line := range []string{"cannot look for", "again able to look for"} {
		if n := strings.Count(log.String(), line); n != 1 {
			t.Errorf("%q: %d times\n%s", line, n, log.String())
		}
	}
}
