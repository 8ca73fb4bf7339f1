package broker

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

const (
	acceptLanes   = 3                // transactions under way at a time
	batchMessages = 256              // messages in one
	batchJobs     = 2000             // jobs in one, unless a single message makes more
	batchBytes    = 4 << 20          // payload in one, unless a single message has more: servers limit a packet to 16 MiB
	waitingMost   = 20_000           // broadcasts that may wait
	waitingBytes  = 256 << 20        // and their bytes
	acceptTimeout = 10 * time.Second // of one transaction, retries included
)

// acceptor coalesces concurrent broadcasts into transactions. There is no timer: a lane that is free takes what
// waits, one message when idle, many under load.
type acceptor struct {
	o          Options
	metrics    *metrics
	dispatcher *dispatcher

	mu       sync.Mutex
	waiting  []*accepting
	bytes    int
	draining bool
	ready    chan struct{} // holds a token while broadcasts wait and a lane should look

	lanes   sync.WaitGroup
	storing context.Context // ends when even what waits is given up
	giveUp  context.CancelFunc
}

// accepting is a broadcast on its way.
type accepting struct {
	Broadcast
	consumers []*storage.Consumer
	places    []*lane // of each consumer's job: where a place was promised, else nil
	row       *storage.NewMessage
	done      chan error // holds one
}

// size is roughly what the message takes in a statement.
func (p *accepting) size() int {
	n := len(p.Body)
	for name, value := range p.Headers {
		n += len(name) + len(value)
	}
	return n
}

func newAcceptor(o Options, m *metrics, d *dispatcher) *acceptor {
	return &acceptor{o: o, metrics: m, dispatcher: d, ready: make(chan struct{}, acceptLanes)}
}

func (a *acceptor) start(ctx context.Context) {
	a.storing, a.giveUp = context.WithCancel(ctx)
	first := uint8(rand.N(storage.TallyShards)) // instances should not meet in the same shards
	for i := range uint8(acceptLanes) {
		a.lanes.Go(func() { a.lane(first + i) })
	}
}

// stop refuses new broadcasts, stores those that wait, and ends the lanes. What is not stored when ctx ends is refused.
func (a *acceptor) stop(ctx context.Context) {
	a.mu.Lock()
	a.draining = true
	a.mu.Unlock()
	close(a.ready)
	defer context.AfterFunc(ctx, a.giveUp)()
	a.lanes.Wait()
	a.giveUp()
}

func (a *acceptor) accept(ctx context.Context, m Broadcast) (string, error) {
	if m.MessageID == "" {
		m.MessageID = storage.NewID().String()
	}
	p := &accepting{Broadcast: m, done: make(chan error, 1)}
	if err := a.enqueue(p); err != nil {
		return "", err
	}
	select {
	case err := <-p.done:
		return m.MessageID, err
	case <-ctx.Done():
		return "", ctx.Err() // it may still be stored
	}
}

func (a *acceptor) enqueue(p *accepting) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.draining:
		return ErrDraining
	case len(a.waiting) >= waitingMost || a.bytes+p.size() > waitingBytes && len(a.waiting) > 0:
		return ErrBusy
	}
	a.waiting = append(a.waiting, p)
	a.bytes += p.size()
	select {
	case a.ready <- struct{}{}:
	default: // as many tokens as lanes are out
	}
	return nil
}

// take returns the next batch, nil when nothing waits.
func (a *acceptor) take() []*accepting {
	a.mu.Lock()
	defer a.mu.Unlock()
	n, bytes := 0, 0
	for n < len(a.waiting) && n < batchMessages && (n == 0 || bytes+a.waiting[n].size() <= batchBytes) {
		bytes += a.waiting[n].size()
		n++
	}
	batch := a.waiting[:n:n]
	if a.waiting = a.waiting[n:]; len(a.waiting) == 0 {
		a.waiting = nil // lets go of the array
	}
	a.bytes -= bytes
	return batch
}

func (a *acceptor) lane(shard uint8) {
	for range a.ready {
		for batch := a.take(); len(batch) > 0; batch = a.take() {
			a.store(shard, batch)
		}
	}
	for batch := a.take(); len(batch) > 0; batch = a.take() {
		a.store(shard, batch) // what was taken in before the stop
	}
}

