package web_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-mq/redrive/engine"
	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/web"
)

// aLetter is the body of a dead letter, changed as told; a change to nil leaves a member out.
func aLetter(changes ...any) string {
	return object(map[string]any{
		"engine": "hmac", "instanceId": "publisher", "originalQueue": "hmac-rotation-queue", "originalMessage": map[string]any{"key": 1},
		"errorMessage": "timed out", "dequeueCount": 5, "firstFailureAtUtc": "2026-01-02T03:04:05.123456Z", "lastFailureAtUtc": "2026-01-02T04:04:05Z",
		"correlationId": "c-1",
	}, changes)
}

func anEntry(changes ...any) string {
	return object(map[string]any{
		"engine": "hmac", "instanceId": "publisher", "operation": "rotate", "status": "Succeeded", "durationMs": 1234, "input": []int{1}, "output": "done",
		"createdAtUtc": "2026-01-02T03:04:05.5Z", "correlationId": "c-1",
	}, changes)
}

func object(members map[string]any, changes []any) string {
	for i := 0; i < len(changes); i += 2 {
		if members[changes[i].(string)] = changes[i+1]; changes[i+1] == nil {
			delete(members, changes[i].(string))
		}
	}
	body, err := json.Marshal(members)
	if err != nil {
		panic(err)
	}
	return string(body)
}

func TestEngineAPIIsForAdmins(t *testing.T) {
	t.Parallel()
	a, f := newEngineAPI(t)
	for _, call := range [][2]string{
		{"GET", "/api/dlq"}, {"POST", "/api/dlq"}, {"GET", "/api/dlq/hmac/x"}, {"PATCH", "/api/dlq/hmac/x"}, {"POST", "/api/dlq/hmac/x/retry"},
		{"POST", "/api/dlq/expire"}, {"GET", "/api/history"}, {"POST", "/api/history"}, {"GET", "/api/history/hmac/x"},
	} {
		for _, credentials := range []string{"X-None: x", "Authorization: Bearer wrong", "Authorization: Basic " + adminToken} {
			got := a.call(call[0], call[1], aLetter(), asJSON, credentials)
			if got.problem(401); got.Header.Get("WWW-Authenticate") == "" {
				t.Errorf("%v: there is no WWW-Authenticate", call)
			}
		}
	}
	if f.changed() != 0 {
		t.Error("something was changed")
	}
	a.get("/api/nothing", asAdmin).problem(404)
	if got := a.call("DELETE", "/api/dlq/hmac/x", "", asAdmin); got.problem(405) == "" || got.Header.Get("Allow") != "GET, HEAD, PATCH" {
		t.Errorf("Allow is %q", got.Header.Get("Allow"))
	}
	without := newAPIOn(t, a.store) // the tables: then there is no such API, against the document
	without.client = without.server.Client()
	without.get("/api/dlq", asAdmin).problem(404)
}

func TestEngineTablesWantTheRest(t *testing.T) {
	t.Parallel()
	a, f := newEngineAPI(t)
	for name, change := range map[string]func(*web.Options){
		"no engines":  func(o *web.Options) { o.Engines = nil },
		"no key":      func(o *web.Options) { o.TokenKey = nil },
		"a short key": func(o *web.Options) { o.TokenKey = []byte("fifteen bytes..") },
	} {
		o := web.Options{Store: a.store, Broadcaster: a.broker, Kicker: a.broker, DeadCounter: a.broker, AdminOpen: true, Registerer: prometheus.NewPedanticRegistry()}
		withEngines(t, f, engine.Publisher)(&o)
		change(&o)
		if _, err := web.New(o); err == nil {
			t.Errorf("%s: the server is built", name)
		}
	}
}

