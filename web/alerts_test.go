package web_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/redrive-mq/redrive/docs"
	"github.com/redrive-mq/redrive/engine"
	"github.com/redrive-mq/redrive/engine/alerts"
	"github.com/redrive-mq/redrive/web"
)

var _ web.AlertSink = alerts.Intake{}

// alertQueue is the queue of the engine alerts, in memory.
type alertQueue struct {
	mu  sync.Mutex
	ids []string
	err error
}

func (q *alertQueue) put(_ context.Context, id string, _ engine.Message) (bool, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return false, q.err
	}
	if slices.Contains(q.ids, id) {
		return false, nil
	}
	q.ids = append(q.ids, id)
	return true, nil
}

func (q *alertQueue) has() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.ids)
}

// newAlertsAPI takes alerts, with the alerts token "watch:man".
func newAlertsAPI(t *testing.T, change ...func(*web.Options)) (*api, *alertQueue) {
	t.Helper()
	q := &alertQueue{}
	a, _ := newEngineAPI(t, append([]func(*web.Options){func(o *web.Options) {
		o.Alerts, o.AlertTokens = alerts.Intake{Put: q.put}, []web.AdminToken{web.NewAdminToken("alertmanager", "watch:man")}
	}}, change...)...)
	return a, q
}

const (
	asWatchman = "Authorization: Bearer watch:man"
	oneAlert   = `{"version":"4","alerts":[{"status":"firing","labels":{"alertname":"Disk"},"startsAt":"2026-03-01T09:00:00Z","fingerprint":"f1"}]}`
)

