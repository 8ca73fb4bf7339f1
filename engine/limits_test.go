package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/engine"
	"github.com/redrive-mq/redrive/engine/durable"
	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/storage/storagetest"
)

// What was done has succeeded, however long its input, its output and what it recorded are.
func TestHistoryOfLongTexts(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 400<<10)
	ran := 0
	w := newWorld(t, storagetest.DSN(t), engine.Definition{
		Name: "hmac", Registry: true,
		Steps: map[string]engine.Step{"do": func(context.Context, engine.Call) (any, error) { ran++; return long, nil }},
		Run: func(r *engine.Run) (any, error) {
			return long, r.Record("notify", "do", nil, nil, durable.Retry{})
		},
	})
	body, err := json.Marshal(map[string]string{"instanceId": "i", "input": long})
	check(t, err)
	if o := w.Execute(t.Context(), "hmac", message("m", string(body))); o.Pending || o.Err != nil {
		t.Errorf("it ended with %+v", o)
	}
	if o := w.Execute(t.Context(), "hmac", message("m", string(body))); o.Pending || o.Err != nil || ran != 1 {
		t.Errorf("once more: %+v, %d runs", o, ran)
	}
	if found := w.history(t, storage.HistoryFilter{Engine: "hmac", Status: storage.HistorySucceeded}); len(found) != 2 {
		t.Errorf("the history has %d entries, want 2", len(found))
	}
	if reg, err := w.store.Registry(t.Context(), "i"); err != nil || reg.LockJobID != "" {
		t.Errorf("the registry is %+v, %v", reg, err)
	}
}

// A run for whose message nobody waits any more does not keep the others of its instance waiting for ever.
func TestRunThatNobodyWaitsFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, storagetest.DSN(t), engine.Definition{
		Name: "spn", Timeout: time.Second, Run: func(r *engine.Run) (any, error) {
			if r.CorrelationID == "lost" {
				return nil, r.Sleep(time.Hour)
			}
			return nil, nil
		},
	})
	_, err := w.Begin(t.Context(), "spn", engine.Message{CorrelationID: "lost", InstanceID: "i"})
	check(t, err)
	for range 200 {
		o := w.Execute(t.Context(), "spn", message("m", `{"instanceId":"i"}`))
		if o.Err != nil {
			t.Fatalf("it ended with %+v", o)
		}
		if !o.Pending {
			return
		}
		select {
		case <-t.Context().Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	t.Error("it still waits for its turn")
}

// Engines whose names and instances read the same together take turns, and none is done because the other was.
func TestNamesThatReadTheSame(t *testing.T) {
	t.Parallel()
	s, err := storage.Open(storage.Options{DSN: storagetest.DSN(t), Log: slog.New(slog.DiscardHandler)})
	check(t, err)
	runner, err := durable.New(s.DB(), durable.Options{Log: slog.New(slog.DiscardHandler), Idle: 100 * time.Millisecond})
	check(t, err)
	work := []string{"work"}
	both, err := engine.Context{Name: "both"}.With(map[string]engine.Engine{"a": {Queue: "q", Operations: work}, "a-b": {Queue: "r", Operations: work}})
	check(t, err)
	rt, err := engine.NewRuntime(engine.RuntimeOptions{Context: both, Tables: s, Queue: &queue{}, Durable: runner, Log: slog.New(slog.DiscardHandler)})
	check(t, err)
	begun, release := make(chan bool, 1), make(chan bool)
	for _, name := range []string{"a", "a-b"} {
		check(t, rt.Register(engine.Definition{
			Name: name, Interchangeable: true,
			Steps: map[string]engine.Step{"do": func(context.Context, engine.Call) (any, error) { begun <- true; <-release; return nil, nil }},
			Run:   func(r *engine.Run) (any, error) { return nil, r.Do("do", nil, nil) },
		}))
	}
	rt.Start(context.Background())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_ = rt.Stop(ctx)
		_ = s.Close()
	})
	done := make(chan engine.Outcome, 1)
	go func() { done <- rt.Execute(context.Background(), "a", message("m", `{"instanceId":"b-c"}`)) }()
	<-begun
	soon, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for _, id := range []string{"m", "other"} {
		if o := rt.Execute(soon, "a-b", message(id, `{"instanceId":"c"}`)); !o.Pending || o.Wait == 0 {
			t.Errorf("%s: a message of the other engine: %+v", id, o)
		}
	}
	close(release)
	if o := <-done; o.Err != nil || o.Pending {
		t.Errorf("it ended with %+v", o)
	}
}

