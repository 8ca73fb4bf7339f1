package health_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/redrive-mq/redrive/engine"
	"github.com/redrive-mq/redrive/engine/durable"
	"github.com/redrive-mq/redrive/engine/health"
	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/storage/storagetest"
)

func TestMain(m *testing.M) { storagetest.Main(m) }

var quiet = slog.New(slog.DiscardHandler)

// world is a database with a channel, and a destination whose answers the test says.
type world struct {
	*storage.Store
	t       *testing.T
	dsn     string
	channel *storage.Channel
	dest    *httptest.Server
	code    atomic.Int64
	probes  atomic.Int64
	changes chan health.Change
	queue   *queue
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, dsn: storagetest.DSN(t), changes: make(chan health.Change, 1000), queue: &queue{ids: map[string][]byte{}, put: make(chan string, 100)}}
	w.Store = w.open()
	var err error
	w.channel, err = w.PutChannel(t.Context(), storage.PutStakeholder{ID: "orders", Name: "Orders", Token: "t"})
	w.ok(err)
	w.code.Store(200)
	w.dest = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.probes.Add(1)
		body, err := io.ReadAll(r.Body)
		if r.Method != http.MethodHead || r.Header.Get("User-Agent") != "Redrive" || len(body) > 0 || err != nil ||
			r.Header.Get("Authorization") != "" || r.Header.Get("X-Broker-Consumer-Token") != "" {
			t.Errorf("a probe is %s with %v", r.Method, r.Header)
		}
		rw.Header().Set("Location", "/elsewhere")
		rw.WriteHeader(int(w.code.Load()))
	}))
	t.Cleanup(w.dest.Close)
	return w
}

func (w *world) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) open() *storage.Store {
	w.t.Helper()
	s, err := storage.Open(storage.Options{DSN: w.dsn, Log: quiet})
	w.ok(err)
	w.t.Cleanup(func() { _ = s.Close() })
	return s
}

func (w *world) consumer(id, url string, kind storage.ConsumerType) *storage.Consumer {
	w.t.Helper()
	k, err := w.PutConsumer(w.t.Context(), storage.PutConsumer{
		PutStakeholder: storage.PutStakeholder{ID: id, Name: id, Token: "secret-token"}, ChannelKey: w.channel.Key, Type: kind, CallbackURL: url,
	})
	w.ok(err)
	return k
}

// runtime is one process's.
func (w *world) runtime(store *storage.Store, o health.Options) *engine.Runtime {
	w.t.Helper()
	runner, err := durable.New(store.DB(), durable.Options{Log: quiet, Idle: 50 * time.Millisecond})
	w.ok(err)
	managed, err := engine.Lookup(engine.ManagedApp)
	w.ok(err)
	rt, err := engine.NewRuntime(engine.RuntimeOptions{Context: managed, Tables: store, Queue: w.queue, Durable: runner, Log: quiet})
	w.ok(err)
	if o.Store == nil {
		o.Store = store
	}
	if o.Client == nil {
		o.Client = w.dest.Client()
	}
	if o.Every == 0 {
		o.Every = time.Hour
	}
	o.Log, o.Changed = quiet, func(_ context.Context, c health.Change) { w.changes <- c }
	w.ok(rt.Register(health.New(o)))
	rt.Start(context.WithoutCancel(w.t.Context()))
	w.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		w.ok(rt.Stop(ctx))
	})
	return rt
}

var correlations atomic.Int64

// run executes a message that is like the timer's.
func (w *world) run(rt *engine.Runtime) (correlationID string, o engine.Outcome) {
	w.t.Helper()
	id := fmt.Sprintf("timer/%d", correlations.Add(1))
	return id, rt.Execute(w.t.Context(), health.Name, storage.ClaimedJob{MessageID: id, Body: []byte(`{"trigger":"timer"}`)})
}

func (w *world) runs(rt *engine.Runtime) (correlationID string) {
	w.t.Helper()
	id, o := w.run(rt)
	if o.Err != nil || o.Pending {
		w.t.Fatalf("%+v", o)
	}
	return id
}

