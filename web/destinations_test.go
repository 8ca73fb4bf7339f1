package web_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

func TestDestinations(t *testing.T) {
	t.Parallel()
	a := newTablesAPI(t) // has the push consumer "push"
	ids := []string{"push"}
	for i := range 5 {
		id := fmt.Sprintf("k%d", i)
		a.put("/channel/c/consumer/"+id, "token=t&callbackUrl=https%3A%2F%2Fconsumer.example%2Fhook%3Fkey%3Dhidden")
		ids = append(ids, id)
	}
	a.put("/channel/other", "token=t")
	a.put("/channel/other/consumer/push", "token=t&callbackUrl=https%3A%2F%2Fconsumer.example%2Fhook")
	known, err := a.store.DestinationHealth(t.Context())
	if err != nil || len(known) != 7 {
		t.Fatalf("%d destinations, %v", len(known), err)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 678000, time.UTC)
	if err := a.store.PutDestinationHealth(t.Context(), []storage.DestinationHealth{
		{ConsumerKey: known[1].ConsumerKey, State: storage.Unhealthy, Since: at, CheckedAt: at.Add(time.Hour), Failures: 3, Class: "http_5xx", Error: "503 Service Unavailable", Latency: 12 * time.Millisecond},
		{ConsumerKey: known[2].ConsumerKey, State: storage.Healthy, Since: at, CheckedAt: at, Successes: 1},
		{ConsumerKey: known[3].ConsumerKey, State: storage.HealthUnknown, Since: at, CheckedAt: at, Failures: 1, Class: "dns", Error: "no such host"},
	}); err != nil {
		t.Fatal(err)
	}
	body := a.get("/api/destinations?limit=3", asAdmin).want(200).body
	for _, want := range []string{
		`{"channelId":"c","consumerId":"push","state":"unknown","sinceUtc":null,"checkedAtUtc":null,"consecutiveFailures":0,"errorClass":null,"error":null,"latencyMs":null}`,
		`{"channelId":"c","consumerId":"k0","state":"unhealthy","sinceUtc":"2026-01-02T03:04:05.000678Z","checkedAtUtc":"2026-01-02T04:04:05.000678Z",` +
			`"consecutiveFailures":3,"errorClass":"http_5xx","error":"503 Service Unavailable","latencyMs":12}`,
		`{"channelId":"c","consumerId":"k1","state":"healthy","sinceUtc":"2026-01-02T03:04:05.000678Z","checkedAtUtc":"2026-01-02T03:04:05.000678Z",` +
			`"consecutiveFailures":0,"errorClass":null,"error":null,"latencyMs":0}`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("%s\nhas no\n%s", body, want)
		}
	}
	if strings.Contains(body, "hidden") || strings.Contains(body, "pull") {
		t.Errorf("it shows a URL, or a pull consumer: %s", body)
	}
	list := func(query string, during func()) (got []string) {
		token := ""
		for {
			path := "/api/destinations?limit=2" + query
			if token != "" {
				path += "&continuationToken=" + token
			}
			page := a.get(path, asAdmin).want(200).data()
			for _, item := range page["items"].([]any) {
				got = append(got, item.(map[string]any)["consumerId"].(string))
			}
			if during != nil {
				during()
				during = nil
			}
			var more bool
			if token, more = page["continuationToken"].(string); !more {
				return got
			}
		}
	}
	for query, want := range map[string]string{
		"": "push k0 k1 k2 k3 k4 push", "&channelId=other": "push", "&state=unknown&channelId=c": "push k2 k3 k4", "&state=healthy": "k1", "&state=unhealthy": "k0",
		"&channelId=nobody": "",
	} {
		if got := strings.Join(list(query, nil), " "); got != want {
			t.Errorf("%s has %q, want %q", query, got, want)
		}
	}
	// Consumers that come and go while it is read neither repeat nor hide others.
	if got := strings.Join(list("", func() {
		modified := a.get("/channel/c/consumer/k0", asAdmin, "X-Broker-Channel-Token: c-token").want(200).Header.Get("Last-Modified")
		a.call("DELETE", "/channel/c/consumer/k0", "", asAdmin, "If-Unmodified-Since: "+modified, "X-Broker-Channel-Token: c-token", "X-Broker-Consumer-Token: t").want(204)
		a.put("/channel/c/consumer/new", "token=t&callbackUrl=https%3A%2F%2Fconsumer.example%2Fhook")
	}), " "); got != "push k0 k1 k2 k3 k4 push new" {
		t.Errorf("listed while it changes: %q", got)
	}
}

func TestDestinationsAreForAdmins(t *testing.T) {
	t.Parallel()
	a, _ := newEngineAPI(t)
	a.get("/api/destinations").problem(401)
	a.get("/api/destinations", "Authorization: Bearer wrong").problem(401)
	a.call("POST", "/api/destinations", "", asAdmin).problem(405)
	for query, says := range map[string]string{
		"state=dead": "unknown, healthy, unhealthy", "state=": "state is empty", "limit=101": "1 to 100", "engine=hmac": "it may have state, channelId, limit, continuationToken",
		"channelId=" + strings.Repeat("c", 256): "255", "channelId=%00": "control", "state=healthy&state=healthy": "more than once",
		"continuationToken=x": "none that this list gave out",
	} {
		if detail := a.get("/api/destinations?"+query, asAdmin).problem(400); !strings.Contains(detail, says) {
			t.Errorf("%s is refused with %q, want %q", query, detail, says)
		}
	}
	a.post("/api/history", anEntry()).want(201)
	a.post("/api/history", anEntry("correlationId", "c-2")).want(201)
	_, token := a.get("/api/history?limit=1", asAdmin).rowKeys()
	if detail := a.get("/api/destinations?continuationToken="+token, asAdmin).problem(400); token == "" || !strings.Contains(detail, "none that this list gave out") {
		t.Errorf("another list's token is refused with %q", detail)
	}
	a.get("/api/destinations", asAdmin).problem(503) // its database is away
}