func TestDeadLetterComesFromOutside(t *testing.T) {
	t.Parallel()
	a, f := newEngineAPI(t)
	got := a.post("/api/dlq", aLetter()).want(201)
	added := got.data()
	key := added["rowKey"].(string)
	if added["created"] != true || added["engine"] != "hmac" || !strings.HasPrefix(key, "publisher-20260102T040405.000000Z-") || got.Header.Get("Location") != "/api/dlq/hmac/"+key {
		t.Errorf("it was added as %s, at %s", got.body, got.Header.Get("Location"))
	}
	if again := a.post("/api/dlq", aLetter()).want(200).data(); again["created"] != false || again["rowKey"] != key || f.changed() != 1 {
		t.Errorf("added again, it is %v", again)
	}
	if other := a.post("/api/dlq", aLetter("correlationId", "c-2")).want(201).data(); other["rowKey"] == key {
		t.Error("another message of the same instance and moment has its row key")
	}
	want := `{"partitionKey":"hmac","engine":"hmac","rowKey":"` + key + `","instanceId":"publisher","originalQueue":"hmac-rotation-queue",` +
		`"errorMessage":"timed out","dequeueCount":5,"status":"Pending","firstFailureAtUtc":"2026-01-02T03:04:05.123456Z",` +
		`"lastFailureAtUtc":"2026-01-02T04:04:05Z","correlationId":"c-1","originalMessage":{"key":1},"resolutionNotes":null,` +
		`"resolvedAtUtc":null,"resolvedBy":null,"jobId":null,"queueMessageId":null}`
	if detail := a.get("/api/dlq/hmac/"+key, asAdmin).want(200); !strings.Contains(detail.body, want) || detail.data() == nil {
		t.Errorf("its details are %s", detail.body)
	}
	// A key of one's own, with what paths have to encode.
	odd := "a/b?c ü#%-20260102T040405Z"
	got = a.post("/api/dlq", aLetter("rowKey", odd, "originalMessage", json.RawMessage("null"), "errorMessage", "line\n\tmore")).want(201)
	if d := a.get(got.Header.Get("Location"), asAdmin).want(200).data(); d["rowKey"] != odd || d["originalMessage"] != nil {
		t.Errorf("it is %v", d)
	}
	a.post("/api/dlq", aLetter("rowKey", odd, "originalMessage", 1)).want(200)
	changes := f.changed()
	if detail := a.post("/api/dlq", aLetter("rowKey", odd, "correlationId", "c-9")).problem(409); !strings.Contains(detail, "row key") {
		t.Errorf("a row key of another is refused with %q", detail)
	}
	if f.changed() != changes {
		t.Error("a refusal changed something")
	}
	a.get("/api/dlq/hmac/nobody", asAdmin).problem(404)
	a.get("/api/dlq/tls/"+url.PathEscape(odd), asAdmin).problem(404)
}

