package dlqsummary

import (
	"context"
	"database/sql"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/storage/storagetest"
)

func TestMain(m *testing.M) { storagetest.Main(m) }

// world is one database with a channel and consumers, and as many instances on it as a test wants.
type world struct {
	t       testing.TB
	dsn     string
	store   *storage.Store
	channel *storage.Channel
	jobs    atomic.Int64
}

func newWorld(t testing.TB, opts ...storagetest.Option) *world {
	t.Helper()
	w := &world{t: t, dsn: storagetest.DSN(t, opts...)}
	w.store = w.open(storage.Options{})
	channel, err := w.store.PutChannel(t.Context(), storage.PutStakeholder{ID: "order-events", Name: "Order Events", Token: "channel-secret"})
	w.check(err)
	w.channel = channel
	return w
}

func (w *world) check(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// open is another instance's pool.
func (w *world) open(o storage.Options) *storage.Store {
	w.t.Helper()
	o.DSN = w.dsn
	store, err := storage.Open(o)
	w.check(err)
	w.t.Cleanup(func() { _ = store.Close() })
	return store
}

func (w *world) consumer(id string) *storage.Consumer {
	w.t.Helper()
	k, err := w.store.PutConsumer(w.t.Context(), storage.PutConsumer{
		PutStakeholder: storage.PutStakeholder{ID: id, Name: id, Token: "consumer-secret"},
		ChannelKey:     w.channel.Key, Type: storage.TypePush, CallbackURL: "http://localhost/" + id,
	})
	w.check(err)
	return k
}

func (w *world) exec(query string, args ...any) int64 {
	w.t.Helper()
	res, err := w.store.DB().ExecContext(w.t.Context(), query, args...)
	w.check(err)
	n, err := res.RowsAffected()
	w.check(err)
	return n
}

func (w *world) number(query string, args ...any) (n int64) {
	w.t.Helper()
	w.check(w.store.DB().QueryRowContext(w.t.Context(), query, args...).Scan(&n))
	return n
}

const digits = `(SELECT 0 AS d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4
	UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)`

// kill makes n jobs of the consumer that are dead with all retries used up, the way a writer does that has never
// heard of the summary.
func (w *world) kill(k *storage.Consumer, n int64) {
	w.t.Helper()
	first := w.jobs.Add(n) - n
	w.exec(`INSERT INTO job (id, messageId, consumerId, status, statusChangedAt, precedence, retryAttemptCount)
		SELECT UNHEX(LPAD(HEX(? + x.n), 24, '0')), UNHEX(LPAD(HEX(? + x.n), 24, '0')), ?, 1004, NOW(6), 0, 5
		FROM (SELECT a.d + 10 * b.d + 100 * c.d + 1000 * d.d + 10000 * e.d AS n
		      FROM `+digits+` a, `+digits+` b, `+digits+` c, `+digits+` d, `+digits+` e) x WHERE x.n < ?`, first, first, k.Key, n)
}

// summary is an instance with a pool and a registry of its own, not started.
func (w *world) summary(change ...func(*Options)) (*Summary, *prometheus.Registry) {
	w.t.Helper()
	reg := prometheus.NewRegistry()
	o := Options{
		Interval: time.Hour, AuditInterval: -1, Registerer: reg, LockTTL: 2 * time.Second,
		Log: slog.New(slog.DiscardHandler),
	}
	for _, f := range change {
		f(&o)
	}
	if o.Store == nil {
		o.Store = w.open(storage.Options{})
	}
	s, err := New(o)
	w.check(err)
	w.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := s.Stop(ctx); err != nil {
			w.t.Error(err)
		}
	})
	return s, reg
}

// shown is the number that /dlq-status has for the consumer.
func (w *world) shown(s *Summary, k *storage.Consumer) int64 {
	w.t.Helper()
	counts, err := s.Counts(w.t.Context())
	w.check(err)
	for _, c := range counts.Consumers {
		if c.ConsumerKey == k.Key {
			return c.Dead
		}
	}
	w.t.Fatalf("consumer %s is not in the counts", k.ID)
	return 0
}

// gauge is one series of a scrape; ok is false when it is not in it.
func (w *world) gauge(reg *prometheus.Registry, name string, labels ...string) (value float64, ok bool) {
	w.t.Helper()
	families, err := reg.Gather()
	w.check(err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var values []string
			for _, l := range m.GetLabel() {
				values = append(values, l.GetValue()) // in the order of the labels' names
			}
			if slices.Equal(values, labels) {
				return m.GetGauge().GetValue(), true
			}
		}
	}
	return 0, false
}

func (w *world) wantGauge(reg *prometheus.Registry, want int64, k *storage.Consumer) {
	w.t.Helper()
	if got, ok := w.gauge(reg, "dead_job_count", w.channel.ID, k.ID); !ok || got != float64(want) {
		w.t.Errorf("dead_job_count of %s is %v (there: %t), want %d", k.ID, got, ok, want)
	}
}

func cycles(s *Summary, result string) int {
	return int(testutil.ToFloat64(s.metrics.cycles.WithLabelValues(result)))
}

// counted says what is in the summary table, whatever is still to be counted.
func (w *world) counted() int64 {
	return w.number(`SELECT COALESCE(SUM(dead_count), 0) FROM dlq_summary`)
}

func (w *world) uncounted() int64 {
	return w.number(`SELECT COUNT(*) FROM job WHERE dlqDelta IN (-1, 1)`)
}

// soon waits until a condition holds.
func soon(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for !holds() {
		select {
		case <-deadline:
			t.Fatalf("not within 30 s: %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// inTx keeps a transaction open until the returned function is called.
func (w *world) inTx(query string, args ...any) (end func()) {
	w.t.Helper()
	tx, err := w.store.DB().BeginTx(w.t.Context(), nil)
	w.check(err)
	ended := false
	end = func() {
		if !ended {
			ended = true
			_ = tx.Rollback()
		}
	}
	w.t.Cleanup(end)
	var ignored sql.RawBytes
	rows, err := tx.QueryContext(w.t.Context(), query, args...)
	w.check(err)
	defer func() { w.check(rows.Close()) }()
	for rows.Next() {
		w.check(rows.Scan(&ignored))
	}
	w.check(rows.Err())
	return end
}
