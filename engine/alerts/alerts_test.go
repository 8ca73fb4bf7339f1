package alerts_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/engine"
	"github.com/redrive-mq/redrive/engine/alerts"
	"github.com/redrive-mq/redrive/engine/durable"
	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/storage/storagetest"
)

func TestMain(m *testing.M) { storagetest.Main(m) }

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// world is the engine on a database, with a queue and channels in memory.
type world struct {
	t       *testing.T
	store   *storage.Store
	runtime *engine.Runtime
	intake  alerts.Intake

	mu       sync.Mutex
	jobs     []storage.ClaimedJob // of the queue
	ids      map[string]bool      // that the queue knows
	channels map[string][]string  // the bodies of each that is there
	had      map[string]bool      // channel and message id

	// entered, if set, is called by what forwards, before it does.
	entered func(ctx context.Context, body []byte)
}

// newWorld has the channels "ops" and "audit"; the alerts go to the given ones.
func newWorld(t *testing.T, channels ...string) *world {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	store, err := storage.Open(storage.Options{DSN: storagetest.DSN(t), Log: log})
	check(t, err)
	t.Cleanup(func() { _ = store.Close() })
	runner, err := durable.New(store.DB(), durable.Options{Log: log})
	check(t, err)
	publisher, err := engine.Lookup(engine.Publisher)
	check(t, err)
	w := &world{t: t, store: store, ids: map[string]bool{}, channels: map[string][]string{"ops": nil, "audit": nil}, had: map[string]bool{}}
	w.runtime, err = engine.NewRuntime(engine.RuntimeOptions{Context: publisher, Tables: store, Queue: w, Durable: runner, Log: log})
	check(t, err)
	check(t, w.runtime.Register(alerts.New(alerts.Options{Channels: channels, Forward: w.forward, Retry: durable.Retry{Attempts: 2, Wait: time.Millisecond}})))
	w.intake.Put = func(ctx context.Context, id string, m engine.Message) (bool, error) {
		return w.runtime.Put(ctx, alerts.Name, id, m)
	}
	w.runtime.Start(context.Background())
	t.Cleanup(func() { check(t, w.runtime.Stop(context.Background())) })
	return w
}

// Put is the queue's.
func (w *world) Put(_ context.Context, name, queue, messageID string, body []byte) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if name != "alerts" || queue != "monitor-alerts-queue" {
		w.t.Errorf("a message is put into %s of %s", queue, name)
	}
	if w.ids[messageID] {
		return false, nil
	}
	w.ids[messageID] = true
	w.jobs = append(w.jobs, storage.ClaimedJob{MessageID: messageID, Body: body})
	return true, nil
}

