package web_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/web"
)

func TestBroadcastIsTakenIn(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	got := a.call("POST", "/channel/c/broadcast", "<x/>", ours("X-Broker-Message-ID: a/b", "Content-Type: text/xml; charset=utf-8",
		"X-Broker-Message-Priority: -7", "X-Broker-Metadata-Headers: traceparent, X-Tenant,x-absent", "Traceparent: 00-1", "X-Tenant: one", "X-Tenant: two")...).want(201)
	if loc := got.Header.Get("Location"); loc != "/channel/c/message/a%2Fb" {
		t.Errorf("Location is %q", loc)
	}
	v := a.get("/channel/c/message/a%2Fb").want(200).json()
	for name, want := range map[string]any{
		"ID": "a/b", "Payload": "<x/>", "ContentType": "text/xml; charset=utf-8", "ProducedBy": "The Producer", "Status": "DISPATCHED",
	} {
		if v[name] != want {
			t.Errorf("%s is %v, want %v", name, v[name], want)
		}
	}
	if h := fmt.Sprint(v["Headers"]); h != "map[X-Tenant:one, two traceparent:00-1]" {
		t.Errorf("the headers are %s", h)
	}
	jobs := v["Jobs"].([]any)
	if len(jobs) != 2 {
		t.Fatalf("the jobs are %v", jobs)
	}
	first := jobs[0].(map[string]any)
	if first["ListenerName"] != "Pusher" || first["ListenerEndpoint"] != "https://consumer.example/hook" || first["Status"] != "QUEUED" {
		t.Errorf("a job is %v", first)
	}

	// The same id again, and the answer in the form that the client asks for.
	again := a.call("POST", "/channel/c/broadcast", "<y/>", ours("X-Broker-Message-ID: a/b", "Accept: text/html, application/problem+json;q=0.5", "X-Request-ID: mine")...).want(409)
	if p := again.json(); p["status"] != 409.0 || p["requestId"] != "mine" || again.Header.Get("X-Request-ID") != "mine" {
		t.Errorf("the problem is %v", p)
	}

	// Left out: an id is made, and the content type is that of bytes.
	loc := a.call("POST", "/channel/c/broadcast", "\xff\x00", ours()...).want(201).Header.Get("Location")
	v = a.get(loc).want(200).json()
	if _, err := storage.ParseID(v["ID"].(string)); err != nil || v["ContentType"] != "application/octet-stream" || v["Payload"] != "\ufffd\x00" {
		t.Errorf("the message is %v", v)
	}
	a.call("POST", "/channel/c/broadcast", "", ours()...).want(201) // empty
	a.put("/channel/lonely", "token=c-token")
	a.call("POST", "/channel/lonely/broadcast", "nobody hears it", ours()...).want(201)
}

