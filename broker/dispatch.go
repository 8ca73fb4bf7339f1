package broker

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

const (
	claimTimeout = 10 * time.Second
	// After a claim that failed, a lane rests: the database is away, or not itself.
	claimRest = 500 * time.Millisecond
)

// dispatcher gets jobs done: it keeps a lane for each push consumer and each engine that this instance has, which claims
// jobs as slots come free, and runs the attempts.
type dispatcher struct {
	o         Options
	metrics   *metrics
	pusher    *pusher
	attempter *attempter
	finisher  *finisher
	push      *means
	engines   map[string]*means

	mu    sync.Mutex
	lanes map[uint32]*lane

	failing atomic.Int32 // lanes whose last claim failed

	claiming     context.Context // ends when claims stop
	stopClaiming context.CancelFunc
	attempting   context.Context // ends when attempts are broken off
	breakOff     context.CancelFunc
	laneRuns     sync.WaitGroup
	attempts     sync.WaitGroup
}

func newDispatcher(o Options, m *metrics, f *finisher) *dispatcher {
	p := newPusher(o)
	return &dispatcher{o: o, metrics: m, pusher: p, attempter: &attempter{o, m}, finisher: f,
		push: p.means(), engines: engineMeans(o), lanes: map[uint32]*lane{}}
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

// lane returns the consumer's lane, begun if need be; nil while the dispatcher stops, and where its jobs are not done
// from here.
func (d *dispatcher) lane(k *storage.Consumer) *lane {
	m := d.meansOf(k)
	if m == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.claiming == nil || d.claiming.Err() != nil {
		return nil
	}
	l := d.lanes[k.Key]
	if l == nil {
		l = newLane(d, k, m)
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

// meansOf is how the consumer's jobs are done from here; nil: they are not. A push consumer whose token this instance cannot
// open is other instances' business; an engine needs none.
func (d *dispatcher) meansOf(k *storage.Consumer) *means {
	switch {
	case k.Type == storage.TypePush && !k.Sealed:
		return d.push
	case k.Type == storage.TypeEngine:
		return d.engines[k.ID]
	}
	return nil
}

// follow keeps the lanes to what the catalog says: one for each consumer whose jobs are done from here.
func (d *dispatcher) follow(catalog *storage.Catalog) {
	for k := range catalog.Consumers {
		d.lane(k)
	}
	for _, l := range d.endOthers(catalog) {
		l.handBack(0)
	}
}

// endOthers ends and returns the lanes of consumers that were deleted or whose jobs are not done from here any more.
func (d *dispatcher) endOthers(catalog *storage.Catalog) (ended []*lane) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for key, l := range d.lanes {
		if k, ok := catalog.ConsumerByKey(key); !ok || d.meansOf(k) == nil {
			l.end()
			delete(d.lanes, key)
			ended = append(ended, l)
		}
	}
	return ended
}

// reserve promises a place for a job that is about to be stored for the consumer, if it should be attempted from here at
// once: the consumer has a place free and no backlog that was there first. It returns the lane whose push or release
// redeems the promise, or nil.
func (d *dispatcher) reserve(k *storage.Consumer) *lane {
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

// retryNear tells whether a consumer that keeps up with its jobs has a retry that is due, or will be shortly, and that
// will be claimed from here.
func (d *dispatcher) retryNear() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.claiming != nil && d.claiming.Err() != nil {
		return false
	}
	for _, l := range d.lanes {
		if l.retryNear() {
			return true
		}
	}
	return false
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
