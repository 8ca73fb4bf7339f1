package durable_test

import (
	"bufio"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/engine/durable"
	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/storage/storagetest"
)

func TestMain(m *testing.M) {
	if dsn := os.Getenv(childDSN); dsn != "" {
		child(dsn, os.Getenv(childHalt))
	}
	storagetest.Main(m)
}

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

	const seconds = 6
	statements.Store(0)
	<-time.After(seconds * time.Second)
	if n := statements.Load(); n < seconds-2 || n > seconds+2 {
		t.Errorf("%d statements in %d idle seconds", n, seconds)
	}

	since := time.Now()
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
	first := prepare(durable.Options{StopTimeout: time.Second / 5})
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

const (
	childDSN  = "REDRIVE_DURABLE_CHILD"
	childHalt = "REDRIVE_DURABLE_CHILD_HALTS"
	steps     = 4
)

// transfer has steps activities with an effect each, and sleeps in the middle. halt is called at each point
// where the process may be killed.
func transfer(db *sql.DB, halt func(point string)) (*durable.Runner, error) {
	r, err := durable.New(db, durable.Options{Lease: time.Second, Log: quiet})
	if err != nil {
		return nil, err
	}
	effect := func(ctx context.Context, call durable.Call) (any, error) {
		halt("before effect " + string(call.Input))
		if _, err := db.ExecContext(ctx, "INSERT INTO executed (step) VALUES (?)", string(call.Input)); err != nil {
			return nil, err
		}
		// The effect, guarded by the key.
		if _, err := db.ExecContext(ctx, "INSERT IGNORE INTO effect (k, step) VALUES (?, ?)", call.Key, string(call.Input)); err != nil {
			return nil, err
		}
		halt("after effect " + string(call.Input))
		return nil, nil
	}
	orchestration := func(c *durable.Context, _ json.RawMessage) (any, error) {
		for step := range steps {
			if err := c.Call("effect", step, nil, durable.Retry{}); err != nil {
				return nil, err
			}
			if step == 1 {
				halt("in a slice")
				if err := c.Sleep(time.Second); err != nil {
					return nil, err
				}
			}
		}
		return "all", nil
	}
	return r, errors.Join(r.RegisterActivity("effect", effect), r.RegisterOrchestration("transfer", orchestration))
}

// asleep is the point at which the orchestration does nothing: the process does not halt, it is seen from outside.
const asleep = "asleep"

// timerSet waits until an orchestration sleeps.
func timerSet(t *testing.T, db *sql.DB) error {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for n := 0; n == 0; {
		if err := db.QueryRowContext(ctx, "SELECT COUNT(*) FROM workflow_event WHERE timer IS NOT NULL").Scan(&n); err != nil {
			return err
		}
	}
	return nil
}

// child is the process that is killed. It halts for good at a point, and says so.
func child(dsn, point string) {
	fail := func(err error) {
		fmt.Println(err)
		os.Exit(1)
	}
	store, err := storage.Open(storage.Options{DSN: dsn})
	if err != nil {
		fail(err)
	}
	r, err := transfer(store.DB(), func(at string) {
		if at == point {
			fmt.Println("halted")
			select {}
		}
	})
	if err != nil {
		fail(err)
	}
	fail(r.Run(context.Background()))
}

// Killed at any point, an orchestration is finished by another process, with each effect once.
func TestKilled(t *testing.T) {
	t.Parallel()
	for point, executed := range map[string]int{
		"before effect 0": steps,     // that step had not begun
		"after effect 0":  steps + 1, // its result was not stored: it is executed again
		"in a slice":      steps,
		asleep:            steps,
		"before effect 2": steps,
		"after effect 3":  steps + 1,
	} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			killed(t, point, executed)
		})
	}
}

func killed(t *testing.T, point string, wantExecuted int) {
	dsn := storagetest.DSN(t)
	db := open(t, dsn, nil)
	for _, table := range []string{
		"CREATE TABLE executed (step VARCHAR(8) NOT NULL)",
		"CREATE TABLE effect (k VARCHAR(100) NOT NULL PRIMARY KEY, step VARCHAR(8) NOT NULL)",
	} {
		if _, err := db.ExecContext(t.Context(), table); err != nil {
			t.Fatal(err)
		}
	}
	second, err := transfer(db, func(string) {})
	must(t, err)
	e := start(t, second, "transfer", "transfer-1", nil)

	first := exec.Command(os.Args[0])
	first.Env = append(os.Environ(), childDSN+"="+dsn, childHalt+"="+point)
	first.Stderr = os.Stderr
	out, err := first.StdoutPipe()
	must(t, err, first.Start())
	line := "halted\n"
	if point == asleep {
		err = timerSet(t, db)
	} else {
		line, err = bufio.NewReader(out).ReadString('\n')
	}
	killErr := first.Process.Kill() // SIGKILL
	_, _ = io.Copy(io.Discard, out)
	_ = first.Wait() // that it was killed
	if err != nil || killErr != nil || line != "halted\n" {
		t.Fatalf("the first process said %q (%v), killed: %v", line, err, killErr)
	}
	if found, err := second.Active(t.Context(), "transfer-1"); err != nil || found.Execution != e {
		t.Fatalf("after the kill: %v, %v", found, err)
	}

	run(t, second)
	wantResult(t, second, e, `"all"`)
	var effects, distinct, executed int
	must(t, db.QueryRowContext(t.Context(), "SELECT COUNT(*), COUNT(DISTINCT step) FROM effect").Scan(&effects, &distinct),
		db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM executed").Scan(&executed))
	if effects != steps || distinct != steps || executed != wantExecuted {
		t.Errorf("%d effects of %d steps, %d executions; want %d of %d, %d", effects, distinct, executed, steps, steps, wantExecuted)
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
	r := newRunner(t, db, durable.Options{Lease: 2 * time.Second})
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