func TestBroadcastIsRefused(t *testing.T) {
	t.Parallel()
	a := newAPI(t, func(o *web.Options) { o.MaxBodyBytes = 1000 })
	accepted := false
	a.broker.accept = func(context.Context, web.Broadcast) (string, error) { accepted = true; return "m", nil }
	const good = "/channel/c/broadcast"
	repeat := func(format string, n int) string {
		var names []string
		for i := range n {
			names = append(names, fmt.Sprintf(format, i))
		}
		return strings.Join(names, ",")
	}
	for _, tc := range []struct {
		name, path string
		headers    []string
		body       string
		want       int
	}{
		{"unknown channel", "/channel/nowhere/broadcast", ours(), "", 404},
		{"no channel token", good, ours()[1:], "", 403},
		{"wrong channel token", good, append([]string{"X-Broker-Channel-Token: p-token"}, ours()[1:]...), "", 403},
		{"no producer", good, []string{ours()[0]}, "", 401},
		{"unknown producer", good, []string{ours()[0], "X-Broker-Producer-ID: nobody", ours()[2]}, "", 401},
		{"wrong producer token", good, append(ours()[:2:2], "X-Broker-Producer-Token: c-token"), "", 403},
		{"no producer token", good, ours()[:2], "", 403},
		{"too large, and wrong", "/channel/nowhere/broadcast", ours(), strings.Repeat("x", 2000), 404},
		{"too large", good, ours(), strings.Repeat("x", 1001), 413},
		{"long message id", good, ours("X-Broker-Message-ID: " + strings.Repeat("x", 256)), "", 400},
		{"message id with a tab", good, ours("X-Broker-Message-ID: a\tb"), "", 400},
		{"message id that is not UTF-8", good, ours("X-Broker-Message-ID: \xff"), "", 400},
		{"long content type", good, ours("Content-Type: text/" + strings.Repeat("x", 255)), "", 400},
		{"schedule", good, ours("X-Broker-Scheduled-For: tomorrow"), "", 400},
		{"schedule without a zone", good, ours("X-Broker-Scheduled-For: 2030-01-02T03:04:05"), "", 400},
		{"schedule past the last year", good, ours("X-Broker-Scheduled-For: 9999-12-31T23:59:59-01:00"), "", 400},
		{"schedule in the past", good, ours("X-Broker-Scheduled-For: 2020-01-02T03:04:05Z"), "", 412},
		{"schedule in a minute", good, ours("X-Broker-Scheduled-For: " + time.Now().Add(time.Minute).Format(time.RFC3339)), "", 412},
		{"metadata: name with a tab", good, ours("X-Broker-Metadata-Headers: X-A\tX-B"), "", 400},
		{"metadata: list too long", good, ours("X-Broker-Metadata-Headers: " + strings.Repeat("x", 16<<10+1)), "", 400},
		{"metadata: control character", good, ours("X-Broker-Metadata-Headers: X-A", "X-A: a\tb"), "", 400},
		{"metadata: not UTF-8", good, ours("X-Broker-Metadata-Headers: X-A", "X-A: \xff"), "", 400},
		{"metadata: too many", good, ours("X-Broker-Metadata-Headers: " + repeat("X-%d", 65)), "", 400},
		{"metadata: too large", good, ours("X-Broker-Metadata-Headers: X-A", "X-A: "+strings.Repeat("x", 16<<10)), "", 400},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := a.call("POST", tc.path, tc.body, tc.headers...)
			if got.StatusCode != tc.want {
				t.Errorf("answered %d %q, want %d", got.StatusCode, got.body, tc.want)
			}
			if got.body == "" || strings.Contains(got.body, "c-token") {
				t.Errorf("the body is %q", got.body)
			}
			if accepted {
				t.Error("the message reached the broker")
			}
		})
	}
	a.call("POST", good, strings.Repeat("x", 1000), ours("X-Broker-Metadata-Headers: "+repeat("X-%d", 64))...).want(201)
}

// Names that must not be passed on, and what names no header, are left out of the message without a word.
func TestMetadataThatMayNotBePassedOn(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.send("m", "X-Broker-Metadata-Headers: transfer-ENCODING, Host, Content-Length, content-type, User-Agent, x-broker-producer-token, "+
		"X-Broker-Metadata-Headers, X-Request-ID, X-Hop, Connection, b@d, X-A X-B, webhook-ID, Webhook-Signature, X-Tenant", "X-Hop: 1", "Webhook-Id: 1", "Webhook-Signature: v1,", "Connection: x-hop", "X-Request-ID: mine",
		"Content-Type: text/plain", "X-Tenant: one")
	if h := fmt.Sprint(a.get("/channel/c/message/m").want(200).json()["Headers"]); h != "map[X-Tenant:one]" {
		t.Errorf("the headers are %s", h)
	}
}

func TestPriorities(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	var got uint32
	a.broker.accept = func(_ context.Context, b web.Broadcast) (string, error) { got = b.Priority; return "m", nil }
	for header, want := range map[string]uint32{
		"": 0, "5": 5, "-5": 5, "+5": 5, "five": 0, "1.5": 0, "0x10": 0, "2147483647": 2147483647, "2147483648": 2147483647,
		"-9223372036854775808": 2147483647, "99999999999999999999": 2147483647, "-99999999999999999999": 2147483647,
	} {
		a.call("POST", "/channel/c/broadcast", "", ours("X-Broker-Message-Priority: "+header)...).want(201)
		if got != want {
			t.Errorf("%q is the priority %d, want %d", header, got, want)
		}
	}
}

