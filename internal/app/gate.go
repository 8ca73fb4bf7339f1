package app

import (
	"errors"
	"net/http"
	"sync"
	"sync/atomic"

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

// status is one of web.AppNotStarted, web.AppStarting, web.AppStarted.
func (p *progress) status() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.phase
}

// err says why no traffic should come, nil when it should.
func (p *progress) err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.why == "" {
		return nil
	}
	return errors.New(p.why)
}

// gate hands requests to what answers them now: web.NewStarting's handler, and the API once there is one.
type gate struct {
	inner atomic.Pointer[http.Handler]
}

func newGate(inner http.Handler) *gate {
	g := &gate{}
	g.open(inner)
	return g
}

func (g *gate) open(inner http.Handler) { g.inner.Store(&inner) }

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) { (*g.inner.Load()).ServeHTTP(w, r) }
