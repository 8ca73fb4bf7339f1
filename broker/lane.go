package broker

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

// lane claims jobs of one consumer and bounds the attempts that are under way for it.
type lane struct {
	d        *dispatcher
	consumer atomic.Pointer[storage.Consumer] // the latest version
	wakeup   chan struct{}                    // holds a token when there may be work
	ended    chan struct{}
	endOnce  sync.Once

	mu      sync.Mutex
	free    int  // slots
	backlog bool // QUEUED jobs wait, as far as is known: then new ones queue up behind them
}

func newLane(d *dispatcher, k *storage.Consumer) *lane {
	l := &lane{d: d, wakeup: make(chan struct{}, 1), ended: make(chan struct{}), free: d.o.Concurrency}
	l.consumer.Store(k)
	return l
}

func (l *lane) end() { l.endOnce.Do(func() { close(l.ended) }) }

// wake makes the lane look for jobs; until it has looked, new jobs queue up behind what may be there.
func (l *lane) wake() {
	l.mu.Lock()
	l.backlog = true
	l.mu.Unlock()
	l.signal()
}

func (l *lane) signal() {
	select {
	case l.wakeup <- struct{}{}:
	default:
	}
}

func (l *lane) reserve() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.backlog || l.free == 0 {
		return false
	}
	l.free--
	return true
}

func (l *lane) release(n int) {
	if n == 0 {
		return
	}
	l.mu.Lock()
	l.free += n
	waits := l.backlog
	l.mu.Unlock()
	if waits {
		l.signal()
	}
}

// takeSlots takes all the free slots and clears the backlog mark: what the claim that follows finds sets it again,
// and so does whoever stores a job after it began.
func (l *lane) takeSlots() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.free
	if n > 0 {
		l.free = 0
		l.backlog = false
	}
	return n
}

func (l *lane) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.ended:
			return
		case <-l.wakeup:
		}
		for l.claim(ctx) {
		}
	}
}

// claim fills the free slots with claimed jobs and reports whether there may be more for slots that are free now.
func (l *lane) claim(ctx context.Context) (again bool) {
	slots := l.takeSlots()
	if slots == 0 {
		return false // the release of the next slot wakes the lane
	}
	began := time.Now()
	lease := newLease(l.d.o)
	k := l.consumer.Load()
	jobs, err := l.claimJobs(ctx, k, lease, slots)
	if err == nil && len(jobs) == slots {
		l.mu.Lock()
		l.backlog = true
		l.mu.Unlock()
	}
	for _, j := range jobs {
		l.d.push(k, j, began)
	}
	l.release(slots - len(jobs))
	l.d.metrics.claimed.Add(float64(len(jobs)))
	if err != nil && ctx.Err() == nil {
		l.d.o.Log.Warn("claim failed", "channel", k.ChannelKey, "consumer", k.ID, "error", err)
		select {
		case <-ctx.Done():
		case <-l.ended:
		case <-time.After(claimRest):
			l.wake()
		}
		return false
	}
	return len(jobs) == slots
}

// claimJobs does not end with ctx: a claim that is broken off may have been committed, and its jobs would wait for
// their lease to end.
func (l *lane) claimJobs(ctx context.Context, k *storage.Consumer, lease storage.Lease, slots int) ([]storage.ClaimedJob, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), claimTimeout)
	defer cancel()
	return l.d.o.Store.Claim(ctx, k.Key, lease, slots)
}
