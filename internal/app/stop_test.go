package app

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"
)

// Stopping has one deadline: no part gets time of its own on top, and no connection is taken while the parts end.
func TestStopHasOneDeadline(t *testing.T) {
	t.Parallel()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &App{log: slog.New(slog.DiscardHandler), progress: newProgress(), gate: newGate(http.NotFoundHandler()), listener: listener, served: make(chan struct{})}
	server := a.serve(func(err error) { t.Errorf("serving failed: %v", err) })
	begin := time.Now()
	var deadlines [2]time.Time
	a.parts = &parts{}
	for i := range deadlines {
		a.parts.background = append(a.parts.background, background{name: "a part", stop: func(ctx context.Context) error {
			deadlines[i], _ = ctx.Deadline()
			if conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", listener.Addr().String()); err == nil {
				_ = conn.Close()
				t.Error("connections are taken while the parts stop")
			}
			return nil
		}})
	}
	detached := false
	a.stop(server, func() { detached = true })
	const outcomes = 5 * time.Second // what the broker takes after its deadline, at most
	for _, d := range deadlines {
		if after := d.Sub(begin); after <= 0 || after+outcomes > stopHTTPWithin {
			t.Errorf("a part has until %s after the stop began", after)
		}
	}
	if !detached || stopHTTPWithin >= stopWithin || stopWithin > 15*time.Second {
		t.Errorf("detached %t, HTTP until %s, all until %s", detached, stopHTTPWithin, stopWithin)
	}
}