func basic(user, password string) string {
	return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

// The document's examples are what is taken.
func TestAlertsAreTaken(t *testing.T) {
	t.Parallel()
	a, q := newAlertsAPI(t)
	doc, err := openapi3.NewLoader().LoadFromData(docs.OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	examples := doc.Paths.Value("/api/alerts").Post.RequestBody.Value.Content["application/json"].Examples
	if len(examples) != 2 {
		t.Fatalf("there are %d examples", len(examples))
	}
	queued := 0
	for name, n := range map[string]int{"alertmanager": 2, "azureMonitor": 1} {
		body, err := json.Marshal(examples[name].Value.Value)
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf(`"data":{"received":%d,"queued":%d,"repeated":0}}`, n, n)
		if got := a.call("POST", "/api/alerts", string(body), asJSON, asWatchman).want(202); !strings.Contains(got.body, want) || got.data() == nil {
			t.Errorf("%s is answered with %s", name, got.body)
		}
		if queued += n; q.has() != queued {
			t.Errorf("with %s %v are in the queue", name, q.ids)
		}
		if again := a.call("POST", "/api/alerts", string(body), asJSON+"; charset=utf-8", asWatchman).want(202).data(); again["queued"] != 0.0 || again["repeated"] != float64(n) || again["received"] != float64(n) || q.has() != queued {
			t.Errorf("%s is answered with %v when it is repeated", name, again)
		}
	}
	if got := a.call("GET", "/api/alerts", "", asWatchman); got.problem(405) == "" || got.Header.Get("Allow") != "POST" {
		t.Errorf("Allow is %q", got.Header.Get("Allow"))
	}
}

func TestAlertsThatAreRefused(t *testing.T) {
	t.Parallel()
	a, q := newAlertsAPI(t, func(o *web.Options) { o.MaxBodyBytes = 1000 })
	for _, tc := range []struct {
		body, header, query string
		status              int
		says                string
	}{
		{`{}`, asJSON, "", 400, "no alerts can be read from this: it has neither"},
		{``, asJSON, "", 400, "not JSON"},
		{strings.Replace(oneAlert, `"4"`, `"3"`, 1), asJSON, "", 400, `version: "3"`},
		{strings.Replace(oneAlert, `"firing"`, `"pending"`, 1), asJSON, "", 400, `alerts[0]: status: "pending"`},
		{oneAlert, "Content-Type: text/plain", "", 415, "application/json"},
		{oneAlert + strings.Repeat(" ", 1000), asJSON, "", 413, "1000 bytes"},
		{oneAlert, asJSON, "?tokens=x", 400, "the query"},
		{oneAlert, asJSON, "?token=x&token=y", 400, "the query"},
		{oneAlert, asJSON, "?token=", 400, "the query"},
		{oneAlert, asJSON, "?token=%zz", 400, "the query"},
	} {
		if detail := a.call("POST", "/api/alerts"+tc.query, tc.body, tc.header, asWatchman).problem(tc.status); !strings.Contains(detail, tc.says) {
			t.Errorf("%.40s%s is refused with %q, want %q", tc.body, tc.query, detail, tc.says)
		}
	}
	if q.has() != 0 {
		t.Errorf("%v are in the queue", q.ids)
	}
}

func TestAlertsWantAToken(t *testing.T) {
	t.Parallel()
	var log logBuffer
	a, q := newAlertsAPI(t, log.at(slog.LevelDebug))
	for _, wrong := range [][2]string{
		{"X-None: x", ""}, {"Authorization: Bearer wrong", ""}, {"Authorization: Bearer ", ""}, {"Authorization: Digest watch:man", ""},
		{"Authorization: watch:man", ""}, {basic("watch:man", ""), ""}, {"X-Broker-Consumer-Token: watch:man", ""}, {basic("watch", "man"), ""}, {"Authorization: Basic watch:man", ""},
		{"X-None: x", "?token=wrong"}, {"Authorization: Bearer wrong", "?token=watch%3Aman"},
	} {
		got := a.call("POST", "/api/alerts"+wrong[1], oneAlert, asJSON, wrong[0])
		if got.problem(401); !strings.Contains(got.Header.Get("WWW-Authenticate"), "Basic") {
			t.Errorf("%v: WWW-Authenticate is %q", wrong, got.Header.Get("WWW-Authenticate"))
		}
	}
	if q.has() != 0 {
		t.Errorf("%v are in the queue", q.ids)
	}
	for _, right := range [][2]string{
		{asWatchman, ""}, {"Authorization: bearer  watch:man", ""}, {basic("", "watch:man"), ""}, {basic("any", "watch:man"), ""}, {"X-None: x", "?token=watch%3Aman"},
		{asAdmin, ""}, {basic("any", adminToken), ""}, {"X-None: x", "?token=" + adminToken},
	} {
		a.call("POST", "/api/alerts"+right[1], oneAlert, asJSON, right[0]).want(202)
	}
	if q.has() != 1 {
		t.Errorf("%v are in the queue", q.ids)
	}
	a.get("/api/dlq", asWatchman).problem(401) // it is good for nothing else
	if text := log.String(); !strings.Contains(text, "/api/alerts") || strings.Contains(text, "watch") || strings.Contains(text, "wrong") || strings.Contains(text, adminToken) {
		t.Errorf("the log is\n%s", text)
	}

	open, q := newAlertsAPI(t, func(o *web.Options) { o.AdminOpen, o.AdminTokens = true, nil })
	open.call("POST", "/api/alerts?token=anything", oneAlert, asJSON).want(202)
	if q.has() != 1 {
		t.Errorf("where anybody may, %v are in the queue", q.ids)
	}
}

func TestWhereAlertsAreNotTaken(t *testing.T) {
	t.Parallel()
	a, _ := newEngineAPI(t)
	if detail := a.call("POST", "/api/alerts", oneAlert, asJSON, asAdmin).problem(404); !strings.Contains(detail, "not taken in this deployment") {
		t.Errorf("it is refused with %q", detail)
	}
}

// Senders repeat what was answered with 5xx; nothing of the fault is shown.
func TestFaultsOfTheAlertsQueue(t *testing.T) {
	t.Parallel()
	a, q := newAlertsAPI(t)
	for _, tc := range []struct {
		err    error
		status int
	}{{errors.New("secret detail"), 500}, {fmt.Errorf("put: %w", timeoutError{}), 503}, {context.DeadlineExceeded, 503}} {
		q.mu.Lock()
		q.err = tc.err
		q.mu.Unlock()
		got := a.call("POST", "/api/alerts", oneAlert, asJSON, asWatchman)
		if detail := got.problem(tc.status); strings.Contains(detail, "secret") || (got.Header.Get("Retry-After") == "") == (tc.status == 503) {
			t.Errorf("%v is answered with %q, Retry-After %q", tc.err, detail, got.Header.Get("Retry-After"))
		}
	}
	q.mu.Lock()
	q.err = nil
	q.mu.Unlock()
	if data := a.call("POST", "/api/alerts", oneAlert, asJSON, asWatchman).want(202).data(); data["queued"] != 1.0 {
		t.Errorf("repeated, it is answered with %v", data)
	}
}