func TestDeadLettersThatAreRefused(t *testing.T) {
	t.Parallel()
	a, f := newEngineAPI(t, func(o *web.Options) {
		o.Now = func() time.Time { return time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC) }
	})
	for _, tc := range []struct {
		body   string
		status int
		says   string
	}{
		{aLetter("engine", "delivery"), 409, "the broker's own"},
		{aLetter("engine", "update"), 400, "publisher's engines: alerts, delivery, hmac, provisioning, spn, tls, update-publisher"},
		{aLetter("engine", nil), 400, "engine is missing"},
		{aLetter("engine", 1), 400, "engine is not a string"},
		{aLetter("engine", strings.Repeat("e", 65)), 400, "64 characters"},
		{aLetter("instanceId", nil), 400, "instanceId is missing"},
		{aLetter("instanceId", strings.Repeat("ü", 256)), 400, "instanceId is longer than 255"},
		{aLetter("instanceId", "a\u0000"), 400, "instanceId has a control"},
		{aLetter("instanceId", " a"), 400, "white space"},
		{aLetter("originalQueue", ""), 400, "originalQueue is missing"},
		{aLetter("originalQueue", strings.Repeat("q", 256)), 400, "originalQueue"},
		{aLetter("originalMessage", nil), 400, "originalMessage is missing"},
		{strings.Replace(aLetter(), `{"key":1}`, `{"key":}`, 1), 400, "not one JSON object"},
		{strings.Replace(aLetter(), `{"key":1}`, `'text'`, 1), 400, "not one JSON object"},
		{aLetter("errorMessage", nil), 400, "errorMessage is missing"},
		{aLetter("errorMessage", strings.Repeat("e", 4097)), 400, "4096"},
		{aLetter("errorMessage", "a\u0007"), 400, "control"},
		{aLetter("dequeueCount", nil), 400, "dequeueCount is missing"},
		{aLetter("dequeueCount", -1), 400, "dequeueCount is not from 0"},
		{aLetter("dequeueCount", 1.5), 400, "dequeueCount is not a whole number"},
		{aLetter("dequeueCount", "5"), 400, "dequeueCount is not a whole number"},
		{aLetter("dequeueCount", 1<<31), 400, "dequeueCount"},
		{aLetter("firstFailureAtUtc", nil), 400, "firstFailureAtUtc is missing"},
		{aLetter("firstFailureAtUtc", "2026-01-02"), 400, "RFC 3339"},
		{aLetter("firstFailureAtUtc", "0999-12-31T23:59:59Z"), 400, "1000 to 9999"},
		{aLetter("firstFailureAtUtc", "2026-01-02T04:04:06Z"), 400, "after lastFailureAtUtc"},
		{aLetter("lastFailureAtUtc", "2026-03-02T00:00:01Z"), 400, "a day ahead"},
		{aLetter("correlationId", nil), 400, "correlationId is missing"},
		{aLetter("correlationId", strings.Repeat("c", 256)), 400, "correlationId"},
		{aLetter("rowKey", ""), 400, "rowKey"},
		{aLetter("rowKey", strings.Repeat("r", 301)), 400, "rowKey is longer than 300"},
		{aLetter("rowKey", "r\u007f"), 400, "rowKey has a control"},
		{aLetter("status", "Resolved"), 400, `has "status"; it may have correlationId, dequeueCount`},
		{aLetter("Engine", "tls"), 400, `has "Engine"`},
		{strings.Replace(aLetter(), "{", `{"engine":"tls",`, 1), 400, "more than once"},
		{aLetter() + "{}", 400, "not one JSON object"},
		{aLetter() + "x", 400, "not one JSON object"},
		{"[" + aLetter() + "]", 400, "not one JSON object"},
		{"", 400, "not one JSON object"},
		{"null", 400, "not one JSON object"},
		{aLetter()[:50], 400, "not one JSON object"},
		{strings.Replace(aLetter(), "timed", "\xff", 1), 400, "UTF-8"},
	} {
		if detail := a.post("/api/dlq", tc.body).problem(tc.status); !strings.Contains(detail, tc.says) {
			t.Errorf("%.80s is refused with %q, want %q", tc.body, detail, tc.says)
		}
	}
	a.post("/api/dlq", aLetter("originalMessage", strings.Repeat("x", 1<<20))).problem(413)
	a.call("POST", "/api/dlq", aLetter(), asAdmin).problem(415)
	a.call("POST", "/api/dlq", aLetter(), asAdmin, asForm).problem(415)
	a.call("POST", "/api/dlq", aLetter(), asAdmin, "Content-Type: text/json").problem(415)
	if f.changed() != 0 {
		t.Error("a refusal changed something")
	}
	// The longest of everything fits.
	a.call("POST", "/api/dlq", aLetter("instanceId", strings.Repeat("ü", 255), "originalQueue", strings.Repeat("q", 255), "correlationId", strings.Repeat("c", 255),
		"errorMessage", strings.Repeat("e", 4096), "lastFailureAtUtc", "2026-03-02T01:00:00+01:00"), asAdmin, "Content-Type: application/json; charset=utf-8").want(201)
}

