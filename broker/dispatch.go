package broker

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

const (
	claimTimeout = 10 * time.Second
	// After a claim that failed, a lane rests: the database is away, or not itself.
	claimRest = 500 * time.Millisecond
)

// dispatcher gets jobs to consumers: it keeps a lane for each push consumer, which claims jobs as slots come free, and
// runs the attempts.
type dispatcher struct {
	o        Options
	metrics  *metrics
	pusher   *pusher
	finisher *finisher

	mu    sync.Mutex
	lanes map[uint32]*lane

	claiming     context.Context // ends when claims stop
	stopClaiming context.CancelFunc
	attempting   context.Context // ends when attempts are broken off
	breakOff     context.CancelFunc
	laneRuns     sync.WaitGroup
	attempts     sync.WaitGroup
}

func newDispatcher(o Options, m *metrics, p *pusher, f *finisher) *dispatcher {
	return &dispatcher{o: o, metrics: m, pusher: p, finisher: f, lanes: map[uint32]*lane{}}
}

func (d *dispatcher) start(ctx context.Context) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.claiming, d.stopClaiming = context.WithCancel(ctx)
	d.attempting, d.breakOff = context.WithCancel(ctx)
}

// stop ends the lanes, waits for the attempts, and breaks off claims and attempts that are still under way when ctx
// ends.
func (d *dispatcher) stop(ctx context.Context) {
	d.mu.Lock()
	d.stopClaiming()
	d.mu.Unlock()
	defer context.AfterFunc(ctx, func() {
		d.breakOff()
		d.finisher.unbound()
	})()
	d.laneRuns.Wait()
	for _, l := range d.all() {
		l.handBack(0)
	}
	d.attempts.Wait()
	d.breakOff()
	d.pusher.close()
}

// lane returns the consumer's lane, begun if need be; nil while the dispatcher stops.
func (d *dispatcher) lane(k *storage.Consumer) *lane {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.claiming == nil || d.claiming.Err() != nil {
		return nil
	}
	l := d.lanes[k.Key]
	if l == nil {
		l = newLane(d, k)
		d.lanes[k.Key] = l
		d.laneRuns.Go(func() { l.run(d.claiming) })
	}
	l.consumer.Store(k)
	return l
}

func (d *dispatcher) existing(consumerKey uint32) *lane {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lanes[consumerKey]
}

// pushable tells consumers that this instance may push to. One whose token it cannot open is other instances' business.
func pushable(k *storage.Consumer) bool { return k.Type == storage.TypePush && !k.Sealed }

// follow keeps the lanes to what the catalog says: one for each push consumer, none for others.
func (d *dispatcher) follow(catalog *storage.Catalog) {
	for k := range catalog.Consumers {
		if pushable(k) {
			d.lane(k)
		}
	}
	for _, l := range d.endOthers(catalog) {
		l.handBack(0)
	}
}

// endOthers ends and returns the lanes of consumers that were deleted or cannot be pushed to any more.
func (d *dispatcher) endOthers(catalog *storage.Catalog) (ended []*lane) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for key, l := range d.lanes {
		if k, ok := catalog.ConsumerByKey(key); !ok || !pushable(k) {
			l.end()
			delete(d.lanes, key)
			ended = append(ended, l)
		}
	}
	return ended
}

// reserve promises a place for a job that is about to be stored for the consumer, if it should be pushed from here at
// once: the consumer has a place free and no backlog that was there first. It returns the lane whose push or release
// redeems the promise, or nil.
func (d *dispatcher) reserve(k *storage.Consumer) *lane {
	if !pushable(k) {
		return nil
	}
	if l := d.lane(k); l != nil && l.reserve() {
		return l
	}
	return nil
}

// handBack returns a leased job to the backlog: it was not attempted.
func (d *dispatcher) handBack(job storage.ClaimedJob) {
	d.finisher.add(storage.Outcome{JobID: job.ID, Token: job.Token, ConsumerKey: job.ConsumerKey, Verdict: storage.HandBack})
}

func (d *dispatcher) wake(consumerKey uint32) {
	if l := d.existing(consumerKey); l != nil {
		l.wake()
	}
}

// expect makes the consumer's lane look for jobs in wait, when a retry becomes due.
func (d *dispatcher) expect(consumerKey uint32, wait time.Duration) {
	if l := d.existing(consumerKey); l != nil {
		l.expect(wait)
	}
}

// relieve hands back jobs that have waited too long for a slot: for half of the delay that a lease has on top of the
// delivery timeout, so that what is attempted always has nearly all of its time.
func (d *dispatcher) relieve() {
	for _, l := range d.all() {
		l.handBack(d.o.RationalDelay / 2)
	}
}

func (d *dispatcher) all() []*lane {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Values(d.lanes))
}
