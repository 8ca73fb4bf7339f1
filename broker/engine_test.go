package broker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/redrive-mq/redrive/broker"
	"github.com/redrive-mq/redrive/storage"
)

// executor is an engine as a test wants it.
type executor func(ctx context.Context, job storage.ClaimedJob) broker.Execution

func (e executor) Execute(ctx context.Context, job storage.ClaimedJob) broker.Execution {
	return e(ctx, job)
}

const rotationQueue = "hmac-rotation-queue"

// engine makes the queue of the engine hmac.
func (w *world) engine() *storage.Consumer {
	w.t.Helper()
	k, err := w.store.PutEngineQueue(w.ctx, "hmac", rotationQueue)
	if err != nil {
		w.t.Fatal(err)
	}
	return k
}

// having is an instance that has the engine hmac.
func (w *world) having(e broker.Engine) (broker.Options, *prometheus.Registry) {
	o, r := w.fast(), prometheus.NewRegistry()
	o.Registerer, o.Engines = r, map[string]broker.Engine{"hmac": e}
	return o, r
}

// enqueue stores a message in the queue of hmac and returns its job.
func (w *world) enqueue(messageID string) storage.ID {
	w.t.Helper()
	_, jobs, err := w.store.Enqueue(w.ctx, storage.Enqueued{Queue: rotationQueue, MessageID: messageID, Body: json.RawMessage(`{"tenant":"t1"}`)})
	if err != nil {
		w.t.Fatal(err)
	}
	return jobs[0].ID
}

func (w *world) job(id storage.ID) *storage.Job {
	w.t.Helper()
	j, err := w.store.Job(w.ctx, id)
	if err != nil {
		w.t.Fatal(err)
	}
	return j
}

func (w *world) letters(engine string) []storage.DeadLetter {
	w.t.Helper()
	rows, _, err := w.store.ListDeadLetters(w.ctx, storage.DLQFilter{Engine: engine}, nil, 100)
	if err != nil {
		w.t.Fatal(err)
	}
	return rows
}

// attempts is redrive_attempts_total by "result/class".
func attempts(t *testing.T, g prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		if f.GetName() != "redrive_attempts_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			out[labels["result"]+"/"+labels["class"]] = m.GetCounter().GetValue()
		}
	}
	return out
}

func TestEngineDoesItsJobs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.engine()
	seen := make(chan storage.ClaimedJob, 10)
	var looked sync.Map
	o, metrics := w.having(broker.Engine{Executor: executor(func(_ context.Context, job storage.ClaimedJob) broker.Execution {
		if _, again := looked.LoadOrStore(job.ID, true); !again {
			return broker.Execution{Pending: true, Wait: time.Millisecond}
		}
		seen <- job
		return broker.Execution{Subject: storage.Subject{InstanceID: "i"}}
	})})
	o.PollInterval = time.Hour // what is done is done because somebody told
	b := w.start(o)
	eventually(t, func() bool { return metricCount(t, metrics, "redrive_poll_duration_seconds") == 1 })
	id := w.enqueue("m1")
	b.Kick(k.Key)
	if job := within(t, seen); job.ID != id || job.MessageID != "m1" || string(job.Body) != `{"tenant":"t1"}` || job.ContentType != "application/json" || job.RetryAttemptCount != 0 {
		t.Errorf("%+v", job)
	}
	w.waitJobs(k, storage.StatusDelivered, 1)

	// A broadcast to a channel that an engine consumes.
	catalog, err := w.store.Catalog(w.ctx)
	if err != nil {
		t.Fatal(err)
	}
	w.channel, _ = catalog.Channel(rotationQueue)
	message := w.broadcast(b, broker.Broadcast{Body: []byte("x")})
	if job := within(t, seen); job.MessageID != message || string(job.Body) != "x" {
		t.Errorf("%+v", job)
	}
	w.waitJobs(k, storage.StatusDelivered, 2)
	if got := attempts(t, metrics); len(got) != 2 || got["delivered/"] != 2 || got["pending/"] != 2 {
		t.Errorf("%v", got)
	}
	if rows, _, err := w.store.ListHistory(w.ctx, storage.HistoryFilter{}, nil, 10); err != nil || len(rows) != 0 {
		t.Errorf("an engine's attempts left %+v, %v", rows, err)
	}
}

// within receives what should come within milliseconds.
func within[T any](t *testing.T, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		t.Fatal("it did not come in time")
	}
	return v
}

// metricCount is the number of observations of a histogram.
func metricCount(t *testing.T, g prometheus.Gatherer, name string) (n uint64) {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name && f.GetType() == dto.MetricType_HISTOGRAM {
			n += f.GetMetric()[0].GetHistogram().GetSampleCount()
		}
	}
	return n
}