func TestDeadLetterIsResolvedOnce(t *testing.T) {
	t.Parallel()
	a, f := newEngineAPI(t)
	for i := range 4 {
		a.post("/api/dlq", aLetter("rowKey", fmt.Sprintf("r%d", i))).want(201)
	}
	before := f.changed()
	for body, says := range map[string]string{
		`{}`: "status", `{"status":"Done"}`: `"Done" is none of Resolved, Expired`, `{"status":null}`: "status", `{"status":1}`: "a string",
		`{"status":"Resolved","resolutionNotes":"` + strings.Repeat("n", 1025) + `"}`: "1024", `{"status":"Resolved","resolutionNotes":"\u0000"}`: "control",
		`{"status":"Resolved","resolvedBy":"me"}`: "resolvedBy", `{"status":"resolved"}`: "none of",
	} {
		if detail := a.patch("/api/dlq/hmac/r0", body).problem(400); !strings.Contains(detail, says) {
			t.Errorf("%.60s is refused with %q", body, detail)
		}
	}
	a.patch("/api/dlq/hmac/r0", `{"status":"Pending"}`).problem(409)
	a.patch("/api/dlq/hmac/nobody", `{"status":"Pending"}`).problem(404)
	a.patch("/api/dlq/hmac/nobody", `{"status":"Resolved"}`).problem(404)
	a.patch("/api/dlq/nobody/r0", `{"status":"Resolved"}`).problem(400)
	if f.changed() != before {
		t.Fatal("a refusal changed something")
	}
	notes := strings.Repeat("ü", 1023) + "\n"
	got := a.patch("/api/dlq/hmac/r0", `{"status":"Resolved","resolutionNotes":"`+strings.TrimSuffix(notes, "\n")+`\n"}`).want(200).data()
	if got["status"] != "Resolved" || got["resolutionNotes"] != notes || got["resolvedBy"] != "second" || got["resolvedAtUtc"] == nil || got["originalMessage"] == nil {
		t.Errorf("resolved, it is %v", got)
	}
	for _, status := range []string{"Resolved", "Expired"} {
		a.patch("/api/dlq/hmac/r0", `{"status":"`+status+`"}`).problem(409)
	}
	if got := a.patch("/api/dlq/hmac/r1", `{"status":"Expired","resolutionNotes":null}`).want(200).data(); got["status"] != "Expired" || got["resolutionNotes"] != nil {
		t.Errorf("expired, it is %v", got)
	}
	// Of two at once, one.
	results := make(chan int, 8)
	for range cap(results) {
		go func() { results <- a.patch("/api/dlq/hmac/r2", `{"status":"Resolved"}`).StatusCode }()
	}
	codes := map[int]int{}
	for range cap(results) {
		codes[<-results]++
	}
	if codes[200] != 1 || codes[409] != cap(results)-1 {
		t.Errorf("of several at once: %v", codes)
	}
	open := newAPIOn(t, a.store, withEngines(t, f, engine.Publisher), func(o *web.Options) { o.AdminOpen, o.AdminTokens = true, nil })
	if got := open.call("PATCH", "/api/dlq/hmac/r3", `{"status":"Expired"}`, asJSON).want(200).data(); got["resolvedBy"] != "anonymous" {
		t.Errorf("resolved by %v", got["resolvedBy"])
	}
}

// Who changed something is in the log, who only looked is not.
func TestChangesOfDeadLettersAreAudited(t *testing.T) {
	t.Parallel()
	var log logBuffer
	a, _ := newEngineAPI(t, log.at(slog.LevelInfo))
	a.post("/api/dlq", aLetter("rowKey", "a/b")).want(201)
	a.get("/api/dlq", asAdmin).want(200)
	a.get("/api/dlq/hmac/a%2Fb", asAdmin).want(200)
	a.patch("/api/dlq/hmac/a%2Fb", `{"status":"Resolved","resolutionNotes":"private"}`).want(200)
	a.patch("/api/dlq/hmac/a%2Fb", `{"status":"Resolved"}`).want(409)
	if got := log.String(); strings.Count(got, "changed by an admin") != 2 || strings.Contains(got, "private") ||
		!strings.Contains(got, `"caller":"second","method":"PATCH","route":"/api/dlq/{engine}/{rowKey}",`) || !strings.Contains(got, `"engine":"hmac","rowKey":"a/b"`) {
		t.Errorf("the log has\n%s", got)
	}
}

