package main

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage/storagetest"
)

func TestMain(m *testing.M) {
	if os.Getenv(actAsServe) != "" {
		actServe()
		return
	}
	storagetest.Main(m)
}

// tiny are settings under which all scenarios take a second or two against the fake.
func tiny(only ...string) settings {
	s := sized("small")
	s.Only, s.Repeat = only, 1
	s.Clients, s.Messages, s.PayloadBytes, s.Consumers = 8, 200, 64, 3
	s.Duration, s.Rate, s.Dead, s.NewDead, s.Requeue = 200*time.Millisecond, 100, 50, 7, 300
	s.Warmup, s.Samples, s.Cycles, s.RetryRate, s.Baseline = 10, 5, 2, 100, 100*time.Millisecond
	s.Backlog, s.History = 120, 2000
	s.Stall = 20 * time.Second
	return s
}

func benchOf(f *fakeBroker, set settings) *bench {
	return &bench{set: set, rep: newReport(set), log: io.Discard, open: f.open}
}

func TestEveryScenarioMeasuresAndChecks(t *testing.T) {
	t.Parallel()
	set := tiny("accept", "e2e", "idle", "status", "cycle", "purge", "requeue", "pull", "history")
	set.Repeat = 2
	b := benchOf(newFakeBroker(t, &fakeBroker{}), set)
	if err := b.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range b.rep.Checks {
		if !c.OK {
			t.Errorf("%s: %s is %d, must be %d", c.Scenario, c.What, c.Got, c.Want)
		}
	}
	seen := map[string]bool{}
	for _, f := range b.rep.Figures {
		seen[f.Metric] = true
		if f.Title == "" || f.Unit == "" {
			t.Errorf("%s is not among the metrics", f.Metric)
		}
		if !strings.HasPrefix(f.Metric, "requeue.late") && len(f.Values) != 2 {
			t.Errorf("%s (%s) has %d values, not 2", f.Metric, f.Params, len(f.Values))
		}
	}
	for name := range metrics {
		// The fake retries at once and requeues in milliseconds: no retry comes due meanwhile, as a rule.
		if !seen[name] && !strings.HasPrefix(name, "requeue.late") {
			t.Errorf("%s was not measured", name)
		}
	}
}

func TestALostMessageIsNoticed(t *testing.T) {
	t.Parallel()
	for _, scenario := range []string{"accept", "e2e", "idle"} {
		set := tiny(scenario)
		set.Stall = 300 * time.Millisecond
		b := benchOf(newFakeBroker(t, &fakeBroker{loseEvery: 15}), set)
		if err := b.run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if b.rep.right() {
			t.Errorf("%s did not notice that messages were lost", scenario)
		}
	}
}

func TestAWrongCountIsNoticed(t *testing.T) {
	t.Parallel()
	for _, scenario := range []string{"accept", "status", "requeue"} {
		b := benchOf(newFakeBroker(t, &fakeBroker{showExtra: 1}), tiny(scenario))
		if err := b.run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if b.rep.right() {
			t.Errorf("%s did not notice that /dlq-status was wrong by one", scenario)
		}
		if err := publish(b.rep, "", io.Discard); !errors.Is(err, errWrong) {
			t.Errorf("the end of %s is %v, not %v", scenario, err, errWrong)
		}
	}
}

func TestAWrongListIsNoticed(t *testing.T) {
	t.Parallel()
	for scenario, broken := range map[string]*fakeBroker{"pull": {swapQueued: true}, "history": {allHistory: true}} {
		b := benchOf(newFakeBroker(t, broken), tiny(scenario))
		if err := b.run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if b.rep.right() {
			t.Errorf("%s did not notice that a list was wrong", scenario)
		}
	}
}

func TestARefusedRequeueFailsAtOnce(t *testing.T) {
	t.Parallel()
	set := tiny("requeue")
	set.Stall = time.Minute
	b := benchOf(newFakeBroker(t, &fakeBroker{keepOnFail: true}), set)
	began := time.Now()
	err := b.run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "500") {
		t.Errorf("error is %v, not the broker's 500", err)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it waited %v for deliveries that cannot come", took)
	}
}

func TestAMissingHistogramIsNamed(t *testing.T) {
	t.Parallel()
	err := benchOf(newFakeBroker(t, &fakeBroker{noMetrics: true}), tiny("cycle")).run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "redrive_dlq_cycle_duration_seconds") {
		t.Errorf("error is %v and does not name the metric", err)
	}
}

func TestTheEndOfTheBrokerEndsTheRun(t *testing.T) {
	t.Parallel()
	f := newFakeBroker(t, &fakeBroker{})
	died := make(chan struct{})
	set := tiny("accept")
	set.Duration = time.Minute
	b := benchOf(f, set)
	reason := errors.New("it fell over")
	b.open = func(ctx context.Context, env map[string]string) (*world, error) {
		w, err := f.open(ctx, env)
		if err == nil {
			w.died, w.cause = died, func() error { return reason }
			close(died)
		}
		return w, err
	}
	if err := b.run(t.Context()); !errors.Is(err, reason) {
		t.Errorf("error is %v, not %v", err, reason)
	}
}

func TestCancellingEndsTheRun(t *testing.T) {
	t.Parallel()
	set := tiny("idle")
	set.Duration = time.Minute
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := benchOf(newFakeBroker(t, &fakeBroker{}), set).run(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v, not that of the context", err)
	}
}

func TestLatenessIsSplitByWhenRetriesWereDue(t *testing.T) {
	t.Parallel()
	s := tiny()
	b := &bench{set: s, rep: newReport(s)}
	f := newFlow("t", 4)
	f.seeded()
	sk := &sink{}
	_, r := sk.consumer(f, true)
	second, ms := instant(time.Second), instant(time.Millisecond)
	for i, x := range []struct{ failed, late instant }{
		{1 * second, 5 * ms}, {2 * second, 9 * ms}, // due at 2 s and 3 s: before
		{3 * second, 40 * ms},  // due at 4 s: during
		{9 * second, 500 * ms}, // due at 10 s: after the end
	} {
		r.failedAt[i].Store(x.failed)
		r.late[i].Store(x.failed + second + x.late)
	}
	b.lateness(params{}, r, 3*second+ms, 5*second)
	for metric, want := range map[string]float64{
		"requeue.late.before": 9, "requeue.late.worst": 40, "requeue.late.p50": 40, "requeue.late.p99": 40,
	} {
		if got := b.rep.figure(metric, params{}).Median; got != want {
			t.Errorf("%s is %v ms, not %v", metric, got, want)
		}
	}
}
