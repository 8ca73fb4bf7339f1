package broker_test

import (
	"context"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/broker"
	"github.com/redrive-mq/redrive/storage"
)

// An attempt that takes several times as long as a lease keeps its job, although other instances look for leases that
// ran out all the time.
func TestEngineTakesItsTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.engine()
	begun, release := make(chan bool, 10), make(chan bool)
	e := broker.Engine{Executor: executor(func(ctx context.Context, _ storage.ClaimedJob) broker.Execution {
		begun <- true
		select {
		case <-release:
		case <-ctx.Done():
			t.Error("its lease was lost")
		}
		return broker.Execution{}
	})}
	for range 2 {
		o, _ := w.having(e)
		o.DeliveryTimeout, o.RationalDelay, o.PollInterval = 200*time.Millisecond, 100*time.Millisecond, 20*time.Millisecond
		w.start(o)
	}
	id := w.enqueue("m1")
	<-begun
	claimed := w.job(id).StatusChangedAt
	eventually(t, func() bool { // four leases later, by the database's clock
		now, err := w.store.Now(w.ctx)
		return err == nil && now.Sub(claimed) > 1200*time.Millisecond
	})
	if j := w.job(id); j.Status != storage.StatusInflight || !j.StatusChangedAt.Equal(claimed) {
		t.Errorf("it was taken away: %+v", j)
	}
	close(release)
	w.waitJobs(k, storage.StatusDelivered, 1)
	if len(begun) != 0 {
		t.Error("it was executed again")
	}
}

// An attempt whose lease somebody else has is ended, and changes nothing.
func TestEngineLosesItsLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.engine()
	n := 0
	begun := make(chan bool)
	o, metrics := w.having(broker.Engine{Concurrency: 1, Executor: executor(func(ctx context.Context, _ storage.ClaimedJob) broker.Execution {
		if n++; n == 1 {
			begun <- true
			<-ctx.Done()
			return broker.Execution{Err: ctx.Err()}
		}
		return broker.Execution{}
	})})
	o.DeliveryTimeout, o.RationalDelay = 200*time.Millisecond, 100*time.Millisecond
	w.start(o)
	id := w.enqueue("m1")
	<-begun
	if _, err := w.store.DB().ExecContext(w.ctx, `UPDATE job SET leaseToken = leaseToken + 1 WHERE id = ?`, id); err != nil {
		t.Fatal(err)
	}
	w.waitJobs(k, storage.StatusDelivered, 1)
	if j := w.job(id); j.RetryAttemptCount != 0 {
		t.Errorf("the loss was counted: %+v", j)
	}
	eventually(t, func() bool { return metric(t, metrics, "redrive_stale_attempts_total") == 1 }) // counted after the commit
}
