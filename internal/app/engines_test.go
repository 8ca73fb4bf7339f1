package app_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/redrive-mq/redrive/storage/storagetest"
)

// factory is an engine that lives elsewhere: its runs are under way until they are let go, and fail as long as it is broken.
type factory struct {
	*httptest.Server

	mu     sync.Mutex
	broken bool
	open   map[string]bool // run ids that may end
	posts  []string        // instance ids
	runs   map[string]int  // posts by run id
}

func newFactory(t *testing.T) *factory {
	f := &factory{open: map[string]bool{}, runs: map[string]int{}}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if r.Method == http.MethodPost {
			body, _ := io.ReadAll(r.Body)
			var m struct{ InstanceID, RunID string }
			_ = json.Unmarshal(body, &m)
			f.posts = append(f.posts, m.InstanceID)
			f.runs[m.RunID]++
			if f.broken {
				http.Error(w, "out of order", http.StatusInternalServerError)
				return
			}
			w.Header().Set("Location", "/runs/"+m.InstanceID)
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusAccepted)
			return
		}
		if f.open[r.URL.Path[len("/runs/"):]] {
			_, _ = io.WriteString(w, `{"runtimeStatus":"Completed","output":{"made":true}}`)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	}))
	t.Cleanup(f.Close)
	return f
}

func (f *factory) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *factory) posted(instance string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.posts {
		if p == instance {
			n++
		}
	}
	return n
}

type letter struct {
	RowKey, InstanceID, OriginalQueue, ErrorMessage, CorrelationID, Status string
	DequeueCount                                                           int
}

func (a *api) admin(method, path, body string) answer {
	a.t.Helper()
	return a.do(method, path, body, "Authorization", "Bearer "+adminToken, "Content-Type", "application/json")
}

func (a *api) letters(query string) []letter {
	a.t.Helper()
	var list struct{ Data struct{ Items []letter } }
	a.admin("GET", "/api/dlq?"+query, "").want(200).into(&list)
	return list.Data.Items
}

// ended counts the runs of an engine that ended so.
func (a *api) ended(engine, correlation, status string) int {
	a.t.Helper()
	var list struct {
		Data struct{ Items []struct{ Operation string } }
	}
	a.admin("GET", "/api/history?"+url.Values{"engine": {engine}, "correlationId": {correlation}, "status": {status}}.Encode(), "").want(200).into(&list)
	n := 0
	for _, e := range list.Data.Items {
		if e.Operation != "requeue" {
			n++
		}
	}
	return n
}

