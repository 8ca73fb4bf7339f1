package web_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/engine"
	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/web"
)

// fakeTables keeps dead letters and history in memory, for what a database has no part in: what the API takes, hands
// on and refuses. It has storage's semantics as far as the API sees them.
type fakeTables struct {
	mu      sync.Mutex
	letters []storage.DeadLetter
	history []storage.HistoryEntry
	served  map[string]uint32 // queue to consumer key
	changes int               // calls that changed something
	by      string            // who did the last
}

func (f *fakeTables) find(engine, rowKey string) (*storage.DeadLetter, error) {
	for i := range f.letters {
		if f.letters[i].Engine == engine && f.letters[i].RowKey == rowKey {
			return &f.letters[i], nil
		}
	}
	return nil, storage.ErrNotFound
}

func after(cur *storage.TableCursor, at time.Time, engine, rowKey string) bool {
	return cur == nil || at.Before(cur.At) || at.Equal(cur.At) && (engine < cur.Engine || engine == cur.Engine && rowKey < cur.RowKey)
}

func within(at time.Time, from, to *time.Time) bool {
	return (from == nil || !at.Before(*from)) && (to == nil || at.Before(*to))
}

func matches(want, got string) bool { return want == "" || want == got }

func (f *fakeTables) ListDeadLetters(_ context.Context, q storage.DLQFilter, cur *storage.TableCursor, limit int) ([]storage.DeadLetter, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var page []storage.DeadLetter
	for _, d := range f.letters {
		if matches(q.Engine, d.Engine) && matches(q.InstanceID, d.InstanceID) && matches(string(q.Status), string(d.Status)) &&
			within(d.LastFailureAt, q.From, q.To) && after(cur, d.LastFailureAt, d.Engine, d.RowKey) {
			d.OriginalMessage = nil
			page = append(page, d)
		}
	}
	slices.SortFunc(page, func(a, b storage.DeadLetter) int {
		if after(&storage.TableCursor{At: a.LastFailureAt, Engine: a.Engine, RowKey: a.RowKey}, b.LastFailureAt, b.Engine, b.RowKey) {
			return -1
		}
		return 1
	})
	return page[:min(limit, len(page))], len(page) > limit, nil
}

func (f *fakeTables) DeadLetter(_ context.Context, engine, rowKey string) (*storage.DeadLetter, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.find(engine, rowKey)
	if err != nil {
		return nil, err
	}
	out := *d
	return &out, nil
}

func (f *fakeTables) AddDeadLetter(_ context.Context, d storage.DeadLetter) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.find(d.Engine, d.RowKey); err == nil {
		return false, nil
	}
	f.changes++
	f.letters = append(f.letters, d)
	return true, nil
}

func (f *fakeTables) ResolveDeadLetter(_ context.Context, engine, rowKey string, r storage.Resolution) (*storage.DeadLetter, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.find(engine, rowKey)
	if err != nil {
		return nil, err
	}
	if d.Status != storage.DLQPending {
		return nil, storage.ErrBadResolution
	}
	f.changes++
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	d.Status, d.ResolutionNotes, d.ResolvedBy, d.ResolvedAt = r.Status, r.Notes, r.By, &at
	out := *d
	return &out, nil
}

func (f *fakeTables) RetryDeadLetter(_ context.Context, engine, rowKey, by string) (storage.Retried, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.find(engine, rowKey)
	if err != nil {
		return storage.Retried{}, err
	}
	consumer, served := f.served[d.OriginalQueue]
	switch {
	case d.QueueMessageID != "":
		return storage.Retried{Job: d.Job, QueueMessageID: d.QueueMessageID}, nil
	case !served:
		return storage.Retried{}, storage.ErrNoQueue
	}
	f.changes++
	d.Status, d.ResolvedBy, d.QueueMessageID = storage.DLQResolved, by, storage.NewID().String()
	if d.Job == (storage.ID{}) {
		d.Job = storage.NewID()
	}
	return storage.Retried{Again: true, Job: d.Job, QueueMessageID: d.QueueMessageID, ConsumerKey: consumer}, nil
}

func (f *fakeTables) ExpireDeadLetters(_ context.Context, olderThan time.Duration, engine, by string) (n int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changes, f.by = f.changes+1, by
	for i, d := range f.letters {
		if d.Status == storage.DLQPending && matches(engine, d.Engine) && time.Since(d.LastFailureAt) > olderThan {
			f.letters[i].Status = storage.DLQExpired
			n++
		}
	}
	return n, nil
}

func (f *fakeTables) ListHistory(_ context.Context, q storage.HistoryFilter, cur *storage.TableCursor, limit int) ([]storage.HistoryEntry, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var page []storage.HistoryEntry
	for _, e := range f.history {
		if matches(q.Engine, e.Engine) && matches(q.InstanceID, e.InstanceID) && matches(string(q.Status), string(e.Status)) &&
			matches(q.Operation, e.Operation) && matches(q.CorrelationID, e.CorrelationID) &&
			within(e.CreatedAt, q.From, q.To) && after(cur, e.CreatedAt, e.Engine, e.RowKey) {
			page = append(page, e)
		}
	}
	slices.SortFunc(page, func(a, b storage.HistoryEntry) int {
		return -strings.Compare(a.CreatedAt.Format(time.RFC3339Nano)+a.RowKey, b.CreatedAt.Format(time.RFC3339Nano)+b.RowKey)
	})
	return page[:min(limit, len(page))], len(page) > limit, nil
}

