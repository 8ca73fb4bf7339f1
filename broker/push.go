package broker

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"code.dny.dev/ssrf"
	"github.com/rs/xid"

	"github.com/redrive-mq/redrive/internal/outbound"
	"github.com/redrive-mq/redrive/storage"
)

// Classes of failed attempts: a closed set, used as label values and stored with the job.
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
)

const (
	answerKept    = 300      // bytes of an answer that are stored as the error of a failed attempt
	answerDrained = 64 << 10 // bytes of an answer that are read to use its connection again
)

// pusher makes attempts: one HTTP POST each.
type pusher struct {
	o        Options
	metrics  *metrics
	schedule Schedule
	client   *http.Client
}

func newPusher(o Options, m *metrics) *pusher {
	return &pusher{o: o, metrics: m, schedule: o.Backoff, client: outbound.NewClient(outbound.Options{
		AllowPrivate: o.AllowPrivateDestinations, IdlePerHost: o.Concurrency,
	})}
}

func (p *pusher) close() { p.client.CloseIdleConnections() }

// failure is why an attempt did not deliver.
type failure struct{ class, text string }

// attempt pushes a job once, within its lease, and says what is to become of it.
func (p *pusher) attempt(ctx context.Context, k *storage.Consumer, job storage.ClaimedJob, since time.Time) storage.Outcome {
	outcome := storage.Outcome{JobID: job.ID, Token: job.Token, ConsumerKey: job.ConsumerKey}
	began := time.Now()
	p.metrics.inflight.Inc()
	defer p.metrics.inflight.Dec()
	// All of the attempt must fit in what is left of the lease, so that nobody else has the job meanwhile.
	timeout := min(p.o.DeliveryTimeout, p.o.lease()-began.Sub(since))
	if timeout <= 0 {
		outcome.Verdict = storage.HandBack
		p.report(k, job, outcome, failure{classExpired, "the claim took longer than the lease"}, 0, began)
		return outcome
	}
	attemptCtx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	got, fail := p.post(attemptCtx, k, job)
	outcome.Attempt = &storage.Attempt{Code: got.code, Duration: time.Since(began), Answer: got.answer, Retry: int(job.RetryAttemptCount), MessageID: job.MessageID}
	switch {
	case fail == nil:
		outcome.Verdict = storage.Delivered
		fail = &failure{}
	case ctx.Err() != nil:
		fail.class = classAborted
		outcome.Verdict = storage.HandBack
	case timeout < p.o.DeliveryTimeout && attemptCtx.Err() != nil:
		// The claim took so long that the consumer did not have its time: not its failure.
		fail.class = classExpired
		outcome.Verdict = storage.HandBack
	case int(job.RetryAttemptCount) >= p.o.MaxRetry:
		outcome.Verdict = storage.Die
	default:
		outcome.Verdict = storage.RetryLater
		outcome.Delay = p.schedule.Wait(int(job.RetryAttemptCount))
	}
	outcome.ErrorClass, outcome.Error = fail.class, fail.text
	p.report(k, job, outcome, *fail, got.code, began)
	return outcome
}

// reply is what a destination answered.
type reply struct {
	code   int    // 0: nothing
	answer string // the first part of its body
}

// post sends the request and judges the answer; nil means delivered.
func (p *pusher) post(ctx context.Context, k *storage.Consumer, job storage.ClaimedJob) (reply, *failure) {
	req, err := p.request(ctx, k, job)
	if err != nil {
		return reply{}, &failure{classRequest, err.Error()}
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return reply{}, classify(err)
	}
	defer func() { _ = resp.Body.Close() }()
	head, _ := io.ReadAll(io.LimitReader(resp.Body, answerKept))
	_, _ = io.CopyN(io.Discard, resp.Body, answerDrained)
	got := reply{resp.StatusCode, printable(string(head))}
	if resp.StatusCode >= 200 && resp.StatusCode <= 299 {
		return got, nil // whatever else it says
	}
	text := resp.Status
	if got.answer != "" {
		text += ": " + got.answer
	}
	return got, &failure{classOf(resp.StatusCode), text}
}