func TestDeadLetterIsRetriedOnce(t *testing.T) {
	t.Parallel()
	a, _ := newEngineAPI(t)
	a.post("/api/dlq", aLetter("rowKey", "r1")).want(201)
	a.post("/api/dlq", aLetter("rowKey", "r2", "originalQueue", "gone")).want(201)
	first := a.call("POST", "/api/dlq/hmac/r1/retry", "", asAdmin).want(200).data()
	if first["retried"] != true || first["note"] != "Retried" || first["jobId"] == nil || first["queueMessageId"] == nil || a.broker.kicks() != 1 {
		t.Errorf("retried: %v, with %d kicks", first, a.broker.kicks())
	}
	second := a.post("/api/dlq/hmac/r1/retry", "").want(200).data()
	if second["retried"] != false || second["jobId"] != first["jobId"] || second["queueMessageId"] != first["queueMessageId"] || a.broker.kicks() != 1 {
		t.Errorf("retried again: %v, with %d kicks", second, a.broker.kicks())
	}
	if detail := a.post("/api/dlq/hmac/r2/retry", "").problem(409); !strings.Contains(detail, `"gone"`) {
		t.Errorf("a queue that is not there: %q", detail)
	}
	a.post("/api/dlq/hmac/nobody/retry", "").problem(404)
	a.post("/api/dlq/nobody/r1/retry", "").problem(400)
	if d := a.get("/api/dlq/hmac/r2", asAdmin).data(); d["status"] != "Pending" {
		t.Errorf("a refused retry changed it: %v", d)
	}
}

func TestOldDeadLettersExpire(t *testing.T) {
	t.Parallel()
	a, f := newEngineAPI(t)
	ago := func(hours int) string {
		return time.Now().Add(-time.Duration(hours) * time.Hour).UTC().Format(time.RFC3339)
	}
	for i, hours := range []int{23, 25, 30 * 24} {
		at := ago(hours)
		a.post("/api/dlq", aLetter("rowKey", fmt.Sprintf("h%d", i), "firstFailureAtUtc", at, "lastFailureAtUtc", at)).want(201)
		a.post("/api/dlq", aLetter("engine", "tls", "rowKey", fmt.Sprintf("t%d", i), "firstFailureAtUtc", at, "lastFailureAtUtc", at)).want(201)
	}
	before := f.changed()
	for _, body := range []string{
		`{}`, `{"olderThanDays":0}`, `{"olderThanDays":36501}`, `{"olderThanDays":1.5}`, `{"olderThanDays":"1"}`, `{"olderThanDays":1,"engine":"nobody"}`,
		`{"olderThanDays":1,"engine":""}`, `{"olderThanDays":1,"status":"Pending"}`, `{"engine":"tls"}`,
	} {
		a.post("/api/dlq/expire", body).problem(400)
	}
	if f.changed() != before {
		t.Fatal("a refusal changed something")
	}
	for _, tc := range []struct {
		body string
		want float64
	}{{`{"olderThanDays":36500}`, 0}, {`{"olderThanDays":1,"engine":"tls"}`, 2}, {`{"olderThanDays":1,"engine":null}`, 2}, {`{"olderThanDays":1}`, 0}} {
		if got := a.post("/api/dlq/expire", tc.body).want(200).data()["expired"]; got != tc.want {
			t.Errorf("%s expires %v, want %v", tc.body, got, tc.want)
		}
	}
	if f.by != "second" {
		t.Errorf("they were expired by %q", f.by)
	}
}

