package broker_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-mq/redrive/broker"
	"github.com/redrive-mq/redrive/storage"
)

func TestDeliversToEveryConsumer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, two := newSink(t, ok), newSink(t, ok)
	k1 := w.consumer("one", one.URL+"/in", storage.TypePush)
	k2 := w.consumer("two", two.URL, storage.TypePush)
	k3 := w.consumer("three", "http://pulls.example/", storage.TypePull)
	b := w.start(w.fast())
	id := w.broadcast(b, broker.Broadcast{ContentType: "application/json", Priority: 7, Body: []byte(`{"a":1}`), Headers: map[string]string{"X-Trace": "t-1"}})

	for _, s := range []*sink{one, two} {
		got := s.wait(t, 1)[0]
		if got.body != `{"a":1}` || got.messageID != id {
			t.Errorf("received %+v", got)
		}
		for name, want := range map[string]string{
			"Content-Type": "application/json", "X-Broker-Message-Priority": "7", "X-Broker-Channel-ID": "orders",
			"X-Trace": "t-1", "X-Broker-Metadata-Headers": "X-Trace", "User-Agent": "Redrive",
		} {
			if got.header.Get(name) != want {
				t.Errorf("%s: %q, want %q", name, got.header.Get(name), want)
			}
		}
		if got.header.Get("X-Request-ID") == "" {
			t.Error("no X-Request-ID")
		}
	}
	if h := one.seen()[0].header; h.Get("X-Broker-Consumer-ID") != "one" || h.Get("X-Broker-Consumer-Token") != "kt-one" {
		t.Errorf("headers %v", h)
	}
	w.waitJobs(k1, storage.StatusDelivered, 1)
	w.waitJobs(k2, storage.StatusDelivered, 1)
	if got := w.jobs(k3); got[storage.StatusQueued] != 1 {
		t.Errorf("the pull consumer's jobs: %v", got)
	}
}

func TestRetriesOnScheduleThenDies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := newSink(t, fail)
	k := w.consumer("bad", s.URL, storage.TypePush)
	b := w.start(w.fast())
	w.broadcast(b, broker.Broadcast{Body: []byte("x")})
	w.waitJobs(k, storage.StatusDead, 1)
	got := s.seen()
	if len(got) != 3 {
		t.Fatalf("%d attempts, want 1 and 2 retries", len(got))
	}
	for i, wait := range []time.Duration{100 * time.Millisecond, 200 * time.Millisecond} {
		if gap := got[i+1].at.Sub(got[i].at); gap < wait || gap > wait+2*time.Second {
			t.Errorf("retry %d came after %v, promised %v", i+1, gap, wait)
		}
	}
	jobs, _, err := w.store.DeadJobs(w.ctx, k.Key, nil, 10)
	if err != nil || len(jobs) != 1 {
		t.Fatal(jobs, err)
	}
	if j := jobs[0]; j.LastErrorClass != "http_5xx" || !strings.HasPrefix(j.LastError, "500 ") || j.RetryAttemptCount != 2 {
		t.Errorf("the dead job: %+v", j)
	}
}

// The wait before each retry is the promised one to the microsecond, by the database's clock, as long as the list and past
// its end, and after the last retry there is none.
func TestScheduleIsExact(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := newSink(t, fail)
	k := w.consumer("bad", s.URL, storage.TypePush)
	o := w.fast()
	o.MaxRetry, o.Backoff = 7, []time.Duration{5 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 3 * time.Minute}
	b := w.start(o)
	w.broadcast(b, broker.Broadcast{Body: []byte("x")})
	for retry, want := range append(o.Backoff, 4*time.Minute, 5*time.Minute) {
		var micros sql.NullInt64
		eventually(t, func() bool {
			err := w.db.QueryRowContext(w.ctx, `SELECT TIMESTAMPDIFF(MICROSECOND, statusChangedAt, dueAt) FROM job WHERE status = 1001 AND retryAttemptCount = ?`, retry+1).Scan(&micros)
			return err == nil
		})
		if got := time.Duration(micros.Int64) * time.Microsecond; got != want {
			t.Errorf("retry %d waits for %v, promised %v", retry+1, got, want)
		}
		if _, err := w.db.ExecContext(w.ctx, `UPDATE job SET dueAt = NOW(6)`); err != nil {
			t.Fatal(err)
		}
	}
	w.waitJobs(k, storage.StatusDead, 1)
	if got := len(s.seen()); got != 8 {
		t.Errorf("%d attempts, want 1 and 7 retries", got)
	}
}