// A body is not read before its sender has proved who it is: a client that waits for "100 Continue" is not asked.
func TestBroadcastBodyIsNotReadBeforeItsSenderIsKnown(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	conn, err := net.Dial("tcp", a.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(conn, "POST /channel/c/broadcast HTTP/1.1\r\nHost: x\r\nX-Broker-Channel-Token: wrong\r\nExpect: 100-continue\r\nContent-Length: 1000\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, len("HTTP/1.1 403"))
	if _, err := io.ReadFull(conn, line); err != nil || string(line) != "HTTP/1.1 403" {
		t.Errorf("the server answers %q, %v", line, err)
	}
}

func TestSlowAndBrokenBodies(t *testing.T) {
	t.Parallel()
	a := newAPIOn(t, newAPI(t).store, func(o *web.Options) { o.RequestTimeout = 1500 * time.Millisecond })
	send := func(rest string) string {
		conn, err := net.Dial("tcp", a.server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		head := "POST /channel/c/broadcast HTTP/1.1\r\nHost: x\r\n" + strings.Join(ours(), "\r\n") + "\r\n"
		if _, err := io.WriteString(conn, head+rest); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(io.LimitReader(conn, int64(len("HTTP/1.1 408"))))
		if err != nil {
			t.Fatal(err)
		}
		return string(got)
	}
	if got := send("Content-Length: 10\r\n\r\nhalf"); got != "HTTP/1.1 408" {
		t.Errorf("a body that never ends is answered with %q", got)
	}
	if got := send("Transfer-Encoding: chunked\r\n\r\nnonsense\r\n"); got != "HTTP/1.1 400" {
		t.Errorf("a malformed body is answered with %q", got)
	}
}

func TestScheduledMessages(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	a := newAPI(t, func(o *web.Options) { o.Now = func() time.Time { return now } })
	at := now.Add(2 * time.Minute)
	got := a.send("later", "X-Broker-Scheduled-For: "+at.In(time.FixedZone("", 3600)).Format(time.RFC3339), "X-Broker-Message-Priority: 3")
	if loc := got.Header.Get("Location"); loc != "/channel/c/scheduled-message/later" {
		t.Errorf("Location is %q", loc)
	}
	a.get("/channel/c/message/later").want(404)
	v := a.get("/channel/c/scheduled-message/later").want(200).json()
	for name, want := range map[string]any{
		"messageId": "later", "contentType": "application/octet-stream", "priority": 3.0, "producedBy": "p",
		"dispatchSchedule": "2030-01-01T12:02:00Z", "dispatchedAt": nil, "status": "SCHEDULED", "payload": "payload of later",
	} {
		if v[name] != want {
			t.Errorf("%s is %v, want %v", name, v[name], want)
		}
	}
	if _, err := storage.ParseID(v["id"].(string)); err != nil {
		t.Error(err)
	}
	a.send("now")
	a.get("/channel/c/scheduled-message/now").want(404)
	a.get("/channel/c/scheduled-message/nothing").want(404)
	a.get("/channel/nowhere/scheduled-message/later").want(404)

	status := a.get("/channel/c/messages-status").want(200).json()
	if status["next_scheduled_message_at"] != "2030-01-01T12:02:00Z" {
		t.Errorf("the status is %v", status)
	}
	count := func(name string) (float64, string) {
		c := a.get("/channel/c/messages-status").want(200).json()["counts"].(map[string]any)[name].(map[string]any)
		return c["Count"].(float64), c["Links"].(map[string]any)["messages"].(string)
	}
	for name, want := range map[string]float64{"ACKNOWLEDGED": 0, "DISPATCHED": 1, "SCHEDULED_SCHEDULED": 1, "SCHEDULED_DISPATCHED": 0} {
		n, link := count(name)
		if n != want {
			t.Errorf("%s counts %v, want %v", name, n, want)
		}
		var list struct{ Result, result []any }
		v := a.get(link).want(200).json()
		list.Result, _ = v["Result"].([]any)
		list.result, _ = v["result"].([]any)
		if got := len(list.Result) + len(list.result); float64(got) != want {
			t.Errorf("%s links to %s with %d entries, want %v", name, link, got, want)
		}
	}
	for query, want := range map[string]int{"": 1, "?status=101": 1, "?status=102": 0, "?status=7": 0, "?status=101&status=102": 1} {
		v := a.get("/channel/c/scheduled-messages" + query).want(200).json()
		if got := len(v["result"].([]any)); got != want {
			t.Errorf("%q lists %d, want %d", query, got, want)
		}
	}
	for _, list := range []string{"messages", "scheduled-messages"} {
		a.get("/channel/c/" + list + "?status=DISPATCHED").want(400)
		a.get("/channel/c/" + list + "?status=").want(400)
		a.get("/channel/nowhere/" + list).want(404)
	}
	a.get("/channel/nowhere/messages-status").want(404)
	a.get("/channel/c/message/nothing").want(404)

	// Its time comes.
	if _, err := a.store.DB().ExecContext(t.Context(), `UPDATE schedule SET scheduledFor = NOW(6) - INTERVAL 1 SECOND`); err != nil {
		t.Fatal(err)
	}
	if n, err := a.store.DispatchScheduled(t.Context(), 0, 10, func(uint32) []uint32 { return nil }); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if v := a.get("/channel/c/scheduled-message/later").want(200).json(); v["status"] != "DISPATCHED" || v["dispatchedAt"] == nil {
		t.Errorf("after its time it is %v", v)
	}
	if v := a.get("/channel/c/message/later").want(200).json(); v["Status"] != "DISPATCHED" {
		t.Errorf("after its time it is %v", v)
	}
	if n, _ := count("SCHEDULED_DISPATCHED"); n != 1 {
		t.Errorf("%v are counted as dispatched", n)
	}
	if v := a.get("/channel/c/messages-status").want(200).json(); v["next_scheduled_message_at"] != nil {
		t.Errorf("nothing is scheduled, and yet the next is due at %v", v["next_scheduled_message_at"])
	}
}

func TestSchedulesMayBeAllowedAtOnce(t *testing.T) {
	t.Parallel()
	a := newAPI(t, func(o *web.Options) { o.MinScheduleDelay = -time.Hour })
	a.send("late", "X-Broker-Scheduled-For: "+time.Now().Add(-time.Minute).Format(time.RFC3339))
}

func TestBodiesOfUnknownLengthAreLimited(t *testing.T) {
	t.Parallel()
	a := newAPI(t, func(o *web.Options) { o.MaxBodyBytes = 100_000 })
	for size, want := range map[int]int{0: 201, 1: 201, 100_000: 201, 100_001: 413, 5_000_000: 413} {
		r, err := http.NewRequest("POST", a.server.URL+"/channel/c/broadcast", io.NopCloser(strings.NewReader(strings.Repeat("x", size))))
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range ours() {
			name, value, _ := strings.Cut(h, ": ")
			r.Header.Set(name, value)
		}
		res, err := a.server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s bytes are answered with %d, want %d", strconv.Itoa(size), res.StatusCode, want)
		}
	}
}

// A broadcast that was authenticated by a catalog of a moment ago is authenticated again when the broker finds that
// it has changed; nothing is refused by an old catalog.
func TestBroadcastIsAuthenticatedAgain(t *testing.T) {
	t.Parallel()
	errStale := errors.New("stale")
	a := newAPI(t)
	b := newAPIOn(t, a.store, func(o *web.Options) { o.Stale = func(err error) bool { return errors.Is(err, errStale) } })
	calls := 0
	b.broker.accept = func(ctx context.Context, m web.Broadcast) (string, error) {
		calls++
		cat, err := a.store.Catalog(ctx)
		if err != nil {
			return "", err
		}
		if ch, ok := cat.ChannelByKey(m.Channel.Key); !ok || !ch.ChangedAt.Equal(m.Channel.ChangedAt) {
			return "", errStale
		}
		if string(m.Body) != "payload of m" {
			t.Errorf("the body is %q", m.Body)
		}
		return m.MessageID, nil
	}
	b.send("m")
	// Another instance changes the channel: this one does not know yet.
	other, err := storage.Open(storage.Options{DSN: a.dsn})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	elsewhere := newAPIOn(t, other)
	change := func(token string) {
		modified := elsewhere.get("/channel/c").Header.Get("Last-Modified")
		elsewhere.put("/channel/c", "token="+token, "If-Unmodified-Since: "+modified)
	}
	calls = 0
	change("c-token")
	b.send("m")
	if calls != 2 {
		t.Errorf("the broker was asked %d times, want twice", calls)
	}
	change("new-token")
	b.call("POST", "/channel/c/broadcast", "payload of m", ours()...).want(403)
	b.call("POST", "/channel/c/broadcast", "payload of m", append(ours()[1:], "X-Broker-Channel-Token: new-token")...).want(201)
	elsewhere.put("/producer/new", "token=p-token")
	b.call("POST", "/channel/c/broadcast", "payload of m", "X-Broker-Channel-Token: new-token", "X-Broker-Producer-ID: new", "X-Broker-Producer-Token: p-token").want(201)

	b.broker.accept = func(context.Context, web.Broadcast) (string, error) { return "", errStale }
	b.call("POST", "/channel/c/broadcast", "payload of m", append(ours()[1:], "X-Broker-Channel-Token: new-token")...).want(503)
}
