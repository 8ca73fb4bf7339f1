package broker

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/storage/storagetest"
)

// newTestLane is of a broker that was not started: nothing moves but what the test moves. It has one job, QUEUED.
func newTestLane(t *testing.T) *lane {
	t.Helper()
	l, _ := newTestBroker(t)
	return l
}

func newTestBroker(t *testing.T) (*lane, *Broker) {
	t.Helper()
	s, err := storage.Open(storage.Options{DSN: storagetest.DSN(t), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	b, err := New(Options{Store: s})
	if err != nil {
		t.Fatal(err)
	}
	k, err := s.PutEngineQueue(t.Context(), "k", "jobs")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Enqueue(t.Context(), storage.Enqueued{Queue: "jobs", MessageID: "m"}); err != nil {
		t.Fatal(err)
	}
	l := newLane(b.dispatcher, k, &means{concurrency: 1})
	b.dispatcher.lanes[k.Key] = l
	return l, b
}

func (l *lane) awake() bool {
	select {
	case <-l.wakeup:
		return true
	default:
		return false
	}
}

// A look that came before the database's clock said that the retry was due is followed by another at once; one that found
// it in somebody else's hands is not.
func TestLaneLooksAgain(t *testing.T) {
	t.Parallel()
	l := newTestLane(t)
	due := func(in time.Duration) {
		if _, err := l.d.o.Store.DB().ExecContext(t.Context(), `UPDATE job SET dueAt = NOW(6) + INTERVAL ? MICROSECOND`, in.Microseconds()); err != nil {
			t.Fatal(err)
		}
	}
	due(-time.Millisecond) // it was not yet, a moment ago
	if !l.lookAhead(t.Context()) || !l.awake() || !l.due.IsZero() {
		t.Error("no second look")
	}
	if l.lookAhead(t.Context()) || l.awake() || time.Until(l.due) < dueStep {
		t.Error("a third look at once")
	}

	l.due = time.Time{}
	due(time.Hour)
	if l.lookAhead(t.Context()) || time.Until(l.due) < 59*time.Minute {
		t.Errorf("the next look in %v", time.Until(l.due))
	}
	due(-time.Millisecond)
	if !l.lookAhead(t.Context()) || !l.awake() {
		t.Error("no second look, the next time")
	}
}

// Large transactions take turns while a consumer without a backlog has a retry that is due, or will be in a moment.
func TestRetryNear(t *testing.T) {
	t.Parallel()
	l := newTestLane(t)
	far := time.Now().Add(time.Hour)
	for name, tt := range map[string]struct {
		set  func()
		near bool
	}{
		"none is known of":      {func() {}, false},
		"later":                 {func() { l.due = far }, false},
		"in a moment":           {func() { l.due = time.Now() }, true},
		"looked for":            {func() { l.due = time.Now(); l.look() }, true},
		"found":                 {func() { l.due = time.Now(); l.look(); l.looked() }, false},
		"soon, with a backlog":  {func() { l.due = time.Now(); l.backlog = true }, false},
		"now, with a backlog":   {func() { l.look(); l.backlog = true }, false},
		"of a lane that is not": {func() { l.due = time.Now(); clear(l.d.lanes) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			l.due, l.looking, l.backlog = time.Time{}, false, false
			l.d.lanes[l.consumer.Load().Key] = l
			tt.set()
			if near := l.d.retryNear(); near != tt.near {
				t.Errorf("near: %v", near)
			}
			defer l.d.o.Store.Turn(t.Context())()
			began := time.Now()
			l.d.o.Store.Turn(t.Context())()
			if waited := time.Since(began) > 200*time.Millisecond; waited != tt.near {
				t.Errorf("waited: %v", waited)
			}
		})
	}
}

// The look for a retry waits for no turn, whatever the lane claimed before: only claims from a backlog are large.
func TestRetryWaitsForNoTurn(t *testing.T) {
	t.Parallel()
	l, b := newTestBroker(t)
	for i := range largeBatch {
		if _, _, err := b.o.Store.Enqueue(t.Context(), storage.Enqueued{Queue: "jobs", MessageID: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	l.means = &means{concurrency: 2 * largeBatch, do: func(context.Context, *storage.Consumer, storage.ClaimedJob) result { return result{} }}
	b.dispatcher.start(t.Context())
	defer b.dispatcher.stop(t.Context())
	if drained := l.claim(t.Context()); !drained || l.busy == 0 {
		t.Fatalf("drained %v with the first claim", drained)
	}

	b.o.Store.TakeTurns(func() bool { return true })
	defer b.o.Store.Turn(t.Context())() // of somebody else's requeue
	began := time.Now()
	l.look()
	l.claim(t.Context())
	if took := time.Since(began); took > 200*time.Millisecond {
		t.Errorf("the look for a retry took %v", took)
	}
}

// Nobody's retry is near once claims have stopped: the last writes of the instance go on side by side.
func TestNoRetryNearAfterStop(t *testing.T) {
	t.Parallel()
	l, b := newTestBroker(t)
	l.due = time.Now()
	b.dispatcher.start(t.Context())
	if !b.dispatcher.retryNear() {
		t.Error("none is near before the stop")
	}
	b.dispatcher.stop(t.Context())
	if b.dispatcher.retryNear() {
		t.Error("one is near after the stop")
	}
}
