package app

import (
	"encoding/json"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/web"
)

// progress is how far an instance is: starting (with what it waits for), ready, draining.
type progress struct {
	started chan struct{} // closed when it is ready for the first time

	mu    sync.Mutex
	phase int    // one of web.AppNotStarted, web.AppStarting, web.AppStarted
	why   string // why no traffic should come; empty: it should
}

func newProgress() *progress {
	return &progress{started: make(chan struct{}), phase: web.AppNotStarted, why: "starting"}
}

// waiting notes what the start waits for, and tells whether that is news.
func (p *progress) waiting(why string) (news bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	news = p.why != why
	p.phase, p.why = web.AppStarting, why
	return news
}

func (p *progress) ready() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.phase, p.why = web.AppStarted, ""
	close(p.started)
}

func (p *progress) draining() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.why = "draining: this instance is stopping"
}

func (p *progress) now() (phase int, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.phase, p.why
}

// gate answers for the API while there is none yet: alive, not ready, and 503 for everything else.
type gate struct {
	progress *progress
	inner    atomic.Pointer[http.Handler]
}

func (g *gate) open(inner http.Handler) { g.inner.Store(&inner) }

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if inner := g.inner.Load(); inner != nil {
		(*inner).ServeHTTP(w, r)
		return
	}
	h := w.Header()
	h.Set("X-Request-ID", storage.NewID().String())
	if r.URL.Path == "/livez" {
		h.Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"status":"ok"}`))
		return
	}
	_, why := g.progress.now()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Retry-After", "2")
	w.WriteHeader(http.StatusServiceUnavailable)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"type": "about:blank", "title": http.StatusText(http.StatusServiceUnavailable), "status": http.StatusServiceUnavailable,
		"detail": why, "requestId": h.Get("X-Request-ID"),
	})
}
