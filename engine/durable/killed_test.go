package durable_test

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/engine/durable"
	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/storage/storagetest"
)

func TestMain(m *testing.M) {
	if dsn := os.Getenv(childDSN); dsn != "" {
		child(dsn, os.Getenv(childHalt), os.Getenv(childLease))
	}
	storagetest.Main(m)
}

const (
	childDSN   = "REDRIVE_DURABLE_CHILD"
	childHalt  = "REDRIVE_DURABLE_CHILD_HALTS"
	childLease = "REDRIVE_DURABLE_CHILD_LEASE"
	steps      = 4
)

// transfer has steps activities with an effect each, and sleeps in the middle, for as long as its input says. halt is
// called at each point where the process may be killed.
func transfer(db *sql.DB, lease time.Duration, halt func(point string)) (*durable.Runner, error) {
	r, err := durable.New(db, durable.Options{Lease: lease, Log: quiet})
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
	orchestration := func(c *durable.Context, input json.RawMessage) (any, error) {
		var sleep time.Duration
		if err := json.Unmarshal(input, &sleep); err != nil {
			return nil, err
		}
		for step := range steps {
			if err := c.Call("effect", step, nil, durable.Retry{}); err != nil {
				return nil, err
			}
			if step == 1 {
				halt("in a slice")
				if err := c.Sleep(sleep); err != nil {
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
	for {
		var n int
		err := db.QueryRowContext(ctx, "SELECT COUNT(*) FROM workflow_event WHERE timer IS NOT NULL").Scan(&n)
		if err != nil || n > 0 {
			return err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done(): // the next look says so
		}
	}
}

// child is the process that is killed. It halts for good at a point, and says so.
func child(dsn, point, leases string) {
	fail := func(err error) {
		fmt.Println(err)
		os.Exit(1)
	}
	lease, err := time.ParseDuration(leases)
	if err != nil {
		fail(err)
	}
	store, err := storage.Open(storage.Options{DSN: dsn})
	if err != nil {
		fail(err)
	}
	r, err := transfer(store.DB(), lease, func(at string) {
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

// Killed at any point, an orchestration is finished by another process, with each effect once. No lease ends while its
// holder lives, however busy the machine, so what is executed again is what the dead process had under way.
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
			got := killed(t, point, time.Hour, func(db *sql.DB) {
				for _, passes := range []string{ // time, for what the dead process held and planned
					"UPDATE workflow_instance SET dueAt = NOW(6) WHERE dueAt IS NOT NULL",
					"UPDATE workflow_activity SET dueAt = NOW(6)",
					"UPDATE workflow_event SET visibleAt = NOW(6)",
				} {
					if _, err := db.ExecContext(t.Context(), passes); err != nil {
						t.Fatal(err)
					}
				}
			})
			if got != executed {
				t.Errorf("%d executions of %d steps, want %d", got, steps, executed)
			}
		})
	}
}

// A killed process's leases end by themselves.
func TestKilledLeaseEnds(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"after effect 0", "in a slice"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			// On a busy machine leases this short also end while their holder lives.
			if got := killed(t, point, time.Second, func(*sql.DB) {}); got < steps {
				t.Errorf("%d executions of %d steps", got, steps)
			}
		})
	}
}

// killed has a process killed at a point, and another one finish what that began. It returns how many steps were executed.
func killed(t *testing.T, point string, lease time.Duration, afterwards func(*sql.DB)) (executed int) {
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
	second, err := transfer(db, lease, func(string) {})
	must(t, err)
	sleep := 10 * time.Millisecond
	if point == asleep {
		sleep = time.Hour
	}
	e := start(t, second, "transfer", "transfer-1", sleep)

	first := exec.Command(os.Args[0])
	first.Env = append(os.Environ(), childDSN+"="+dsn, childHalt+"="+point, childLease+"="+lease.String())
	var said bytes.Buffer // what the race detector finds, or a panic
	first.Stderr = &said
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
	if said.Len() > 0 {
		t.Errorf("the first process: %s", said.Bytes())
	}
	if err != nil || killErr != nil || line != "halted\n" {
		t.Fatalf("the first process said %q (%v), killed: %v", line, err, killErr)
	}
	if found, err := second.Active(t.Context(), "transfer-1"); err != nil || found.Execution != e {
		t.Fatalf("after the kill: %v, %v", found, err)
	}
	afterwards(db)

	run(t, second)
	wantResult(t, second, e, `"all"`)
	var effects, distinct int
	must(t, db.QueryRowContext(t.Context(), "SELECT COUNT(*), COUNT(DISTINCT step) FROM effect").Scan(&effects, &distinct),
		db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM executed").Scan(&executed))
	if effects != steps || distinct != steps {
		t.Errorf("%d effects of %d steps, want %d of each", effects, distinct, steps)
	}
	return executed
}
