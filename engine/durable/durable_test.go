package durable_test

import (
	"context"
	"database/sql"
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
	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/storage/storagetest"
)

// never is an Idle so long that only wake-ups within the process can move anything.
const never = time.Hour

var quiet = slog.New(slog.DiscardHandler)

func open(t *testing.T, dsn string, wrap func(driver.Connector) driver.Connector) *sql.DB {
	t.Helper()
	store, err := storage.Open(storage.Options{DSN: dsn, WrapConnector: wrap})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store.DB()
}

func newRunner(t *testing.T, db *sql.DB, o durable.Options) *durable.Runner {
	t.Helper()
	o.Log = quiet
	r, err := durable.New(db, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// run executes r's orchestrations until the test ends or what it returns is called.
func run(t *testing.T, r *durable.Runner) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func start(t *testing.T, r *durable.Runner, name, id string, input any) durable.Execution {
	t.Helper()
	e, err := r.Start(t.Context(), name, id, input)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func wait(t *testing.T, r *durable.Runner, e durable.Execution) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	result, err := r.Wait(ctx, e)
	return string(result), err
}

func wantResult(t *testing.T, r *durable.Runner, e durable.Execution, want string) {
	t.Helper()
	if got, err := wait(t, r, e); err != nil || got != want {
		t.Errorf("%s: result %s, error %v; want %s", e.InstanceID, got, err, want)
	}
}

// Nothing here waits for a look at the database: each write wakes who goes on with it, and timers are planned.
func TestOrchestration(t *testing.T) {
	t.Parallel()
	r := newRunner(t, open(t, storagetest.DSN(t), nil), durable.Options{Idle: never})
	must(t,
		r.RegisterActivity("add", func(_ context.Context, call durable.Call) (any, error) {
			var in [2]int
			err := json.Unmarshal(call.Input, &in)
			return in[0] + in[1], err
		}),
		r.RegisterOrchestration("sum", func(c *durable.Context, input json.RawMessage) (any, error) {
			var numbers []int
			if err := json.Unmarshal(input, &numbers); err != nil {
				return nil, err
			}
			sum := 0
			for _, n := range numbers {
				if err := c.Call("add", [2]int{sum, n}, &sum, durable.Retry{}); err != nil {
					return nil, err
				}
				if err := c.Sleep(5 * time.Millisecond); err != nil {
					return nil, err
				}
			}
			return sum, nil
		}))
	run(t, r)
	var all []durable.Execution
	for i := range 10 {
		all = append(all, start(t, r, "sum", fmt.Sprint("sum-", i), []int{1, 2, 3, i}))
	}
	for i, e := range all {
		wantResult(t, r, e, fmt.Sprint(6+i))
	}
	if again := start(t, r, "sum", "sum-1", []int{1}); again.ExecutionID == all[1].ExecutionID {
		t.Error("two executions with one id")
	} else {
		wantResult(t, r, again, "1")
	}
	wantResult(t, r, all[1], "7") // the former one's result stays

	if n, err := r.RemoveEnded(t.Context(), time.Hour); n != 0 || err != nil {
		t.Errorf("%d executions of the last hour were removed (%v)", n, err)
	}
	if n, err := r.RemoveEnded(t.Context(), 0); n != 11 || err != nil {
		t.Errorf("%d executions were removed (%v), want 11", n, err)
	}
	if _, err := wait(t, r, all[1]); !errors.Is(err, durable.ErrNotFound) {
		t.Errorf("result of a removed execution: %v", err)
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	r := newRunner(t, open(t, storagetest.DSN(t), nil), durable.Options{Idle: never})
	var tries sync.Map // key of the call: attempts
	must(t,
		r.RegisterActivity("fail", func(_ context.Context, call durable.Call) (any, error) {
			seen, _ := tries.LoadOrStore(call.Key, new(atomic.Int32))
			n := seen.(*atomic.Int32).Add(1)
			if call.Attempt != int(n)-1 {
				t.Errorf("attempt %d is the %d. execution", call.Attempt, n)
			}
			switch string(call.Input) {
			case `"panic"`:
				panic("oh")
			case `"long"`:
				return strings.Repeat("x", durable.MaxPayload), nil
			case `"permanent"`:
				return nil, durable.Permanent(errors.New("no way"))
			case `"third"`:
				if n == 3 {
					return "well", nil
				}
			}
			return nil, errors.New("not now")
		}),
		r.RegisterOrchestration("try", func(c *durable.Context, input json.RawMessage) (any, error) {
			var result string
			err := c.Call("fail", input, &result, durable.Retry{Attempts: 3, Wait: time.Millisecond})
			return result, err
		}),
		r.RegisterOrchestration("panics", func(*durable.Context, json.RawMessage) (any, error) { panic("oh") }),
		r.RegisterOrchestration("unknown", func(c *durable.Context, _ json.RawMessage) (any, error) {
			return nil, c.Call("nobody", nil, nil, durable.Retry{Attempts: 2})
		}))
	run(t, r)
	wantResult(t, r, start(t, r, "try", "third", "third"), `"well"`)
	for _, c := range []struct{ orchestration, input, want string }{
		{"try", "always", "fail: not now"},
		{"try", "permanent", "fail: no way"},
		{"try", "panic", "fail: panic: oh"},
		{"try", "long", "fail: the result has 1048578 bytes"},
		{"panics", "", "panic: oh"},
		{"unknown", "", "nobody: activity not found"},
	} {
		_, err := wait(t, r, start(t, r, c.orchestration, c.orchestration+c.input, c.input))
		failed, ok := errors.AsType[*durable.FailedError](err)
		if !ok || !strings.HasPrefix(failed.Message, c.want) || failed.Canceled || strings.Contains(failed.Message, "\n") {
			t.Errorf("%s %s: %v, want %s", c.orchestration, c.input, err, c.want)
		}
	}
	executions := map[int32]int{}
	tries.Range(func(_, n any) bool { executions[n.(*atomic.Int32).Load()]++; return true })
	if executions[3] != 3 || executions[1] != 2 || len(executions) != 2 {
		t.Errorf("calls by their number of attempts: %v; want three with 3, two with 1", executions)
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	r := newRunner(t, open(t, storagetest.DSN(t), nil), durable.Options{Idle: never})
	sleeps, released := make(chan bool, 10), make(chan bool, 10)
	must(t,
		r.RegisterActivity("announce", func(context.Context, durable.Call) (any, error) { sleeps <- true; return nil, nil }),
		r.RegisterActivity("release", func(context.Context, durable.Call) (any, error) { released <- true; return nil, nil }),
		r.RegisterOrchestration("sleep", func(c *durable.Context, _ json.RawMessage) (_ any, err error) {
			defer func() { err = errors.Join(err, c.Detached().Call("release", nil, nil, durable.Retry{})) }()
			if err := c.Call("announce", nil, nil, durable.Retry{}); err != nil {
				return nil, err
			}
			return nil, c.Sleep(time.Hour)
		}))
	run(t, r)
	e := start(t, r, "sleep", "one", nil)
	<-sleeps
	if found, err := r.Active(t.Context(), "one"); err != nil || found.Execution != e {
		t.Errorf("active: %v, %v; want %v", found, err, e)
	}
	if _, err := r.Start(t.Context(), "sleep", "one", nil); !errors.Is(err, durable.ErrAlreadyRunning) {
		t.Errorf("started twice: %v", err)
	}
	must(t, r.Cancel(t.Context(), e))
	_, err := wait(t, r, e)
	if failed, ok := errors.AsType[*durable.FailedError](err); !ok || !failed.Canceled {
		t.Errorf("a cancelled execution ended with %v", err)
	}
	select {
	case <-released:
	default:
		t.Error("what a cancelled execution does in the end was not done")
	}
	if err := r.Cancel(t.Context(), e); !errors.Is(err, durable.ErrNotFound) {
		t.Errorf("cancelled twice: %v", err)
	}
	if _, err := r.Active(t.Context(), "one"); !errors.Is(err, durable.ErrNotFound) {
		t.Errorf("active after its end: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	db := open(t, storagetest.DSN(t), nil)
	if _, err := durable.New(db, durable.Options{Lease: time.Millisecond}); err == nil {
		t.Error("a lease of 1 ms is taken")
	}
	r := newRunner(t, db, durable.Options{})
	nothing := func(*durable.Context, json.RawMessage) (any, error) { return nil, nil }
	must(t, r.RegisterOrchestration("once", nothing))
	for _, name := range []string{"", "once", "a b", strings.Repeat("a", 65), "é"} {
		if err := r.RegisterOrchestration(name, nothing); err == nil {
			t.Errorf("%q is registered", name)
		}
	}
	if _, err := r.Start(t.Context(), "twice", "id", nil); !errors.Is(err, durable.ErrNotRegistered) {
		t.Errorf("an unknown orchestration: %v", err)
	}
	for _, id := range []string{"", strings.Repeat("a", durable.MaxInstanceID+1)} {
		if _, err := r.Start(t.Context(), "once", id, nil); err == nil {
			t.Errorf("an instance id of %d bytes is taken", len(id))
		}
	}
	for _, input := range []any{func() {}, strings.Repeat("x", durable.MaxPayload)} {
		if _, err := r.Start(t.Context(), "once", "id", input); err == nil {
			t.Errorf("an input of type %T is taken", input)
		}
	}
	e := start(t, r, "once", strings.Repeat("é", 127), nil)
	run(t, r)
	wantResult(t, r, e, "null")
	if err := r.Run(t.Context()); err == nil {
		t.Error("it runs twice")
	}
	if err := r.RegisterOrchestration("late", nothing); err == nil {
		t.Error("registered while it runs")
	}
}
