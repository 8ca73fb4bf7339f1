package app_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/app"
	"github.com/redrive-mq/redrive/storage/storagetest"
	"github.com/redrive-mq/redrive/web/webtest"
)

func TestMain(m *testing.M) { storagetest.Main(m) }

const (
	adminToken = "the-admin-token"
	patience   = 20 * time.Second // for what takes milliseconds on an idle machine
)

// testConfig is a configuration with times short enough for tests.
func testConfig(dsn string) app.Config {
	return app.Config{
		DatabaseDSN: dsn, DatabaseMaxConnections: 16, DataDir: "unused",
		HTTPListen: "127.0.0.1:0", AdminAuth: app.AdminToken, AdminToken: adminToken,
		BrokerMaxRetry: 2, BrokerRetryBackoff: []time.Duration{20 * time.Millisecond},
		BrokerDeliveryTimeout: 5 * time.Second, BrokerRationalDelay: time.Second, BrokerConcurrency: 16,
		BrokerAllowPrivateDestinations: true, BrokerConsumerTokenHeader: "X-Broker-Consumer-Token",
		BrokerMaxBodyBytes: 1 << 20, BrokerMinScheduleDelay: 50 * time.Millisecond,
		SchedulerInterval: 50 * time.Millisecond, DLQSummaryInterval: 200 * time.Millisecond,
		SigningMaxAge: time.Hour, SigningOverlap: time.Minute,
		GatewayAuthMode: app.GatewayNone, GatewayAuthExempt: []string{"/livez"},
		EngineLease: 30 * time.Second, PruneInterval: time.Hour, LogLevel: "info", LogFormat: "text",
	}
}

// instance is an App that runs.
type instance struct {
	*api

	app    *app.App
	cancel context.CancelFunc
	done   chan struct{}
	err    error // of Run; read it after done
}

