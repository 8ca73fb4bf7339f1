package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeBroker answers what the scenarios ask, from memory: enough of the contract to test the bench with, and
// faults that the bench must notice. Its fields with faults are set before its first request.
type fakeBroker struct {
	loseEvery  int   // every n-th broadcast is accepted and never delivered
	showExtra  int64 // /dlq-status is wrong by this
	noMetrics  bool  // the histogram is missing
	keepOnFail bool  // requeue answers 500
	swapQueued bool  // queued-jobs shows the second job first
	allHistory bool  // /api/history knows no filter

	srv    *httptest.Server
	client *http.Client
	jobs   sync.WaitGroup

	mu        sync.Mutex
	consumers map[string][]fakeConsumer // by channel
	dead      map[string][]string       // message ids by channel/consumer
	queued    map[string][]string       // likewise
	past      historySpec
	accepted  int
	cycles    int
}

type fakeConsumer struct{ name, callback string }

func newFakeBroker(t *testing.T, f *fakeBroker) *fakeBroker {
	t.Helper()
	f.srv = httptest.NewServer(f.handler())
	t.Cleanup(func() {
		f.srv.Close()
		f.jobs.Wait()
		f.client.CloseIdleConnections()
	})
	return f
}

// handler makes the broker ready and returns its endpoints.
func (f *fakeBroker) handler() http.Handler {
	f.forget()
	f.client = &http.Client{Transport: newTransport(64)}
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /producer/{p}", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("PUT /channel/{c}", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("PUT /channel/{c}/consumer/{k}", f.putConsumer)
	mux.HandleFunc("POST /channel/{c}/broadcast", f.broadcast)
	mux.HandleFunc("POST /channel/{c}/consumer/{k}/dlq", f.requeue)
	mux.HandleFunc("DELETE /channel/{c}/consumer/{k}/dlq", f.purge)
	mux.HandleFunc("GET /dlq-status", f.dlqStatus)
	mux.HandleFunc("GET /job-status", f.jobStatus)
	mux.HandleFunc("GET /api/dlq", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("status") == "Expired" {
			fmt.Fprint(w, `{"data":{"items":[]}}`)
			return
		}
		fmt.Fprint(w, `{"data":{"items":[{}]}}`)
	})
	mux.HandleFunc("GET /channel/{c}/consumer/{k}/queued-jobs", f.queuedJobs)
	mux.HandleFunc("GET /api/history", f.history)
	mux.HandleFunc("GET /metrics", f.metrics)
	mux.HandleFunc("GET /readyz", func(http.ResponseWriter, *http.Request) {})
	return mux
}

func (f *fakeBroker) forget() {
	f.consumers, f.dead, f.queued = map[string][]fakeConsumer{}, map[string][]string{}, map[string][]string{}
}

// open returns what a bench takes for a new world: a new sink before the same broker.
func (f *fakeBroker) open(context.Context, map[string]string) (*world, error) {
	s, err := newSink()
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.forget()
	f.mu.Unlock()
	client := newAPI(f.srv.URL)
	return &world{
		url: f.srv.URL, api: client, sink: s, store: f, proc: f, died: make(chan struct{}),
		close: func(context.Context) error {
			client.client.CloseIdleConnections()
			return s.Close()
		},
	}, nil
}

func (f *fakeBroker) putConsumer(_ http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := r.PathValue("c")
	f.consumers[c] = append(f.consumers[c], fakeConsumer{r.PathValue("k"), r.FormValue("callbackUrl")})
}

func (f *fakeBroker) broadcast(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil || r.Header.Get("X-Broker-Channel-Token") != token || r.Header.Get("X-Broker-Producer-Token") != token {
		http.Error(w, "no", http.StatusForbidden)
		return
	}
	f.mu.Lock()
	f.accepted++
	lost := f.loseEvery > 0 && f.accepted%f.loseEvery == 0
	to := f.consumers[r.PathValue("c")]
	f.mu.Unlock()
	for _, k := range to {
		if !lost {
			f.push(k.callback, r.Header.Get("X-Broker-Message-ID"), string(body))
		}
	}
	w.WriteHeader(http.StatusCreated)
}

// push delivers in the background, once more after a failure.
func (f *fakeBroker) push(callback, id, body string) {
	f.jobs.Go(func() {
		for range 2 {
			req, err := http.NewRequest(http.MethodPost, callback, strings.NewReader(body))
			if err != nil {
				return
			}
			req.Header.Set("X-Broker-Message-ID", id)
			resp, err := f.client.Do(req)
			if err != nil {
				return
			}
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
		}
	})
}

func (f *fakeBroker) requeue(w http.ResponseWriter, r *http.Request) {
	if f.keepOnFail || r.FormValue("requeue") != token {
		http.Error(w, "no", http.StatusInternalServerError)
		return
	}
	f.mu.Lock()
	ids, to := f.take(r), f.consumers[r.PathValue("c")]
	f.mu.Unlock()
	for _, id := range ids {
		f.push(to[0].callback, id, "")
	}
	w.WriteHeader(http.StatusAccepted)
}