// An engine that the settings name is executed by whichever instance gets to it, once for each message, dies over its
// retries, is counted as any consumer, and comes back under its job's id.
func TestEngineOfTheSettings(t *testing.T) {
	t.Parallel()
	f := newFactory(t)
	cfg := testConfig(storagetest.DSN(t))
	cfg.Engines = fmt.Sprintf(`{"provisioning":{"endpoint":%q,"maxRetryAttempts":1,"backoff":["10ms"]},
		"billing":{"queue":"billing-queue","operations":["charge"],"endpoint":%q,"interchangeable":true,"timeout":"1m"}}`, f.URL, f.URL)
	i := start(t, cfg)
	other := start(t, cfg)

	// A producer's message.
	i.put("/producer/shop", url.Values{"token": {"shop-token"}}).want(200)
	i.do("GET", "/channel/webhook-queue/consumer/provisioning", "").want(200)
	modified := i.do("GET", "/channel/webhook-queue", "").want(200).header.Get("Last-Modified")
	i.do("PUT", "/channel/webhook-queue", url.Values{"token": {"queue-token"}}.Encode(), "If-Unmodified-Since", modified,
		"Content-Type", "application/x-www-form-urlencoded", "Authorization", "Bearer "+adminToken).want(200)
	send := func(id, body string) {
		t.Helper()
		i.do("POST", "/channel/webhook-queue/broadcast", body, "Content-Type", "application/json", "X-Broker-Channel-Token", "queue-token",
			"X-Broker-Producer-ID", "shop", "X-Broker-Producer-Token", "shop-token", "X-Broker-Message-ID", id).want(201)
	}
	send("m1", `{"instanceId":"tenant-1","correlationId":"c1","plan":"gold"}`)
	eventually(t, "the engine was called", func() bool { return f.posted("tenant-1") == 1 })
	f.set(func() { f.open["tenant-1"] = true })
	eventually(t, "done", func() bool { return i.ended("provisioning", "c1", "Succeeded") == 1 })
	send("m1-again", `{"instanceId":"tenant-1","correlationId":"c1","plan":"gold"}`)

	// On demand, of one instance at a time.
	path := "/api/engines/provisioning/runs"
	i.admin("POST", path, `{"instanceId":"tenant-2","correlationId":"c2"}`).want(202)
	other.admin("POST", path, `{"instanceId":"tenant-2","correlationId":"c3"}`).want(409)
	other.admin("POST", path, `{"instanceId":"tenant-2","correlationId":"c2"}`).want(202)
	f.set(func() { f.open["tenant-2"] = true })
	eventually(t, "done on demand", func() bool { return i.ended("provisioning", "c2", "Succeeded") == 1 })
	eventually(t, "known as done", func() bool {
		return other.admin("POST", path, `{"instanceId":"tenant-2","correlationId":"c2"}`).status == http.StatusOK
	})

	// Over its retries it is dead, once in each view.
	f.set(func() { f.broken = true })
	send("m4", `{"instanceId":"tenant-4","correlationId":"c4"}`)
	eventually(t, "dead", func() bool { return i.dead("provisioning") == 1 })
	found := other.letters("engine=provisioning&status=Pending")
	if len(found) != 1 || found[0].InstanceID != "tenant-4" || found[0].OriginalQueue != "webhook-queue" || found[0].CorrelationID != "c4" || found[0].DequeueCount != 2 {
		t.Fatalf("the dead letters are %+v", found)
	}
	if n := i.ended("provisioning", "c4", "Failed"); n != 2 {
		t.Errorf("%d failed runs in the history", n)
	}
	f.set(func() { f.broken = false; f.open["tenant-4"] = true })
	var retried struct {
		Data struct {
			Retried bool
			JobID   string
		}
	}
	retry := "/api/dlq/provisioning/" + url.PathEscape(found[0].RowKey) + "/retry"
	other.admin("POST", retry, "").want(200).into(&retried)
	if !retried.Data.Retried || retried.Data.JobID == "" {
		t.Errorf("retried: %+v", retried)
	}
	eventually(t, "done after all", func() bool { return i.ended("provisioning", "c4", "Succeeded") == 1 })
	other.admin("POST", retry, "").want(200).into(&retried)
	if retried.Data.Retried || i.dead("provisioning") != 0 || len(i.letters("engine=provisioning&status=Pending")) != 0 {
		t.Errorf("a second retry: %+v, %d dead", retried, i.dead("provisioning"))
	}
	if f.posted("tenant-1") != 1 || f.posted("tenant-2") != 1 || f.posted("tenant-4") != 3 {
		t.Errorf("the engine was called for %v", f.posts)
	}

	// What is not an engine's message is dead at once.
	send("m5", `not JSON`)
	eventually(t, "the unreadable one is dead", func() bool { return i.dead("provisioning") == 1 })
	if found = i.letters("engine=provisioning&status=Pending"); len(found) != 1 || found[0].DequeueCount != 1 || found[0].InstanceID != "publisher" || found[0].CorrelationID != "m5" {
		t.Errorf("the dead letters are %+v", found)
	}
	i.admin("POST", "/api/engines/tls/runs", `{}`).want(404)
	i.admin("POST", "/api/engines/billing/runs", `{"instanceId":"x"}`).want(202)
	eventually(t, "the new engine was called", func() bool { return f.posted("x") == 1 })
	f.set(func() { f.open["x"] = true })
	for run, n := range f.runs {
		if n != 1 {
			t.Errorf("run %s was posted %d times", run, n)
		}
	}
}

