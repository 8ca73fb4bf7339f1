package web_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/redrive-mq/redrive/docs"
	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/web"
)

// logBuffer is a log that tests read.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logBuffer) at(level slog.Level) func(*web.Options) {
	return func(o *web.Options) { o.Log = slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: level})) }
}

func TestRequestIDs(t *testing.T) {
	t.Parallel()
	a := newBareAPI(t)
	for _, id := range []string{"x", "a b-c~", strings.Repeat("x", 255)} {
		if got := a.get("/livez", "X-Request-ID: "+id).Header.Get("X-Request-ID"); got != id {
			t.Errorf("%q came back as %q", id, got)
		}
	}
	for _, id := range []string{"", strings.Repeat("x", 256), "a\tb", "ä"} {
		got := a.get("/producer/nobody", "X-Request-ID: "+id).want(404).Header.Get("X-Request-ID")
		if _, err := storage.ParseID(got); err != nil {
			t.Errorf("%q came back as %q, want a new xid", id, got)
		}
	}
}

func TestProbesAndOwnEndpoints(t *testing.T) {
	t.Parallel()
	var reason error
	var mu sync.Mutex
	a := newBareAPI(t, func(o *web.Options) {
		o.Ready = func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			return reason
		}
	})
	a.get("/readyz").want(200)
	mu.Lock()
	reason = errors.New("draining")
	mu.Unlock()
	got := a.get("/readyz").want(503)
	if p := got.json(); p["detail"] != "draining" || got.Header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("readyz answers %v as %s", p, got.Header.Get("Content-Type"))
	}
	if got := a.get("/livez").want(200).body; got != `{"status":"ok"}` {
		t.Errorf("livez answers %s", got)
	}
	if got := a.get("/openapi.yaml").want(200).body; got != string(docs.OpenAPI) {
		t.Error("openapi.yaml is another document")
	}
	if got := a.get("/_status").want(200).body; got != `{"SeedData":null,"AppStatus":3}` {
		t.Errorf("_status answers %s", got)
	}
	seeded := newBareAPI(t, func(o *web.Options) {
		o.Status = func(context.Context) (web.AppStatus, error) {
			return web.AppStatus{SeedData: map[string]any{"Channels": []string{"c"}}, AppStatus: web.AppStarting}, nil
		}
	})
	if got := seeded.get("/_status").want(200).body; got != `{"SeedData":{"Channels":["c"]},"AppStatus":2}` {
		t.Errorf("_status answers %s", got)
	}
}

func TestUnknownPathsAndMethods(t *testing.T) {
	t.Parallel()
	a := newBareAPI(t)
	for _, path := range []string{"/", "/nothing", "/channel", "/channel/c/consumer", "/channel/c/nothing", "/producer/a/b", "/channel/"} {
		if got := a.get(path).want(404); got.Header.Get("Content-Type") != "text/plain; charset=utf-8" || got.Header.Get("X-Request-ID") == "" {
			t.Errorf("%s: the headers are %v", path, got.Header)
		}
	}
	for path, allow := range map[string]string{
		"/producers": "GET, HEAD", "/producer/p": "GET, HEAD, PUT", "/channel/c/broadcast": "POST", "/channel/c/consumer/k": "GET, HEAD, PUT, DELETE",
		"/channel/c/consumer/k/job/j": "GET, HEAD, POST, DELETE",
	} {
		if got := a.call("PATCH", path, "").want(405); got.Header.Get("Allow") != allow {
			t.Errorf("%s: Allow is %q, want %q", path, got.Header.Get("Allow"), allow)
		}
	}
	if got := a.call("HEAD", "/producers", "").want(200); got.body != "" || got.Header.Get("Content-Type") != "application/json" {
		t.Errorf("HEAD answers %q with %v", got.body, got.Header)
	}
}

