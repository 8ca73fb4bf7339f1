package web_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/storage/storagetest"
	"github.com/redrive-mq/redrive/web"
	"github.com/redrive-mq/redrive/web/webtest"
)

func TestMain(m *testing.M) { storagetest.Main(m) }

// fakeBroker stands in for the packages behind the API.
type fakeBroker struct {
	accept func(context.Context, web.Broadcast) (string, error)
	counts func(context.Context) (storage.DeadCounts, bool, error)

	mu     sync.Mutex
	kicked []uint32
}

func (f *fakeBroker) Accept(ctx context.Context, b web.Broadcast) (string, error) {
	return f.accept(ctx, b)
}

func (f *fakeBroker) Counts(ctx context.Context) (storage.DeadCounts, bool, error) {
	return f.counts(ctx)
}

func (f *fakeBroker) Kick(consumerKey uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kicked = append(f.kicked, consumerKey)
}

func (f *fakeBroker) kicks() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.kicked)
}

// api is a server on a database of its own, with the channel "c", the producer "p", the push consumer "push" and the
// pull consumer "pull"; every token is the id and "-token".
type api struct {
	t      *testing.T
	dsn    string // of newBareAPI and newAPI
	store  *storage.Store
	broker *fakeBroker
	server *httptest.Server
	client *http.Client
}

const adminToken = "let-me-in"

// newBareAPI has nothing in its database.
func newBareAPI(t *testing.T, change ...func(*web.Options)) *api {
	t.Helper()
	dsn := storagetest.DSN(t)
	store, err := storage.Open(storage.Options{DSN: dsn, MaxOpenConns: 8})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	a := newAPIOn(t, store, change...)
	a.dsn = dsn
	return a
}

func newAPIOn(t *testing.T, store *storage.Store, change ...func(*web.Options)) *api {
	t.Helper()
	a := &api{t: t, store: store, client: webtest.NewClient(t)}
	a.broker = &fakeBroker{accept: a.storeMessage, counts: func(ctx context.Context) (storage.DeadCounts, bool, error) {
		counts, err := store.DeadCounts(ctx)
		return counts, true, err
	}}
	o := web.Options{
		Store: store, Broadcaster: a.broker, Kicker: a.broker, DeadCounter: a.broker,
		AdminTokens: []web.AdminToken{web.NewAdminToken("first", "another"), web.NewAdminToken("second", adminToken)},
		MaxRetry:    5,
		Log:         slog.New(slog.DiscardHandler),
		Registerer:  prometheus.NewPedanticRegistry(),
	}
	for _, c := range change {
		c(&o)
	}
	s, err := web.New(o)
	if err != nil {
		t.Fatal(err)
	}
	a.server = httptest.NewServer(s)
	t.Cleanup(a.server.Close)
	return a
}

func newAPI(t *testing.T, change ...func(*web.Options)) *api {
	t.Helper()
	a := newBareAPI(t, change...)
	a.put("/producer/p", "token=p-token&name=The+Producer")
	a.put("/channel/c", "token=c-token&name=The+Channel")
	a.put("/channel/c/consumer/push", "token=push-token&name=Pusher&callbackUrl=https%3A%2F%2Fconsumer.example%2Fhook")
	a.put("/channel/c/consumer/pull", "token=pull-token&name=Puller&callbackUrl=https%3A%2F%2Fconsumer.example%2Fpull&type=pull")
	return a
}

// storeMessage does what a broker does at least: store the message with a job for each consumer.
func (a *api) storeMessage(ctx context.Context, b web.Broadcast) (string, error) {
	cat, err := a.store.Catalog(ctx)
	if err != nil {
		return "", err
	}
	m := &storage.NewMessage{
		Key: storage.NewID(), ChannelKey: b.Channel.Key, ProducerKey: b.Producer.Key, MessageID: b.MessageID, ContentType: b.ContentType,
		Priority: b.Priority, Headers: b.Headers, Body: b.Body, ScheduledFor: b.ScheduledFor,
	}
	if b.ScheduledFor == nil {
		for _, k := range cat.ConsumersOf(b.Channel) {
			m.Jobs = append(m.Jobs, storage.NewJob{ID: storage.NewID(), ConsumerKey: k.Key})
		}
	}
	if err := a.store.Accept(ctx, 0, storage.Lease{}, []*storage.NewMessage{m}); err != nil {
		return "", err
	}
	if m.Duplicate {
		return "", storage.ErrDuplicate
	}
	return b.MessageID, nil
}

