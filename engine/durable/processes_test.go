package durable_test

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/engine/durable"
	"github.com/redrive-mq/redrive/storage/storagetest"
)

// Of any number of creators of an instance id at once, one wins.
func TestConcurrentStart(t *testing.T) {
	t.Parallel()
	const creators, ids = 8, 50
	db := open(t, storagetest.DSN(t), nil)
	var started, refused atomic.Int32
	var group sync.WaitGroup
	for range creators {
		r := newRunner(t, db, durable.Options{}) // of its own, as in a process of its own
		must(t, r.RegisterOrchestration("one", func(*durable.Context, json.RawMessage) (any, error) { return nil, nil }))
		group.Go(func() {
			for i := range ids {
				switch _, err := r.Start(t.Context(), "one", fmt.Sprint("singleton-", i), nil); {
				case err == nil:
					started.Add(1)
				case errors.Is(err, durable.ErrAlreadyRunning):
					refused.Add(1)
				default:
					t.Errorf("%d: %v", i, err)
				}
			}
		})
	}
	group.Wait()
	var rows, events int
	must(t, db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM workflow_instance").Scan(&rows),
		db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM workflow_event").Scan(&events))
	if started.Load() != ids || refused.Load() != (creators-1)*ids || rows != ids || events != ids {
		t.Errorf("%d started, %d refused, %d instances, %d events; want %d, %d, %d, %d",
			started.Load(), refused.Load(), rows, events, ids, (creators-1)*ids, ids, ids)
	}
}

// An idle process asks about once a second, and finds what another one starts.
func TestIdle(t *testing.T) {
	t.Parallel()
	dsn := storagetest.DSN(t)
	var statements atomic.Int32
	db := open(t, dsn, func(c driver.Connector) driver.Connector {
		return storagetest.Intercept(c, func(query string) (string, error) {
			statements.Add(1)
			return query, nil
		})
	})
	r, other := newRunner(t, db, durable.Options{}), newRunner(t, open(t, dsn, nil), durable.Options{})
	for _, name := range []string{"one", "two", "three"} {
		nothing := func(*durable.Context, json.RawMessage) (any, error) { return name, nil }
		must(t, r.RegisterOrchestration(name, nothing), other.RegisterOrchestration(name, nothing))
	}
	run(t, r)
	wantResult(t, r, start(t, r, "one", "1", nil), `"one"`)

	since := time.Now()
	statements.Store(0)
	<-time.After(6 * time.Second)
	n, idle := statements.Load(), time.Since(since) // which is longer on a busy machine, where looks are late too
	if n < 1 || float64(n) > idle.Seconds()+2 {
		t.Errorf("%d statements in %s of idleness", n, idle)
	}

	since = time.Now()
	wantResult(t, other, start(t, other, "two", "2", nil), `"two"`)
	if took := time.Since(since); took > 10*time.Second {
		t.Errorf("work of another process was done after %s", took)
	}
}

// What a stopping process breaks off goes on elsewhere at once, and has not failed.
func TestStopHandsBack(t *testing.T) {
	t.Parallel()
	db := open(t, storagetest.DSN(t), nil)
	begun := make(chan int, 2)
	var executions atomic.Int32
	prepare := func(o durable.Options) *durable.Runner {
		o.Lease = time.Hour // nobody waits for its end
		r := newRunner(t, db, o)
		must(t,
			r.RegisterActivity("long", func(ctx context.Context, call durable.Call) (any, error) {
				begun <- call.Attempt
				if executions.Add(1) > 1 {
					return "done", nil
				}
				<-ctx.Done()
				return nil, ctx.Err()
			}),
			r.RegisterOrchestration("long", func(c *durable.Context, _ json.RawMessage) (any, error) {
				var result string
				err := c.Call("long", nil, &result, durable.Retry{})
				return result, err
			}))
		return r
	}
	first := prepare(durable.Options{StopTimeout: 2 * time.Second})
	stop := run(t, first)
	e := start(t, first, "long", "1", nil)
	<-begun
	stop()
	second := prepare(durable.Options{})
	run(t, second)
	wantResult(t, second, e, `"done"`)
	select {
	case attempt := <-begun:
		if attempt != 0 {
			t.Errorf("being broken off counted as %d attempts", attempt)
		}
	default:
		t.Error("it was not executed again")
	}
}

// Processes that share the work execute each activity once as long as none dies.
func TestManyProcesses(t *testing.T) {
	t.Parallel()
	const processes, orchestrations, calls = 4, 60, 3
	dsn := storagetest.DSN(t)
	var executed atomic.Int32
	var runners []*durable.Runner
	for range processes {
		r := newRunner(t, open(t, dsn, nil), durable.Options{Idle: 50 * time.Millisecond})
		must(t,
			r.RegisterActivity("count", func(context.Context, durable.Call) (any, error) { return executed.Add(1), nil }),
			r.RegisterOrchestration("count", func(c *durable.Context, _ json.RawMessage) (any, error) {
				for range calls {
					if err := c.Call("count", nil, nil, durable.Retry{}); err != nil {
						return nil, err
					}
				}
				return calls, nil
			}))
		run(t, r)
		runners = append(runners, r)
	}
	var all []durable.Execution
	for i := range orchestrations {
		all = append(all, start(t, runners[i%processes], "count", fmt.Sprint("count-", i), nil))
	}
	for i, e := range all {
		wantResult(t, runners[(i+1)%processes], e, fmt.Sprint(calls))
	}
	if n := executed.Load(); n != orchestrations*calls {
		t.Errorf("%d executions of %d calls", n, orchestrations*calls)
	}
}

// What was done while the database was away is stored once it is back, and was done once.
func TestDatabaseAway(t *testing.T) {
	t.Parallel()
	var away atomic.Bool
	extends, stores := make(chan bool, 1), make(chan bool, 1) // in vain
	db := open(t, storagetest.DSN(t), func(c driver.Connector) driver.Connector {
		return storagetest.Intercept(c, func(query string) (string, error) {
			if !away.Load() {
				return query, nil
			}
			tried := stores
			if strings.HasPrefix(query, "UPDATE workflow_activity SET dueAt") {
				tried = extends
			} else if !strings.HasPrefix(query, "SELECT id FROM workflow_instance") {
				tried = nil // it looks for work
			}
			select {
			case tried <- true:
			default:
			}
			return "", driver.ErrBadConn
		})
	})
	r := newRunner(t, db, durable.Options{Lease: 12 * time.Second}) // an extension every 4 s
	begun, results := make(chan bool, 10), make(chan bool, 10)
	must(t,
		r.RegisterActivity("work", func(ctx context.Context, _ durable.Call) (any, error) {
			begun <- true
			select {
			case <-results:
				return "done", nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}),
		r.RegisterOrchestration("work", func(c *durable.Context, _ json.RawMessage) (any, error) {
			var result string
			err := c.Call("work", nil, &result, durable.Retry{})
			return result, err
		}))
	run(t, r)
	e := start(t, r, "work", "1", nil)
	<-begun
	away.Store(true)
	<-extends
	results <- true
	<-stores
	away.Store(false)
	wantResult(t, r, e, `"done"`)
	if n := len(begun); n != 0 {
		t.Errorf("it was executed %d times more", n)
	}
}

// A slice whose lease was lost is executed anew, from the history: what is in memory may have gone another way.
func TestLostSlice(t *testing.T) {
	t.Parallel()
	db := open(t, storagetest.DSN(t), nil)
	failed := make(errorLog, 10)
	r, err := durable.New(db, durable.Options{Lease: time.Hour, Idle: 20 * time.Millisecond, Log: slog.New(failed)})
	must(t, err)
	var slices atomic.Int32
	begun, goOn := make(chan bool), make(chan bool)
	must(t,
		r.RegisterActivity("nothing", func(context.Context, durable.Call) (any, error) { return nil, nil }),
		r.RegisterOrchestration("slow", func(c *durable.Context, _ json.RawMessage) (any, error) {
			if slices.Add(1) == 1 {
				begun <- true
				<-goOn
			}
			return "done", c.Call("nothing", nil, nil, durable.Retry{})
		}))
	run(t, r)
	e := start(t, r, "slow", "1", nil)
	<-begun
	set := func(change string) {
		if _, err := db.ExecContext(t.Context(), "UPDATE workflow_instance SET "+change); err != nil {
			t.Error(err)
		}
	}
	set("leaseToken = REPEAT('x', 12)") // somebody else's
	goOn <- true
	<-failed
	set("leaseToken = NULL, dueAt = NOW(6)") // who gives up
	wantResult(t, r, e, `"done"`)
}

// A process that lost the lease of a slice to itself executes it a second time beside the first, which comes to nothing.
func TestSliceTwiceAtOnce(t *testing.T) {
	t.Parallel()
	db := open(t, storagetest.DSN(t), nil)
	failed := make(errorLog, 10)
	r, err := durable.New(db, durable.Options{Lease: time.Hour, Idle: 20 * time.Millisecond, Log: slog.New(failed)})
	must(t, err)
	var slices atomic.Int32
	begun, goOn := make(chan bool), make(chan bool)
	must(t,
		r.RegisterActivity("nothing", func(context.Context, durable.Call) (any, error) { return nil, nil }),
		r.RegisterOrchestration("slow", func(c *durable.Context, _ json.RawMessage) (any, error) {
			if err := c.Call("nothing", nil, nil, durable.Retry{}); err != nil {
				return nil, err
			}
			if slices.Add(1) == 1 { // with an executor from memory
				begun <- true
				<-goOn
			}
			return "done", c.Call("nothing", nil, nil, durable.Retry{})
		}))
	run(t, r)
	e := start(t, r, "slow", "1", nil)
	<-begun
	if _, err := db.ExecContext(t.Context(), "UPDATE workflow_instance SET dueAt = NOW(6)"); err != nil {
		t.Error(err)
	}
	wantResult(t, r, e, `"done"`)
	goOn <- true
	<-failed
	if n := slices.Load(); n < 2 {
		t.Errorf("%d slices", n)
	}
	wantResult(t, r, e, `"done"`)
}

// errorLog gets the messages of errors.
type errorLog chan string

func (l errorLog) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelError }
func (l errorLog) WithAttrs([]slog.Attr) slog.Handler               { return l }
func (l errorLog) WithGroup(string) slog.Handler                    { return l }

func (l errorLog) Handle(_ context.Context, r slog.Record) error {
	select {
	case l <- r.Message:
	default: // nobody waits for more
	}
	return nil
}
