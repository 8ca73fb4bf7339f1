package web_test

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/engine"
	"github.com/redrive-mq/redrive/storage"
)

func TestHistoryComesFromOutside(t *testing.T) {
	t.Parallel()
	a, f := newEngineAPI(t)
	got := a.post("/api/history", anEntry()).want(201)
	key := got.data()["rowKey"].(string)
	if !strings.HasPrefix(key, "c-1-20260102T030405.500000Z-") || got.Header.Get("Location") != "/api/history/hmac/"+key {
		t.Errorf("it was added as %s, at %s", got.body, got.Header.Get("Location"))
	}
	if again := a.post("/api/history", anEntry()).want(200).data(); again["created"] != false || again["rowKey"] != key || f.changed() != 1 {
		t.Errorf("added again, it is %v", again)
	}
	for _, change := range [][]any{{"operation", "notify"}, {"status", "Failed"}, {"instanceId", "i"}, {"createdAtUtc", "2026-01-02T03:04:05.6Z"}, {"engine", "spn"}} {
		a.post("/api/history", anEntry(change...)).want(201)
	}
	want := `{"partitionKey":"hmac","engine":"hmac","rowKey":"` + key + `","instanceId":"publisher","operation":"rotate","status":"Succeeded","durationMs":1234,` +
		`"createdAtUtc":"2026-01-02T03:04:05.5Z","correlationId":"c-1","input":[1],"output":"done","error":null}`
	if detail := a.get(got.Header.Get("Location"), asAdmin).want(200); !strings.Contains(detail.body, want) {
		t.Errorf("its details are %s", detail.body)
	}
	own := "c-1-20260102T030405.500000Z-mine"
	failed := a.post("/api/history", anEntry("rowKey", own, "status", "Failed", "error", "no\nkey", "output", nil)).want(201).Header.Get("Location")
	if d := a.get(failed, asAdmin).data(); d["error"] != "no\nkey" || d["output"] != nil {
		t.Errorf("a failure is %v", d)
	}
	a.post("/api/history", anEntry("rowKey", own, "status", "Failed")).want(200)
	for _, change := range [][]any{{"operation", "notify"}, {"status", "Succeeded"}, {"instanceId", "i"}} {
		if detail := a.post("/api/history", anEntry(append([]any{"rowKey", own, "status", "Failed"}, change...)...)).problem(409); !strings.Contains(detail, "row key") {
			t.Errorf("a row key of another is refused with %q", detail)
		}
	}
	a.get("/api/history/hmac/nobody", asAdmin).problem(404)
	a.get("/api/history/nobody/"+url.PathEscape(own), asAdmin).problem(400)
}

func TestHistoryThatIsRefused(t *testing.T) {
	t.Parallel()
	a, f := newEngineAPI(t)
	for _, tc := range []struct {
		body   string
		status int
		says   string
	}{
		{anEntry("engine", "delivery", "operation", "deliver"), 409, "the broker's own"},
		{anEntry("engine", "health"), 400, "publisher's engines"},
		{anEntry("operation", "renew"), 400, "hmac's operations: notify, rotate"},
		{anEntry("operation", "resolve"), 400, "hmac's operations: notify, rotate"},
		{anEntry("operation", nil), 400, "operation"},
		{anEntry("status", "Pending"), 400, "Succeeded, Failed"},
		{anEntry("status", nil), 400, "status"},
		{anEntry("durationMs", -1), 400, "durationMs"},
		{anEntry("durationMs", 9223372036855), 400, "durationMs"},
		{anEntry("durationMs", nil), 400, "durationMs is missing"},
		{anEntry("createdAtUtc", nil), 400, "createdAtUtc is missing"},
		{anEntry("createdAtUtc", "9999-01-01T00:00:00Z"), 400, "a day ahead"},
		{anEntry("instanceId", nil), 400, "instanceId"},
		{anEntry("correlationId", ""), 400, "correlationId"},
		{anEntry("error", strings.Repeat("e", 4097)), 400, "4096"},
		{anEntry("error", 1), 400, "error is not a string"},
		{anEntry("rowKey", "c-1"), 400, "rowKey is not {correlationId}"},
		{anEntry("rowKey", "c-1-20260102T030405.500000Z-two-more"), 400, "rowKey is not {correlationId}"},
		{anEntry("rowKey", "c-1-20260102T030405.500000Zmore"), 400, "rowKey is not {correlationId}"},
		{anEntry("rowKey", "c-1-20260102T030405.500000Z-"+strings.Repeat("x", 300)), 400, "300"},
		{anEntry("partitionKey", "hmac"), 400, "partitionKey"},
		{strings.Replace(anEntry(), "[1]", "[1", 1), 400, "not one JSON object"},
	} {
		if detail := a.post("/api/history", tc.body).problem(tc.status); !strings.Contains(detail, tc.says) {
			t.Errorf("%.80s is refused with %q, want %q", tc.body, detail, tc.says)
		}
	}
	a.post("/api/history", anEntry("input", strings.Repeat("x", 1<<20))).problem(413)
	if f.changed() != 0 {
		t.Error("a refusal changed something")
	}
	a.post("/api/history", anEntry("correlationId", strings.Repeat("ü", 255), "durationMs", int64(9223372036854), "error", nil)).want(201)
}

