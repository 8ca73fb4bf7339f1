package broker

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

// Classes of failed attempts: with those that executors name a closed set, used as label values and stored with the job.
const (
	classRedirect = "http_3xx"
	classClient   = "http_4xx"
	classServer   = "http_5xx"
	classOther    = "http_other"
	classTimeout  = "timeout"
	classDNS      = "dns"
	classTLS      = "tls"
	classConnect  = "connect"
	classBlocked  = "blocked_address"
	classRequest  = "bad_request"
	classExpired  = "lease_ended"
	classAborted  = "aborted"
	classEngine   = "engine"
	classPanic    = "panic"
)

// failure is why an attempt did not do its job.
type failure struct{ class, text string }

// result is what doing a job came to.
type result struct {
	fail    *failure      // nil: it is done, unless pending
	fatal   bool          // with fail: no retry will help
	pending bool          // neither done nor failed: to be looked at again after wait
	wait    time.Duration // of pending
	reply   *reply        // of the destination, for the history; nil: none is kept
	subject *storage.Subject
}

// means are how the jobs of a consumer are done from here, and how often.
type means struct {
	do          func(ctx context.Context, k *storage.Consumer, job storage.ClaimedJob) result
	maxRetry    int
	schedule    Schedule
	concurrency int  // attempts at a time
	mayWait     bool // leased jobs may wait in memory for a slot, where attempts are quick
	extends     bool // an attempt takes its time: its lease is extended for as long as it goes on
}

// verdict says what is to become of a job that was tried so often before, its attempt having had its time.
func (m *means) verdict(r result, retries int) (storage.Verdict, time.Duration) {
	switch {
	case r.pending:
		return storage.HandBack, r.wait
	case r.fail == nil:
		return storage.Delivered, 0
	case r.fatal || retries >= m.maxRetry:
		return storage.Die, 0
	}
	return storage.RetryLater, m.schedule.Wait(retries)
}

// attempter makes attempts within the leases of their jobs.
type attempter struct {
	o       Options
	metrics *metrics
}

// attempt tries a job once, within its lease, and says what is to become of it.
func (a *attempter) attempt(ctx context.Context, m *means, k *storage.Consumer, job storage.ClaimedJob, since time.Time) storage.Outcome {
	outcome := storage.Outcome{JobID: job.ID, Token: job.Token, ConsumerKey: job.ConsumerKey}
	began := time.Now()
	a.metrics.inflight.Inc()
	defer a.metrics.inflight.Dec()
	// All of the attempt must fit in what is left of the lease, so that nobody else has the job meanwhile.
	timeout := min(a.o.DeliveryTimeout, a.o.lease()-began.Sub(since))
	if timeout <= 0 {
		outcome.Verdict = storage.HandBack
		a.report(k, job, outcome, result{fail: &failure{classExpired, "the claim took longer than the lease"}}, began)
		return outcome
	}
	attemptCtx, cancel := context.WithTimeout(ctx, timeout)
	if m.extends {
		attemptCtx, cancel = a.extend(ctx, job, since)
	}
	defer cancel()
	got := m.do(attemptCtx, k, job)
	if got.reply != nil {
		outcome.Attempt = &storage.Attempt{Code: got.reply.code, Duration: time.Since(began), Answer: got.reply.answer, Retry: int(job.RetryAttemptCount), MessageID: job.MessageID}
	}
	outcome.Subject = got.subject
	failed := got.fail != nil && !got.pending
	switch {
	case failed && (ctx.Err() != nil || m.extends && attemptCtx.Err() != nil):
		got.fail.class = classAborted
		outcome.Verdict = storage.HandBack
	case failed && timeout < a.o.DeliveryTimeout && attemptCtx.Err() != nil:
		// The claim took so long that the attempt did not have its time: not the consumer's failure.
		got.fail.class = classExpired
		outcome.Verdict = storage.HandBack
	default:
		outcome.Verdict, outcome.Delay = m.verdict(got, int(job.RetryAttemptCount))
	}
	if failed {
		outcome.ErrorClass, outcome.Error = got.fail.class, got.fail.text
	}
	a.report(k, job, outcome, got, began)
	return outcome
}

// extend keeps the job's lease, which began at the latest at since, for as long as the attempt goes on, and ends the
// attempt's context when the lease is lost or could not be extended in time.
func (a *attempter) extend(ctx context.Context, job storage.ClaimedJob, since time.Time) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	var keeping sync.WaitGroup
	keeping.Go(func() {
		ticker := time.NewTicker(a.o.lease() / 3)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			before := time.Now()
			tryCtx, done := context.WithTimeout(ctx, a.o.lease()/3)
			held, err := a.o.Store.ExtendLease(tryCtx, job.ID, job.Token, a.o.lease())
			done()
			switch {
			case err == nil && held:
				since = before
			case err == nil, time.Since(since) >= a.o.lease():
				cancel()
				return
			}
		}
	})
	return ctx, func() { cancel(); keeping.Wait() }
}

// report tells of an attempt: one event with all that is known.
func (a *attempter) report(k *storage.Consumer, job storage.ClaimedJob, o storage.Outcome, got result, began time.Time) {
	level, name := slog.LevelInfo, "retry"
	switch {
	case got.pending:
		level, name = slog.LevelDebug, "pending"
	case o.Verdict == storage.Delivered:
		level, name = slog.LevelDebug, "delivered"
	case o.Verdict == storage.Die:
		level, name = slog.LevelWarn, "dead"
	case o.Verdict == storage.HandBack:
		name = "handed_back"
	}
	fail, code := failure{}, 0
	if got.fail != nil {
		fail = *got.fail
	}
	if got.reply != nil {
		code = got.reply.code
	}
	took := time.Since(began)
	a.metrics.attempts.WithLabelValues(name, fail.class).Inc()
	a.metrics.attemptDuration.Observe(took.Seconds())
	if !a.o.Log.Enabled(context.Background(), level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("result", name), slog.String("job", job.ID.String()), slog.String("message", job.MessageID),
		slog.String("channel", k.ChannelID), slog.String("consumer", k.ID), slog.Int("retry", int(job.RetryAttemptCount)),
		slog.Int("code", code), slog.String("class", fail.class), slog.String("error", fail.text),
		slog.Duration("took", took), slog.Duration("next", o.Delay),
	}
	if s := got.subject; s != nil {
		attrs = append(attrs, slog.String("instance", s.InstanceID), slog.String("correlation", s.CorrelationID))
	}
	a.o.Log.LogAttrs(context.Background(), level, "attempt", attrs...)
}
