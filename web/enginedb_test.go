package web_test

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/engine"
	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/web"
)

var _ web.EngineTables = (*storage.Store)(nil)

// newTablesAPI has the engines of the publisher, on a database.
func newTablesAPI(t *testing.T) *api {
	t.Helper()
	a := newAPI(t)
	b := newAPIOn(t, a.store, withEngines(t, a.store, engine.Publisher))
	b.dsn = a.dsn
	return b
}

func TestPagingStaysRightOnADatabase(t *testing.T) {
	t.Parallel()
	checkPaging(t, newTablesAPI(t))
}

// die has the pull consumer report its job of a message dead.
func (a *api) die(messageID string) (jobID string) {
	a.t.Helper()
	jobID = a.jobOf(messageID, "pull")
	for _, state := range []string{"INFLIGHT", "DEAD"} {
		a.call("POST", "/channel/c/consumer/pull/job/"+jobID, `{"NextState":"`+state+`"}`, as("pull", asJSON)...).want(202)
	}
	return jobID
}

func (a *api) deadCount(consumer string) (n float64) {
	a.t.Helper()
	for _, c := range a.get("/dlq-status").want(200).json()["consumers"].([]any) {
		if c := c.(map[string]any); c["consumerId"] == consumer {
			n += c["deadCount"].(float64)
		}
	}
	return n
}

// agree checks that the two views of dead deliveries are one.
func (a *api) agree(what string, want int) {
	a.t.Helper()
	keys, _ := a.get("/api/dlq?engine=delivery&status=Pending&instanceId=pull", asAdmin).rowKeys()
	if got := a.deadCount("pull"); len(keys) != want || int(got) != want {
		a.t.Errorf("%s: %d are Pending, %v are dead, want %d", what, len(keys), got, want)
	}
}

func TestDeadDeliveriesAreDeadLetters(t *testing.T) {
	t.Parallel()
	a := newTablesAPI(t)
	for _, m := range []string{"m1", "m2", "m3"} {
		a.send(m)
	}
	a.agree("before any died", 0)
	job := a.die("m1")
	a.die("m2")
	a.die("m3")
	a.agree("three died", 3)
	keys, _ := a.get("/api/dlq?engine=delivery", asAdmin).rowKeys()
	slices.Sort(keys) // xids begin them
	path := "/api/dlq/delivery/" + keys[0]
	d := a.get(path, asAdmin).want(200).data()
	if d["instanceId"] != "pull" || d["originalQueue"] != "c" || d["jobId"] != job || !strings.HasPrefix(keys[0], job+"-") || d["correlationId"] != "m1" {
		t.Errorf("the record is %v", d)
	}
	if m, ok := d["originalMessage"].(map[string]any); !ok || m["payload"] != "payload of m1" {
		t.Errorf("its message is %v", d["originalMessage"])
	}
	if d = a.patch(path, `{"status":"Resolved","resolutionNotes":"known"}`).want(200).data(); d["resolvedBy"] != "second" || d["resolutionNotes"] != "known" {
		t.Errorf("resolved, it is %v", d)
	}
	a.patch(path, `{"status":"Expired"}`).problem(409)
	a.agree("one was resolved", 2)
	kicks := a.broker.kicks()
	first := a.post(path+"/retry", "").want(200).data()
	if first["retried"] != true || first["jobId"] != job || first["queueMessageId"] == nil || a.broker.kicks() != kicks+1 {
		t.Errorf("retried: %v, %d kicks", first, a.broker.kicks()-kicks)
	}
	second := a.post(path+"/retry", "").want(200).data()
	if second["retried"] != false || second["jobId"] != job || second["queueMessageId"] != first["queueMessageId"] {
		t.Errorf("retried again: %v", second)
	}
	if got := a.get("/channel/c/consumer/pull/job/"+job, as("pull")...).want(200).json()["Status"]; got != "QUEUED" {
		t.Errorf("its job is %v", got)
	}
	a.agree("one was retried", 2)
	a.call("DELETE", "/channel/c/consumer/pull/dlq", "", as("pull")...).want(200)
	a.agree("the rest was purged", 0)
	a.post("/api/dlq/delivery/"+keys[1]+"/retry", "").problem(409)
	if d := a.get("/api/dlq/delivery/"+keys[1], asAdmin).want(200).data(); d["status"] != "Resolved" || d["resolutionNotes"] != "Deleted" || d["originalMessage"] != nil {
		t.Errorf("purged, it is %v", d)
	}
	// What operators did is in the history, by who did it.
	for operation, want := range map[string]int{"resolve": 1, "requeue": 1, "purge": 1} {
		keys, _ := a.get("/api/history?engine=delivery&operation="+operation, asAdmin).rowKeys()
		if len(keys) != want {
			t.Errorf("the history has %d of %s, want %d", len(keys), operation, want)
			continue
		}
		if e := a.get("/api/history/delivery/"+url.PathEscape(keys[0]), asAdmin).want(200).data(); e["instanceId"] != "pull" || e["status"] != "Succeeded" || e["input"] == nil {
			t.Errorf("%s is %v", operation, e)
		}
	}
}