func (f *fakeBroker) purge(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fmt.Fprintf(w, `{"deletedCount":%d}`, len(f.take(r)))
}

// take empties a dead-letter queue; the caller holds mu.
func (f *fakeBroker) take(r *http.Request) []string {
	key := r.PathValue("c") + "/" + r.PathValue("k")
	ids := f.dead[key]
	delete(f.dead, key)
	return ids
}

func (f *fakeBroker) queuedJobs(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	ids := slices.Clone(f.queued[r.PathValue("c")+"/"+r.PathValue("k")])
	f.mu.Unlock()
	if f.swapQueued {
		ids[0], ids[1] = ids[1], ids[0]
	}
	limit, err := strconv.Atoi(r.FormValue("limit"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var jobs []string
	for _, id := range ids[:min(limit, len(ids))] {
		jobs = append(jobs, fmt.Sprintf(`{"Message":{"MessageID":%q}}`, id))
	}
	fmt.Fprintf(w, `{"Result":[%s]}`, strings.Join(jobs, ","))
}

// history answers with two pages at most.
func (f *fakeBroker) history(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	spec := f.past
	f.mu.Unlock()
	var filter url.Values
	if !f.allHistory {
		filter = r.URL.Query()
	}
	var page historyPage
	page.Items = spec.latest(filter, 2*historyRows)
	first := page.Items[:min(historyRows, len(page.Items))]
	if r.FormValue("continuationToken") != "" {
		page.Items = page.Items[len(first):]
	} else if len(first) < len(page.Items) {
		page = historyPage{first, "next"}
	}
	if err := json.NewEncoder(w).Encode(map[string]historyPage{"data": page}); err != nil {
		panic(err)
	}
}

func (f *fakeBroker) dlqStatus(w http.ResponseWriter, _ *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var rows []string
	f.each(func(c, k string, n int) {
		rows = append(rows, fmt.Sprintf(`{"channelId":%q,"consumerId":%q,"deadCount":%d}`, c, k, int64(n)+f.showExtra))
	})
	fmt.Fprintf(w, `{"exact":true,"asOf":%q,"lastCheckedAt":%q,"consumers":[%s]}`,
		time.Now().UTC().Format(time.RFC3339Nano), time.Now().UTC().Format(time.RFC3339Nano), strings.Join(rows, ","))
}

func (f *fakeBroker) jobStatus(w http.ResponseWriter, _ *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var rows []string
	f.each(func(c, k string, n int) {
		rows = append(rows, fmt.Sprintf(`%q:{%q:[{"status":1004,"count":%d},{"status":"QUEUED","count":%d}]}`, c, k, n, len(f.queued[c+"/"+k])))
	})
	fmt.Fprintf(w, "{%s}", strings.Join(rows, ","))
}

func (f *fakeBroker) metrics(w http.ResponseWriter, _ *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.each(func(c, k string, n int) { fmt.Fprintf(w, "dead_job_count{channel=%q,consumer=%q} %d\n", c, k, n) })
	if f.noMetrics {
		return
	}
	f.cycles++ // a cycle of 10 ms between any two scrapes
	fmt.Fprintf(w, "redrive_dlq_cycle_duration_seconds_sum %g\n", float64(f.cycles)/100)
	fmt.Fprintf(w, "redrive_dlq_cycle_duration_seconds_count %d\n", f.cycles)
}

// each visits all consumers; the caller holds mu.
func (f *fakeBroker) each(visit func(channel, consumer string, dead int)) {
	for c, ks := range f.consumers {
		for _, k := range ks {
			visit(c, k.name, len(f.dead[c+"/"+k.name]))
		}
	}
}

// The database and the process of a world.

func (f *fakeBroker) Seed(_ context.Context, spec seedSpec) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := spec.Channel + "/" + spec.Consumer
	into := f.dead
	if spec.Queued {
		into = f.queued
	}
	for i := range spec.Flow.sent {
		into[key] = append(into[key], spec.Flow.id(i))
	}
	spec.Flow.seeded()
	return nil
}

func (f *fakeBroker) Owed(context.Context) (int64, error) { return 0, nil }

func (f *fakeBroker) Rows(_ context.Context, channel, consumer string, status int) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if status == statusQueued {
		return int64(len(f.queued[channel+"/"+consumer])), nil
	}
	return int64(len(f.dead[channel+"/"+consumer])), nil
}

func (f *fakeBroker) SeedHistory(_ context.Context, spec historySpec) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.past = spec
	return nil
}

func (f *fakeBroker) HistoryRows(context.Context) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return int64(f.past.Total), nil
}

func (f *fakeBroker) Clock(context.Context) (time.Time, error) { return time.Now().UTC(), nil }

func (f *fakeBroker) ResetPeak() error { return nil }

func (f *fakeBroker) PeakMemory() (int64, error) { return 50_000_000, nil }