func TestListsTakeOnlyWhatTheyKnow(t *testing.T) {
	t.Parallel()
	a, _ := newEngineAPI(t)
	for query, says := range map[string]string{
		"engine=update": "publisher's engines", "engine=": "engine is empty", "engine=hmac&engine=tls": "more than once", "Engine=hmac": "it may have engine, ",
		"limit=0": "1 to 100", "limit=101": "1 to 100", "limit=ten": "1 to 100", "limit=%2B5": "1 to 100", "limit=05": "1 to 100", "limit=": "limit is empty",
		"fromDate=2026-01-01": "RFC 3339", "toDate=yesterday": "RFC 3339", "fromDate=2026-01-01T00:00:00": "RFC 3339", "fromDate=2026-01-01T00:00:00+01:00": "%2B",
		"toDate=0001-01-01T00:00:00Z": "1000 to 9999", "fromDate=2026-01-02T00:00:00Z&toDate=2026-01-01T00:00:00Z": "after toDate",
		"instanceId=" + strings.Repeat("i", 256): "255", "instanceId=%00": "control", "instanceId=%ff": "UTF-8", "instanceId=%zz": "malformed",
		"continuationToken=x": "none that this list gave out",
	} {
		for _, path := range []string{"/api/dlq", "/api/history"} {
			if detail := a.get(path+"?"+query, asAdmin).problem(400); !strings.Contains(detail, says) {
				t.Errorf("%s?%s is refused with %q, want %q", path, query, detail, says)
			}
		}
	}
	for path, says := range map[string]string{
		"/api/dlq?status=pending": "Pending, Resolved, Expired", "/api/dlq?operation=rotate": "it may have", "/api/dlq?correlationId=c": "it may have",
		"/api/history?status=Pending": "Succeeded, Failed", "/api/history?operation=nothing": "any engine's operations: bootstrap-complete, deliver, distribute",
		"/api/history?engine=tls&operation=rotate": "tls's operations: distribute, expire, purge, renew, requeue, resolve", "/api/history?correlationId=%0a": "control",
	} {
		if detail := a.get(path, asAdmin).problem(400); !strings.Contains(detail, says) {
			t.Errorf("%s is refused with %q, want %q", path, detail, says)
		}
	}
	for _, path := range []string{
		"/api/dlq?engine=delivery&status=Expired&instanceId=i&fromDate=2026-01-01T00:00:00%2B01:00&toDate=2026-01-01T00:00:00Z&limit=100",
		"/api/history?engine=hmac&status=Failed&instanceId=i&operation=resolve&correlationId=c&fromDate=2026-01-01T00:00:00.5Z&toDate=2026-02-01T00:00:00Z&limit=1",
	} {
		if keys, token := a.get(path, asAdmin).rowKeys(); keys != nil || token != "" {
			t.Errorf("%s has %v, %q", path, keys, token)
		}
	}
	if got := a.get("/api/dlq", asAdmin).body; !strings.Contains(got, `"data":{"items":[]}`) {
		t.Errorf("an empty page is %s", got)
	}
	a.call("HEAD", "/api/dlq", "", asAdmin).want(200)
}

func TestListItemsHaveTheNamesOfTheRFC(t *testing.T) {
	t.Parallel()
	a, _ := newEngineAPI(t)
	a.post("/api/dlq", aLetter()).want(201)
	a.post("/api/history", anEntry()).want(201)
	for path, want := range map[string][]string{
		"/api/dlq":     {"correlationId", "dequeueCount", "engine", "errorMessage", "firstFailureAtUtc", "instanceId", "lastFailureAtUtc", "originalQueue", "rowKey", "status"},
		"/api/history": {"correlationId", "createdAtUtc", "durationMs", "engine", "instanceId", "operation", "rowKey", "status"},
	} {
		item := a.get(path, asAdmin).want(200).data()["items"].([]any)[0].(map[string]any)
		var got []string
		for name := range item {
			got = append(got, name)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s shows %v, want %v", path, got, want)
		}
	}
	if storage.EngineDelivery != "delivery" {
		t.Error("the broker's engine has another name")
	}
}
