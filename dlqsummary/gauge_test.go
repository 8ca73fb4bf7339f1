package dlqsummary

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/redrive-mq/redrive/storage"
)

// The gauge is the truth of the instant on every instance, with no cycle in between.
func TestGaugeIsExactOnEveryInstance(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	busy, quiet := w.consumer("busy"), w.consumer("quiet")
	_, here := w.summary()
	there, elsewhere := w.summary()
	check := func(want int64) {
		t.Helper()
		w.wantGauge(here, want, busy)
		w.wantGauge(elsewhere, want, busy)
		w.wantGauge(elsewhere, 0, quiet)
	}
	check(0)
	w.kill(busy, 3)
	check(3)
	w.check(there.cycle(t.Context(), false, false))
	check(3)
	w.kill(busy, 1)
	check(4)

	var id storage.ID
	w.check(w.store.DB().QueryRowContext(t.Context(), `SELECT id FROM job WHERE dlqCounted = 1 LIMIT 1`).Scan(&id))
	w.check(w.store.RequeueOne(t.Context(), busy.Key, id, "consumer"))
	check(3)
	if got, ok := w.gauge(here, "queued_job_count"); !ok {
		t.Errorf("queued_job_count is missing (%v)", got)
	}
	w.check(w.store.DB().QueryRowContext(t.Context(), `SELECT id FROM job WHERE dlqCounted = 0 AND status = 1004 LIMIT 1`).Scan(&id))
	w.check(w.store.PurgeOne(t.Context(), busy.Key, id, 5, "consumer"))
	check(2)
	if n, err := w.store.PurgeAll(t.Context(), busy.Key, 5, "consumer"); err != nil || n != 2 {
		t.Errorf("purged %d (%v), want 2", n, err)
	}
	check(0)
	w.kill(busy, 6)
	if n, err := w.store.RequeueAll(t.Context(), busy.Key, "consumer"); err != nil || n != 6 {
		t.Errorf("requeued %d (%v), want 6", n, err)
	}
	check(0)
}

func TestQueuedJobCount(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.consumer("a"), w.consumer("b")
	_, reg := w.summary()
	want := func(n float64) {
		t.Helper()
		if got, ok := w.gauge(reg, "queued_job_count"); !ok || got != n {
			t.Errorf("queued_job_count is %v (there: %t), want %v", got, ok, n)
		}
	}
	want(0)
	producer, err := w.store.PutProducer(t.Context(), storage.PutStakeholder{ID: "shop", Name: "Shop", Token: "producer-secret"})
	w.check(err)
	msg := &storage.NewMessage{
		Key: storage.NewID(), ChannelKey: w.channel.Key, ProducerKey: producer.Key, MessageID: "m1", ContentType: "text/plain",
		Jobs: []storage.NewJob{{ID: storage.NewID(), ConsumerKey: a.Key}, {ID: storage.NewID(), ConsumerKey: b.Key}},
	}
	w.check(w.store.Accept(t.Context(), 0, storage.Lease{}, []*storage.NewMessage{msg}))
	want(2)
	w.exec(`UPDATE job SET status = 1004, statusChangedAt = NOW(6) WHERE consumerId = ?`, b.Key)
	want(1)
	w.wantGauge(reg, 1, b)
}

func TestConcurrentScrapes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.consumer("k")
	w.kill(k, 9)
	_, reg := w.summary()
	var scrapes sync.WaitGroup
	for range 8 {
		scrapes.Go(func() {
			n, err := testutil.GatherAndCount(reg, "dead_job_count", "queued_job_count")
			if err != nil || n != 2 {
				t.Errorf("%d series (%v), want 2", n, err)
			}
		})
	}
	scrapes.Wait()
	w.wantGauge(reg, 9, k)
}

// What Datadog, Prometheus and their rules know by name.
func TestMetricNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.consumer("k")
	s, reg := w.summary()
	_, err := s.Audit(t.Context())
	w.check(err)
	families, err := reg.Gather()
	w.check(err)
	var names []string
	for _, f := range families {
		names = append(names, f.GetName())
	}
	want := "dead_job_count queued_job_count redrive_dead_jobs_drift redrive_dead_letters_drift redrive_dlq_cycle_duration_seconds redrive_dlq_cycles_total " +
		"redrive_dlq_rows_read_total redrive_dlq_scrape_errors_total redrive_dlq_uncounted_jobs"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("metrics:\n%s\nwant:\n%s", got, want)
	}
	problems, err := testutil.GatherAndLint(reg, "redrive_dead_jobs_drift", "redrive_dead_letters_drift", "redrive_dlq_cycle_duration_seconds", "redrive_dlq_cycles_total",
		"redrive_dlq_rows_read_total", "redrive_dlq_scrape_errors_total", "redrive_dlq_uncounted_jobs")
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}

// lines keeps a log.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}
