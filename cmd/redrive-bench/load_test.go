package main

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// receiver counts broadcasts by id and answers what status returns.
func receiver(t *testing.T, status func(n int64) int) (url string, ids *sync.Map) {
	t.Helper()
	var n atomic.Int64
	ids = &sync.Map{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, again := ids.LoadOrStore(r.Header.Get("X-Broker-Message-ID"), r.ContentLength); again {
			t.Errorf("message %s was sent twice", r.Header.Get("X-Broker-Message-ID"))
		}
		w.WriteHeader(status(n.Add(1)))
	}))
	t.Cleanup(srv.Close)
	return srv.URL, ids
}

func loaderFor(t *testing.T, url string, f *flow) *loader {
	t.Helper()
	transport := newTransport(8)
	t.Cleanup(transport.CloseIdleConnections)
	return &loader{URL: url, Channel: "c", Producer: "p", PayloadBytes: 100, Flow: f, Transport: transport}
}

func TestClosedLoadSendsEachMessageOnce(t *testing.T) {
	t.Parallel()
	url, ids := receiver(t, func(int64) int { return http.StatusCreated })
	f := newFlow("t", 1000)
	res, err := loaderFor(t, url, f).closed(t.Context(), 8, 500, 0)
	if err != nil {
		t.Fatal(err)
	}
	if res.Accepted != 500 || f.acceptedCount() != 500 || f.sentCount() != 500 || len(res.Refused) != 0 {
		t.Errorf("accepted %d, in the books %d of %d, refused %v; want 500", res.Accepted, f.acceptedCount(), f.sentCount(), res.Refused)
	}
	for i := range 500 {
		if length, ok := ids.Load(f.id(i)); !ok || length != int64(100) {
			t.Fatalf("message %d came with a length of %v, want 100", i, length)
		}
	}
	if res.rate() <= 0 || res.seconds() <= 0 {
		t.Errorf("rate is %v over %v s", res.rate(), res.seconds())
	}
}

func TestLoadEndsWithItsFlow(t *testing.T) {
	t.Parallel()
	url, _ := receiver(t, func(int64) int { return http.StatusCreated })
	f := newFlow("t", 20)
	res, err := loaderFor(t, url, f).closed(t.Context(), 4, 0, time.Minute)
	if err != nil || res.Accepted != 20 || f.sentCount() != 20 {
		t.Errorf("accepted %d, sent %d, error %v; want 20", res.Accepted, f.sentCount(), err)
	}
}

func TestRefusalsAreNotAccepted(t *testing.T) {
	t.Parallel()
	url, _ := receiver(t, func(n int64) int {
		if n%4 == 0 {
			return http.StatusServiceUnavailable
		}
		return http.StatusCreated
	})
	f := newFlow("t", 100)
	res, err := loaderFor(t, url, f).closed(t.Context(), 4, 100, 0)
	if err != nil {
		t.Fatal(err)
	}
	if res.Accepted != 75 || f.acceptedCount() != 75 || res.refused() != "25 x 503 Service Unavailable" {
		t.Errorf("accepted %d, in the books %d, refused %q", res.Accepted, f.acceptedCount(), res.refused())
	}
}

func TestALostConnectionIsARefusal(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	t.Cleanup(srv.Close)
	f := newFlow("t", 10)
	res, err := loaderFor(t, srv.URL, f).closed(t.Context(), 2, 10, 0)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, k := range res.Refused {
		n += k
	}
	if res.Accepted != 0 || n != 10 {
		t.Errorf("accepted %d, refused %v; want none and 10", res.Accepted, res.Refused)
	}
}

func TestAConnectionClosedWhileIdleIsNoRefusal(t *testing.T) {
	t.Parallel()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, sent := r.Header["Idempotency-Key"]; sent {
			t.Error("the transport's hint went out")
		}
		w.WriteHeader(http.StatusCreated)
	}))
	srv.Config.IdleTimeout = time.Millisecond // so most messages find their connection about to close
	srv.Start()
	t.Cleanup(srv.Close)
	f := newFlow("t", 100)
	res, err := loaderFor(t, srv.URL, f).paced(t.Context(), 2, 200, 500*time.Millisecond, nil)
	if err != nil || res.Accepted != 100 {
		t.Errorf("accepted %d of 100, refused %v, error %v", res.Accepted, res.Refused, err)
	}
}

func TestPacedLoadKeepsItsRate(t *testing.T) {
	t.Parallel()
	url, _ := receiver(t, func(int64) int { return http.StatusCreated })
	f := newFlow("t", 100)
	res, err := loaderFor(t, url, f).paced(t.Context(), 4, 100, 300*time.Millisecond, nil)
	if err != nil {
		t.Fatal(err)
	}
	if res.Accepted != 30 {
		t.Errorf("accepted %d messages, want 30: 100 a second for 0.3 s", res.Accepted)
	}
	if s := res.seconds(); s < 0.29 {
		t.Errorf("30 messages at 100 a second took %v s, less than the 0.29 between the first and the last", s)
	}
}

func TestSinkCountsDistinctAndRepeated(t *testing.T) {
	t.Parallel()
	f := newFlow("t", 3)
	f.seeded()
	_, r := (&sink{}).consumer(f, false)
	for _, id := range []string{f.id(0), f.id(2), f.id(2), "someone-else", f.prefix + "000000003", f.prefix + "1"} {
		if status := r.receive(id, now()); status != http.StatusOK {
			t.Errorf("%s was answered %d", id, status)
		}
	}
	if r.distinct.Load() != 2 || r.repeats.Load() != 1 || r.strange.Load() != 3 || r.missing() != 1 {
		t.Errorf("distinct %d, repeats %d, strange %d, missing %d; want 2, 1, 3, 1",
			r.distinct.Load(), r.repeats.Load(), r.strange.Load(), r.missing())
	}
}

func TestSinkFailsTheFirstTryOnly(t *testing.T) {
	t.Parallel()
	f := newFlow("t", 1)
	_, r := (&sink{}).consumer(f, true)
	if s := r.receive(f.id(0), now()); s != http.StatusInternalServerError || r.distinct.Load() != 0 {
		t.Errorf("the first try was answered %d and counted %d times", s, r.distinct.Load())
	}
	if s := r.receive(f.id(0), now()); s != http.StatusOK || r.distinct.Load() != 1 {
		t.Errorf("the second try was answered %d and counted %d times", s, r.distinct.Load())
	}
}