// Alerts are taken with a token of their own, forwarded once, and tried again while a channel is missing.
func TestAlertsAreForwarded(t *testing.T) {
	t.Parallel()
	cfg := testConfig(storagetest.DSN(t))
	cfg.AlertChannels, cfg.AlertTokens = []string{"orders", "later"}, map[string]string{"monitor": "the-monitors-token"}
	cfg.Engines = `{"alerts":{"maxRetryAttempts":1,"backoff":["10ms"]}}`
	i := start(t, cfg)
	i.stage()
	on := newSink(t)
	i.addConsumer("on-call", "push", on.URL)
	alert := func(fingerprint, status string) string {
		return fmt.Sprintf(`{"version":"4","groupKey":"g","status":%q,"receiver":"r","groupLabels":{},"commonLabels":{},"commonAnnotations":{},"externalURL":"http://am",
			"alerts":[{"status":%q,"labels":{"alertname":"Down"},"annotations":{},"startsAt":"2026-01-02T03:04:05Z","endsAt":"0001-01-01T00:00:00Z","generatorURL":"","fingerprint":%q}]}`,
			status, status, fingerprint)
	}
	post := func(body string) answer {
		return i.do("POST", "/api/alerts", body, "Authorization", "Bearer the-monitors-token", "Content-Type", "application/json")
	}
	post(alert("f1", "firing")).want(202)
	eventually(t, "forwarded to the channel that is there", func() bool { return len(on.of("")) == 1 })
	eventually(t, "dead for want of the other", func() bool { return i.dead("alerts") == 1 })
	post(alert("f1", "firing")).want(202)
	i.put("/channel/later", url.Values{"token": {"later-token"}}).want(200)
	for _, l := range i.letters("engine=alerts&status=Pending") {
		if l.InstanceID != "f1" || l.OriginalQueue != "monitor-alerts-queue" {
			t.Errorf("the dead letter is %+v", l)
		}
		i.admin("POST", "/api/dlq/alerts/"+url.PathEscape(l.RowKey)+"/retry", "").want(200)
	}
	eventually(t, "alive again", func() bool { return i.dead("alerts") == 0 })
	post(alert("f1", "resolved")).want(202)
	eventually(t, "the end of it, too", func() bool { return len(on.of("")) == 2 })
	i.do("POST", "/api/alerts", alert("f2", "firing"), "Authorization", "Bearer no", "Content-Type", "application/json").want(401)
	i.do("GET", "/api/dlq", "", "Authorization", "Bearer the-monitors-token").want(401)
	post(`{"version":"4"}`).want(400)
}

// A signing secret rotates on demand: deliveries carry both signatures during the overlap, and the channel that is told
// of it learns no secret.
func TestSigningSecretRotates(t *testing.T) {
	t.Parallel()
	cfg := testConfig(storagetest.DSN(t))
	cfg.SigningNotifyChannel = "orders"
	i := start(t, cfg)
	i.stage()
	good := newSink(t)
	i.addConsumer("good", "push", good.URL)
	secret := func() string {
		t.Helper()
		var s struct{ Secret string }
		i.do("POST", channel+"/consumer/good/signing-secret", "", asConsumer("good")...).want(200).into(&s)
		return s.Secret
	}
	before := secret()
	i.admin("POST", "/api/engines/hmac/runs", `{"instanceId":"consumer:orders/good","correlationId":"r1"}`).want(202)
	eventually(t, "rotated, and told of", func() bool { return i.ended("hmac", "r1", "Succeeded") == 2 })
	after := secret()
	if before == after {
		t.Error("the secret is the same")
	}
	eventually(t, "the notice arrived", func() bool { return len(good.of("")) == 1 })
	notice := good.of("")[0]
	if !strings.Contains(notice.body, `"signing-secret.rotated"`) || strings.Contains(notice.body, "whsec_") {
		t.Errorf("the notice is %s", notice.body)
	}
	i.broadcast("m1", orderBody(1)).want(201)
	eventually(t, "delivered", func() bool { return len(good.of("m1")) == 1 })
	d := good.of("m1")[0]
	for name, key := range map[string]string{"the former": before, "the new": after} {
		hook, err := standardwebhooks.NewWebhook(key)
		if err != nil {
			t.Fatal(err)
		}
		if err := hook.Verify([]byte(d.body), d.header); err != nil {
			t.Errorf("by %s secret: %v", name, err)
		}
	}
	// Who is not there is no retry's business.
	i.admin("POST", "/api/engines/hmac/runs", `{"instanceId":"consumer:orders/nobody"}`).want(202)
	eventually(t, "dead", func() bool { return i.dead("hmac") == 1 })
	if l := i.letters("engine=hmac&status=Pending"); len(l) != 1 || l[0].DequeueCount != 1 || l[0].InstanceID != "consumer:orders/nobody" {
		t.Errorf("the dead letters are %+v", l)
	}
}