func TestEnginesLettersOnADatabase(t *testing.T) {
	t.Parallel()
	a := newTablesAPI(t)
	const odd = "ä/?\U0001F600%2F"
	for _, want := range []int{201, 200} {
		a.post("/api/dlq", aLetter("rowKey", odd, "originalMessage", "a string \U0001F600", "originalQueue", "c", "instanceId", odd)).want(want)
		a.post("/api/dlq", aLetter()).want(want)
		a.post("/api/dlq", aLetter("instanceId", strings.Repeat("\U0001F600", 255), "correlationId", strings.Repeat("ü", 255), "errorMessage", strings.Repeat("\U0001F600", 4096),
			"originalQueue", strings.Repeat("ü", 255), "originalMessage", strings.Repeat("x", 900_000))).want(want)
	}
	a.post("/api/dlq", aLetter("rowKey", odd, "correlationId", "c-2")).problem(409)
	keys, _ := a.get("/api/dlq", asAdmin).rowKeys()
	if len(keys) != 3 {
		t.Fatalf("there are %d", len(keys))
	}
	for _, key := range keys {
		a.get("/api/dlq/hmac/"+url.PathEscape(key), asAdmin).want(200)
	}
	path := "/api/dlq/hmac/" + url.PathEscape(odd)
	if d := a.get(path, asAdmin).data(); d["originalMessage"] != "a string \U0001F600" || d["firstFailureAtUtc"] != "2026-01-02T03:04:05.123456Z" {
		t.Errorf("it is %v", d)
	}
	// Its queue is a channel here: the retry is a message to its consumers.
	first := a.post(path+"/retry", "").want(200).data()
	if second := a.post(path+"/retry", "").want(200).data(); first["retried"] != true || second["retried"] != false || second["jobId"] != first["jobId"] || second["queueMessageId"] != first["queueMessageId"] {
		t.Errorf("retried: %v, then %v", first, second)
	}
	if m := a.get("/channel/c/message/" + first["queueMessageId"].(string)).want(200).json(); m["Payload"] != `"a string `+"\U0001F600"+`"` {
		t.Errorf("the message is %v", m)
	}
	plain, _ := a.get("/api/dlq?instanceId=publisher", asAdmin).rowKeys()
	if detail := a.post("/api/dlq/hmac/"+plain[0]+"/retry", "").problem(409); !strings.Contains(detail, `"hmac-rotation-queue"`) {
		t.Errorf("a queue that is not served is refused with %q", detail)
	}
	if got := a.post("/api/dlq/expire", `{"olderThanDays":1,"engine":"hmac"}`).want(200).data()["expired"]; got != 2.0 {
		t.Errorf("%v expired", got)
	}
	if d := a.get("/api/dlq/hmac/"+plain[0], asAdmin).data(); d["status"] != "Expired" || d["resolvedBy"] != "second" {
		t.Errorf("expired, it is %v", d)
	}
	a.patch("/api/dlq/hmac/"+plain[0], `{"status":"Resolved"}`).problem(409)
}