// Retries come when they are due, and no more than there may be, while a backlog that came first keeps all slots busy.
func TestScheduleHoldsUnderBacklog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := newSink(t, func(r *http.Request) int {
		if strings.HasPrefix(r.Header.Get("X-Broker-Message-ID"), "bad") {
			return http.StatusBadGateway
		}
		<-time.After(5 * time.Millisecond) // a consumer's work: what keeps its slots busy
		return http.StatusOK
	})
	k := w.consumer("busy", s.URL, storage.TypePush)
	const backlog = 4000 // of 10 s and more, for two slots
	for range backlog / 500 {
		w.queue(k, 500)
	}
	o := w.fast()
	o.Concurrency = 2
	b := w.start(o)
	for i := range 3 {
		// The first attempt shall not wait for the backlog; from then on priority is none of a retry's merits.
		w.broadcast(b, broker.Broadcast{MessageID: fmt.Sprintf("bad-%d", i), Priority: 9})
	}
	w.waitJobs(k, storage.StatusDead, 3)
	if left := w.jobs(k)[storage.StatusQueued]; left == 0 {
		t.Error("the retries came after all of the backlog")
	}
	attempts := map[string][]time.Time{}
	for _, r := range s.seen() {
		if strings.HasPrefix(r.messageID, "bad") {
			attempts[r.messageID] = append(attempts[r.messageID], r.at)
		}
	}
	if len(attempts) != 3 {
		t.Errorf("attempts of %d messages", len(attempts))
	}
	for id, at := range attempts {
		if len(at) != 3 {
			t.Errorf("%s was attempted %d times", id, len(at))
			continue
		}
		for i, wait := range o.Backoff {
			if gap := at[i+1].Sub(at[i]); gap < wait || gap > wait+2*time.Second {
				t.Errorf("%s: retry %d came after %v, promised %v", id, i+1, gap, wait)
			}
		}
	}
}

// A channel without consumers takes messages in; who comes later gets what comes later.
func TestChannelWithoutConsumers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.start(w.fast())
	w.broadcast(b, broker.Broadcast{MessageID: "to nobody"})
	m, jobs, err := w.store.Message(w.ctx, w.channel.Key, "to nobody")
	if err != nil || m.DispatchedAt == nil || len(jobs) != 0 {
		t.Errorf("%+v, %d jobs, %v", m, len(jobs), err)
	}
	s := newSink(t, ok)
	k := w.consumer("late", s.URL, storage.TypePush)
	w.broadcast(b, broker.Broadcast{MessageID: "to it"})
	w.waitJobs(k, storage.StatusDelivered, 1)
	if got := s.seen(); len(got) != 1 || got[0].messageID != "to it" {
		t.Errorf("it got %v", got)
	}
}

func TestHungConsumerDelaysOnlyItself(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	release := make(chan struct{})
	hung, healthy := newSink(t, hang(release)), newSink(t, ok)
	kHung := w.consumer("hung", hung.URL, storage.TypePush)
	kHealthy := w.consumer("healthy", healthy.URL, storage.TypePush)
	o := w.fast()
	o.Concurrency = 2
	o.DeliveryTimeout = time.Minute
	b := w.start(o)
	for range 50 {
		w.broadcast(b, broker.Broadcast{})
	}
	w.waitJobs(kHealthy, storage.StatusDelivered, 50)
	if n := len(hung.seen()); n > 2 {
		t.Errorf("the hung consumer got %d attempts at a time, its bound is 2", n)
	}
	close(release)
	w.waitJobs(kHung, storage.StatusDelivered, 50)
}

