//go:build unix

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// What becomes of a run at the endpoint.
const (
	fateDone      = "200"
	fateLate      = "200 late"
	fateFailed    = "500"
	fateCut       = "no answer"
	fateCompleted = "202, then Completed"
	fateGivenUp   = "202, then Failed"
)

// endpoint is where two of the engines do their work. What it does with a run is drawn once, at its first POST: a
// repetition, which an instance sends that takes a run up, gets the same answer at the same time or later.
type endpoint struct {
	rec    *recorder
	healed *atomic.Bool // it does all that is new at once
	mended atomic.Bool  // and what is doomed, too
	addr   string
	srv    *http.Server
	ended  chan struct{}

	mu   sync.Mutex
	rng  *rand.Rand
	runs map[string]*endpointRun
}

type endpointRun struct {
	seen *engineRun // the recorder's; changed under its lock
	due  time.Time  // when it is done, or has failed
	left int        // looks at its status until then
}

func newEndpoint(rec *recorder, healed *atomic.Bool, seed uint64) (*endpoint, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	e := &endpoint{
		rec: rec, healed: healed, addr: l.Addr().String(), ended: make(chan struct{}),
		rng: rand.New(rand.NewPCG(seed, 1000)), runs: map[string]*endpointRun{},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /{engine}/run", e.run)
	mux.HandleFunc("GET /status/{run}", e.status)
	e.srv = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		_ = e.srv.Serve(l)
		close(e.ended)
	}()
	return e, nil
}

func (e *endpoint) url() string { return "http://" + e.addr }

func (e *endpoint) shut() {
	e.srv.Close()
	<-e.ended
}

// call is the body of a POST.
type call struct {
	engineMessage

	Engine string `json:"engine"`
	RunID  string `json:"runId"`
}

func (e *endpoint) run(w http.ResponseWriter, req *http.Request) {
	at := e.rec.now()
	raw, err := io.ReadAll(io.LimitReader(req.Body, 1<<20))
	var c call
	err = errors.Join(err, json.Unmarshal(raw, &c))
	if err != nil || c.RunID == "" {
		if req.Context().Err() == nil {
			e.rec.incident("the endpoint got %q (%v)", clip(string(raw)), err)
		}
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	post := enginePost{At: at, Key: req.Header.Get("Idempotency-Key"), Flaw: c.flaw(req)}
	r := e.take(c, post)
	if wait := time.Until(r.due); wait > 0 && !hold(req.Context(), wait) {
		panic(http.ErrAbortHandler) // who asked is gone; somebody else will come
	}
	switch r.seen.Fate {
	case fateFailed:
		http.Error(w, "chaos", http.StatusInternalServerError)
	case fateCut:
		panic(http.ErrAbortHandler)
	case fateCompleted:
		w.Header().Set("Location", "/status/"+c.RunID)
		w.WriteHeader(http.StatusAccepted)
	case fateGivenUp:
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprintf(w, `{"id":%q,"statusQueryGetUri":%q}`, c.RunID, e.url()+"/status/"+c.RunID)
	default:
		w.Header().Set("Content-Type", contentType)
		fmt.Fprintf(w, `{"run":%q}`, c.RunID)
	}
}

// flaw says what of a POST is not as it should be; empty: nothing. Whether the work is one that was asked for is the checks' business.
func (c call) flaw(req *http.Request) string {
	switch {
	case c.Engine != req.PathValue("engine"):
		return fmt.Sprintf("the engine is %q at the endpoint of %q", c.Engine, req.PathValue("engine"))
	case c.Input.Pad != padding:
		return "the input is not the one sent"
	case req.Header.Get("Idempotency-Key") == "":
		return "no Idempotency-Key"
	case !strings.HasPrefix(req.Header.Get("Content-Type"), contentType):
		return fmt.Sprintf("Content-Type is %q", req.Header.Get("Content-Type"))
	}
	return ""
}

// take finds the run of a POST, or decides what becomes of it.
func (e *endpoint) take(c call, post enginePost) *endpointRun {
	e.mu.Lock()
	defer e.mu.Unlock()
	asked := work{c.Engine, c.CorrelationID, c.InstanceID, c.Operation}
	if r, known := e.runs[c.RunID]; known {
		if r.seen.Work != asked && post.Flaw == "" {
			post.Flaw = fmt.Sprintf("run %s was for the %s", c.RunID, r.seen.Work)
		}
		e.rec.edit(func(*history) { r.seen.Posts = append(r.seen.Posts, post) })
		return r
	}
	fate, after := e.decide(c.Input.Doomed)
	r := &endpointRun{due: time.Now().Add(after), seen: &engineRun{
		Work: asked, Run: c.RunID, Fate: fate, Begin: post.At, Posts: []enginePost{post},
	}}
	if fate == fateCompleted || fate == fateGivenUp {
		r.left = e.rng.IntN(3)
	} else {
		r.seen.Final, r.seen.Done = max(post.At, e.rec.at(r.due)), fate == fateDone || fate == fateLate
	}
	e.runs[c.RunID] = r
	e.rec.engineRun(r.seen)
	return r
}

// decide draws what becomes of a run, and how long it takes until the first answer.
func (e *endpoint) decide(doomed bool) (string, time.Duration) {
	switch n := e.rng.IntN(100); {
	case doomed && !e.mended.Load():
		return fateFailed, 0
	case e.healed.Load(), n < 25:
		return fateDone, 0
	case n < 33:
		return fateLate, between(e.rng, 100*time.Millisecond, 500*time.Millisecond)
	case n < 57: // long enough to be hit by a fault, and now and then longer than a lease
		return fateLate, between(e.rng, time.Second, engineLease+time.Second/2)
	case n < 70:
		return fateFailed, 0
	case n < 78:
		return fateCut, between(e.rng, 0, 300*time.Millisecond)
	case n < 92:
		return fateCompleted, 0
	}
	return fateGivenUp, 0
}

// status tells how a run stands that was answered 202.
func (e *endpoint) status(w http.ResponseWriter, req *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.rec.now()
	r, known := e.runs[req.PathValue("run")]
	if !known || r.seen.Fate != fateCompleted && r.seen.Fate != fateGivenUp {
		e.rec.incident("somebody asked for the status of the run %q", req.PathValue("run"))
		w.WriteHeader(http.StatusNotFound)
		return
	}
	e.rec.edit(func(*history) {
		r.seen.Polls = append(r.seen.Polls, now)
		if r.left == 0 && r.seen.Final == 0 {
			r.seen.Final, r.seen.Done = now, r.seen.Fate == fateCompleted
		}
	})
	says := "Running"
	switch {
	case r.left > 0 && !e.healed.Load() && e.rng.IntN(5) == 0:
		panic(http.ErrAbortHandler)
	case r.left > 0:
		r.left--
		w.WriteHeader(http.StatusAccepted)
	case r.seen.Done:
		says = "Completed"
	default:
		says = "Failed"
	}
	fmt.Fprintf(w, `{"runtimeStatus":%q,"output":%q}`, says, req.PathValue("run"))
}
