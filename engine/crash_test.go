package engine_test

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/broker"
	"github.com/redrive-mq/redrive/engine"
	"github.com/redrive-mq/redrive/engine/durable"
	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/storage/storagetest"
)

const (
	childDSN  = "REDRIVE_TEST_ENGINE_DSN"
	childKill = "REDRIVE_TEST_ENGINE_KILL" // the process kills itself at its n-th write; 0: never
	childFail = "REDRIVE_TEST_ENGINE_FAIL" // the second step fails
	crashed   = "spn"
	crashedAt = "spn-rotation-queue"

	// lease is so long that none ends while its holder lives, however busy the machine: what a run costs is what the
	// crash costs. leasesEnd ends those of the dead.
	lease = 10 * time.Minute
)

func TestMain(m *testing.M) {
	if dsn := os.Getenv(childDSN); dsn != "" {
		kill, err := strconv.ParseInt(os.Getenv(childKill), 10, 64)
		if err == nil {
			err = child(dsn, kill, os.Getenv(childFail) != "")
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	storagetest.Main(m)
}

var writes = regexp.MustCompile(`(?i)^\s*(INSERT|UPDATE|DELETE|COMMIT)`)

// child is an instance: a broker and a runtime, until its standard input ends or it kills itself, before a write or
// after a commit.
func child(dsn string, kill int64, fails bool) error {
	var n atomic.Int64
	quiet := slog.New(slog.DiscardHandler)
	store, err := storage.Open(storage.Options{DSN: dsn, Log: quiet, WrapConnector: func(c driver.Connector) driver.Connector {
		return storagetest.Intercept(c, func(query string) (string, error) {
			if writes.MatchString(query) && n.Add(1) == kill {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
			return query, nil
		})
	}})
	if err != nil {
		return err
	}
	runner, err := durable.New(store.DB(), durable.Options{Log: quiet, Idle: 50 * time.Millisecond, Lease: lease})
	if err != nil {
		return err
	}
	publisher, err := engine.Lookup(engine.Publisher)
	if err != nil {
		return err
	}
	rt, err := engine.NewRuntime(engine.RuntimeOptions{Context: publisher, Tables: store, Queue: &queue{}, Durable: runner, Log: quiet})
	if err != nil {
		return err
	}
	step := func(fail bool) engine.Step {
		return func(ctx context.Context, call engine.Call) (any, error) {
			if fail {
				return nil, errors.New("no")
			}
			_, err := store.DB().ExecContext(ctx, `INSERT INTO effect (callKey, run) VALUES (?, ?) ON DUPLICATE KEY UPDATE run = run`, call.Key, call.Instance.ExecutionID)
			return nil, err
		}
	}
	err = rt.Register(engine.Definition{
		Name: crashed, Registry: true, Steps: map[string]engine.Step{"one": step(false), "two": step(fails)},
		Run: func(r *engine.Run) (any, error) {
			if err := r.Do("one", nil, nil); err != nil {
				return nil, err
			}
			return "fine", r.Do("two", nil, nil)
		},
	})
	if err != nil {
		return err
	}
	b, err := broker.New(broker.Options{Store: store, Log: quiet, DeliveryTimeout: lease, RationalDelay: time.Minute,
		PollInterval: 50 * time.Millisecond, Engines: map[string]broker.Engine{crashed: {
			Executor: jobsOf{rt}, MaxRetry: 1, Backoff: []time.Duration{time.Millisecond},
		}}})
	if err != nil {
		return err
	}
	b.Start(context.Background())
	rt.Start(context.Background())
	_, _ = io.Copy(io.Discard, os.Stdin)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return errors.Join(b.Stop(ctx), rt.Stop(ctx), store.Close())
}

// jobsOf is the runtime as the broker takes it.
type jobsOf struct{ rt *engine.Runtime }

func (j jobsOf) Execute(ctx context.Context, job storage.ClaimedJob) broker.Execution {
	o := j.rt.Execute(ctx, crashed, job)
	return broker.Execution{Err: o.Err, Class: o.Class, Fatal: o.Fatal, Pending: o.Pending, Wait: o.Wait,
		Subject: storage.Subject{InstanceID: o.InstanceID, CorrelationID: o.CorrelationID}}
}

// crash is one message, and what there is to know of it.
type crash struct {
	t     *testing.T
	dsn   string
	store *storage.Store
	job   storage.ID
}

func newCrash(t *testing.T) *crash {
	t.Helper()
	c := &crash{t: t, dsn: storagetest.DSN(t)}
	var err error
	c.store, err = storage.Open(storage.Options{DSN: c.dsn, MaxOpenConns: 4, Log: slog.New(slog.DiscardHandler)})
	check(t, err)
	t.Cleanup(func() { _ = c.store.Close() })
	_, err = c.store.DB().ExecContext(t.Context(), `CREATE TABLE effect (callKey VARCHAR(255) PRIMARY KEY, run VARCHAR(255))`)
	check(t, err)
	_, err = c.store.PutEngineQueue(t.Context(), crashed, crashedAt)
	check(t, err)
	_, jobs, err := c.store.Enqueue(t.Context(), storage.Enqueued{Queue: crashedAt, MessageID: "m", Body: json.RawMessage(`{"instanceId":"i","correlationId":"c"}`)})
	check(t, err)
	c.job = jobs[0].ID
	return c
}

// run starts an instance that kills itself at its n-th write, and returns whether it did before until came to be.
func (c *crash) run(n int64, fails bool, until storage.Status) (killed bool) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), childDSN+"="+c.dsn, childKill+"="+strconv.FormatInt(n, 10))
	if fails {
		cmd.Env = append(cmd.Env, childFail+"=1")
	}
	cmd.Stderr = c.t.Output()
	stdin, err := cmd.StdinPipe()
	check(c.t, err)
	check(c.t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for stopping := false; ; {
		select {
		case err := <-ended:
			if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() && status.Signal() == syscall.SIGKILL && ctx.Err() == nil {
				return true
			}
			if err != nil {
				c.t.Fatalf("write %d: the instance ended with %v (it is %s)", n, err, c.status())
			}
			return false
		case <-tick.C:
			if !stopping && c.ended(until) {
				stopping = true
				if err := stdin.Close(); !errors.Is(err, os.ErrClosed) { // it has just been killed
					check(c.t, err)
				}
			}
		}
	}
}

// leasesEnd lets the time pass for which a dead instance keeps others away.
func (c *crash) leasesEnd() {
	c.t.Helper()
	for _, statement := range []string{
		fmt.Sprintf("UPDATE job SET dueAt = NOW(6) WHERE status = %d", storage.StatusInflight),
		"UPDATE workflow_instance SET dueAt = NOW(6) WHERE leaseToken IS NOT NULL",
		"UPDATE workflow_activity SET dueAt = NOW(6)",
	} {
		_, err := c.store.DB().ExecContext(c.t.Context(), statement)
		check(c.t, err)
	}
}

// ended tells whether the message has come to its end, and all orchestrations to theirs.
func (c *crash) ended(status storage.Status) (ended bool) {
	err := c.store.DB().QueryRowContext(context.Background(), `SELECT status = ? AND NOT EXISTS (SELECT 1 FROM workflow_instance WHERE state = 'active')
		FROM job WHERE id = ?`, status, c.job).Scan(&ended)
	if err != nil {
		c.t.Fatal(err)
	}
	return ended
}

func (c *crash) status() storage.Status {
	j, err := c.store.Job(context.Background(), c.job)
	if err != nil {
		c.t.Fatal(err)
	}
	return j.Status
}

// facts are read in one snapshot.
type facts struct {
	status                             storage.Status
	succeeded, failed, pending, active int
	runs, effects, locked, attempts    int
}

func (c *crash) facts() (f facts) {
	c.t.Helper()
	check(c.t, c.store.DB().QueryRowContext(c.t.Context(), `SELECT j.status, j.retryAttemptCount,
		(SELECT COUNT(*) FROM engineHistory WHERE PartitionKey = 'spn' AND CorrelationId = 'c' AND Status = 'Succeeded'),
		(SELECT COUNT(*) FROM engineHistory WHERE PartitionKey = 'spn' AND CorrelationId = 'c' AND Status = 'Failed'),
		(SELECT COUNT(*) FROM engineDlq WHERE PartitionKey = 'spn' AND Status = 'Pending' AND JobId = j.id),
		(SELECT COUNT(*) FROM workflow_instance WHERE state = 'active'),
		(SELECT COUNT(DISTINCT run) FROM effect), (SELECT COUNT(*) FROM effect),
		(SELECT COUNT(*) FROM registry WHERE lockJobId <> '')
		FROM job j WHERE j.id = ?`, c.job).
		Scan(&f.status, &f.attempts, &f.succeeded, &f.failed, &f.pending, &f.active, &f.runs, &f.effects, &f.locked))
	return f
}

// holds checks what holds at any moment: done with its history, or dead with a record, or still to be done.
func (c *crash) holds(when string) {
	c.t.Helper()
	f := c.facts()
	ok := f.succeeded <= 1 && f.pending <= 1
	switch f.status {
	case storage.StatusDelivered:
		ok = ok && f.succeeded == 1 && f.pending == 0
	case storage.StatusDead:
		ok = ok && f.succeeded == 0 && f.pending == 1
	default:
		ok = ok && f.pending == 0
	}
	if !ok {
		c.t.Errorf("%s: %+v", when, f)
	}
}

// crashAt kills an instance before its first write, then one step of writes later ... until one of them gets to the end,
// each on a database of its own, and lets another instance go on from there.
func crashAt(t *testing.T, step int64, fails bool, end storage.Status, check func(t *testing.T, n int64, f facts)) {
	t.Helper()
	const atOnce = 4
	var next, most atomic.Int64
	most.Store(1 << 62)
	var group sync.WaitGroup
	for range atOnce {
		group.Go(func() {
			for n := next.Add(step) - step + 1; n <= most.Load(); n = next.Add(step) - step + 1 {
				t.Run(fmt.Sprint("write ", n), func(t *testing.T) {
					c := newCrash(t)
					killed := c.run(n, fails, end)
					c.holds(fmt.Sprint("killed at write ", n))
					if killed {
						c.leasesEnd()
						c.run(0, fails, end)
						c.holds(fmt.Sprint("after write ", n))
					} else {
						most.Store(min(most.Load(), n))
					}
					check(t, n, c.facts())
				})
			}
		})
	}
	group.Wait()
	t.Logf("an instance that is not killed makes %d writes at most", most.Load())
	if most.Load() < 10 {
		t.Errorf("an instance got through with %d writes: nothing was tested", most.Load()-1)
	}
}

// Whichever write of a run the process dies at, the message is done once, by one run, with one entry in the history.
func TestCrashOfARun(t *testing.T) {
	t.Parallel()
	crashAt(t, 1, false, storage.StatusDelivered, func(t *testing.T, n int64, f facts) {
		if f.succeeded != 1 || f.failed != 0 || f.runs != 1 || f.effects != 2 || f.active != 0 || f.locked != 0 || f.attempts != 0 {
			t.Errorf("killed at write %d, it ended as %+v", n, f)
		}
	})
}

// A message whose runs fail is tried again, also over a crash, and is dead with one record in the end.
func TestCrashOfAFailingRun(t *testing.T) {
	t.Parallel()
	crashAt(t, 4, true, storage.StatusDead, func(t *testing.T, n int64, f facts) {
		// A crash after a run has failed and before that is known costs one run more.
		if f.succeeded != 0 || f.failed < 2 || f.failed > 3 || f.runs != f.failed || f.active != 0 || f.locked != 0 || f.attempts != 1 {
			t.Errorf("killed at write %d, it ended as %+v", n, f)
		}
	})
}