// pages reads a list from start to end; between is called after each page.
func (a *api) pages(path string, between func(page int)) (keys []string, sizes []int) {
	a.t.Helper()
	next := path
	for page := 0; ; page++ {
		got, token := a.get(next, asAdmin).rowKeys()
		keys, sizes = append(keys, got...), append(sizes, len(got))
		if token == "" {
			return keys, sizes
		}
		if page > 100 {
			a.t.Fatal("the list does not end")
		}
		if between != nil {
			between(page)
		}
		next = path + "&continuationToken=" + token
	}
}

func at(second int) string { return fmt.Sprintf("2026-01-02T03:%02d:%02dZ", second/60, second%60) }

func (a *api) letterAt(key string, second int, changes ...any) {
	a.t.Helper()
	a.post("/api/dlq", aLetter(append(changes, "rowKey", key, "firstFailureAtUtc", at(second), "lastFailureAtUtc", at(second))...)).want(201)
}

// checkPaging holds a list of dead letters to its word while rows come and go, on whatever keeps them. gone takes one
// out of the filter.
func checkPaging(t *testing.T, a *api) {
	t.Helper()
	var want []string
	for i := range 23 {
		key := fmt.Sprintf("r%02d", i)
		a.letterAt(key, i/3, "engine", []string{"hmac", "tls"}[i%2]) // three a second
		want = append(want, key)
	}
	slices.Reverse(want)
	const path = "/api/dlq?status=Pending&limit=5"
	sorted := func(keys []string) []string { slices.Sort(keys); return keys }
	keys, sizes := a.pages(path, nil)
	if !slices.Equal(sorted(slices.Clone(keys)), sorted(slices.Clone(want))) || !slices.Equal(sizes, []int{5, 5, 5, 5, 3}) {
		t.Errorf("the pages have %v, %v", sizes, keys)
	}
	// New ones do not push others onto a page twice; one that goes takes none along; the last row of a page may go too.
	moved, _ := a.pages(path, func(page int) {
		a.letterAt(fmt.Sprintf("new%d", page), 3000+page)
		last := keys[page*5+4]
		a.patch("/api/dlq/"+[]string{"hmac", "tls"}[(last[2]-'0')%2]+"/"+last, `{"status":"Resolved"}`).want(200)
	})
	if !slices.Equal(moved, keys) {
		t.Errorf("while rows come and go the pages have\n%v\nwant\n%v", moved, keys)
	}
	// A page that ends with the list has no token.
	if got, token := a.get("/api/dlq?engine=hmac&status=Resolved&limit=100", asAdmin).rowKeys(); len(got) == 0 || token != "" {
		t.Errorf("the whole list has %d, and the token %q", len(got), token)
	}
	n := len(keys)
	exact, _ := a.get(fmt.Sprintf("/api/dlq?toDate=%s&limit=%d", at(100), n), asAdmin).rowKeys()
	if _, token := a.get(fmt.Sprintf("/api/dlq?toDate=%s&limit=%d", at(100), n), asAdmin).rowKeys(); len(exact) != n || token != "" {
		t.Errorf("a page of exactly the list has %d, and the token %q", len(exact), token)
	}
}