func (w *world) state(consumer string) storage.DestinationHealth {
	w.t.Helper()
	all, err := w.DestinationHealth(w.t.Context())
	w.ok(err)
	for _, d := range all {
		if d.ConsumerID == consumer {
			return d
		}
	}
	w.t.Fatalf("there is no %s", consumer)
	return storage.DestinationHealth{}
}

func (w *world) history(correlationID string) map[string]storage.HistoryEntry {
	w.t.Helper()
	entries, _, err := w.ListHistory(w.t.Context(), storage.HistoryFilter{CorrelationID: correlationID}, nil, 100)
	w.ok(err)
	out := map[string]storage.HistoryEntry{}
	for _, e := range entries {
		full, err := w.HistoryEntry(w.t.Context(), e.Engine, e.RowKey)
		w.ok(err)
		if _, twice := out[e.Operation]; twice {
			w.t.Errorf("%s has two entries", e.Operation)
		}
		out[e.Operation] = *full
	}
	return out
}

// unlocked checks that nobody holds the registry, and returns its document.
func (w *world) unlocked() string {
	w.t.Helper()
	reg, err := w.Registry(w.t.Context(), engine.ManagedApp)
	w.ok(err)
	if reg.LockJobID != "" {
		w.t.Errorf("the registry's lock is held by %s", reg.LockJobID)
	}
	return string(reg.Document)
}

// queue takes a message once, as the broker's does.
type queue struct {
	mu  sync.Mutex
	ids map[string][]byte
	put chan string // ids, as they come for the first time
}

func (q *queue) Put(_ context.Context, _, name, id string, body []byte) (created bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, there := q.ids[id]; there || name != "health-notifications-queue" {
		return false, nil
	}
	q.ids[id] = body
	q.put <- id
	return true, nil
}

func (q *queue) body(id string) []byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.ids[id]
}

func TestDestinationFallsAndHeals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.consumer("k", w.dest.URL+"/hook?key=hidden", storage.TypePush)
	w.consumer("pull", w.dest.URL, storage.TypePull)
	rt := w.runtime(w.Store, health.Options{})
	change := func(from, to storage.HealthState, class string) {
		t.Helper()
		select {
		case c := <-w.changes:
			if c.ChannelID != "orders" || c.ConsumerID != "k" || c.ConsumerKey == 0 || c.From != from || c.To != to || c.Class != class || c.At.IsZero() {
				t.Errorf("%+v, want from %s to %s", c, from, to)
			}
		default:
			t.Errorf("nobody was told of the change from %s to %s", from, to)
		}
	}
	id := w.runs(rt)
	change(storage.HealthUnknown, storage.Healthy, "")
	if d := w.state("k"); d.State != storage.Healthy || d.Successes != 1 || d.CheckedAt.IsZero() {
		t.Errorf("%+v", d)
	}
	if w.probes.Load() != 1 {
		t.Errorf("%d probes of one push consumer", w.probes.Load())
	}
	entries := w.history(id)
	var out struct {
		Checked, Changed int
		Changes          []health.Change
	}
	w.ok(json.Unmarshal(entries[health.OperationCheck].Output, &out))
	if len(entries) != 2 || out.Checked != 1 || out.Changed != 1 || len(out.Changes) != 1 || out.Changes[0].To != storage.Healthy {
		t.Errorf("the history has %d entries, %s", len(entries), entries[health.OperationCheck].Output)
	}

	w.code.Store(503)
	for i := range 3 {
		if d := w.state("k"); d.State != storage.Healthy || int(d.Failures) != i {
			t.Errorf("after %d failures: %+v", i, d)
		}
		id = w.runs(rt)
	}
	change(storage.Healthy, storage.Unhealthy, health.ClassServer)
	d := w.state("k")
	if d.State != storage.Unhealthy || d.Class != health.ClassServer || d.Error != "503 Service Unavailable" || !d.Since.Equal(d.CheckedAt) {
		t.Errorf("%+v", d)
	}
	var doc struct{ Health health.Summary }
	w.ok(json.Unmarshal([]byte(w.unlocked()), &doc))
	if s := doc.Health; s.Unhealthy != 1 || s.Healthy != 0 || len(s.Destinations) != 1 || s.Destinations[0].ConsumerID != "k" ||
		s.Destinations[0].Class != health.ClassServer || !s.Destinations[0].Since.Equal(d.Since) || s.CheckedAt.IsZero() {
		t.Errorf("the registry has %+v", s)
	}
	var sum health.Summary
	w.ok(json.Unmarshal(w.history(id)[health.OperationAggregate].Output, &sum))
	if sum.Unhealthy != 1 {
		t.Errorf("the aggregate is %+v", sum)
	}
	id = w.runs(rt) // no change: no event
	w.ok(json.Unmarshal(w.history(id)[health.OperationCheck].Output, &out))

	w.code.Store(404) // to a HEAD: somebody is there
	w.runs(rt)
	change(storage.Unhealthy, storage.Healthy, "")
	if d := w.state("k"); d.State != storage.Healthy || d.Failures != 0 || d.Class != "" {
		t.Errorf("%+v", d)
	}
	if len(w.changes) != 0 {
		t.Errorf("%d more changes were told", len(w.changes))
	}
}