// launch runs an App until stop or the end of t, and returns when its port is taken.
func launch(t *testing.T, cfg app.Config) *instance {
	t.Helper()
	a, err := app.New(app.Options{Config: cfg, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	i := &instance{app: a, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(i.done)
		i.err = a.Run(ctx)
	}()
	t.Cleanup(func() { i.stop(t) })
	select {
	case <-a.Listening():
	case <-i.done:
		select {
		case <-a.Listening(): // and then it ended: the test's business
		default:
			t.Fatalf("it ended: %v", i.err)
		}
	}
	i.api = newAPI(t, a.URL())
	return i
}

// start is launch, until the instance is ready.
func start(t *testing.T, cfg app.Config) *instance {
	t.Helper()
	i := launch(t, cfg)
	i.awaitReady(t)
	return i
}

func (i *instance) awaitReady(t *testing.T) {
	t.Helper()
	select {
	case <-i.app.Ready():
	case <-i.done:
		t.Fatalf("it ended: %v", i.err)
	case <-time.After(3 * patience): // a private database may have to be made first
		t.Fatal("it does not get ready")
	}
}

// stop ends the instance as SIGTERM does.
func (i *instance) stop(t *testing.T) {
	t.Helper()
	i.cancel()
	select {
	case <-i.done:
	case <-time.After(30 * time.Second):
		t.Fatal("it does not stop")
	}
}

// api is a client that holds the API to its description.
type api struct {
	t      *testing.T
	base   string
	client *http.Client
}

func newAPI(t *testing.T, base string) *api {
	// Connections of its own, closed at the end: no test waits for another's idle ones.
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &api{t: t, base: base, client: &http.Client{Transport: webtest.NewTransport(t, transport), Timeout: patience}}
}

// answer is what came back.
type answer struct {
	t      *testing.T
	what   string
	status int
	header http.Header
	body   string
}

// want fails the test unless the answer has the status.
func (a answer) want(status int) answer {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("%s: status %d, not %d: %s", a.what, a.status, status, a.body)
	}
	return a
}

// into reads JSON.
func (a answer) into(out any) {
	a.t.Helper()
	if err := json.Unmarshal([]byte(a.body), out); err != nil {
		a.t.Fatalf("%s: %v in %s", a.what, err, a.body)
	}
}

// try sends a request whose connection may break. Headers are name, value, name, value ...
func (a *api) try(method, path, body string, headers ...string) (answer, error) {
	req, err := http.NewRequestWithContext(context.Background(), method, a.base+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return answer{a.t, method + " " + path, resp.StatusCode, resp.Header, string(text)}, err
}

func (a *api) do(method, path, body string, headers ...string) answer {
	a.t.Helper()
	got, err := a.try(method, path, body, headers...)
	if err != nil {
		a.t.Fatal(err)
	}
	return got
}

func (a *api) put(path string, form url.Values) answer {
	a.t.Helper()
	return a.do("PUT", path, form.Encode(), "Content-Type", "application/x-www-form-urlencoded", "Authorization", "Bearer "+adminToken)
}

// The channel that every test uses; every token is the id and "-token".
const channel = "/channel/orders"

// stage makes the channel and a producer.
func (a *api) stage() {
	a.t.Helper()
	a.put("/producer/shop", url.Values{"token": {"shop-token"}}).want(200)
	a.put(channel, url.Values{"token": {"orders-token"}, "name": {"Orders"}}).want(200)
}

func (a *api) addConsumer(id, kind, callback string) {
	a.t.Helper()
	a.put(channel+"/consumer/"+id, url.Values{"token": {id + "-token"}, "type": {kind}, "callbackUrl": {callback}}).want(200)
}

func (a *api) tryBroadcast(id, body string, headers ...string) (answer, error) {
	return a.try("POST", channel+"/broadcast", body, append([]string{
		"Content-Type", "application/json", "X-Broker-Channel-Token", "orders-token",
		"X-Broker-Producer-ID", "shop", "X-Broker-Producer-Token", "shop-token", "X-Broker-Message-ID", id,
	}, headers...)...)
}

func (a *api) broadcast(id, body string, headers ...string) answer {
	a.t.Helper()
	got, err := a.tryBroadcast(id, body, headers...)
	if err != nil {
		a.t.Fatal(err)
	}
	return got
}

// asConsumer are the headers of a consumer's requests.
func asConsumer(id string) []string {
	return []string{"X-Broker-Channel-Token", "orders-token", "X-Broker-Consumer-Token", id + "-token"}
}

// dead is the number of dead letters that /dlq-status shows of a consumer, -1 if it does not know it.
func (a *api) dead(consumer string) int {
	a.t.Helper()
	var status struct {
		Consumers []struct {
			ConsumerID string
			DeadCount  int
		}
		Exact bool
	}
	a.do("GET", "/dlq-status", "").want(200).into(&status)
	if !status.Exact {
		a.t.Error("/dlq-status is not exact")
	}
	for _, k := range status.Consumers {
		if k.ConsumerID == consumer {
			return k.DeadCount
		}
	}
	return -1
}

// statusOf is how a message's job for a consumer stands.
func (a *api) statusOf(message, consumer string) string {
	a.t.Helper()
	var m struct {
		Jobs []struct{ ListenerName, Status string }
	}
	a.do("GET", channel+"/message/"+message, "").want(200).into(&m)
	for _, j := range m.Jobs {
		if j.ListenerName == consumer {
			return j.Status
		}
	}
	return "no job"
}

// eventually polls until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("it never came to be: %s", what)
		case <-tick.C:
		}
	}
}

// sink is a push consumer.
type sink struct {
	*httptest.Server

	mu     sync.Mutex
	got    []delivery
	answer func(delivery, *http.Request) int // nil: 200
}

type delivery struct {
	id, body string
	header   http.Header
	at       time.Time
}

func newSink(t *testing.T) *sink {
	s := &sink{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body bytes.Buffer
		_, _ = io.Copy(&body, r.Body)
		d := delivery{r.Header.Get("X-Broker-Message-ID"), body.String(), r.Header, time.Now()}
		s.mu.Lock()
		s.got = append(s.got, d)
		decide := s.answer
		s.mu.Unlock()
		status := http.StatusOK
		if decide != nil {
			status = decide(d, r)
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(s.Close)
	return s
}

// decide sets how deliveries are answered from now on.
func (s *sink) decide(answer func(delivery, *http.Request) int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

func (s *sink) fail(status int) { s.decide(func(delivery, *http.Request) int { return status }) }

func (s *sink) heal() { s.decide(nil) }

// of returns the deliveries of a message, of all messages for "".
func (s *sink) of(id string) []delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []delivery
	for _, d := range s.got {
		if id == "" || d.id == id {
			out = append(out, d)
		}
	}
	return out
}

func orderBody(n int) string { return fmt.Sprintf(`{"order":%d}`, n) }
