package webtest_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/web/webtest"
)

// recorder is a testing.TB that notes failures.
type recorder struct {
	testing.TB
	failures []string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, _ ...any) { r.failures = append(r.failures, format) }

func TestTransportTellsRightFromWrong(t *testing.T) {
	t.Parallel()
	const ok, problem = `{"status":"ok"}`, `{"type":"about:blank","title":"x","status":503}`
	for _, tc := range []struct {
		name, method, path, body string
		header                   http.Header
		status                   int
		answer, contentType      string
		wrong                    bool
	}{
		{name: "described", path: "/livez", status: 200, answer: ok, contentType: "application/json"},
		{name: "HEAD", method: "HEAD", path: "/livez", status: 200, contentType: "application/json"},
		{name: "another status", path: "/livez", status: 201, answer: ok, contentType: "application/json", wrong: true},
		{name: "another body", path: "/livez", status: 200, answer: `{"status":"fine"}`, contentType: "application/json", wrong: true},
		{name: "a member more", path: "/livez", status: 200, answer: `{"status":"ok","more":1}`, contentType: "application/json", wrong: true},
		{name: "another type", path: "/livez", status: 200, answer: ok, contentType: "text/html", wrong: true},
		{name: "without Retry-After", path: "/readyz", status: 503, answer: problem, contentType: "application/problem+json", wrong: true},
		{name: "no such path", path: "/nothing", status: 404},
		{name: "no such path, yet answered", path: "/nothing", status: 200, wrong: true},
		{name: "no such method", method: "PATCH", path: "/livez", status: 405},
		{name: "no such method, yet answered", method: "PATCH", path: "/livez", status: 200, wrong: true},
		{name: "wrong request, refused", method: "POST", path: "/channel/c/consumer/k/dlq", status: 415, answer: "no", contentType: "text/plain; charset=utf-8"},
		{name: "wrong request, taken", method: "POST", path: "/channel/c/consumer/k/dlq", status: 202, answer: `{"requeuedCount":0}`, contentType: "application/json", wrong: true},
		{
			name: "right request, taken", method: "POST", path: "/channel/c/consumer/k/dlq", body: "requeue=x",
			header: http.Header{"Content-Type": {"application/x-www-form-urlencoded"}},
			status: 202, answer: `{"requeuedCount":0}`, contentType: "application/json",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if got, _ := io.ReadAll(r.Body); string(got) != tc.body {
					t.Errorf("the request arrives with %q", got)
				}
				w.Header().Set("X-Request-ID", "x")
				w.Header().Set("Content-Type", tc.contentType)
				w.WriteHeader(tc.status)
				_, _ = io.WriteString(w, tc.answer)
			}))
			defer server.Close()
			var rec recorder
			rec.TB = t
			r, err := http.NewRequest(tc.method, server.URL+tc.path, strings.NewReader(tc.body))
			if err != nil {
				t.Fatal(err)
			}
			if tc.header != nil {
				r.Header = tc.header
			}
			res, err := webtest.NewTransport(&rec, nil).RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = res.Body.Close() }()
			if got, _ := io.ReadAll(res.Body); tc.method != "HEAD" && string(got) != tc.answer {
				t.Errorf("the answer arrives as %q", got)
			}
			if wrong := len(rec.failures) > 0; wrong != tc.wrong {
				t.Errorf("failures: %v, want some: %v", rec.failures, tc.wrong)
			}
		})
	}
}
