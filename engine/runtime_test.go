package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/engine"
	"github.com/redrive-mq/redrive/engine/durable"
	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/storage/storagetest"
)

// queue remembers what was put.
type queue struct {
	mu  sync.Mutex
	put map[string]string // message id: body
	err error
}

func (q *queue) Put(_ context.Context, eng, name, id string, body []byte) (created bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return false, q.err
	}
	if q.put == nil {
		q.put = map[string]string{}
	}
	key := eng + " " + name + " " + id
	_, there := q.put[key]
	q.put[key] = string(body)
	return !there, nil
}

func (q *queue) ids() (ids []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for id := range q.put {
		ids = append(ids, id)
	}
	return ids
}

// world is a runtime on a database.
type world struct {
	*engine.Runtime
	store *storage.Store
	queue *queue
}

// newWorld makes a runtime of a publisher that runs until the test ends.
func newWorld(t *testing.T, dsn string, defs ...engine.Definition) world {
	t.Helper()
	s, err := storage.Open(storage.Options{DSN: dsn, Log: slog.New(slog.DiscardHandler)})
	check(t, err)
	runner, err := durable.New(s.DB(), durable.Options{Log: slog.New(slog.DiscardHandler), Idle: 100 * time.Millisecond})
	check(t, err)
	publisher, err := engine.Lookup(engine.Publisher)
	check(t, err)
	w := world{store: s, queue: &queue{}}
	w.Runtime, err = engine.NewRuntime(engine.RuntimeOptions{
		Context: publisher, Tables: s, Queue: w.queue, Durable: runner, Log: slog.New(slog.DiscardHandler),
	})
	check(t, err)
	for _, d := range defs {
		check(t, w.Register(d))
	}
	w.Start(context.Background())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := w.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
		_ = s.Close()
	})
	return w
}

func message(id, body string) storage.ClaimedJob {
	return storage.ClaimedJob{MessageID: id, Body: []byte(body)}
}

func (w world) history(t *testing.T, f storage.HistoryFilter) []storage.HistoryEntry {
	t.Helper()
	entries, _, err := w.store.ListHistory(t.Context(), f, nil, 100)
	check(t, err)
	return entries
}

// once is an engine with one step, which is what fn is.
func once(fn func(ctx context.Context, call engine.Call) (any, error)) engine.Definition {
	return engine.Definition{
		Name:  "spn",
		Steps: map[string]engine.Step{"do": fn},
		Run: func(r *engine.Run) (any, error) {
			var out json.RawMessage
			err := r.Do("do", r.Message, &out)
			return out, err
		},
	}
}

// What the history says was done is not done again; what differs in instance is other work.
func TestMessageIsDoneOnce(t *testing.T) {
	t.Parallel()
	var ran atomic.Int32
	w := newWorld(t, storagetest.DSN(t), once(func(_ context.Context, call engine.Call) (any, error) {
		ran.Add(1)
		var m engine.Message
		if err := json.Unmarshal(call.Input, &m); err != nil {
			return nil, err
		}
		return m.Input, nil
	}))
	for _, m := range []storage.ClaimedJob{
		message("m1", `{"correlationId":"c","instanceId":"i","input":{"a":1}}`),
		message("m2", `{"correlationId":"c","instanceId":"i","input":{"a":1}}`),
		message("m3", `{"correlationId":"c","instanceId":"other","secret":"rotate"}`),
		message("m4", `{}`),
	} {
		if o := w.Execute(t.Context(), "spn", m); o.Err != nil || o.Pending {
			t.Fatalf("%s: %+v", m.MessageID, o)
		}
	}
	if ran.Load() != 3 {
		t.Errorf("%d runs, want 3", ran.Load())
	}
	for _, want := range []struct{ correlation, instance, input, output string }{
		{"c", "i", `{"a":1}`, `{"a":1}`},
		{"c", "other", `{"correlationId":"c","instanceId":"other","secret":"rotate"}`, ``},
		{"m4", engine.PublisherInstance, `{}`, `{}`},
	} {
		found := w.history(t, storage.HistoryFilter{CorrelationID: want.correlation, InstanceID: want.instance})
		if len(found) != 1 || found[0].Status != storage.HistorySucceeded || found[0].Operation != "rotate" || found[0].Engine != "spn" {
			t.Fatalf("%+v: the history has %+v", want, found)
		}
		full, err := w.store.HistoryEntry(t.Context(), "spn", found[0].RowKey)
		check(t, err)
		if string(full.Input) != want.input || want.output != "" && string(full.Output) != want.output {
			t.Errorf("%+v: input %s, output %s", want, full.Input, full.Output)
		}
	}
}