// answer is a response whose body was read.
type answer struct {
	*http.Response
	t    *testing.T
	body string
}

// call sends a request with headers given as "Name: value".
func (a *api) call(method, path, body string, headers ...string) answer {
	a.t.Helper()
	r, err := http.NewRequest(method, a.server.URL+path, strings.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Add(name, value)
	}
	res, err := a.client.Do(r)
	if err != nil {
		a.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	got, err := io.ReadAll(res.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	return answer{res, a.t, string(got)}
}

func (a *api) get(path string, headers ...string) answer {
	a.t.Helper()
	return a.call("GET", path, "", headers...)
}

const (
	asAdmin = "Authorization: Bearer " + adminToken
	asForm  = "Content-Type: application/x-www-form-urlencoded"
)

// put sends a form as an admin and expects 200.
func (a *api) put(path, form string, headers ...string) answer {
	a.t.Helper()
	return a.call("PUT", path, form, append(headers, asAdmin, asForm)...).want(200)
}

// ours are the headers of a broadcast by "p" to "c".
func ours(more ...string) []string {
	return append([]string{"X-Broker-Channel-Token: c-token", "X-Broker-Producer-ID: p", "X-Broker-Producer-Token: p-token"}, more...)
}

// as are the headers of a consumer of "c".
func as(consumer string, more ...string) []string {
	return append([]string{"X-Broker-Channel-Token: c-token", "X-Broker-Consumer-Token: " + consumer + "-token"}, more...)
}

func (a *api) send(messageID string, more ...string) answer {
	a.t.Helper()
	return a.call("POST", "/channel/c/broadcast", "payload of "+messageID, ours(append(more, "X-Broker-Message-ID: "+messageID)...)...).want(201)
}

// jobOf is the job that a message became for a consumer.
func (a *api) jobOf(messageID, consumer string) string {
	a.t.Helper()
	var id storage.ID
	if err := a.store.DB().QueryRowContext(a.t.Context(), `SELECT j.id FROM job j JOIN message m ON m.id = j.messageId
		JOIN consumer k ON k.id = j.consumerId WHERE m.messageId = ? AND k.consumerId = ?`, messageID, consumer).Scan(&id); err != nil {
		a.t.Fatal(err)
	}
	return id.String()
}

// kill makes a job dead with all its retries used up.
func (a *api) kill(jobID string) {
	a.t.Helper()
	id, err := storage.ParseID(jobID)
	if err != nil {
		a.t.Fatal(err)
	}
	if _, err := a.store.DB().ExecContext(a.t.Context(),
		`UPDATE job SET status = 1004, statusChangedAt = NOW(6), dueAt = NULL, retryAttemptCount = 5 WHERE id = ?`, id); err != nil {
		a.t.Fatal(err)
	}
}

func (r answer) want(status int) answer {
	r.t.Helper()
	if r.StatusCode != status {
		r.t.Fatalf("%s %s answered %d %q, want %d", r.Request.Method, r.Request.URL.Path, r.StatusCode, r.body, status)
	}
	return r
}

// json reads the body.
func (r answer) json() map[string]any {
	r.t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(r.body), &v); err != nil {
		r.t.Fatalf("%s: %v in %q", r.Request.URL.Path, err, r.body)
	}
	return v
}

func (r answer) list() (result []string, pages map[string]string) {
	r.t.Helper()
	var v struct {
		Result []string
		Pages  map[string]string
	}
	if err := json.Unmarshal([]byte(r.body), &v); err != nil {
		r.t.Fatal(err)
	}
	return v.Result, v.Pages
}

func form(pairs ...string) string {
	v := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		v.Set(pairs[i], pairs[i+1])
	}
	return v.Encode()
}

// eventually waits until ok is true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("not within 10 s: %s", what)
		case <-tick.C:
		}
	}
}