func TestEngineFails(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		execute  executor
		attempts uint32 // with one retry allowed
		class    string
		text     string
	}{
		{"plainly", func(context.Context, storage.ClaimedJob) broker.Execution {
			return broker.Execution{Err: errors.New("no\tkey")}
		}, 2, "engine", "no key"},
		{"with a class", func(context.Context, storage.ClaimedJob) broker.Execution {
			return broker.Execution{Err: errors.New("no key"), Class: "vault"}
		}, 2, "vault", "no key"},
		{"with a class that is none", func(context.Context, storage.ClaimedJob) broker.Execution {
			return broker.Execution{Err: errors.New("no key"), Class: strings.Repeat("x", 33)}
		}, 2, "engine", "no key"},
		{"for good", func(context.Context, storage.ClaimedJob) broker.Execution {
			return broker.Execution{Err: errors.New("no such tenant"), Fatal: true}
		}, 1, "engine", "no such tenant"},
		{"by a panic", func(context.Context, storage.ClaimedJob) broker.Execution { panic("oh") }, 2, "panic", "panic: oh"},
		{"by its time", func(ctx context.Context, _ storage.ClaimedJob) broker.Execution {
			ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			<-ctx.Done()
			return broker.Execution{Err: fmt.Errorf("the vault: %w", ctx.Err())}
		}, 2, "timeout", "the vault: context deadline exceeded"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			k := w.engine()
			o, metrics := w.having(broker.Engine{MaxRetry: 1, Backoff: []time.Duration{time.Millisecond},
				Executor: executor(func(ctx context.Context, job storage.ClaimedJob) broker.Execution {
					e := tt.execute(ctx, job)
					e.Subject = storage.Subject{InstanceID: "hmac-publisher", CorrelationID: "c1"}
					return e
				})})
			o.DeliveryTimeout = 200 * time.Millisecond
			w.start(o)
			id := w.enqueue("m1")
			w.waitJobs(k, storage.StatusDead, 1)
			if j := w.job(id); j.LastErrorClass != tt.class || j.LastError != tt.text || uint32(j.RetryAttemptCount)+1 != tt.attempts {
				t.Errorf("%+v", j)
			}
			got := w.letters("hmac")
			instance, correlation := "hmac-publisher", "c1"
			if tt.class == "panic" {
				instance, correlation = "hmac", "m1" // it did not get to say
			}
			if len(got) != 1 || got[0].Job != id || got[0].DequeueCount != tt.attempts || got[0].InstanceID != instance || got[0].CorrelationID != correlation ||
				got[0].OriginalQueue != rotationQueue || got[0].ErrorMessage != tt.class+": "+tt.text {
				t.Errorf("%+v", got)
			}
			if others := w.letters(storage.EngineDelivery); len(others) != 0 {
				t.Errorf("%+v", others)
			}
			if got := attempts(t, metrics); got["retry/"+tt.class] != float64(tt.attempts-1) || got["dead/"+tt.class] != 1 {
				t.Errorf("%v", got)
			}
			// It is counted after the commit.
			eventually(t, func() bool { return metric(t, metrics, "redrive_jobs_died_total") == 1 })
		})
	}
}

// TestEnginePending has an engine look again and again: nothing is counted, however often, and a retry counts from there.
func TestEnginePending(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.engine()
	var n atomic.Int32
	o, metrics := w.having(broker.Engine{Executor: executor(func(_ context.Context, job storage.ClaimedJob) broker.Execution {
		if job.RetryAttemptCount != 0 {
			t.Errorf("%d attempts were counted", job.RetryAttemptCount)
		}
		switch i := n.Add(1); {
		case i == 1:
			return broker.Execution{Pending: true}
		case i < 6:
			return broker.Execution{Pending: true, Wait: time.Millisecond, Err: errors.New("not looked at")}
		}
		return broker.Execution{}
	})})
	w.start(o)
	w.enqueue("m1")
	w.waitJobs(k, storage.StatusDelivered, 1)
	if got := attempts(t, metrics); got["pending/"] != 5 || got["delivered/"] != 1 || len(got) != 2 {
		t.Errorf("%v", got)
	}
	long, longMetrics := w.having(broker.Engine{Executor: executor(func(context.Context, storage.ClaimedJob) broker.Execution {
		return broker.Execution{Pending: true, Wait: time.Hour}
	})})
	other := newWorld(t)
	long.Store = other.store
	k = other.engine()
	other.start(long)
	id := other.enqueue("m2")
	eventually(t, func() bool {
		return attempts(t, longMetrics)["pending/"] == 1 && other.jobs(k)[storage.StatusQueued] == 1
	})
	var in int
	if err := other.db.QueryRowContext(w.ctx, `SELECT TIMESTAMPDIFF(MINUTE, statusChangedAt, dueAt) FROM job WHERE id = ?`, id).Scan(&in); err != nil || in != 60 {
		t.Errorf("it is due in %d minutes, %v", in, err)
	}
}