// A base URL that ends with a slash leads to the path that was meant, which keeps its encoding, with method and body.
func TestSlashesAtTheEndsOfPaths(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.client = a.server.Client() // these paths are not in the document
	followed := *a.client
	a.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	a.put("/channel/a%2Fb%20c", "token=c-token")
	for _, tt := range []struct {
		method, path, location string
		status                 int
	}{
		{"GET", "//producers", "/producers", 301},
		{"HEAD", "///producers/", "/producers", 301},
		{"GET", "/channel/a%2Fb%20c/messages/?status=102&next=", "/channel/a%2Fb%20c/messages?status=102&next=", 301},
		{"PUT", "//producer/p/", "/producer/p", 308},
		{"POST", "//channel/a%2Fb%20c/broadcast", "/channel/a%2Fb%20c/broadcast", 308},
		{"DELETE", "//producers", "/producers", 308}, // where it is told which methods there are
		{"GET", "//evil.example/", "", 404},
		{"GET", "//%5Cevil.example/..", "", 404},
		{"GET", "/channel//messages", "", 404},
		{"GET", "/channel/c/consumer/", "", 404},
		{"GET", "/../producers", "", 404},
		{"GET", "/livez/../producers", "", 404},
	} {
		if got := a.call(tt.method, tt.path, "").want(tt.status); got.Header.Get("Location") != tt.location {
			t.Errorf("%s %s leads to %q, want %q", tt.method, tt.path, got.Header.Get("Location"), tt.location)
		}
	}
	a.client = &followed
	a.call("POST", "//channel/a%2Fb%20c/broadcast/", "kept", ours("X-Broker-Message-ID: m")...).want(201)
	if got := a.get("//channel/a%2Fb%20c/message/m/").want(200).json()["Payload"]; got != "kept" {
		t.Errorf("the payload is %q", got)
	}
}

// What goes wrong inside is logged once, under the request's id, and never shown.
func TestFaultsAreLoggedAndNotShown(t *testing.T) {
	t.Parallel()
	var log logBuffer
	a := newAPI(t, log.at(slog.LevelInfo), func(o *web.Options) {
		o.Unavailable = func(err error) bool { return err.Error() == "draining" }
	})
	cases := []struct {
		name   string
		accept func() (string, error)
		want   int
		logged int
	}{
		{"a fault", func() (string, error) { return "", errors.New("secret detail") }, 500, 1},
		{"a panic", func() (string, error) { panic("secret detail") }, 500, 1},
		{"draining", func() (string, error) { return "", errors.New("draining") }, 503, 0},
		{"no database", func() (string, error) { return "", fmt.Errorf("dial: %w", context.DeadlineExceeded) }, 503, 0},
		{"a duplicate", func() (string, error) { return "", fmt.Errorf("accept: %w", storage.ErrDuplicate) }, 409, 0},
		{"a cut connection", func() (string, error) { panic(http.ErrAbortHandler) }, 0, 0},
	}
	for i, tc := range cases {
		a.broker.accept = func(context.Context, web.Broadcast) (string, error) { return tc.accept() }
		id := fmt.Sprintf("request-%d", i)
		if tc.want == 0 {
			r, _ := http.NewRequest("POST", a.server.URL+"/channel/c/broadcast", nil)
			for _, h := range ours() {
				name, value, _ := strings.Cut(h, ": ")
				r.Header.Set(name, value)
			}
			if res, err := a.server.Client().Do(r); err == nil {
				_ = res.Body.Close()
				t.Errorf("%s: answered %d", tc.name, res.StatusCode)
			}
			continue
		}
		got := a.call("POST", "/channel/c/broadcast", "", ours("X-Request-ID: "+id)...).want(tc.want)
		if strings.Contains(got.body, "secret") || got.Header.Get("X-Request-ID") != id {
			t.Errorf("%s: answered %q", tc.name, got.body)
		}
		if tc.want == 503 && got.Header.Get("Retry-After") == "" {
			t.Errorf("%s: there is no Retry-After", tc.name)
		}
		logged := 0
		for line := range strings.SplitSeq(log.String(), "\n") {
			if strings.Contains(line, `"requestId":"`+id+`"`) && strings.Contains(line, `"level":"ERROR"`) {
				logged++
			}
		}
		if logged != tc.logged {
			t.Errorf("%s: %d errors were logged, want %d:\n%s", tc.name, logged, tc.logged, log.String())
		}
	}
}