// store writes a batch with as many transactions as its jobs need. The catalog is read after the batch was taken, so
// every consumer whose creation was answered before one of its broadcasts came gets its job.
func (a *acceptor) store(shard uint8, batch []*accepting) {
	if a.storing.Err() != nil {
		answer(batch, ErrDraining)
		return
	}
	ctx, cancel := context.WithTimeout(a.storing, acceptTimeout)
	catalog, err := a.o.Store.Catalog(ctx)
	cancel()
	if err != nil {
		answer(batch, err)
		return
	}
	batch = authentic(catalog, batch)
	for len(batch) > 0 {
		n, jobs := 0, 0
		for n < len(batch) && (n == 0 || jobs+len(batch[n].consumers) <= batchJobs) {
			jobs += len(batch[n].consumers)
			n++
		}
		a.commit(shard, batch[:n])
		batch = batch[n:]
	}
}

// authentic answers those whose channel or producer changed since they were authenticated, and returns the others.
func authentic(catalog *storage.Catalog, batch []*accepting) []*accepting {
	kept := batch[:0]
	for _, p := range batch {
		channel, okChannel := catalog.ChannelByKey(p.Channel.Key)
		producer, okProducer := catalog.ProducerByKey(p.Producer.Key)
		if !okChannel || !okProducer || !channel.ChangedAt.Equal(p.Channel.ChangedAt) || !producer.ChangedAt.Equal(p.Producer.ChangedAt) ||
			producer.Signing.Current() != p.Producer.Signing.Current() {
			p.done <- ErrStale
			continue
		}
		if p.ScheduledFor == nil {
			p.consumers = catalog.ConsumersOf(channel)
		}
		kept = append(kept, p)
	}
	return kept
}

// commit stores messages in one transaction and sends the jobs on their way.
func (a *acceptor) commit(shard uint8, batch []*accepting) {
	ctx, cancel := context.WithTimeout(a.storing, acceptTimeout)
	defer cancel()
	lease := newLease(a.o)
	began := time.Now()
	rows := make([]*storage.NewMessage, len(batch))
	for i, p := range batch {
		p.row = &storage.NewMessage{Key: storage.NewID(), ChannelKey: p.Channel.Key, ProducerKey: p.Producer.Key, MessageID: p.MessageID,
			ContentType: p.ContentType, Priority: p.Priority, Headers: p.Headers, Body: p.Body, ScheduledFor: p.ScheduledFor}
		for _, k := range p.consumers {
			place := a.dispatcher.reserve(k)
			p.places = append(p.places, place)
			p.row.Jobs = append(p.row.Jobs, storage.NewJob{ID: storage.NewID(), ConsumerKey: k.Key, Leased: place != nil})
		}
		rows[i] = p.row
	}
	err := a.o.Store.Accept(ctx, shard, lease, rows)
	a.metrics.acceptDuration.Observe(time.Since(began).Seconds())
	a.metrics.acceptBatch.Observe(float64(len(batch)))
	for _, p := range batch {
		a.settle(p, lease.Token, began, err)
	}
}

// settle answers one broadcast of a transaction and hands its jobs on.
func (a *acceptor) settle(p *accepting, token uint64, began time.Time, err error) {
	if err == nil && p.row.Duplicate {
		err = storage.ErrDuplicate
	}
	p.done <- err
	if err == nil {
		a.metrics.accepted.Inc()
	}
	for i, k := range p.consumers {
		job, place := p.row.Jobs[i], p.places[i]
		switch {
		case place != nil && err != nil:
			place.release(1)
			if storage.IsCommitUnknown(err) {
				// If it was stored after all, its lease need not run out. If not, this changes nothing.
				a.dispatcher.handBack(storage.ClaimedJob{ID: job.ID, ConsumerKey: k.Key, Token: token})
			}
		case place != nil:
			place.push(leased{storage.ClaimedJob{ID: job.ID, ConsumerKey: k.Key, ChannelKey: p.Channel.Key, MessageID: p.MessageID,
				ContentType: p.ContentType, Priority: p.Priority, Headers: p.Headers, Body: p.Body, Token: token}, began})
		default:
			a.dispatcher.wake(k.Key)
		}
	}
}

func answer(batch []*accepting, err error) {
	for _, p := range batch {
		p.done <- err
	}
}

// newLease makes a lease with a token that no other has: 64 random bits, 0 left out as the token of no lease.
func newLease(o Options) storage.Lease {
	return storage.Lease{Owner: o.InstanceID, Token: rand.Uint64N(1<<64-1) + 1, For: o.lease()}
}
