package broker

import "github.com/prometheus/client_golang/prometheus"

// metrics of the broker; every label value is of a closed set.
type metrics struct {
	accepted, claimed, died, stale, unwritten, scheduled prometheus.Counter
	attempts, reaped                                     *prometheus.CounterVec
	acceptDuration, acceptBatch                          prometheus.Histogram
	attemptDuration                                      prometheus.Histogram
	finishDuration, finishBatch                          prometheus.Histogram
	claimDuration, pollDuration                          prometheus.Histogram
	inflight                                             prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	}
	seconds := prometheus.ExponentialBuckets(0.0005, 2, 17) // 0.5 ms to 33 s
	sizes := prometheus.ExponentialBuckets(1, 2, 9)         // 1 to 256
	m := &metrics{
		accepted:  counter("redrive_messages_accepted_total", "Messages stored and acknowledged."),
		claimed:   counter("redrive_jobs_claimed_total", "Jobs claimed from the backlog; others were leased as they were accepted."),
		died:      counter("redrive_jobs_died_total", "Jobs that this instance found dead after their last attempt."),
		stale:     counter("redrive_stale_attempts_total", "Attempts whose lease was lost before their outcome was written; they changed nothing."),
		unwritten: counter("redrive_unwritten_outcomes_total", "Outcomes that could not be written; the jobs are attempted again."),
		scheduled: counter("redrive_scheduled_messages_dispatched_total", "Scheduled messages whose jobs were made."),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "redrive_attempts_total",
			Help: "Attempts at a job, by result and class of failure."}, []string{"result", "class"}),
		reaped: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "redrive_leases_reaped_total",
			Help: "Jobs taken back because their lease ran out."}, []string{"result"}),
		acceptDuration:  histogram("redrive_accept_duration_seconds", "Time of a transaction that stores broadcasts.", seconds),
		acceptBatch:     histogram("redrive_accept_batch_messages", "Messages in such a transaction.", sizes),
		attemptDuration: histogram("redrive_attempt_duration_seconds", "Time of an attempt.", seconds),
		claimDuration:   histogram("redrive_claim_duration_seconds", "Time of a transaction that claims jobs.", seconds),
		pollDuration:    histogram("redrive_poll_duration_seconds", "Time of a look for work at all consumers.", seconds),
		finishDuration:  histogram("redrive_finish_duration_seconds", "Time of a transaction that writes outcomes.", seconds),
		finishBatch:     histogram("redrive_finish_batch_outcomes", "Outcomes in such a transaction.", sizes),
		inflight:        prometheus.NewGauge(prometheus.GaugeOpts{Name: "redrive_attempts_inflight", Help: "Attempts under way in this instance."}),
	}
	for _, c := range []prometheus.Collector{m.accepted, m.claimed, m.died, m.stale, m.unwritten, m.scheduled, m.attempts, m.reaped,
		m.acceptDuration, m.acceptBatch, m.attemptDuration, m.finishDuration, m.finishBatch, m.claimDuration, m.pollDuration, m.inflight} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}