func TestTokensAreNeverLogged(t *testing.T) {
	t.Parallel()
	var log logBuffer
	a := newAPI(t, log.at(slog.LevelDebug))
	a.send("m")
	a.call("POST", "/channel/c/broadcast", "", "X-Broker-Channel-Token: wrong-token").want(403)
	a.get("/channel/c/consumer/push/queued-jobs", as("push")...).want(412)
	a.call("POST", "/channel/c/consumer/push/dlq", "requeue=push-token", asForm).want(202)
	a.call("PUT", "/producer/p", "token=p-token", asForm, asAdmin).want(400)
	a.call("PUT", "/producer/p", "token=p-token", asForm, "Authorization: Bearer wrong-token").want(401)
	eventually(t, "all requests are logged", func() bool { return strings.Count(log.String(), `"msg":"request"`) >= 10 })
	for _, secret := range []string{"-token", adminToken} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("%q is in the log:\n%s", secret, log.String())
		}
	}
	if !strings.Contains(log.String(), `"route":"/channel/{channelId}/broadcast"`) {
		t.Errorf("no route in the log:\n%s", log.String())
	}
}

func TestDatabaseThatIsAway(t *testing.T) {
	t.Parallel()
	store, err := storage.Open(storage.Options{DSN: "root@tcp(127.0.0.1:1)/nothing"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	var log logBuffer
	a := newAPIOn(t, store, log.at(slog.LevelInfo))
	for range 5 {
		for _, path := range []string{"/producers", "/channel/c", "/dlq-status", "/job-status", "/channel/c/message/m"} {
			if got := a.get(path).want(503); got.Header.Get("Retry-After") == "" || strings.Contains(got.body, "127.0.0.1") {
				t.Errorf("%s answers %q with %v", path, got.body, got.Header)
			}
		}
	}
	a.call("POST", "/channel/c/broadcast", "", ours()...).want(503)
	a.call("PUT", "/channel/c", "", asForm, asAdmin).want(503)
	if n := strings.Count(log.String(), "\n"); n == 0 || n > 10 {
		t.Errorf("%d lines were logged of one outage", n)
	}
	a.get("/livez").want(200)
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	a := newAPI(t, func(o *web.Options) {
		o.Registerer = registry
		o.Metrics = promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	})
	a.send("m")
	a.get("/nothing").want(404)
	a.call("BREW", "/producers", "").want(405)
	a.get("/channel/nobody").want(404)
	var got string
	eventually(t, "all requests are counted", func() bool {
		got = a.get("/metrics").want(200).body
		return strings.Contains(got, `redrive_http_requests_total{code="404",method="GET",route="/channel/{channelId}"} 1`)
	})
	for _, line := range []string{
		`redrive_http_requests_total{code="201",method="POST",route="/channel/{channelId}/broadcast"} 1`,
		`redrive_http_requests_total{code="404",method="GET",route="unmatched"} 1`,
		`redrive_http_requests_total{code="405",method="other",route="unmatched"} 1`,
		`redrive_http_request_duration_seconds_count{method="POST",route="/channel/{channelId}/broadcast"} 1`,
	} {
		if !strings.Contains(got, line) {
			t.Errorf("there is no %s in\n%s", line, got)
		}
	}
	if strings.Contains(got, "nobody") {
		t.Error("a raw path is in the metrics")
	}
	if _, err := web.New(web.Options{Store: a.store, Broadcaster: a.broker, Kicker: a.broker, DeadCounter: a.broker, AdminOpen: true, Registerer: registry}); err == nil {
		t.Error("the same metrics were registered twice")
	}
}

func sign(secret, body string, at time.Time) string {
	mac := hmac.New(sha256.New, []byte(secret))
	_, _ = fmt.Fprintf(mac, "%d.%s", at.Unix(), body)
	return fmt.Sprintf("X-Broker-Signature: t=%d,v1=%s", at.Unix(), hex.EncodeToString(mac.Sum(nil)))
}

func TestGatewaySignature(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	a := newAPI(t)
	signed := newAPIOn(t, a.store, func(o *web.Options) {
		o.GatewaySecret = []byte("s3cret")
		o.Now = func() time.Time { return now }
		o.MaxBodyBytes = 100
	})
	signed.broker.accept = func(_ context.Context, b web.Broadcast) (string, error) {
		if string(b.Body) != "hello" {
			t.Errorf("the body that arrives is %q", b.Body)
		}
		return "m", nil
	}
	good := sign("s3cret", "hello", now)
	_, goodSum, _ := strings.Cut(good, "v1=")
	for _, tc := range []struct {
		name, signature, body string
		want                  int
	}{
		{"right", good, "hello", 201},
		{"right, with spaces", strings.ReplaceAll(good, ",", ", "), "hello", 201},
		{"right, of several", strings.Replace(good, ",v1=", ",v1="+strings.Repeat("00", 32)+",v2=new,v1=", 1), "hello", 201},
		{"right, in capitals", good[:strings.Index(good, goodSum)] + strings.ToUpper(goodSum), "hello", 201},
		{"old enough", sign("s3cret", "hello", now.Add(-300*time.Second)), "hello", 201},
		{"ahead enough", sign("s3cret", "hello", now.Add(300*time.Second)), "hello", 201},
		{"missing", "X-Nothing: x", "hello", 401},
		{"malformed", "X-Broker-Signature: x", "hello", 401},
		{"without a time", "X-Broker-Signature: v1=" + goodSum, "hello", 401},
		{"without a sum", "X-Broker-Signature: t=1893499200", "hello", 401},
		{"a sum that is none", "X-Broker-Signature: t=1893499200,v1=zz", "hello", 401},
		{"a short sum", "X-Broker-Signature: t=1893499200,v1=00", "hello", 401},
		{"two times", good + ",t=1", "hello", 401},
		{"a time that is none", "X-Broker-Signature: t=now,v1=" + goodSum, "hello", 401},
		{"a negative time", "X-Broker-Signature: t=-1,v1=" + goodSum, "hello", 401},
		{"of another body", good, "hullo", 403},
		{"with another secret", sign("other", "hello", now), "hello", 403},
		{"too old", sign("s3cret", "hello", now.Add(-301*time.Second)), "hello", 403},
		{"too far ahead", sign("s3cret", "hello", now.Add(301*time.Second)), "hello", 403},
		{"far in the future", "X-Broker-Signature: t=9223372036854775807,v1=" + goodSum, "hello", 403},
		{"of a large body", sign("s3cret", strings.Repeat("x", 101), now), strings.Repeat("x", 101), 413},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := signed.call("POST", "/channel/c/broadcast", tc.body, ours(tc.signature)...)
			if got.StatusCode != tc.want {
				t.Errorf("answered %d %q, want %d", got.StatusCode, got.body, tc.want)
			}
		})
	}
	for _, path := range []string{"/livez", "/readyz", "/_status"} {
		signed.get(path).want(200)
	}
	signed.get("/openapi.yaml").want(401)
	signed.get("/channels").want(401)
	signed.get("/channels", sign("s3cret", "", now)).want(200)
	signed.call("PUT", "/producer/x", "name=X", asForm, asAdmin, sign("s3cret", "name=X", now)).want(200)
	signed.get("/nothing").want(401)
	// An exempt prefix does not lead anywhere else.
	for _, path := range []string{"/_status/../channels", "/_status/%2e%2e/channels", "/metrics/..%2fchannels"} {
		r, err := http.NewRequest("GET", signed.server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.URL.Opaque = path
		res, err := signed.server.Client().Transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if res.StatusCode == http.StatusOK {
			t.Errorf("%s is answered with %s", path, body)
		}
	}
}
