package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// loader broadcasts messages of one flow to one channel. One http.Request and one body a worker are used
// again and again: the loader shares its processors with what it measures.
type loader struct {
	URL           string // of the broker
	Channel       string
	ChannelToken  string
	Producer      string
	ProducerToken string
	PayloadBytes  int
	Flow          *flow
	Transport     *http.Transport
}

// loadResult is what one load did.
type loadResult struct {
	Began     instant // first POST
	Ended     instant // last answer
	Accepted  int
	Latencies []time.Duration // of the accepted, unsorted
	Refused   map[string]int  // every other outcome, by status or error
}

// seconds is how long the load took.
func (r *loadResult) seconds() float64 { return time.Duration(r.Ended - r.Began).Seconds() }

// rate is accepted messages a second.
func (r *loadResult) rate() float64 { return float64(r.Accepted) / r.seconds() }

// refused describes the outcomes that were not 201, or is empty.
func (r *loadResult) refused() string {
	var parts []string
	for what, n := range r.Refused {
		parts = append(parts, fmt.Sprintf("%d x %s", n, what))
	}
	return strings.Join(parts, ", ")
}

// newTransport returns a transport that keeps a connection for each of n workers.
func newTransport(n int) *http.Transport {
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		MaxIdleConns:        n,
		MaxIdleConnsPerHost: n,
		IdleConnTimeout:     time.Minute,
		DisableCompression:  true,
	}
}

// closed runs workers that each send as soon as their last message is answered, until limit messages are
// sent, the duration is over (0: no bound) or the flow is at its end.
func (l *loader) closed(ctx context.Context, workers, limit int, d time.Duration) (*loadResult, error) {
	end := instant(0)
	if d > 0 {
		end = now() + instant(d)
	}
	var mu sync.Mutex
	left := limit
	return l.run(ctx, workers, func() bool {
		if end > 0 && now() >= end {
			return false
		}
		if limit == 0 {
			return true
		}
		mu.Lock()
		defer mu.Unlock()
		left--
		return left >= 0
	})
}

// paced sends rate messages a second at even distances for d (0: until ctx or stop ends it). A message that
// finds all workers busy goes late rather than never.
func (l *loader) paced(ctx context.Context, workers, rate int, d time.Duration, stop <-chan struct{}) (*loadResult, error) {
	began, gap := time.Now(), time.Second/time.Duration(rate)
	var mu sync.Mutex
	sent := 0
	return l.run(ctx, workers, func() bool {
		mu.Lock()
		at := time.Duration(sent) * gap
		sent++
		mu.Unlock()
		if d > 0 && at >= d {
			return false
		}
		timer := time.NewTimer(time.Until(began.Add(at)))
		defer timer.Stop()
		select {
		case <-timer.C:
			return true
		case <-stop:
			return false
		case <-ctx.Done():
			return false
		}
	})
}

// run starts workers that send while more says so, and joins what they saw.
func (l *loader) run(ctx context.Context, workers int, more func() bool) (*loadResult, error) {
	parts := make([]*worker, workers)
	payload := bytes.Repeat([]byte("redrive "), l.PayloadBytes/8+1)[:l.PayloadBytes]
	var wg sync.WaitGroup
	began := now()
	for i := range parts {
		w := &worker{loader: l, payload: payload, refused: map[string]int{}}
		parts[i] = w
		wg.Go(func() { w.loop(ctx, more) })
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	res := &loadResult{Began: began, Ended: now(), Refused: map[string]int{}}
	for _, w := range parts {
		res.Latencies = append(res.Latencies, w.latencies...)
		for what, n := range w.refused {
			res.Refused[what] += n
		}
	}
	res.Accepted = len(res.Latencies)
	return res, nil
}

// worker is one producer with one connection.
type worker struct {
	*loader
	payload   []byte
	body      *bytes.Reader
	req       *http.Request
	latencies []time.Duration
	refused   map[string]int
}

func (w *worker) loop(ctx context.Context, more func() bool) {
	for ctx.Err() == nil && more() {
		i, ok := w.Flow.take()
		if !ok {
			return
		}
		if w.req == nil {
			if err := w.newRequest(ctx); err != nil {
				w.refused[err.Error()]++
				return
			}
		}
		w.send(i)
	}
}

// newRequest makes the request that send uses from now on.
func (w *worker) newRequest(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL+"/channel/"+w.Channel+"/broadcast", nil)
	if err != nil {
		return err
	}
	req.Header.Set("X-Broker-Channel-Token", w.ChannelToken)
	req.Header.Set("X-Broker-Producer-ID", w.Producer)
	req.Header.Set("X-Broker-Producer-Token", w.ProducerToken)
	req.Header.Set("X-Broker-Message-ID", "")
	req.Header.Set("Content-Type", "application/octet-stream")
	req.ContentLength = int64(len(w.payload))
	// A transport may dial a connection that it then does not need at once, and a server may close that one as
	// idle just when it is first used. With an id that makes it idempotent the transport sends the message
	// again by itself; the empty header says so to it and does not go out.
	req.Header["Idempotency-Key"] = nil
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(w.payload)), nil }
	w.req, w.body = req, new(bytes.Reader)
	return nil
}

// send broadcasts message i and records how it went.
func (w *worker) send(i int) {
	w.body.Reset(w.payload)
	w.req.Body = io.NopCloser(w.body)
	w.req.Header["X-Broker-Message-Id"][0] = w.Flow.id(i)
	at := now()
	w.Flow.sent[i] = at
	resp, err := w.Transport.RoundTrip(w.req)
	took := time.Duration(now() - at)
	if err != nil {
		// The transport may still hold the request, so the next message gets a new one.
		w.req = nil
		w.refused[err.Error()]++
		return
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		w.req = nil // a refusal may come before the transport has read the whole body
		w.refused[resp.Status]++
		return
	}
	w.Flow.accepted[i] = true
	w.latencies = append(w.latencies, took)
}
