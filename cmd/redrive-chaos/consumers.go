//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// The moods of a push consumer. Each has one of its own (its temper), a fault gives it another for a while,
// and when all is healed everyone is calm.
const (
	calm    = "calm"    // 200 at once
	slow    = "slow"    // 200 within the timeout, but late
	hanging = "hanging" // 200 far beyond the timeout, if anybody still listens
	flaps   = "flaps"   // 500 every other time
	failing = "failing" // 500
	sulking = "sulking" // 500 mostly
	cutting = "cutting" // reads the request and drops the connection
	closed  = "closed"  // nobody listens on its port
)

// spec is a consumer of the run.
type spec struct {
	consumerInfo
	id, token string
	temper    string
	faults    []string // the moods that faults give it
}

const (
	channelOrders  = "orders"
	channelReturns = "returns"
	channelVoid    = "void" // has no consumers and takes messages all the same
)

// cast is who takes part. No requeuer works on healthy, hanger and broken: their jobs have one life, so
// for them the limit of attempts is exact and the count of the dead only rises.
func cast() []*spec {
	of := func(channel, id, temper string, faults ...string) *spec {
		return &spec{consumerInfo: consumerInfo{Key: channel + "/" + id, Channel: channel}, id: id, token: "token-of-" + id,
			temper: temper, faults: faults}
	}
	healthy := of(channelOrders, "healthy", calm, slow)
	flapper := of(channelOrders, "flapper", flaps, hanging, failing)
	flapper.Redrive = true
	hanger := of(channelOrders, "hanger", calm, hanging, flaps, slow)
	mortal := of(channelOrders, "mortal", calm, closed, cutting, failing)
	mortal.Redrive = true
	puller := of(channelOrders, "puller", calm)
	puller.Pull, puller.Redrive = true, true
	broken := of(channelReturns, "broken", failing)
	scrap := of(channelReturns, "scrap", sulking, failing, closed)
	scrap.Purged, scrap.Redrive = true, true
	triage := of(channelReturns, "triage", sulking, failing, closed)
	triage.Triage, triage.Redrive = true, true
	alerted := of(channelForwards, "alerted", flaps, hanging, failing, closed)
	alerted.Redrive = true
	return []*spec{healthy, flapper, hanger, mortal, puller, broken, scrap, triage, alerted}
}

// receiver is the server of one push consumer.
type receiver struct {
	spec *spec
	rec  *recorder
	addr string

	hook  atomic.Pointer[standardwebhooks.Webhook] // knows the consumer's signing secret
	mood  atomic.Value                             // string
	mu    sync.Mutex
	rng   *rand.Rand
	srv   *http.Server
	ended chan struct{} // when srv has stopped serving
}

func newReceiver(s *spec, rec *recorder, seed uint64) (*receiver, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	r := &receiver{spec: s, rec: rec, addr: fmt.Sprintf("127.0.0.1:%d", port), rng: rand.New(rand.NewPCG(seed, uint64(port)))}
	r.mood.Store(s.temper)
	return r, r.open()
}

func (r *receiver) url() string { return "http://" + r.addr + "/in" }

// open begins to listen. The port was its own a moment ago, so a failure is another's use of it: it tries for a while.
func (r *receiver) open() error {
	var l net.Listener
	var err error
	for range 100 {
		if l, err = net.Listen("tcp", r.addr); err == nil {
			break
		}
		<-time.After(pollEvery)
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.srv, r.ended = &http.Server{Handler: http.HandlerFunc(r.take), ReadHeaderTimeout: 10 * time.Second}, make(chan struct{})
	go func(srv *http.Server, ended chan struct{}) {
		_ = srv.Serve(l)
		close(ended)
	}(r.srv, r.ended)
	return nil
}

// shut closes the port and cuts every connection, as the death of the process would.
func (r *receiver) shut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.srv != nil {
		r.srv.Close()
		<-r.ended
		r.srv = nil
	}
}

// become changes the mood.
func (r *receiver) become(mood string) error {
	before := r.mood.Swap(mood)
	switch {
	case mood == closed && before != closed:
		r.shut()
	case mood != closed && before == closed:
		return r.open()
	}
	return nil
}

// body is what a broadcast carries.
type body struct {
	Tag string `json:"tag"`
	Pad string `json:"pad"`
}

