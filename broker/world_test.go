package broker_test

import (
	"context"
	"database/sql"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/redrive-mq/redrive/broker"
	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/storage/storagetest"
)

// patience is how long a test waits for what should come within milliseconds.
const patience = 20 * time.Second

// world is a database of a test's own with a channel and a producer in it.
type world struct {
	t        testing.TB
	ctx      context.Context
	dsn      string
	store    *storage.Store
	db       *sql.DB
	channel  *storage.Channel
	producer *storage.Producer
}

func newWorld(t testing.TB) *world {
	t.Helper()
	return newWorldOn(t, storagetest.DSN(t))
}

func newWorldOn(t testing.TB, dsn string) *world {
	t.Helper()
	w := &world{t: t, ctx: t.Context(), dsn: dsn}
	w.store = w.open()
	w.db = w.store.DB()
	w.put()
	return w
}

// open gives another instance's view of the same database.
func (w *world) open() *storage.Store {
	w.t.Helper()
	s, err := storage.Open(storage.Options{DSN: w.dsn, Log: discard()})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = s.Close() })
	return s
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func (w *world) put() {
	w.t.Helper()
	if _, err := w.store.PutChannel(w.ctx, storage.PutStakeholder{ID: "orders", Name: "Orders", Token: "ct"}); err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.store.PutProducer(w.ctx, storage.PutStakeholder{ID: "shop", Name: "Shop", Token: "pt"}); err != nil {
		w.t.Fatal(err)
	}
	w.refresh()
}

// refresh reads the channel and the producer as the catalog has them, as an authenticated request would.
func (w *world) refresh() {
	w.t.Helper()
	catalog, err := w.store.Catalog(w.ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	w.channel, _ = catalog.Channel("orders")
	w.producer, _ = catalog.Producer("shop")
}

func (w *world) consumer(id, url string, kind storage.ConsumerType) *storage.Consumer {
	w.t.Helper()
	k, err := w.store.PutConsumer(w.ctx, storage.PutConsumer{
		PutStakeholder: storage.PutStakeholder{ID: id, Name: id, Token: "kt-" + id},
		ChannelKey:     w.channel.Key, Type: kind, CallbackURL: url,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return k
}

// fast are options under which a test takes milliseconds where production takes minutes.
func (w *world) fast() broker.Options {
	return broker.Options{
		Store: w.store, Log: discard(), Registerer: prometheus.NewRegistry(),
		MaxRetry: 2, Backoff: []time.Duration{100 * time.Millisecond, 200 * time.Millisecond},
		DeliveryTimeout: 5 * time.Second, RationalDelay: time.Second,
		PollInterval: 20 * time.Millisecond, SchedulerInterval: 20 * time.Millisecond,
		AllowPrivateDestinations: true,
	}
}

func (w *world) start(o broker.Options) *broker.Broker {
	w.t.Helper()
	b, err := broker.New(o)
	if err != nil {
		w.t.Fatal(err)
	}
	b.Start(w.ctx)
	w.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := b.Stop(ctx); err != nil {
			w.t.Error(err)
		}
	})
	return b
}

func (w *world) broadcast(b *broker.Broker, m broker.Broadcast) string {
	w.t.Helper()
	m.Channel, m.Producer = w.channel, w.producer
	if m.ContentType == "" {
		m.ContentType = "text/plain"
	}
	id, err := b.Accept(w.ctx, m)
	if err != nil {
		w.t.Fatal(err)
	}
	return id
}

// jobs counts a consumer's jobs by status.
func (w *world) jobs(k *storage.Consumer) map[storage.Status]int {
	w.t.Helper()
	rows, err := w.db.QueryContext(w.ctx, `SELECT status, COUNT(*) FROM job WHERE consumerId = ? GROUP BY status`, k.Key)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	out := map[storage.Status]int{}
	for rows.Next() {
		var s storage.Status
		var n int
		if err := rows.Scan(&s, &n); err != nil {
			w.t.Fatal(err)
		}
		out[s] = n
	}
	if err := rows.Err(); err != nil {
		w.t.Fatal(err)
	}
	return out
}

func (w *world) waitJobs(k *storage.Consumer, s storage.Status, n int) {
	w.t.Helper()
	eventually(w.t, func() bool { return w.jobs(k)[s] == n })
}

// eventually polls a condition until it holds.
func eventually(t testing.TB, cond func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline:
			t.Fatal("it did not happen in time")
		case <-tick.C:
		}
	}
}

// receipt is a delivery that a consumer saw.
type receipt struct {
	messageID string
	header    http.Header
	body      string
	at        time.Time
}

// sink is a consumer's server.
type sink struct {
	*httptest.Server
	mu       sync.Mutex
	receipts []receipt
}

// newSink answers each delivery with what handle returns; handle may block until its request is broken off.
func newSink(t testing.TB, handle func(r *http.Request) int) *sink {
	t.Helper()
	s := &sink{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.receipts = append(s.receipts, receipt{r.Header.Get("X-Broker-Message-ID"), r.Header, string(body), time.Now()})
		s.mu.Unlock()
		w.WriteHeader(handle(r))
	}))
	t.Cleanup(s.Close)
	return s
}

func ok(*http.Request) int   { return http.StatusOK }
func fail(*http.Request) int { return http.StatusInternalServerError }

// hang answers when the request is broken off, or release is closed.
func hang(release <-chan struct{}) func(r *http.Request) int {
	return func(r *http.Request) int {
		select {
		case <-release:
		case <-r.Context().Done():
		}
		return http.StatusOK
	}
}

func (s *sink) seen() []receipt {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]receipt(nil), s.receipts...)
}

func (s *sink) wait(t *testing.T, n int) []receipt {
	t.Helper()
	eventually(t, func() bool { return len(s.seen()) >= n })
	return s.seen()
}

// metric is the value of a counter or gauge, summed over its labels.
func metric(t *testing.T, g prometheus.Gatherer, name string) float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var sum float64
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			switch f.GetType() {
			case dto.MetricType_COUNTER:
				sum += m.GetCounter().GetValue()
			default:
				sum += m.GetGauge().GetValue()
			}
		}
	}
	return sum
}
