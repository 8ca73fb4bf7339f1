package web_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/web"
	"github.com/redrive-mq/redrive/web/webtest"
)

// While there is no API yet, what cannot be answered is a 503 in the form and under the request id that the caller
// asked for, and a body that never comes is not waited for.
func TestStarting(t *testing.T) {
	t.Parallel()
	phase := web.AppNotStarted
	s, err := web.NewStarting(web.Options{
		Log: slog.New(slog.DiscardHandler), RequestTimeout: 200 * time.Millisecond,
		Ready:  func(context.Context) error { return errors.New("the database is away") },
		Status: func(context.Context) (web.AppStatus, error) { return web.AppStatus{AppStatus: phase}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	a := &api{t: t, server: httptest.NewServer(s), client: webtest.NewClient(t)}
	defer a.server.Close()
	for range 2 {
		if got := a.get("/_status").want(200).body; got != fmt.Sprintf(`{"SeedData":null,"AppStatus":%d}`, phase) {
			t.Errorf("_status answers %s", got)
		}
		phase = web.AppStarting
	}
	a.get("/livez").want(200)
	a.get("/openapi.yaml").want(200)
	a.call("POST", "/livez", "").want(405)
	if got := a.get("/readyz").want(503); got.json()["detail"] != "the database is away" {
		t.Errorf("readyz answers %s", got.body)
	}
	for _, path := range []string{"/producers", "/metrics", "/channel/c/message/m"} {
		got := a.get(path, "X-Request-ID: mine").want(503)
		if got.body != "the database is away" || got.Header.Get("X-Request-ID") != "mine" || got.Header.Get("Retry-After") == "" {
			t.Errorf("%s answers %q with %v", path, got.body, got.Header)
		}
		if got := a.get(path, "Accept: application/problem+json", "X-Request-ID: mine").want(503).json(); got["requestId"] != "mine" || got["status"] != 503.0 {
			t.Errorf("%s answers %v", path, got)
		}
	}

	conn, err := net.Dial("tcp", a.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(conn, "POST /channel/c/broadcast HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nhalf"); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 503") {
		t.Errorf("half a body is answered with %q, %v", got, err)
	}
}