// A managed app probes its destinations by itself, once however many instances it has.
func TestDestinationsAreProbed(t *testing.T) {
	t.Parallel()
	cfg := testConfig(storagetest.DSN(t))
	cfg.EngineContext, cfg.Engines = "managed-app", `{"health":{"every":"1s"}}`
	i := start(t, cfg)
	start(t, cfg)
	i.stage()
	good := newSink(t)
	i.addConsumer("good", "push", good.URL)
	i.addConsumer("gone", "push", "http://127.0.0.1:1/")
	states := func() string {
		t.Helper()
		var list struct {
			Data struct {
				Items []struct{ ConsumerID, State string }
			}
		}
		i.admin("GET", "/api/destinations", "").want(200).into(&list)
		return fmt.Sprint(list.Data.Items)
	}
	eventually(t, "both are known", func() bool { return states() == "[{good healthy} {gone unhealthy}]" })
	metrics := i.do("GET", "/metrics", "").want(200).body
	for _, line := range []string{`redrive_destination_healthy{channel="orders",consumer="good"} 1`, `redrive_destination_healthy{channel="orders",consumer="gone"} 0`} {
		if !strings.Contains(metrics, line) {
			t.Errorf("/metrics lacks %s", line)
		}
	}
	i.admin("GET", "/api/engines", "").want(200)
	i.admin("POST", "/api/engines/hmac/runs", `{}`).want(400)
}

// A consumer that somebody gave an engine's name keeps no instance from starting.
func TestEngineWhoseNameIsTaken(t *testing.T) {
	t.Parallel()
	cfg := testConfig(storagetest.DSN(t))
	first := start(t, cfg)
	first.put("/channel/monitor-alerts-queue", url.Values{"token": {"t"}}).want(200)
	first.put("/channel/monitor-alerts-queue/consumer/alerts", url.Values{"token": {"t"}, "type": {"pull"}, "callbackUrl": {"http://127.0.0.1:1/"}}).want(200)
	second := start(t, cfg)
	second.do("GET", "/readyz", "").want(200)
	second.stage()
}

// RFC-72's engines that live elsewhere begin with what the RFC says of each.
func TestEnginesHaveTheirDefaults(t *testing.T) {
	t.Parallel()
	type executed struct {
		Executed *struct {
			MaxRetryAttempts int
			RegistryLock     bool
		}
	}
	for context, settings := range map[string]string{
		"publisher":   `{"tls":{"endpoint":"http://127.0.0.1:1"},"spn":{"endpoint":"http://127.0.0.1:1","maxRetryAttempts":0},"provisioning":{"endpoint":"http://127.0.0.1:1"}}`,
		"managed-app": `{"update":{"endpoint":"http://127.0.0.1:1"}}`,
	} {
		cfg := testConfig(storagetest.DSN(t))
		cfg.EngineContext, cfg.Engines = context, settings
		var list struct {
			Data struct {
				Items []struct {
					Engine string
					executed
				}
			}
		}
		start(t, cfg).admin("GET", "/api/engines", "").want(200).into(&list)
		got := map[string]string{}
		for _, e := range list.Data.Items {
			if e.Executed != nil {
				got[e.Engine] = fmt.Sprint(e.Executed.MaxRetryAttempts, e.Executed.RegistryLock)
			}
		}
		want := map[string]map[string]string{
			"publisher":   {"alerts": "5 false", "hmac": "3 false", "provisioning": "5 false", "spn": "0 false", "tls": "3 false"},
			"managed-app": {"alerts": "5 false", "health": "5 true", "update": "5 true"},
		}[context]
		if !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", context, got, want)
		}
	}
}