func (w *world) forward(ctx context.Context, channel, messageID string, body []byte) error {
	if w.entered != nil {
		w.entered(ctx, body)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.channels[channel]; !ok {
		return errors.New("no such channel")
	}
	if w.had[channel+" "+messageID] {
		return nil
	}
	w.had[channel+" "+messageID] = true
	w.channels[channel] = append(w.channels[channel], string(body))
	return nil
}

// take takes a webhook in and returns the jobs that it made.
func (w *world) take(body []byte, wantQueued, wantRepeated int) []storage.ClaimedJob {
	w.t.Helper()
	queued, repeated, err := w.intake.Take(w.t.Context(), body)
	if err != nil || queued != wantQueued || repeated != wantRepeated {
		w.t.Fatalf("%d are queued and %d repeated, %v; want %d and %d", queued, repeated, err, wantQueued, wantRepeated)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.jobs[len(w.jobs)-queued:])
}

func (w *world) execute(job storage.ClaimedJob) engine.Outcome {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	defer cancel()
	return w.runtime.Execute(ctx, "alerts", job)
}

// done executes jobs that must succeed.
func (w *world) done(jobs ...storage.ClaimedJob) {
	w.t.Helper()
	for _, job := range jobs {
		if o := w.execute(job); o.Err != nil || o.Pending {
			w.t.Fatalf("%s: %+v", job.MessageID, o)
		}
	}
}

// got is name and status of each alert that a channel has.
func (w *world) got(channel string) (out []string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, body := range w.channels[channel] {
		var a alerts.Alert
		check(w.t, json.Unmarshal([]byte(body), &a))
		out = append(out, a.Name+" "+string(a.Status))
	}
	return out
}

func (w *world) want(channel string, alerts ...string) {
	w.t.Helper()
	if got := w.got(channel); !slices.Equal(got, alerts) {
		w.t.Errorf("%s has %q, want %q", channel, got, alerts)
	}
}

// history lists the entries of a correlation id, the latest first.
func (w *world) history(correlationID string) (out []storage.HistoryEntry) {
	w.t.Helper()
	page, _, err := w.store.ListHistory(w.t.Context(), storage.HistoryFilter{Engine: "alerts", CorrelationID: correlationID}, nil, 50)
	check(w.t, err)
	for _, e := range page {
		full, err := w.store.HistoryEntry(w.t.Context(), e.Engine, e.RowKey)
		check(w.t, err)
		out = append(out, *full)
	}
	return out
}

func TestRepetitionsAreForwardedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "ops", "audit")
	body := webhook(anAlert("disk", "firing", start))
	jobs := w.take(body, 1, 0)
	w.done(jobs...)
	w.take(body, 0, 1)
	w.done(jobs...) // its completion was lost
	// The queue has forgotten the message; the history has not.
	w.mu.Lock()
	clear(w.ids)
	clear(w.had)
	w.mu.Unlock()
	w.done(w.take(body, 1, 0)...)
	w.want("ops", "disk firing")
	w.want("audit", "disk firing")

	entries := w.history(jobs[0].MessageID)
	if len(entries) != 1 {
		t.Fatalf("the history has %+v", entries)
	}
	e := entries[0]
	if e.Operation != "process" || e.InstanceID != "f-disk" || e.Status != storage.HistorySucceeded || string(e.Output) != `{"forwarded":["ops","audit"]}` {
		t.Errorf("the history says %+v, output %s", e, e.Output)
	}
	if w.channels["ops"][0] != string(e.Input) || !strings.Contains(string(e.Input), `"raw":{"status":"firing"`) {
		t.Errorf("%s was forwarded, of %s", w.channels["ops"][0], e.Input)
	}
}

func TestFiringAndResolvingAreBothForwarded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "ops")
	firing := w.take(webhook(anAlert("disk", "firing", start)), 1, 0)[0]
	resolved := w.take(webhook(anAlert("disk", "resolved", start)), 1, 0)[0]

	// While the firing is being forwarded, its resolving waits for its turn.
	reached, proceed := make(chan struct{}, 1), make(chan struct{})
	w.entered = func(ctx context.Context, _ []byte) {
		select {
		case reached <- struct{}{}:
		default:
		}
		select {
		case <-proceed:
		case <-ctx.Done():
		}
	}
	first := make(chan engine.Outcome, 1)
	go func() { first <- w.execute(firing) }()
	<-reached
	if o := w.execute(resolved); !o.Pending || o.Wait <= 0 {
		t.Errorf("the resolving meanwhile: %+v", o)
	}
	close(proceed)
	if o := <-first; o.Err != nil || o.Pending {
		t.Fatalf("the firing: %+v", o)
	}
	w.done(resolved)
	w.done(w.take(webhook(anAlert("disk", "firing", "2026-03-02T10:00:00Z")), 1, 0)...) // again
	w.take(webhook(anAlert("disk", "resolved", start), anAlert("disk", "firing", start)), 0, 2)
	w.want("ops", "disk firing", "disk resolved", "disk firing")

	w.done(w.take(azure("Fired", alertID), 1, 0)...)
	w.done(w.take(azure("Resolved", alertID), 1, 0)...)
	w.take(azure("Resolved", alertID), 0, 1)
	if got := w.got("ops"); !slices.Equal(got[3:], []string{"cpu firing", "cpu resolved"}) {
		t.Errorf("of Azure there is %q", got)
	}
}

