package broker

import (
	"context"
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

// stop ends the lanes, waits for the attempts, and breaks off those that are still under way when ctx ends.
func (d *dispatcher) stop(ctx context.Context) {
	d.mu.Lock()
	d.stopClaiming()
	d.mu.Unlock()
	d.laneRuns.Wait()
	ended := make(chan struct{})
	go func() { d.attempts.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	d.breakOff()
	<-ended
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

// follow keeps the lanes to what the catalog says: one for each push consumer, none for others.
func (d *dispatcher) follow(catalog *storage.Catalog) {
	for k := range catalog.Consumers {
		if k.Type == storage.TypePush {
			d.lane(k)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for key, l := range d.lanes {
		if k, ok := catalog.ConsumerByKey(key); !ok || k.Type != storage.TypePush {
			l.end()
			delete(d.lanes, key)
		}
	}
}

// reserve takes a slot for a job that is about to be stored for the consumer, if it should be pushed from here at
// once: the consumer has a free slot and no backlog that was there first. The slot goes back with release or push.
func (d *dispatcher) reserve(k *storage.Consumer) bool {
	l := d.lane(k)
	return l != nil && l.reserve()
}

func (d *dispatcher) release(consumerKey uint32) {
	if l := d.existing(consumerKey); l != nil {
		l.release(1)
	}
}

func (d *dispatcher) wake(consumerKey uint32) {
	if l := d.existing(consumerKey); l != nil {
		l.wake()
	}
}

// push attempts a job under a lease that began, at the latest, at leased. It returns at once; the slot of the job is
// released when its attempt has ended.
func (d *dispatcher) push(k *storage.Consumer, job storage.ClaimedJob, leased time.Time) {
	d.metrics.inflight.Inc()
	d.attempts.Go(func() {
		defer d.metrics.inflight.Dec()
		outcome := d.pusher.attempt(d.attempting, k, job, leased)
		d.finisher.add(outcome)
		d.release(k.Key)
	})
}