func TestFailedRunIsTriedAgain(t *testing.T) {
	t.Parallel()
	var ran atomic.Int32
	w := newWorld(t, storagetest.DSN(t), once(func(context.Context, engine.Call) (any, error) {
		switch ran.Add(1) {
		case 1:
			return nil, errors.New("no luck")
		case 2:
			panic("oh")
		}
		return nil, nil
	}))
	m := message("m", `{"instanceId":"i"}`)
	for i, says := range []string{"no luck", "oh", ""} {
		o := w.Execute(t.Context(), "spn", m)
		if o.Pending || (o.Err == nil) != (says == "") || o.Err != nil && (!strings.Contains(o.Err.Error(), says) || o.Class != "run_failed" || o.Fatal) {
			t.Fatalf("attempt %d: %+v", i+1, o)
		}
		if o.InstanceID != "i" || o.CorrelationID != "m" {
			t.Errorf("a dead letter would say %+v", o)
		}
	}
	failed := w.history(t, storage.HistoryFilter{Engine: "spn", Status: storage.HistoryFailed})
	if len(failed) != 2 || len(w.history(t, storage.HistoryFilter{Engine: "spn", Status: storage.HistorySucceeded})) != 1 {
		t.Errorf("the history has %d failures", len(failed))
	}
}

func TestWhatNoRetryMends(t *testing.T) {
	t.Parallel()
	w := newWorld(t, storagetest.DSN(t), engine.Definition{Name: "spn", Run: func(*engine.Run) (any, error) {
		return nil, engine.Fatal(errors.New("never"))
	}})
	if o := w.Execute(t.Context(), "spn", message("m", `{}`)); o.Err == nil || !o.Fatal || o.Class != "run_failed" {
		t.Errorf("a fatal run is %+v", o)
	}
	for name, body := range map[string]string{
		"no JSON": `rotate!`, "no object": `[]`, "nothing": ``, "cut off": `{"instanceId":"a`, "two values": `{} {}`,
		"an id that is none": `{"instanceId":7}`, "a control": `{"instanceId":"a\u0000"}`, "a long id": `{"correlationId":"` + strings.Repeat("x", 256) + `"}`,
		"an operation of others": `{"operation":"renew"}`,
	} {
		o := w.Execute(t.Context(), "spn", message("m-"+name, body))
		if o.Err == nil || !o.Fatal || o.Class != "bad_message" || o.InstanceID != engine.PublisherInstance || o.CorrelationID != "m-"+name {
			t.Errorf("%s: %+v", name, o)
		}
	}
	if o := w.Execute(t.Context(), "tls", message("m", `{}`)); !o.Pending {
		t.Errorf("an engine of other processes: %+v", o)
	}
}