// combinations calls f with every choice of one value a name, "" meaning that it is left out.
func combinations(names []string, values map[string][]string, chosen map[string]string, f func(map[string]string)) {
	if len(names) == 0 {
		f(chosen)
		return
	}
	for _, v := range append([]string{""}, values[names[0]]...) {
		chosen[names[0]] = v
		combinations(names[1:], values, chosen, f)
	}
	delete(chosen, names[0])
}

// checkFilters compares every combination of filters with what the items say of themselves.
func checkFilters(t *testing.T, a *api, path, timeField string, values map[string][]string) {
	t.Helper()
	all := a.get(path+"?limit=100", asAdmin).want(200).data()["items"].([]any)
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	parse := func(text string) time.Time {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	some := 0
	combinations(names, values, map[string]string{}, func(chosen map[string]string) {
		query := url.Values{"limit": {"7"}}
		for name, value := range chosen {
			if value != "" {
				query.Set(name, value)
			}
		}
		var want []string
		for _, item := range all {
			item, fits := item.(map[string]any), true
			at := parse(item[timeField].(string))
			for name, value := range chosen {
				switch {
				case value == "":
				case name == "fromDate":
					fits = fits && !at.Before(parse(value))
				case name == "toDate":
					fits = fits && at.Before(parse(value))
				default:
					fits = fits && item[name] == value
				}
			}
			if fits {
				want = append(want, item["rowKey"].(string))
			}
		}
		if got, _ := a.pages(path+"?"+query.Encode(), nil); !slices.Equal(got, want) {
			t.Errorf("%s?%s has\n%v, want\n%v", path, query.Encode(), got, want)
		}
		some += len(want)
	})
	if len(all) < 20 || some == 0 {
		t.Errorf("that proves nothing: %d rows, %d found", len(all), some)
	}
}

func TestEveryCombinationOfFilters(t *testing.T) {
	t.Parallel()
	a := newTablesAPI(t)
	engines, instances := []string{"hmac", "tls"}, []string{"publisher", "i-1"}
	for i := range 24 {
		key, e, instance := fmt.Sprintf("r%02d", i), engines[i%2], instances[i/2%2]
		a.letterAt(key, i/3, "engine", e, "instanceId", instance)
		if i%3 > 0 {
			a.patch("/api/dlq/"+e+"/"+key, `{"status":"`+[]string{"", "Resolved", "Expired"}[i%3]+`"}`).want(200)
		}
	}
	checkFilters(t, a, "/api/dlq", "lastFailureAtUtc", map[string][]string{
		"engine": {"tls"}, "instanceId": {"i-1"}, "status": {"Pending", "Resolved", "Expired"}, "fromDate": {at(2)}, "toDate": {at(6)},
	})
	b := newTablesAPI(t)
	for i := range 24 {
		e := engines[i%2]
		operation := map[string][]string{"hmac": {"rotate", "notify"}, "tls": {"renew", "distribute"}}[e][i/4%2]
		b.post("/api/history", anEntry("engine", e, "operation", operation, "instanceId", instances[i/2%2], "status", []string{"Succeeded", "Failed"}[i/3%2],
			"createdAtUtc", at(i/3), "correlationId", fmt.Sprintf("c%d", i%3))).want(201)
	}
	// Operations of one engine: with another's a request is refused.
	checkFilters(t, b, "/api/history", "createdAtUtc", map[string][]string{
		"engine": {"hmac"}, "instanceId": {"i-1"}, "status": {"Failed"}, "correlationId": {"c0"}, "fromDate": {at(2)}, "toDate": {at(6)},
		"operation": {"rotate", "notify"},
	})
}

func TestHistoryOnADatabase(t *testing.T) {
	t.Parallel()
	a := newTablesAPI(t)
	for _, want := range []int{201, 200} {
		a.post("/api/history", anEntry("correlationId", strings.Repeat("\U0001F600", 255), "instanceId", strings.Repeat("ü", 255), "durationMs", int64(9223372036854),
			"error", strings.Repeat("\U0001F600", 4096), "createdAtUtc", "1000-01-01T00:00:00Z")).want(want)
		for i := range 12 {
			a.post("/api/history", anEntry("createdAtUtc", at(i/3), "correlationId", fmt.Sprintf("c%d", i))).want(want)
		}
	}
	all, _ := a.get("/api/history", asAdmin).rowKeys()
	for _, key := range all {
		a.get("/api/history/hmac/"+url.PathEscape(key), asAdmin).want(200)
	}
	// Entries that come while it is read are not on later pages.
	paged, sizes := a.pages("/api/history?limit=4", func(page int) {
		a.post("/api/history", anEntry("createdAtUtc", at(3000+page), "correlationId", "late")).want(201)
	})
	if !slices.Equal(paged, all) || !slices.Equal(sizes, []int{4, 4, 4, 1}) {
		t.Errorf("the pages have %v\n%v\nwant\n%v", sizes, paged, all)
	}
	// A correlation id that looks like a row key.
	const id, key = "c-20260102T030405.500000Z", "c-20260102T030405.500000Z-20260102T030406.000000Z"
	entry := []any{"correlationId", id, "createdAtUtc", "2026-01-02T03:04:06Z"}
	a.post("/api/history", anEntry(append(entry, "rowKey", key)...)).problem(400)
	for _, added := range []answer{a.post("/api/history", anEntry(append(entry, "rowKey", key+"-1")...)), a.post("/api/history", anEntry(entry...))} {
		if e := a.get(added.want(201).Header.Get("Location"), asAdmin).want(200).data(); e["correlationId"] != id {
			t.Errorf("it is %v", e)
		}
	}
	a.get("/api/history/hmac/"+url.PathEscape(all[0]+"x"), asAdmin).problem(404)
	a.get("/api/history/hmac/nothing", asAdmin).problem(404)
	a.get("/api/history/tls/"+url.PathEscape(all[0]), asAdmin).problem(404)
}

// Of many who do the same at once, one does it.
func TestOneOfManyWins(t *testing.T) {
	t.Parallel()
	a := newTablesAPI(t)
	a.send("m")
	a.die("m")
	dead, _ := a.get("/api/dlq?engine=delivery", asAdmin).rowKeys()
	a.post("/api/dlq", aLetter("rowKey", "queued", "originalQueue", "c")).want(201)
	a.post("/api/dlq", aLetter("rowKey", "open")).want(201)
	retried := func(got answer) bool {
		return got.StatusCode == http.StatusOK && strings.Contains(got.body, `"retried":true`)
	}
	for name, try := range map[string]func() bool{
		"add a dead letter": func() bool { return a.post("/api/dlq", aLetter()).StatusCode == http.StatusCreated },
		"add an entry":      func() bool { return a.post("/api/history", anEntry()).StatusCode == http.StatusCreated },
		"resolve":           func() bool { return a.patch("/api/dlq/hmac/open", `{"status":"Resolved"}`).StatusCode == http.StatusOK },
		"retry a delivery":  func() bool { return retried(a.post("/api/dlq/delivery/"+dead[0]+"/retry", "")) },
		"retry a message":   func() bool { return retried(a.post("/api/dlq/hmac/queued/retry", "")) },
	} {
		t.Run(name, func(t *testing.T) {
			var won atomic.Int32
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					if try() {
						won.Add(1)
					}
				})
			}
			if all.Wait(); won.Load() != 1 {
				t.Errorf("%d did it", won.Load())
			}
		})
	}
	a.agree("its dead letter was retried", 0)
	if got, _ := a.get("/channel/c/messages").want(200).list(); len(got) != 2 {
		t.Errorf("there are %d messages, want the first and one retry", len(got))
	}
}
