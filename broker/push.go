package broker

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"code.dny.dev/ssrf"
	"github.com/rs/xid"

	"github.com/redrive-mq/redrive/internal/outbound"
	"github.com/redrive-mq/redrive/storage"
)

const (
	answerKept    = 300      // bytes of an answer that are stored as the error of a failed attempt
	answerDrained = 64 << 10 // bytes of an answer that are read to use its connection again
)

// pusher does jobs by one HTTP POST each.
type pusher struct {
	o      Options
	client *http.Client
}

func newPusher(o Options) *pusher {
	return &pusher{o: o, client: outbound.NewClient(outbound.Options{
		AllowPrivate: o.AllowPrivateDestinations, IdlePerHost: o.Concurrency,
	})}
}

func (p *pusher) close() { p.client.CloseIdleConnections() }

// means are how the jobs of push consumers are done.
func (p *pusher) means() *means {
	return &means{do: p.push, maxRetry: p.o.MaxRetry, schedule: p.o.Backoff, concurrency: p.o.Concurrency, mayWait: true}
}

// push does a job.
func (p *pusher) push(ctx context.Context, k *storage.Consumer, job storage.ClaimedJob) result {
	got, fail := p.post(ctx, k, job)
	return result{fail: fail, reply: &got}
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
		if strings.HasPrefix(http.CanonicalHeaderKey(name), "Webhook-") {
			continue // of a message that was stored before those were refused
		}
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
	if timestamp, signatures := k.Signing.Sign(job.ID.String(), job.Body); signatures != "" {
		h.Set("Webhook-Id", job.ID.String()) // the same in each attempt
		h.Set("Webhook-Timestamp", timestamp)
		h.Set("Webhook-Signature", signatures)
	}
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