// One run of an instance at a time: another message waits for its turn, the same one waits for the run.
func TestSingleton(t *testing.T) {
	t.Parallel()
	begun, release := make(chan bool, 10), make(chan bool)
	step := func(context.Context, engine.Call) (any, error) {
		begun <- true
		<-release
		return nil, nil
	}
	d := once(step)
	same := once(step)
	same.Name, same.Interchangeable = "tls", true
	dsn := storagetest.DSN(t)
	w := newWorld(t, dsn, d, same)
	for _, name := range []string{"spn", "tls"} {
		first := make(chan engine.Outcome, 2)
		go func() { first <- w.Execute(context.Background(), name, message("first", `{"instanceId":"i"}`)) }()
		<-begun
		other := w.Execute(t.Context(), name, message("second", `{"instanceId":"i"}`))
		long := message("second", `{"instanceId":"i"}`)
		long.ReceivedAt = time.Now().Add(-80 * time.Second)
		if o := w.Execute(t.Context(), name, long); name == "spn" && (!o.Pending || o.Wait < 10*time.Second || o.Wait > 20*time.Second) {
			t.Errorf("one that has waited for 80 s: %+v", o)
		}
		if name == "spn" && (!other.Pending || other.Wait != 2*time.Second) || name == "tls" && (other.Pending || other.Err != nil) {
			t.Errorf("%s: another message of the instance: %+v", name, other)
		}
		go func() { first <- w.Execute(context.Background(), name, message("first", `{"instanceId":"i"}`)) }()
		short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if o := w.Execute(short, name, message("first", `{"instanceId":"i"}`)); !o.Pending || o.Wait != 0 {
			t.Errorf("%s: an attempt whose time is over: %+v", name, o)
		}
		cancel()
		release <- true
		for range 2 {
			if o := <-first; o.Err != nil || o.Pending {
				t.Errorf("%s: the message itself: %+v", name, o)
			}
		}
		if n := len(w.history(t, storage.HistoryFilter{Engine: name})); n != 1 {
			t.Errorf("%s: %d entries in the history, want 1", name, n)
		}
	}
}

// A run that takes longer than it may is cancelled, has failed, and lets the registry go.
func TestTimeout(t *testing.T) {
	t.Parallel()
	w := newWorld(t, storagetest.DSN(t), engine.Definition{
		Name: "spn", Registry: true, Timeout: time.Second / 2, Run: func(r *engine.Run) (any, error) { return nil, r.Sleep(time.Hour) },
	})
	o := w.Execute(t.Context(), "spn", message("m", `{"instanceId":"i"}`))
	if o.Err == nil || o.Fatal || !strings.Contains(o.Err.Error(), "longer than 500ms") {
		t.Errorf("it ended with %+v", o)
	}
	if failed := w.history(t, storage.HistoryFilter{Engine: "spn", Status: storage.HistoryFailed}); len(failed) != 1 {
		t.Errorf("the history has %+v", failed)
	}
	if reg, err := w.store.Registry(t.Context(), "i"); err != nil || reg.LockJobID != "" {
		t.Errorf("the registry is %+v, %v", reg, err)
	}
}

func TestRegistry(t *testing.T) {
	t.Parallel()
	type state struct{ Runs, Ended int }
	const timeout = time.Minute
	var w world
	w = newWorld(t, storagetest.DSN(t), engine.Definition{
		Name: "spn", Registry: true, Timeout: timeout,
		Steps: map[string]engine.Step{"look": func(ctx context.Context, call engine.Call) (any, error) {
			reg, err := w.store.Registry(ctx, "i")
			if err != nil || reg.LockJobID != call.Instance.ExecutionID || reg.LockUntil == nil {
				return nil, fmt.Errorf("the registry is %+v, %w", reg, err)
			}
			if reg.LockDuration <= timeout {
				return nil, fmt.Errorf("the lock ends after %v, and the run may go on for %v", reg.LockDuration, timeout)
			}
			return nil, nil
		}},
		Run: func(r *engine.Run) (any, error) {
			var s state
			if err := errors.Join(r.Do("look", nil, nil), r.Registry(&s)); err != nil {
				return nil, err
			}
			s.Runs++
			if err := r.SetRegistry(s); err != nil {
				return nil, err
			}
			switch s.Runs {
			case 2:
				return nil, errors.New("failed")
			case 3:
				panic("oh")
			}
			s.Ended = s.Runs
			return s, r.SetRegistry(s)
		},
	})
	for i, want := range []string{`{"Runs":1,"Ended":1}`, `{"Runs":2,"Ended":1}`, `{"Runs":3,"Ended":1}`, `{"Runs":4,"Ended":4}`} {
		failed := i == 1 || i == 2 // what a failed run changed stays changed
		o := w.Execute(t.Context(), "spn", message(fmt.Sprint("m", i), `{"instanceId":"i"}`))
		if o.Pending || (o.Err != nil) != failed {
			t.Fatalf("run %d: %+v", i, o)
		}
		reg, err := w.store.Registry(t.Context(), "i")
		check(t, err)
		if string(reg.Document) != want || reg.LockJobID != "" || reg.LockUntil != nil {
			t.Fatalf("after run %d the registry is %+v (%s), want %s and no lock", i, reg, reg.Document, want)
		}
	}
	_, err := w.store.LockRegistry(t.Context(), "i", "somebody", time.Minute)
	check(t, err)
	if o := w.Execute(t.Context(), "spn", message("later", `{"instanceId":"i"}`)); !o.Pending || o.Wait <= 0 {
		t.Errorf("with the registry locked: %+v", o)
	}
	if _, err := w.Begin(t.Context(), "spn", engine.Message{InstanceID: "i"}); !errors.Is(err, engine.ErrLocked) {
		t.Errorf("on demand with the registry locked: %v", err)
	}
	check(t, w.store.UnlockRegistry(t.Context(), "i", "somebody"))
	if o := w.Execute(t.Context(), "spn", message("later", `{"instanceId":"i"}`)); o.Pending || o.Err != nil {
		t.Errorf("with the registry free again: %+v", o)
	}
}

