package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// sink is the HTTP server that all consumers' callback URLs point at; each consumer has a path of its own.
type sink struct {
	srv  *http.Server
	base string
	done chan struct{}

	mu    sync.RWMutex
	paths []*receipts
}

// receipts is what one consumer has received of one flow.
type receipts struct {
	flow     *flow
	first    []atomic.Int64 // instant of the first receipt that was answered 200; 0: none
	tries    []atomic.Int32 // receipts, whatever was answered
	failedAt []atomic.Int64 // instant of the answer to the first, failed, receipt; only with failFirst
	late     []atomic.Int64 // instant of the second receipt; only with failFirst
	distinct atomic.Int64
	repeats  atomic.Int64
	strange  atomic.Int64 // receipts of ids that are not the flow's

	// failFirst answers the first receipt of each message 500, so that it comes again.
	failFirst bool
}

// newSink starts the server on a free loopback port.
func newSink() (*sink, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for deliveries: %w", err)
	}
	s := &sink{base: "http://" + l.Addr().String(), done: make(chan struct{})}
	// No timeout for headers: it would close connections that the broker has dialled and not used yet, and the
	// attempts that then fail would be this server's doing.
	s.srv = &http.Server{Handler: s} //nolint:gosec // loopback, for the length of a run
	go func() {
		defer close(s.done)
		_ = s.srv.Serve(l) // ends with Close
	}()
	return s, nil
}

// Close ends the server and its connections. It may be called again.
func (s *sink) Close() error {
	err := s.srv.Close()
	<-s.done
	return err
}

// consumer adds a path for a consumer of f and returns its callback URL and what it will have received.
func (s *sink) consumer(f *flow, failFirst bool) (callbackURL string, r *receipts) {
	r = &receipts{
		flow: f, failFirst: failFirst,
		first: make([]atomic.Int64, len(f.sent)),
		tries: make([]atomic.Int32, len(f.sent)),
	}
	if failFirst {
		r.failedAt = make([]atomic.Int64, len(f.sent))
		r.late = make([]atomic.Int64, len(f.sent))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paths = append(s.paths, r)
	return s.base + "/c/" + strconv.Itoa(len(s.paths)-1), r
}

// ServeHTTP takes in one delivery.
func (s *sink) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	at := now()
	// Unread bytes would cost the broker its connection.
	if _, err := io.Copy(io.Discard, req.Body); err != nil {
		http.Error(w, "cannot read the body", http.StatusBadRequest)
		return
	}
	n, err := strconv.Atoi(strings.TrimPrefix(req.URL.Path, "/c/"))
	s.mu.RLock()
	var r *receipts
	if err == nil && n >= 0 && n < len(s.paths) {
		r = s.paths[n]
	}
	s.mu.RUnlock()
	if r == nil {
		http.NotFound(w, req)
		return
	}
	w.WriteHeader(r.receive(req.Header.Get("X-Broker-Message-ID"), at))
}

// receive records a delivery and returns the status to answer.
func (r *receipts) receive(id string, at instant) int {
	i, ok := r.flow.index(id)
	if !ok {
		r.strange.Add(1)
		return http.StatusOK
	}
	try := r.tries[i].Add(1)
	if r.failFirst {
		if try == 1 {
			r.failedAt[i].Store(now())
			return http.StatusInternalServerError
		}
		r.late[i].CompareAndSwap(0, at)
	}
	if r.first[i].CompareAndSwap(0, at) {
		r.distinct.Add(1)
	} else {
		r.repeats.Add(1)
	}
	return http.StatusOK
}

// wait returns when want distinct messages have come, or when nothing new has come for stall: what is
// missing then is for missing to say. It fails only with ctx.
func (r *receipts) wait(ctx context.Context, want int, stall time.Duration) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	seen, since := int64(-1), time.Now()
	for {
		got := r.distinct.Load()
		if got >= int64(want) {
			return nil
		}
		if got != seen {
			seen, since = got, time.Now()
		} else if time.Since(since) > stall {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// missing counts the accepted messages that have not come.
func (r *receipts) missing() int {
	n := 0
	for i := range r.flow.sentCount() {
		if r.flow.accepted[i] && r.first[i].Load() == 0 {
			n++
		}
	}
	return n
}

// bounds returns the instants of the first and the last receipt of the messages from number `from` on.
func (r *receipts) bounds(from int) (first, last instant, err error) {
	for i := from; i < r.flow.sentCount(); i++ {
		at := r.first[i].Load()
		if at == 0 {
			continue
		}
		if first == 0 || at < first {
			first = at
		}
		last = max(last, at)
	}
	if first == 0 {
		return 0, 0, errors.New("nothing was delivered")
	}
	return first, last, nil
}