// Each of the two is forwarded only once the other is about to be.
func TestAlertsOfOneWebhookGoSideBySide(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "ops")
	jobs := w.take(webhook(anAlert("disk", "firing", start), anAlert("load", "firing", start)), 2, 0)
	var mu sync.Mutex
	entered := map[string]bool{}
	together := make(chan struct{})
	w.entered = func(ctx context.Context, body []byte) {
		mu.Lock()
		before := len(entered)
		if entered[string(body)] = true; before < 2 && len(entered) == 2 {
			close(together)
		}
		mu.Unlock()
		select {
		case <-together:
		case <-ctx.Done():
		}
	}
	outcomes := make(chan engine.Outcome, 2)
	for _, job := range jobs {
		go func() { outcomes <- w.execute(job) }()
	}
	for range jobs {
		if o := <-outcomes; o.Err != nil || o.Pending {
			t.Fatalf("%+v", o)
		}
	}
	got := w.got("ops")
	slices.Sort(got)
	if !slices.Equal(got, []string{"disk firing", "load firing"}) {
		t.Errorf("there is %q", got)
	}
}

func TestAChannelThatIsMissingIsAFailureThatNamesIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pager", "ops")
	job := w.take(webhook(anAlert("disk", "firing", start)), 1, 0)[0]
	for range 2 {
		o := w.execute(job)
		if o.Err == nil || o.Fatal || o.Pending || !strings.Contains(o.Err.Error(), `channel "pager": `) || !strings.Contains(o.Err.Error(), "no such channel") || o.InstanceID != "f-disk" {
			t.Fatalf("without the channel: %+v", o)
		}
	}
	w.want("ops", "disk firing") // the others have it, once
	w.mu.Lock()
	w.channels["pager"] = nil
	w.mu.Unlock()
	w.done(job)
	w.want("pager", "disk firing")
	w.want("ops", "disk firing")
	if entries := w.history(job.MessageID); len(entries) != 3 || entries[0].Status != storage.HistorySucceeded || entries[2].Status != storage.HistoryFailed || !strings.Contains(entries[2].Error, "pager") {
		t.Errorf("the history has %+v", entries)
	}
}

func TestWithoutChannelsAlertsAreInTheHistory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if d := w.runtime.Engines(); len(d) != 1 || d[0].MaxRetryAttempts != 5 {
		t.Errorf("the engines are %+v", d)
	}
	job := w.take(azure("Fired", alertID), 1, 0)[0]
	w.done(job)
	if e := w.history(job.MessageID); len(e) != 1 || string(e[0].Output) != `{"forwarded":[]}` || !strings.Contains(string(e[0].Input), `"metricValue":31.1`) {
		t.Errorf("the history has %+v", e)
	}
}

func TestMessagesThatAreNoAlertsAreDeadAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "ops")
	for _, body := range []string{`{}`, `{"input":1}`, `{"input":{"fingerprint":"f","status":"broken"}}`, `{"input":{"fingerprint":"","status":"firing"}}`} {
		if o := w.execute(storage.ClaimedJob{MessageID: "m" + body, Body: []byte(body)}); o.Err == nil || !o.Fatal || !strings.Contains(o.Err.Error(), "no alert") {
			t.Errorf("%s: %+v", body, o)
		}
	}
	w.want("ops")
}

// What fails ends the taking in soon; what was put by then is told.
func TestTakeStopsAtWhatFails(t *testing.T) {
	t.Parallel()
	const many = 5000
	var tried, created atomic.Int64
	fault := errors.New("no database")
	in := alerts.Intake{Put: func(context.Context, string, engine.Message) (bool, error) {
		if tried.Add(1) == 100 {
			return false, fault
		}
		created.Add(1)
		return true, nil
	}}
	var all []string
	for i := range many {
		all = append(all, anAlert(fmt.Sprint("disk", i), "firing", start))
	}
	queued, repeated, err := in.Take(t.Context(), webhook(all...))
	if int64(queued) != created.Load() || queued < 99 || queued > many/2 || repeated != 0 || !errors.Is(err, fault) || in.Unreadable(err) || !strings.Contains(err.Error(), "of 5000") {
		t.Errorf("%d of %d, %d, %v", queued, created.Load(), repeated, err)
	}
	before := tried.Load()
	if _, _, err := in.Take(t.Context(), []byte("{}")); !in.Unreadable(err) || tried.Load() != before {
		t.Errorf("%v, %d", err, tried.Load())
	}
}

func TestWithoutForwardItFails(t *testing.T) {
	t.Parallel()
	d := alerts.New(alerts.Options{Channels: []string{"ops"}})
	if _, err := d.Steps["forward"](t.Context(), engine.Call{Input: json.RawMessage(`{"channel":"ops"}`)}); err == nil {
		t.Error("it forwards by nothing")
	}
}