// Of many callers at once one gets the run.
func TestBegin(t *testing.T) {
	t.Parallel()
	const callers = 8
	release := make(chan bool)
	w := newWorld(t, storagetest.DSN(t), once(func(context.Context, engine.Call) (any, error) { <-release; return nil, nil }))
	var running, began atomic.Int32
	var winner engine.Begun
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			b, err := w.Begin(t.Context(), "spn", engine.Message{InstanceID: "i"})
			switch {
			case err == nil:
				began.Add(1)
				winner = b
			case errors.Is(err, engine.ErrRunning):
				running.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if began.Load() != 1 || running.Load() != callers-1 {
		t.Fatalf("%d began, %d were told that it runs", began.Load(), running.Load())
	}
	if winner.CorrelationID == "" || winner.Operation != "rotate" || winner.Queue != "spn-rotation-queue" || winner.Done {
		t.Errorf("it answers %+v", winner)
	}
	again, err := w.Begin(t.Context(), "spn", winner.Message)
	if err != nil || again.Done {
		t.Errorf("the same again: %+v, %v", again, err)
	}
	if ids := w.queue.ids(); len(ids) != 1 || !strings.HasPrefix(ids[0], "spn spn-rotation-queue ") {
		t.Fatalf("in the queue: %v", ids)
	}
	body, err := json.Marshal(winner.Message)
	check(t, err)
	done := make(chan engine.Outcome)
	go func() { done <- w.Execute(context.Background(), "spn", message("m", string(body))) }()
	close(release)
	if o := <-done; o.Err != nil || o.Pending {
		t.Errorf("its message: %+v", o)
	}
	if again, err := w.Begin(t.Context(), "spn", winner.Message); err != nil || !again.Done {
		t.Errorf("the same after it was done: %+v, %v", again, err)
	}
	for name, tc := range map[string]struct {
		engine string
		m      engine.Message
		want   error
	}{
		"unknown":   {"nobody", engine.Message{}, engine.ErrUnknown},
		"elsewhere": {"tls", engine.Message{}, engine.ErrElsewhere},
		"operation": {"spn", engine.Message{Operation: "renew"}, engine.ErrBadMessage},
		"instance":  {"spn", engine.Message{InstanceID: " i"}, engine.ErrBadMessage},
	} {
		if _, err := w.Begin(t.Context(), tc.engine, tc.m); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// However many processes keep the time, a slot's message has one id.
func TestTimedEngine(t *testing.T) {
	t.Parallel()
	dsn := storagetest.DSN(t)
	d := once(func(context.Context, engine.Call) (any, error) { return nil, nil })
	d.Every = time.Second
	d.Instances = func(context.Context) ([]string, error) { return []string{"a", "b"}, nil }
	worlds := []world{newWorld(t, dsn, d), newWorld(t, dsn, d)}
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for _, w := range worlds {
		for len(w.queue.ids()) < 6 {
			select {
			case <-deadline:
				t.Fatalf("only %v were put", w.queue.ids())
			case <-tick.C:
			}
		}
	}
	shared := 0
	for _, id := range worlds[0].queue.ids() {
		for _, other := range worlds[1].queue.ids() {
			if id == other {
				shared++
			}
		}
	}
	if shared < 4 {
		t.Errorf("the two put %v and %v", worlds[0].queue.ids(), worlds[1].queue.ids())
	}
}

func TestRegisterRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, storagetest.DSN(t))
	fine := func(*engine.Run) (any, error) { return nil, nil }
	for name, tc := range map[string]struct {
		d    engine.Definition
		says string
	}{
		"unknown":  {engine.Definition{Name: "billing", Run: fine}, "none of publisher's"},
		"empty":    {engine.Definition{Name: "spn"}, "nothing to run"},
		"no queue": {engine.Definition{Name: "update-publisher", Run: fine}, "no queue"},
		"too long": {engine.Definition{Name: "spn", Run: fine, Timeout: 1000 * time.Hour}, "at most"},
		"too late": {engine.Definition{Name: "spn", Run: fine}, "too late"},
	} {
		if err := w.Register(tc.d); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The largest input and output that a run may have are in its history, beside those of another operation; more is refused
// before anything is done.
func TestLargeInputsAndOutputs(t *testing.T) {
	t.Parallel()
	const input, output = durable.MaxPayload / 2, durable.MaxPayload/2 - 64<<10
	var ran atomic.Int32
	large := func(n int) string { return `"` + strings.Repeat("x", n-2) + `"` }
	d := engine.Definition{
		Name: "hmac", Registry: true,
		Steps: map[string]engine.Step{"do": func(context.Context, engine.Call) (any, error) {
			ran.Add(1)
			return json.RawMessage(large(output)), nil
		}},
		Run: func(r *engine.Run) (any, error) {
			var out json.RawMessage
			return out, errors.Join(r.Record("notify", "do", r.Input, &out, durable.Retry{}), r.SetRegistry(1))
		},
	}
	run := d.Run
	d.Run = func(r *engine.Run) (any, error) {
		_, err := run(r)
		return json.RawMessage(large(output)), err
	}
	w := newWorld(t, storagetest.DSN(t), d)
	if o := w.Execute(t.Context(), "hmac", message("m", `{"instanceId":"i","input":`+large(input)+`}`)); o.Err != nil || o.Pending {
		t.Fatalf("%+v", o)
	}
	for _, operation := range []string{"rotate", "notify"} {
		entries := w.history(t, storage.HistoryFilter{InstanceID: "i", Operation: operation})
		if len(entries) != 1 || entries[0].Status != storage.HistorySucceeded {
			t.Fatalf("the history of %s has %+v", operation, entries)
		}
		full, err := w.store.HistoryEntry(t.Context(), "hmac", entries[0].RowKey)
		check(t, err)
		if len(full.Input) != input || len(full.Output) != output {
			t.Errorf("the history of %s has %d bytes of input and %d of output", operation, len(full.Input), len(full.Output))
		}
	}
	if reg, err := w.store.Registry(t.Context(), "i"); err != nil || reg.LockJobID != "" {
		t.Errorf("the registry is %+v, %v", reg, err)
	}

	for name, text := range map[string]string{"large": large(input + 1), "larger when escaped": `"` + strings.Repeat("<", input/6+1) + `"`} {
		if o := w.Execute(t.Context(), "hmac", message(name, `{"instanceId":"j","input":`+text+`}`)); !o.Fatal || !strings.Contains(o.Err.Error(), "input: it has") {
			t.Errorf("%s: %+v", name, o)
		}
		m := engine.Message{InstanceID: "j", Input: json.RawMessage(text)}
		if _, err := w.Begin(t.Context(), "hmac", m); !errors.Is(err, engine.ErrBadMessage) {
			t.Errorf("%s: Begin: %v", name, err)
		}
		if _, err := w.Put(t.Context(), "hmac", name, m); !errors.Is(err, engine.ErrBadMessage) {
			t.Errorf("%s: Put: %v", name, err)
		}
	}
	if ran.Load() != 1 {
		t.Errorf("the step was executed %d times", ran.Load())
	}
}