// Many destinations go in several steps, and each is probed once.
func TestManyDestinations(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.code.Store(500)
	const n = 103
	for i := range n {
		w.consumer(fmt.Sprintf("k%03d", i), w.dest.URL, storage.TypePush)
	}
	rt := w.runtime(w.Store, health.Options{Thresholds: health.Thresholds{Failures: 1}})
	w.runs(rt)
	if got := w.probes.Load(); got != n {
		t.Errorf("%d probes of %d destinations", got, n)
	}
	var doc struct{ Health health.Summary }
	w.ok(json.Unmarshal([]byte(w.unlocked()), &doc))
	if s := doc.Health; s.Unhealthy != n || len(s.Destinations) != 100 || s.Destinations[0].ConsumerID != "k000" {
		t.Errorf("%d are unhealthy, %d named", s.Unhealthy, len(s.Destinations))
	}
}

// What destinations say may be long: it costs nobody else's probe.
func TestTalkativeDestinations(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	w.ok(err)
	t.Cleanup(func() { _ = listener.Close() })
	said := "HTTP/1.1 500 " + strings.Repeat("\u00e9", 25<<10) + "\r\n\r\n"
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 4096))
			_, _ = io.WriteString(conn, said)
			_ = conn.Close()
		}
	}()
	w.consumer("fine", w.dest.URL, storage.TypePush)
	for i := range 49 {
		w.consumer(fmt.Sprintf("talker%02d", i), "http://"+listener.Addr().String(), storage.TypePush)
	}
	w.runs(w.runtime(w.Store, health.Options{}))
	if d := w.state("fine"); d.State != storage.Healthy {
		t.Errorf("it is %+v", d)
	}
	if d := w.state("talker00"); d.Class != health.ClassServer || len([]rune(d.Error)) != 512 {
		t.Errorf("it is %s with %d characters of error", d.Class, len([]rune(d.Error)))
	}
}

func TestProbes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	hang := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(func() { close(hang); slow.Close() })
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	want := map[string]string{}
	add := func(id, url, class string) { w.consumer(id, url, storage.TypePush); want[id] = class }
	for code, class := range map[int]string{
		200: "", 204: "", 301: "", 308: "", 400: "", 401: "", 403: "", 404: "", 405: "", 410: "",
		408: health.ClassClient, 429: health.ClassClient, 500: health.ClassServer, 501: health.ClassServer, 503: health.ClassServer,
	} {
		answers := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/" || r.Header.Get("Authorization") != "" {
				t.Errorf("a redirect was followed, or a credential sent: %s %v", r.URL, r.Header)
			}
			rw.Header().Set("Location", "/elsewhere")
			rw.WriteHeader(code)
		}))
		t.Cleanup(answers.Close)
		add(fmt.Sprintf("answers %d", code), "http://user:password@"+answers.Listener.Addr().String()+"/", class)
	}
	add("hangs", slow.URL, health.ClassTimeout)
	add("has another certificate", secure.URL, health.ClassTLS)
	add("speaks no TLS", "https"+w.dest.URL[len("http"):], health.ClassConnect)
	add("refuses", gone.URL+"/?key=hidden", health.ClassConnect)
	add("has no name", "http://no-such-host.invalid/?key=hidden", health.ClassDNS)
	add("is no URL", "http://a b/", health.ClassRequest)
	rt := w.runtime(w.Store, health.Options{
		Timeout: 2 * time.Second, Thresholds: health.Thresholds{Failures: 1}, Client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
	})
	w.runs(rt)
	for id, class := range want {
		d := w.state(id)
		state := storage.Healthy
		if class != "" {
			state = storage.Unhealthy
		}
		if d.State != state || d.Class != class || (d.Error == "") != (class == "") {
			t.Errorf("who %s is %s, %q, %q; want %s, %q", id, d.State, d.Class, d.Error, state, class)
		}
		if strings.Contains(d.Error, "hidden") || strings.Contains(d.Error, "password") {
			t.Errorf("the error of who %s shows the URL's secret: %s", id, d.Error)
		}
	}
}

