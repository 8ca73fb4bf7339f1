package health

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"code.dny.dev/ssrf"
)

// Classes of probes that failed: a closed set, with the names that attempts at deliveries have.
const (
	ClassClient  = "http_4xx" // 408 or 429: it is there, and asks to be left alone
	ClassServer  = "http_5xx"
	ClassTimeout = "timeout"
	ClassDNS     = "dns"
	ClassTLS     = "tls"
	ClassConnect = "connect" // refused, reset, or no HTTP
	ClassBlocked = "blocked_address"
	ClassRequest = "bad_request" // the callback URL cannot be used
)

const (
	userAgent = "Redrive"
	maxError  = 512 // characters of what a destination says that are kept: a run's results must fit, whatever it says
)

// prober asks destinations whether they are there.
type prober struct {
	client  *http.Client
	timeout time.Duration
}

func newProber(client *http.Client, timeout time.Duration) prober {
	own := *client
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	own.Jar = nil
	return prober{&own, timeout}
}

// probe never returns an error: what goes wrong is what it finds.
func (p prober) probe(ctx context.Context, callback string) Finding {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, callback, nil)
	if err != nil {
		return Finding{Class: ClassRequest, Error: "the callback URL cannot be used"}
	}
	req.URL.User = nil // it would be sent as a credential
	req.Header.Set("User-Agent", userAgent)
	began := time.Now()
	resp, err := p.client.Do(req)
	f := Finding{Latency: time.Since(began)}
	if err != nil {
		f.Class, f.Error = classify(err)
		return f
	}
	_ = resp.Body.Close() // a HEAD has none
	switch code := resp.StatusCode; {
	case code >= http.StatusInternalServerError:
		f.Class, f.Error = ClassServer, printable(resp.Status)
	case code == http.StatusRequestTimeout, code == http.StatusTooManyRequests:
		f.Class, f.Error = ClassClient, printable(resp.Status)
	}
	return f
}

// classify names the reason that no answer came, without the URL, which may hold secrets.
func classify(err error) (class, text string) {
	if of, ok := errors.AsType[*url.Error](err); ok {
		err = of.Err
	}
	text = printable(err.Error())
	var netErr net.Error
	var dnsErr *net.DNSError
	var certErr *tls.CertificateVerificationError
	var recordErr tls.RecordHeaderError
	var alertErr tls.AlertError
	var authorityErr x509.UnknownAuthorityError
	switch {
	case errors.Is(err, ssrf.ErrProhibitedIP), errors.Is(err, ssrf.ErrProhibitedPort), errors.Is(err, ssrf.ErrProhibitedNetwork):
		return ClassBlocked, "the destination is a private address, and those are not allowed"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &netErr) && netErr.Timeout():
		return ClassTimeout, "no answer in time"
	case errors.As(err, &dnsErr):
		return ClassDNS, text
	case errors.As(err, &certErr), errors.As(err, &recordErr), errors.As(err, &alertErr), errors.As(err, &authorityErr):
		return ClassTLS, text
	}
	return ClassConnect, text
}

// printable keeps a text to one line of UTF-8, and cuts it.
func printable(text string) string {
	line := []rune(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD")))
	return string(line[:min(len(line), maxError)])
}