func TestPagingStaysRight(t *testing.T) {
	t.Parallel()
	a, _ := newEngineAPI(t)
	checkPaging(t, a)
}

func TestTokensBelongToTheirList(t *testing.T) {
	t.Parallel()
	a, f := newEngineAPI(t)
	for i := range 4 {
		a.letterAt(fmt.Sprintf("r%d", i), i)
		a.post("/api/history", anEntry("correlationId", fmt.Sprintf("c%d", i))).want(201)
	}
	_, token := a.get("/api/dlq?engine=hmac&limit=2", asAdmin).rowKeys()
	if token == "" {
		t.Fatal("there is no token")
	}
	for query, want := range map[string]int{
		"/api/dlq?engine=hmac&limit=2": 200, "/api/dlq?engine=hmac&limit=1": 200, "/api/dlq?engine=hmac": 200,
		"/api/dlq?limit=2": 400, "/api/dlq?engine=tls&limit=2": 400, "/api/dlq?engine=hmac&status=Pending": 400, "/api/history?engine=hmac": 400,
	} {
		got := a.get(query+"&continuationToken="+token, asAdmin).want(want)
		if want == 400 && !strings.Contains(got.problem(400), "continuationToken") {
			t.Errorf("%s is refused with %s", query, got.body)
		}
	}
	for i := range token {
		other := byte('A')
		if token[i] == other {
			other = 'B'
		}
		a.get("/api/dlq?engine=hmac&continuationToken="+token[:i]+string(other)+token[i+1:], asAdmin).problem(400)
	}
	// Another instance with the same key takes it; one with another does not.
	same := newAPIOn(t, a.store, withEngines(t, f, engine.Publisher))
	if keys, _ := same.get("/api/dlq?engine=hmac&continuationToken="+token, asAdmin).rowKeys(); !slices.Equal(keys, []string{"r1", "r0"}) {
		t.Errorf("another instance goes on with %v", keys)
	}
	testHistory, _ := a.pages("/api/history?engine=hmac&limit=1", nil)
	if len(testHistory) != 4 || len(slices.Compact(testHistory)) != 4 {
		t.Errorf("the history has %v", testHistory)
	}
}

func TestManagedAppHasItsOwnEngines(t *testing.T) {
	t.Parallel()
	a, f := newEngineAPI(t)
	managed := newAPIOn(t, a.store, withEngines(t, f, engine.ManagedApp))
	managed.post("/api/dlq", aLetter("engine", "health")).want(201)
	managed.post("/api/history", anEntry("engine", "update", "operation", "component-update")).want(201)
	if detail := managed.post("/api/dlq", aLetter()).problem(400); !strings.Contains(detail, "managed-app's engines: alerts, delivery, health, update") {
		t.Errorf("another context's engine is refused with %q", detail)
	}
}

// A fault behind the API is a problem that shows nothing.
func TestFaultsOfTheTablesAreProblems(t *testing.T) {
	t.Parallel()
	store, err := storage.Open(storage.Options{DSN: "root@tcp(127.0.0.1:1)/nothing"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	for _, tc := range []struct {
		err    error
		status int
	}{{errors.New("secret detail"), 500}, {fmt.Errorf("dial: %w", timeoutError{}), 503}} {
		a := newAPIOn(t, store, withEngines(t, brokenTables{err: tc.err}, engine.Publisher))
		for _, got := range []answer{
			a.get("/api/dlq", asAdmin), a.get("/api/dlq/hmac/x", asAdmin), a.get("/api/history", asAdmin), a.get("/api/history/hmac/x", asAdmin),
			a.post("/api/dlq", aLetter()), a.post("/api/history", anEntry()), a.post("/api/dlq/hmac/x/retry", ""), a.post("/api/dlq/expire", `{"olderThanDays":1}`),
			a.patch("/api/dlq/hmac/x", `{"status":"Resolved"}`), a.patch("/api/dlq/hmac/x", `{"status":"Pending"}`),
		} {
			if detail := got.problem(tc.status); strings.Contains(detail, "secret") {
				t.Errorf("the answer is %q", detail)
			}
		}
	}
}