func TestEngineAtAStop(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.engine()
	began := make(chan struct{}, 1)
	o, metrics := w.having(broker.Engine{Executor: executor(func(ctx context.Context, _ storage.ClaimedJob) broker.Execution {
		began <- struct{}{}
		<-ctx.Done()
		return broker.Execution{Err: ctx.Err(), Fatal: true}
	})})
	b := w.start(o)
	id := w.enqueue("m1")
	within(t, began)
	gone, cancel := context.WithCancel(w.ctx)
	cancel()
	if err := b.Stop(gone); err != nil {
		t.Fatal(err)
	}
	if j := w.job(id); j.Status != storage.StatusQueued || j.RetryAttemptCount != 0 || j.LastErrorClass != "" {
		t.Errorf("%+v", j)
	}
	if got := attempts(t, metrics); got["handed_back/aborted"] != 1 || len(w.letters("hmac")) != 0 || w.jobs(k)[storage.StatusDead] != 0 {
		t.Errorf("%v", got)
	}
}

// TestEngineElsewhere has an instance without the engine leave its jobs to one that has it, which needs no key that opens
// tokens for it.
func TestEngineElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sealed, err := storage.Open(storage.Options{DSN: w.dsn, Log: discard(), SealKeys: [][]byte{[]byte(strings.Repeat("k", 32))}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sealed.Close() })
	k, err := sealed.PutEngineQueue(w.ctx, "hmac", rotationQueue)
	if err != nil {
		t.Fatal(err)
	}
	without, metrics := w.having(broker.Engine{})
	without.Engines = nil
	b := w.start(without)
	id := w.enqueue("m1")
	b.Kick(k.Key)
	// A lease that was lost is taken back by any instance, and counts nothing.
	if _, err := w.store.Claim(w.ctx, k.Key, storage.Lease{Owner: storage.NewID(), Token: 1, For: -time.Second}, 1); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return metric(t, metrics, "redrive_leases_reaped_total") == 1 })
	polls := metricCount(t, metrics, "redrive_poll_duration_seconds")
	eventually(t, func() bool { return metricCount(t, metrics, "redrive_poll_duration_seconds") > polls+3 })
	if j := w.job(id); j.Status != storage.StatusQueued || j.RetryAttemptCount != 0 || metric(t, metrics, "redrive_jobs_claimed_total") != 0 {
		t.Errorf("%+v", j)
	}
	with, _ := w.having(broker.Engine{Executor: executor(func(_ context.Context, job storage.ClaimedJob) broker.Execution {
		if job.RetryAttemptCount != 0 {
			t.Errorf("the lost lease was counted: %+v", job)
		}
		return broker.Execution{}
	})})
	with.Store = w.open()
	w.start(with)
	w.waitJobs(k, storage.StatusDelivered, 1)
	catalog, err := w.store.Catalog(w.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if known, _ := catalog.ConsumerByKey(k.Key); !known.Sealed {
		t.Error("the token was opened: nothing was tested")
	}
}

// TestEngineLeasesWhatItDoes sees that a slow engine has no more jobs leased than it executes, also after quick ones.
func TestEngineLeasesWhatItDoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.engine()
	release := make(chan struct{})
	var now, most atomic.Int32
	var slow atomic.Bool
	o, metrics := w.having(broker.Engine{Concurrency: 2, Executor: executor(func(context.Context, storage.ClaimedJob) broker.Execution {
		if slow.Load() {
			most.Store(max(most.Load(), now.Add(1)))
			<-release
		}
		return broker.Execution{}
	})})
	w.start(o)
	for i := range 30 {
		w.enqueue(fmt.Sprint("quick ", i))
	}
	w.waitJobs(k, storage.StatusDelivered, 30)
	slow.Store(true)
	for i := range 6 {
		w.enqueue(fmt.Sprint("slow ", i))
	}
	eventually(t, func() bool { return now.Load() == 2 })
	polls := metricCount(t, metrics, "redrive_poll_duration_seconds")
	eventually(t, func() bool { return metricCount(t, metrics, "redrive_poll_duration_seconds") > polls+5 })
	if got := w.jobs(k); got[storage.StatusInflight] != 2 || got[storage.StatusQueued] != 4 {
		t.Errorf("%v", got)
	}
	slow.Store(false)
	close(release)
	w.waitJobs(k, storage.StatusDelivered, 36)
	if most.Load() != 2 {
		t.Errorf("%d at a time", most.Load())
	}
}

func TestEngineOptions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	done := executor(func(context.Context, storage.ClaimedJob) broker.Execution { return broker.Execution{} })
	for _, e := range []broker.Engine{{}, {Executor: done, MaxRetry: -1}, {Executor: done, MaxRetry: 1 << 16}, {Executor: done, Concurrency: -1}} {
		o, _ := w.having(e)
		if _, err := broker.New(o); err == nil || !strings.Contains(err.Error(), `"hmac"`) {
			t.Errorf("%+v: %v", e, err)
		}
	}
}