func (f *fakeTables) HistoryEntry(_ context.Context, engine, rowKey string) (*storage.HistoryEntry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.history {
		if e.Engine == engine && e.RowKey == rowKey {
			return &e, nil
		}
	}
	return nil, storage.ErrNotFound
}

func (f *fakeTables) AddHistory(_ context.Context, entries []storage.HistoryEntry) (added int, err error) {
	for _, e := range entries {
		if _, err := f.HistoryEntry(context.Background(), e.Engine, e.RowKey); err == nil {
			continue
		}
		f.mu.Lock()
		f.changes++
		f.history = append(f.history, e)
		f.mu.Unlock()
		added++
	}
	return added, nil
}

func (f *fakeTables) changed() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changes
}

var testTokenKey = []byte("sixteen bytes or more")

// newEngineAPI has the engines of the publisher, on tables in memory.
func newEngineAPI(t *testing.T, change ...func(*web.Options)) (*api, *fakeTables) {
	t.Helper()
	store, err := storage.Open(storage.Options{DSN: "root@tcp(127.0.0.1:1)/nothing"}) // the fake needs none
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	f := &fakeTables{served: map[string]uint32{"hmac-rotation-queue": 7}}
	return newAPIOn(t, store, append([]func(*web.Options){withEngines(t, f, engine.Publisher)}, change...)...), f
}

func withEngines(t *testing.T, tables web.EngineTables, name string) func(*web.Options) {
	t.Helper()
	engines, err := engine.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	return func(o *web.Options) { o.EngineTables, o.Engines, o.TokenKey = tables, engines, testTokenKey }
}

const asJSON = "Content-Type: application/json"

// post sends JSON as an admin.
func (a *api) post(path, body string, headers ...string) answer {
	a.t.Helper()
	return a.call("POST", path, body, append(headers, asAdmin, asJSON)...)
}

func (a *api) patch(path, body string) answer {
	a.t.Helper()
	return a.call("PATCH", path, body, asAdmin, asJSON)
}

// data is the data of an envelope that is complete.
func (r answer) data() map[string]any {
	r.t.Helper()
	v := r.json()
	at, err := time.Parse(time.RFC3339Nano, v["timestamp"].(string))
	if v["status"] != "Succeeded" || v["correlationId"] != r.Header.Get("X-Request-ID") || err != nil || at.Location() != time.UTC || len(v) != 4 {
		r.t.Fatalf("the envelope is %s", r.body)
	}
	return v["data"].(map[string]any)
}

// problem is the detail of a refusal.
func (r answer) problem(status int) string {
	r.t.Helper()
	r.want(status)
	if got := r.Header.Get("Content-Type"); got != "application/problem+json" {
		r.t.Fatalf("%d comes as %s", status, got)
	}
	v := r.json()
	if v["status"] != float64(status) || v["requestId"] != r.Header.Get("X-Request-ID") {
		r.t.Fatalf("the problem is %s", r.body)
	}
	return v["detail"].(string)
}

// rowKeys are those of a page, and its token.
func (r answer) rowKeys() (keys []string, token string) {
	r.t.Helper()
	data := r.want(200).data()
	for _, item := range data["items"].([]any) {
		keys = append(keys, item.(map[string]any)["rowKey"].(string))
	}
	token, _ = data["continuationToken"].(string)
	return keys, token
}

// timeoutError is a fault that passes.
type timeoutError struct{}

func (timeoutError) Error() string   { return "secret detail" }
func (timeoutError) Timeout() bool   { return true }
func (timeoutError) Temporary() bool { return true }

// brokenTables fails always.
type brokenTables struct {
	web.EngineTables // nil: what is not below is never called

	err error
}

func (b brokenTables) ListDeadLetters(context.Context, storage.DLQFilter, *storage.TableCursor, int) ([]storage.DeadLetter, bool, error) {
	return nil, false, b.err
}

func (b brokenTables) DeadLetter(context.Context, string, string) (*storage.DeadLetter, error) {
	return nil, b.err
}

func (b brokenTables) AddDeadLetter(context.Context, storage.DeadLetter) (bool, error) {
	return false, b.err
}

func (b brokenTables) ResolveDeadLetter(context.Context, string, string, storage.Resolution) (*storage.DeadLetter, error) {
	return nil, b.err
}

func (b brokenTables) RetryDeadLetter(context.Context, string, string, string) (storage.Retried, error) {
	return storage.Retried{}, b.err
}

func (b brokenTables) ExpireDeadLetters(context.Context, time.Duration, string, string) (int64, error) {
	return 0, b.err
}

func (b brokenTables) ListHistory(context.Context, storage.HistoryFilter, *storage.TableCursor, int) ([]storage.HistoryEntry, bool, error) {
	return nil, false, b.err
}

func (b brokenTables) HistoryEntry(context.Context, string, string) (*storage.HistoryEntry, error) {
	return nil, b.err
}

func (b brokenTables) AddHistory(context.Context, []storage.HistoryEntry) (int, error) {
	return 0, b.err
}
