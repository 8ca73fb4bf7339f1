package dlqsummary

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-mq/redrive/storage"
)

// metrics are the counters of this process's own work.
type metrics struct {
	duration     prometheus.Histogram
	cycles       *prometheus.CounterVec // result: done, skipped, locked, error
	rowsRead     prometheus.Counter
	scrapeErrors prometheus.Counter
}

func newMetrics() *metrics {
	m := &metrics{
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "redrive_dlq_cycle_duration_seconds",
			Help:    "How long counting cycles of this instance took, early ones included; skipped ones are not in it.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 10), // 1 ms to 262 s
		}),
		cycles: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "redrive_dlq_cycles_total",
			Help: "Wake-ups of the dead job counter of this instance: done, skipped (done recently), locked (another instance is at it), error.",
		}, []string{"result"}),
		rowsRead: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "redrive_dlq_rows_read_total",
			Help: "Job rows that counting cycles of this instance looked at.",
		}),
		scrapeErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "redrive_dlq_scrape_errors_total",
			Help: "Scrapes that could not read dead_job_count or queued_job_count from the database; their series were left out.",
		}),
	}
	for _, result := range []string{"done", "skipped", "locked", "error"} {
		m.cycles.WithLabelValues(result)
	}
	return m
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.duration, m.cycles, m.rowsRead, m.scrapeErrors}
}

var (
	deadDesc = prometheus.NewDesc("dead_job_count",
		"Dead jobs of a consumer at the instant of the scrape.", []string{"channel", "consumer"}, nil)
	queuedDesc = prometheus.NewDesc("queued_job_count",
		"Queued jobs of all consumers at the instant of the scrape.", nil, nil)
	uncountedDesc = prometheus.NewDesc("redrive_dlq_uncounted_jobs",
		"Job rows that the next counting cycle has to look at.", nil, nil)
	driftDesc = prometheus.NewDesc("redrive_dead_jobs_drift",
		"What the last audit by this instance found a consumer's number of dead jobs to be off by; anything but 0 wants `redrive dlq repair`.",
		[]string{"channel", "consumer"}, nil)
	lettersDriftDesc = prometheus.NewDesc("redrive_dead_letters_drift",
		"Dead jobs without a dead letter and dead letters without a dead job that the last audit by this instance found; anything but 0 wants `redrive dlq repair`.",
		[]string{"channel", "consumer"}, nil)
)

// collector reads the database at every scrape, so every instance shows the same truth. What cannot be read is left
// out and counted: one failing query must not take the other metrics of the scrape with it.
type collector struct{ s *Summary }

func (c collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- deadDesc
	ch <- queuedDesc
	ch <- uncountedDesc
	ch <- driftDesc
	ch <- lettersDriftDesc
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), c.s.o.ScrapeTimeout)
	defer cancel()
	counts, deadErr := shared(c.s, "dead", func() (Counts, error) { return c.s.Counts(ctx) })
	if deadErr != nil {
		c.s.metrics.scrapeErrors.Inc()
	} else {
		c.gauge(ch, uncountedDesc, counts.Uncounted)
		for _, d := range counts.Consumers {
			c.gauge(ch, deadDesc, d.Dead, d.ChannelID, d.ConsumerID)
		}
	}
	queued, queuedErr := shared(c.s, "queued", func() ([]storage.StatusCount, error) { return c.s.store.QueuedJobCounts(ctx) })
	if queuedErr != nil {
		c.s.metrics.scrapeErrors.Inc()
	} else {
		var total int64
		for _, q := range queued {
			total += q.Count
		}
		c.gauge(ch, queuedDesc, total)
	}
	for _, d := range c.s.drift.all() {
		c.gauge(ch, driftDesc, d.Drift, d.ChannelID, d.ConsumerID)
		c.gauge(ch, lettersDriftDesc, d.Letters.Missing+d.Letters.Stray, d.ChannelID, d.ConsumerID)
	}
	c.s.scrapes.note(ctx, c.s.log, errors.Join(deadErr, queuedErr))
}

// gauge hands out one sample. A label that Prometheus does not take costs that sample, not the process.
func (c collector) gauge(ch chan<- prometheus.Metric, desc *prometheus.Desc, value int64, labels ...string) {
	m, err := prometheus.NewConstMetric(desc, prometheus.GaugeValue, float64(value), labels...)
	if err != nil {
		c.s.metrics.scrapeErrors.Inc()
		c.s.log.Debug("a sample was left out of a scrape", "metric", desc.String(), "error", err)
		return
	}
	ch <- m
}

// scrapeLog says once when scrapes begin to come out incomplete, and once when they are whole again: a scrape with a
// metric missing is answered with 200, so nothing else tells.
type scrapeLog struct {
	mu      sync.Mutex
	failing bool
}

func (l *scrapeLog) note(ctx context.Context, log *slog.Logger, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if failing := err != nil; failing != l.failing {
		l.failing = failing
		if failing {
			log.WarnContext(ctx, "dead_job_count or queued_job_count is missing from scrapes: the database cannot be read", "error", err)
		} else {
			log.InfoContext(ctx, "dead_job_count and queued_job_count are in scrapes again")
		}
	}
}

// shared lets concurrent scrapes wait for one query.
func shared[T any](s *Summary, key string, read func() (T, error)) (T, error) {
	v, err, _ := s.flights.Do(key, func() (any, error) { return read() })
	out, _ := v.(T)
	return out, err
}