func (p *pusher) request(ctx context.Context, k *storage.Consumer, job storage.ClaimedJob) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, k.CallbackURL, bytes.NewReader(job.Body))
	if err != nil {
		return nil, errors.New("the callback URL cannot be used")
	}
	h := req.Header
	names := make([]string, 0, len(job.Headers))
	for name, value := range job.Headers {
		h.Set(name, value)
		names = append(names, name)
	}
	if len(names) > 0 {
		slices.Sort(names)
		h.Set("X-Broker-Metadata-Headers", strings.Join(names, ","))
	}
	// Ours last: no metadata header may stand in for them.
	h.Set("Content-Type", job.ContentType)
	h.Set("User-Agent", p.o.UserAgent)
	h.Set("X-Request-ID", xid.New().String())
	h.Set("X-Broker-Message-ID", job.MessageID)
	h.Set("X-Broker-Message-Priority", strconv.FormatUint(uint64(job.Priority), 10))
	h.Set("X-Broker-Consumer-ID", k.ID)
	h.Set("X-Broker-Channel-ID", k.ChannelID)
	h.Set(p.o.ConsumerTokenHeader, k.Token)
	return req, nil
}

func classOf(code int) string {
	switch code / 100 {
	case 3:
		return classRedirect
	case 4:
		return classClient
	case 5:
		return classServer
	}
	return classOther
}

// classify names the reason that no answer came, without the URL, which may hold secrets.
func classify(err error) *failure {
	if urlErr, ok := errors.AsType[*url.Error](err); ok {
		err = urlErr.Err
	}
	text := printable(err.Error())
	var netErr net.Error
	var dnsErr *net.DNSError
	var certErr *tls.CertificateVerificationError
	var recordErr tls.RecordHeaderError
	var authorityErr x509.UnknownAuthorityError
	switch {
	case errors.Is(err, ssrf.ErrProhibitedIP), errors.Is(err, ssrf.ErrProhibitedPort), errors.Is(err, ssrf.ErrProhibitedNetwork):
		return &failure{classBlocked, "the destination is a private address, and those are not allowed"}
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &netErr) && netErr.Timeout():
		return &failure{classTimeout, "no answer in time"}
	case errors.As(err, &dnsErr):
		return &failure{classDNS, text}
	case errors.As(err, &certErr), errors.As(err, &recordErr), errors.As(err, &authorityErr):
		return &failure{classTLS, text}
	}
	return &failure{classConnect, text}
}

// printable keeps a text to one line.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}

// report tells of an attempt: one event with all that is known.
func (p *pusher) report(k *storage.Consumer, job storage.ClaimedJob, o storage.Outcome, fail failure, code int, began time.Time) {
	level, result := slog.LevelInfo, "retry"
	switch o.Verdict {
	case storage.Delivered:
		level, result = slog.LevelDebug, "delivered"
	case storage.Die:
		level, result = slog.LevelWarn, "dead"
	case storage.HandBack:
		result = "handed_back"
	}
	took := time.Since(began)
	p.metrics.attempts.WithLabelValues(result, fail.class).Inc()
	p.metrics.attemptDuration.Observe(took.Seconds())
	if !p.o.Log.Enabled(context.Background(), level) {
		return
	}
	p.o.Log.LogAttrs(context.Background(), level, "attempt",
		slog.String("result", result), slog.String("job", job.ID.String()), slog.String("message", job.MessageID),
		slog.String("channel", k.ChannelID), slog.String("consumer", k.ID), slog.Int("retry", int(job.RetryAttemptCount)),
		slog.Int("code", code), slog.String("class", fail.class), slog.String("error", fail.text),
		slog.Duration("took", took), slog.Duration("next", o.Delay))
}