// Steps that hang do not keep the process from others' for longer than their runs may take.
func TestStepsThatHang(t *testing.T) {
	t.Parallel()
	w := newWorld(t, storagetest.DSN(t), engine.Definition{
		Name: "spn", Timeout: time.Second,
		Steps: map[string]engine.Step{"do": func(ctx context.Context, _ engine.Call) (any, error) { <-ctx.Done(); return nil, ctx.Err() }},
		Run:   func(r *engine.Run) (any, error) { return nil, r.Do("do", nil, nil) },
	})
	soon, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	const most = 16 // steps at a time
	done := make(chan engine.Outcome, most)
	for i := range most {
		go func() {
			done <- w.Execute(soon, "spn", message(fmt.Sprint("m", i), fmt.Sprintf(`{"instanceId":"i%d"}`, i)))
		}()
	}
	for range most {
		if o := <-done; o.Err == nil || o.Pending {
			t.Errorf("it ended with %+v", o)
		}
	}
}

// A message that no run can take is dead at once.
func TestMessageThatIsTooLong(t *testing.T) {
	t.Parallel()
	w := newWorld(t, storagetest.DSN(t), once(func(context.Context, engine.Call) (any, error) { return nil, nil }))
	for size, fits := range map[int]bool{500 << 10: true, 600 << 10: false} {
		o := w.Execute(t.Context(), "spn", message(fmt.Sprint(size), `{"input":"`+strings.Repeat("x", size)+`"}`))
		if fits && (o.Err != nil || o.Pending) || !fits && (o.Err == nil || !o.Fatal || o.Class != "bad_message") {
			t.Errorf("%d bytes: %+v", size, o)
		}
	}
	if _, err := w.Begin(t.Context(), "spn", engine.Message{Input: json.RawMessage(`"` + strings.Repeat("x", 1<<20) + `"`)}); !errors.Is(err, engine.ErrBadMessage) {
		t.Errorf("on demand: %v", err)
	}
}

// A run that the code of a later version cannot go on with has failed, and lets the registry go: the next one follows at once.
func TestRunOfAnotherVersion(t *testing.T) {
	t.Parallel()
	dsn := storagetest.DSN(t)
	nothing := func(context.Context, engine.Call) (any, error) { return nil, nil }
	version := func(step string, sleep time.Duration) engine.Definition {
		return engine.Definition{
			Name: "spn", Registry: true, Steps: map[string]engine.Step{step: nothing},
			Run: func(r *engine.Run) (any, error) {
				if err := r.Do(step, nil, nil); err != nil {
					return nil, err
				}
				return nil, r.Sleep(sleep)
			},
		}
	}
	m := message("m", `{"instanceId":"i"}`)
	before := newWorld(t, dsn, version("former", 5*time.Second))
	short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if o := before.Execute(short, "spn", m); !o.Pending {
		t.Fatalf("the former version: %+v", o)
	}
	stop, cancelStop := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancelStop()
	check(t, before.Stop(stop))
	after := newWorld(t, dsn, version("latter", 0))
	if o := after.Execute(t.Context(), "spn", m); o.Pending || o.Err == nil {
		t.Errorf("the later version: %+v", o)
	}
	if o := after.Execute(t.Context(), "spn", m); o.Pending || o.Err != nil {
		t.Errorf("its next attempt: %+v", o)
	}
}