func (r *receiver) take(w http.ResponseWriter, req *http.Request) {
	start := r.rec.now()
	raw, readErr := io.ReadAll(io.LimitReader(req.Body, 1<<20))
	var b body
	jsonErr := json.Unmarshal(raw, &b)
	flaw := r.flaw(req, b, errors.Join(readErr, jsonErr))
	message := req.Header.Get("X-Broker-Message-ID")
	if r.spec.Channel == channelForwards {
		b.Tag, flaw = message, flawOfAlert(message, raw)
	}
	if hook := r.hook.Load(); flaw == "" && hook != nil {
		if err := hook.Verify(raw, req.Header); err != nil {
			flaw = "its signature: " + err.Error()
		}
	}
	rc := r.rec.receive(receipt{
		Consumer: r.spec.Key, Message: message, Tag: b.Tag, Job: req.Header.Get("Webhook-Id"), Start: start, Flaw: flaw,
	})
	delay, status := r.decide()
	gone := false
	if delay > 0 && !hold(req.Context(), delay) {
		gone = true
	}
	if status == 0 || gone {
		r.rec.answered(rc, 0, gone)
		panic(http.ErrAbortHandler)
	}
	// Noted before it is sent: a receipt may claim an answer that nobody got, but never miss one that somebody did.
	r.rec.answered(rc, status, false)
	w.WriteHeader(status)
}

// learnSecret gets the secret that the consumer's deliveries are signed with.
func (r *receiver) learnSecret(ctx context.Context, c *client) error {
	o, a := c.exchange(ctx, op{Instance: 1}, request{method: http.MethodPost, path: consumerPath(r.spec) + "/signing-secret", header: tokens(r.spec)})
	var body struct{ Secret string }
	if err := json.Unmarshal(a.body, &body); err != nil || o.Status != http.StatusOK {
		return fmt.Errorf("the signing secret of %s: %d %s (%w)", r.spec.Key, o.Status, o.Err, err)
	}
	hook, err := standardwebhooks.NewWebhook(body.Secret)
	if err != nil {
		return fmt.Errorf("the signing secret of %s: %w", r.spec.Key, err)
	}
	r.hook.Store(hook)
	return nil
}

// flaw says what of a delivery is not as it was sent; empty: nothing.
func (r *receiver) flaw(req *http.Request, b body, err error) string {
	want := map[string]string{
		"X-Broker-Channel-ID":     r.spec.Channel,
		"X-Broker-Consumer-ID":    r.spec.id,
		"X-Broker-Consumer-Token": r.spec.token,
		"Content-Type":            contentType,
		tagHeader:                 b.Tag, // stored and passed on as a metadata header
	}
	switch {
	case err != nil:
		return "body: " + err.Error()
	case req.Method != http.MethodPost:
		return "method " + req.Method
	case b.Pad != padding:
		return "the body is not the one sent"
	}
	for name, value := range want {
		if got := req.Header.Get(name); got != value {
			return fmt.Sprintf("%s is %q, want %q", name, got, value)
		}
	}
	return ""
}

// decide draws the answer: after how long, with which status, 0 for none.
func (r *receiver) decide() (time.Duration, int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	between := func(lo, hi time.Duration) time.Duration { return lo + time.Duration(r.rng.Int64N(int64(hi-lo))) }
	switch r.mood.Load() {
	case slow:
		return between(200*time.Millisecond, deliveryTimeout*3/4), http.StatusOK
	case hanging:
		if r.rng.IntN(2) == 0 {
			return 0, http.StatusOK
		}
		return between(leaseTime+500*time.Millisecond, leaseTime+2*time.Second), http.StatusOK
	case flaps:
		if r.rng.IntN(2) == 0 {
			return 0, http.StatusInternalServerError
		}
	case failing:
		return 0, http.StatusInternalServerError
	case sulking:
		if r.rng.IntN(10) > 0 {
			return 0, http.StatusInternalServerError
		}
	case cutting:
		return 0, 0
	}
	return 0, http.StatusOK
}

// torment gives a consumer its bad moods, one after the other, until ctx ends.
func (r *receiver) torment(ctx context.Context, rng *rand.Rand) {
	for len(r.spec.faults) > 0 && hold(ctx, between(rng, time.Second, 4*time.Second)) {
		f := fault{Kind: faultConsumer, Target: r.spec.Key, What: r.spec.faults[rng.IntN(len(r.spec.faults))], Start: r.rec.now()}
		f.Down = f.Start
		err := r.become(f.What)
		hold(ctx, between(rng, time.Second, 3*time.Second))
		f.Up = r.rec.now()
		if err == nil {
			err = r.become(r.spec.temper)
		}
		if err != nil {
			r.rec.incident("the harness lost the port of %s: %v", r.spec.Key, err)
			return
		}
		f.End = r.rec.now()
		r.rec.fault(f)
	}
}

func between(rng *rand.Rand, lo, hi time.Duration) time.Duration {
	return lo + time.Duration(rng.Int64N(int64(hi-lo)))
}