// The timers of two processes put one message a slot, and two processes that both get it run it once.
func TestOneRunASlot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.consumer("k", w.dest.URL, storage.TypePush)
	runtimes := []*engine.Runtime{w.runtime(w.Store, health.Options{Every: 24 * time.Hour}), w.runtime(w.open(), health.Options{Every: 24 * time.Hour})}
	id := <-w.queue.put
	var both sync.WaitGroup
	for _, rt := range runtimes {
		both.Go(func() {
			for {
				o := rt.Execute(t.Context(), health.Name, storage.ClaimedJob{MessageID: id, Body: w.queue.body(id)})
				if o.Err != nil {
					t.Error(o.Err)
				}
				if !o.Pending {
					return
				}
			}
		})
	}
	both.Wait()
	if w.probes.Load() != 1 || w.state("k").Successes != 1 {
		t.Errorf("%d probes, known: %+v", w.probes.Load(), w.state("k"))
	}
	if entries := w.history(id); len(entries) != 2 {
		t.Errorf("the history has %d entries", len(entries))
	}
	if len(w.queue.put) != 0 {
		t.Errorf("another message was put: %s", <-w.queue.put)
	}
}

// brokenStore cannot store, where told so.
type brokenStore struct {
	*storage.Store
	broken atomic.Bool
}

func (b *brokenStore) PutDestinationHealth(ctx context.Context, found []storage.DestinationHealth) error {
	if b.broken.Load() {
		return errors.New("out of order")
	}
	return b.Store.PutDestinationHealth(ctx, found)
}

func TestFailedRunGivesTheLockBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.consumer("k", w.dest.URL, storage.TypePush)
	store := &brokenStore{Store: w.Store}
	store.broken.Store(true)
	rt := w.runtime(w.Store, health.Options{Store: store})
	id, o := w.run(rt)
	if o.Err == nil || o.Pending || o.Fatal || !strings.Contains(o.Err.Error(), "out of order") {
		t.Fatalf("%+v", o)
	}
	if got := w.unlocked(); got != "" {
		t.Errorf("the registry has %s", got)
	}
	if e := w.history(id); len(e) != 1 || e[health.OperationCheck].Status != storage.HistoryFailed {
		t.Errorf("the history has %+v", e)
	}
	store.broken.Store(false)
	w.runs(rt)
	if w.state("k").State != storage.Healthy || !strings.Contains(w.unlocked(), `"healthy":1`) {
		t.Error("the next run did not make up for it")
	}
}

// What other engines keep in the registry's document stays.
func TestRegistryIsShared(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	set := func(document string) {
		t.Helper()
		reg, err := w.LockRegistry(t.Context(), engine.ManagedApp, "somebody", time.Minute)
		w.ok(err)
		_, err = w.UpdateRegistry(t.Context(), engine.ManagedApp, "somebody", reg.Version, json.RawMessage(document))
		w.ok(err)
		w.ok(w.UnlockRegistry(t.Context(), engine.ManagedApp, "somebody"))
	}
	rt := w.runtime(w.Store, health.Options{})
	for _, document := range []string{`{"components":[1],"health":1}`, `null`} {
		set(document)
		w.runs(rt)
		if got := w.unlocked(); strings.Contains(got, `"components":[1]`) != strings.Contains(document, "components") || !strings.Contains(got, `"health":{"healthy":0,`) {
			t.Errorf("%s becomes %s", document, got)
		}
	}
	set(`[]`)
	if _, o := w.run(rt); !o.Fatal {
		t.Errorf("a document that is no object: %+v", o)
	}
	if got := w.unlocked(); got != `[]` {
		t.Errorf("it becomes %s", got)
	}
}

func TestAggregateAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.consumer("k", w.dest.URL, storage.TypePush)
	rt := w.runtime(w.Store, health.Options{})
	o := rt.Execute(t.Context(), health.Name, storage.ClaimedJob{MessageID: "m", Body: []byte(`{"operation":"aggregate"}`)})
	if o.Err != nil || w.probes.Load() != 0 || !strings.Contains(w.unlocked(), `"unknown":1`) {
		t.Errorf("%+v, %d probes, %s", o, w.probes.Load(), w.unlocked())
	}
	if e := w.history("m"); len(e) != 1 || e[health.OperationAggregate].Status != storage.HistorySucceeded {
		t.Errorf("the history has %+v", e)
	}
}

func TestNothingToProbeWith(t *testing.T) {
	t.Parallel()
	if d := health.New(health.Options{Client: http.DefaultClient}); d.Run != nil {
		t.Error("it would run without a store")
	}
	if d := health.New(health.Options{Store: &storage.Store{}}); d.Run != nil || d.Every != time.Minute {
		t.Error("it would run without a client")
	}
}

func TestCollector(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	at, err := w.Now(t.Context())
	w.ok(err)
	var rows []storage.DestinationHealth
	for id, state := range map[string]storage.HealthState{"up": storage.Healthy, "down": storage.Unhealthy, "new": storage.HealthUnknown} {
		rows = append(rows, storage.DestinationHealth{ConsumerKey: w.consumer(id, w.dest.URL, storage.TypePush).Key, State: state, Since: at, CheckedAt: at})
	}
	w.ok(w.PutDestinationHealth(t.Context(), rows))
	store := w.open()
	reg := prometheus.NewPedanticRegistry()
	w.ok(reg.Register(health.NewCollector(health.CollectorOptions{Store: store, Log: quiet})))
	const help = "# HELP redrive_destination_healthy 1: the destination of the push consumer answers probes; 0: it does not. Left out while that is unknown.\n" +
		"# TYPE redrive_destination_healthy gauge\n"
	w.ok(testutil.GatherAndCompare(reg, strings.NewReader(help+`redrive_destination_healthy{channel="orders",consumer="down"} 0
redrive_destination_healthy{channel="orders",consumer="up"} 1
`), "redrive_destination_healthy"))
	w.ok(store.Close())
	w.ok(testutil.GatherAndCompare(reg, strings.NewReader(`# HELP redrive_destination_scrape_errors_total Scrapes that could not read redrive_destination_healthy from the database; its series were left out.
# TYPE redrive_destination_scrape_errors_total counter
redrive_destination_scrape_errors_total 1
`), "redrive_destination_healthy", "redrive_destination_scrape_errors_total"))
}

// When a destination was checked is the database's time, whatever the clocks of the processes say that had a part in the run.
func TestCheckedByTheDatabasesClock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.consumer("k", w.dest.URL, storage.TypePush)
	d := health.New(health.Options{Store: w.Store, Client: w.dest.Client(), Log: quiet})
	before, err := w.Now(t.Context())
	w.ok(err)
	input, err := json.Marshal(map[string]any{"keys": []uint32{k.Key}, "at": before.Add(time.Hour)})
	w.ok(err)
	found, err := d.Steps["check"](t.Context(), engine.Call{Input: input})
	w.ok(err)
	data, err := json.Marshal(found)
	w.ok(err)
	var checked []storage.DestinationHealth
	w.ok(json.Unmarshal(data, &checked))
	after, err := w.Now(t.Context())
	w.ok(err)
	if len(checked) != 1 || checked[0].CheckedAt.Before(before) || checked[0].CheckedAt.After(after) {
		t.Errorf("checked %+v, not from %s to %s", checked, before, after)
	}
}