// A stale attempt: its lease ran out, another instance delivered the job; its late failure changes nothing.
func TestLostLeaseChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	release := make(chan struct{})
	var first sync.Once
	s := newSink(t, func(r *http.Request) int {
		code := http.StatusOK
		first.Do(func() { hang(release)(r); code = http.StatusInternalServerError })
		return code
	})
	k := w.consumer("k", s.URL, storage.TypePush)
	oA := w.fast()
	regA := prometheus.NewRegistry()
	oA.Registerer, oA.PollInterval = regA, time.Hour // this instance neither reaps nor claims
	a := w.start(oA)
	w.broadcast(a, broker.Broadcast{})
	s.wait(t, 1)

	if _, err := w.db.ExecContext(w.ctx, `UPDATE job SET dueAt = NOW(6) - INTERVAL 1 SECOND WHERE status = 1002`); err != nil {
		t.Fatal(err)
	}
	oB := w.fast()
	oB.Store = w.open()
	w.start(oB)
	w.waitJobs(k, storage.StatusDelivered, 1)
	close(release)
	eventually(t, func() bool { return metric(t, regA, "redrive_stale_attempts_total") == 1 })
	if got := w.jobs(k); got[storage.StatusDelivered] != 1 {
		t.Errorf("after the stale outcome: %v", got)
	}
	counts, err := w.store.JobStatus(w.ctx)
	if err != nil || len(counts) != 1 || counts[0].Status != storage.StatusDelivered || counts[0].Count != 1 {
		t.Errorf("job status %+v, %v", counts, err)
	}
}

func TestStopHandsBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := newSink(t, hang(nil))
	k := w.consumer("k", s.URL, storage.TypePush)
	b := w.start(w.fast())
	w.broadcast(b, broker.Broadcast{})
	s.wait(t, 1)
	ctx, cancel := context.WithCancel(w.ctx)
	cancel() // no patience with attempts under way
	if err := b.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	var status, retries int
	if err := w.db.QueryRowContext(w.ctx, `SELECT status, retryAttemptCount FROM job WHERE consumerId = ?`, k.Key).Scan(&status, &retries); err != nil {
		t.Fatal(err)
	}
	if status != int(storage.StatusQueued) || retries != 0 {
		t.Errorf("status %d, %d retries: want it handed back, uncounted", status, retries)
	}
	if _, err := b.Accept(w.ctx, broker.Broadcast{Channel: w.channel, Producer: w.producer}); !errors.Is(err, broker.ErrDraining) {
		t.Errorf("a broadcast after the stop: %v", err)
	}
}

func TestScheduledMessageIsDispatchedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := newSink(t, ok)
	k := w.consumer("k", s.URL, storage.TypePush)
	b := w.start(w.fast())
	other := w.fast()
	other.Store = w.open()
	w.start(other)
	at := time.Now().Add(300 * time.Millisecond)
	w.broadcast(b, broker.Broadcast{MessageID: "later", ScheduledFor: &at})
	if got := w.jobs(k); len(got) != 0 {
		t.Errorf("jobs before its time: %v", got)
	}
	got := s.wait(t, 1)
	if got[0].at.Before(at.Add(-50 * time.Millisecond)) {
		t.Errorf("delivered %v early", at.Sub(got[0].at))
	}
	w.waitJobs(k, storage.StatusDelivered, 1)
	if n := len(s.seen()); n != 1 {
		t.Errorf("delivered %d times", n)
	}
}

func TestSameMessageIDIsAcceptedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := newSink(t, ok)
	k := w.consumer("k", s.URL, storage.TypePush)
	b := w.start(w.fast())
	var accepted, refused int
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 40 {
		wg.Go(func() {
			_, err := b.Accept(w.ctx, broker.Broadcast{Channel: w.channel, Producer: w.producer, ContentType: "text/plain", MessageID: "same"})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				accepted++
			case errors.Is(err, storage.ErrDuplicate):
				refused++
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if accepted != 1 || refused != 39 {
		t.Errorf("%d accepted, %d refused", accepted, refused)
	}
	w.waitJobs(k, storage.StatusDelivered, 1)
}

func TestPrivateDestinationsAreNotDialled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := newSink(t, ok)
	port := s.URL[strings.LastIndexByte(s.URL, ':'):]
	o := w.fast()
	o.AllowPrivateDestinations, o.MaxRetry = false, 0
	b := w.start(o)
	var consumers []*storage.Consumer
	for i, host := range []string{"127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "10.0.0.1", "169.254.169.254"} {
		consumers = append(consumers, w.consumer(fmt.Sprint("k", i), "http://"+host+port, storage.TypePush))
	}
	w.broadcast(b, broker.Broadcast{})
	for _, k := range consumers {
		w.waitJobs(k, storage.StatusDead, 1)
		jobs, _, err := w.store.DeadJobs(w.ctx, k.Key, nil, 1)
		if err != nil {
			t.Fatal(err)
		}
		if c := jobs[0].LastErrorClass; c != "blocked_address" {
			t.Errorf("%s: class %q: %s", k.CallbackURL, c, jobs[0].LastError)
		}
	}
	if n := len(s.seen()); n != 0 {
		t.Errorf("%d requests reached a private address", n)
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	target := newSink(t, ok)
	s := newSink(t, fail)
	s.Config.Handler = http.RedirectHandler(target.URL, http.StatusTemporaryRedirect)
	k := w.consumer("k", s.URL, storage.TypePush)
	o := w.fast()
	o.MaxRetry = 0
	b := w.start(o)
	w.broadcast(b, broker.Broadcast{})
	w.waitJobs(k, storage.StatusDead, 1)
	if n := len(target.seen()); n != 0 {
		t.Errorf("the redirect was followed %d times", n)
	}
}

func TestChangedCredentialsAreChecked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.start(w.fast())
	old := w.channel
	if _, err := w.store.PutChannel(w.ctx, storage.PutStakeholder{ID: "orders", Name: "Orders", Token: "other", IfUnmodifiedSince: &old.ChangedAt}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Accept(w.ctx, broker.Broadcast{Channel: old, Producer: w.producer}); !errors.Is(err, broker.ErrStale) {
		t.Errorf("a broadcast authenticated before the token changed: %v", err)
	}
	w.refresh()
	w.broadcast(b, broker.Broadcast{})
}

func TestBacklogGoesByPriority(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	release := make(chan struct{})
	s := newSink(t, func(r *http.Request) int {
		if r.Header.Get("X-Broker-Message-ID") == "plug" {
			hang(release)(r)
		}
		return http.StatusOK
	})
	k := w.consumer("k", s.URL, storage.TypePush)
	o := w.fast()
	o.Concurrency = 1
	b := w.start(o)
	w.broadcast(b, broker.Broadcast{MessageID: "plug"})
	s.wait(t, 1)
	for i, priority := range []uint32{1, 9, 5, 9} {
		w.broadcast(b, broker.Broadcast{MessageID: fmt.Sprintf("p%d-%d", priority, i), Priority: priority})
	}
	close(release)
	w.waitJobs(k, storage.StatusDelivered, 5)
	var order []string
	for _, r := range s.seen() {
		order = append(order, r.messageID)
	}
	if want := []string{"plug", "p9-1", "p9-3", "p5-2", "p1-0"}; !slices.Equal(order, want) {
		t.Errorf("delivered in the order %v, want %v", order, want)
	}
}

// A requeued job of a consumer of many dead ones is delivered at once, and the broker needs no word of it.
func TestRequeuedJobsAreDelivered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	healed := make(chan struct{})
	s := newSink(t, func(*http.Request) int {
		select {
		case <-healed:
			return http.StatusNoContent
		default:
			return http.StatusServiceUnavailable
		}
	})
	k := w.consumer("k", s.URL, storage.TypePush)
	o := w.fast()
	o.MaxRetry = 0
	b := w.start(o)
	for range 20 {
		w.broadcast(b, broker.Broadcast{})
	}
	w.waitJobs(k, storage.StatusDead, 20)
	close(healed)
	if n, err := w.store.RequeueAll(w.ctx, k.Key, "consumer"); err != nil || n != 20 {
		t.Fatal(n, err)
	}
	w.waitJobs(k, storage.StatusDelivered, 20)
	if got := w.jobs(k); len(got) != 1 {
		t.Errorf("jobs %v", got)
	}
}
