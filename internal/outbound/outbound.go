// Package outbound makes the HTTP clients that call addresses which somebody else wrote down: callbacks of consumers, status
// URLs of engines. They refuse private addresses, follow no redirect and use no proxy.
package outbound

import (
	"net"
	"net/http"
	"time"

	"code.dny.dev/ssrf"
)

// Options of a client.
type Options struct {
	// AllowPrivate lets it connect to loopback, private and link-local addresses.
	AllowPrivate bool
	// IdlePerHost is how many idle connections are kept for each host; default 2.
	IdlePerHost int
}

// NewClient makes a client without a timeout of its own: requests have theirs by their contexts. A redirect is an answer
// like any other. A connection that was refused because of its address is an ssrf.ErrProhibitedIP (or Port, Network).
func NewClient(o Options) *http.Client {
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	if !o.AllowPrivate {
		// Checked on the address that is dialled, so a name that resolves to another address later is covered.
		dialer.Control = ssrf.New(ssrf.WithAnyPort(), ssrf.WithNetworks("tcp4", "tcp6")).Safe
	}
	return &http.Client{
		Transport: &http.Transport{
			Proxy:                  nil, // through a proxy the dialled address would be the proxy's
			DialContext:            dialer.DialContext,
			MaxIdleConns:           0, // bounded by each host's
			MaxIdleConnsPerHost:    o.IdlePerHost,
			IdleConnTimeout:        90 * time.Second,
			TLSHandshakeTimeout:    10 * time.Second,
			DisableCompression:     true,
			ForceAttemptHTTP2:      true,
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
