package broker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

// ErrDraining is returned to broadcasts that come while the broker stops.
var ErrDraining = errors.New("the broker is stopping")

// ErrBusy is returned to broadcasts while more of them wait than can be accepted in time.
var ErrBusy = errors.New("too many broadcasts are waiting")

// ErrStale is returned to a broadcast whose channel or producer changed after it was authenticated.
var ErrStale = errors.New("the channel or the producer was changed")

// Broker runs one instance's share of the work.
type Broker struct {
	o          Options
	metrics    *metrics
	acceptor   *acceptor
	dispatcher *dispatcher
	finisher   *finisher
	sweeper    *sweeper

	startOnce, stopOnce sync.Once
	started             bool
	stopErr             error
}

// New prepares a broker; Start runs it.
func New(o Options) (*Broker, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, err
	}
	b := &Broker{o: o, metrics: m}
	b.finisher = newFinisher(o, m)
	b.dispatcher = newDispatcher(o, m, b.finisher)
	b.finisher.retriesIn = b.dispatcher.expect
	o.Store.TakeTurns(b.dispatcher.retryNear)
	b.acceptor = newAcceptor(o, m, b.dispatcher)
	b.sweeper = newSweeper(o, m, b.dispatcher)
	return b, nil
}

// Start begins to accept, claim and push. It returns at once; a database that is away is waited for. The work goes on
// until Stop, whatever becomes of ctx.
func (b *Broker) Start(ctx context.Context) {
	b.startOnce.Do(func() {
		b.started = true
		own := context.WithoutCancel(ctx)
		b.finisher.start(own)
		b.dispatcher.start(own)
		b.acceptor.start(own)
		b.sweeper.start(own)
	})
}

// Stop ends in order: broadcasts are refused, those accepted are stored; no more jobs are claimed; attempts under way
// may end until ctx does, then they are broken off and their jobs handed back; the outcomes are written. Only the
// last, bounded by finishGrace, goes on after ctx.
func (b *Broker) Stop(ctx context.Context) error {
	b.startOnce.Do(func() {}) // a broker that was never started cannot be any more
	b.stopOnce.Do(func() {
		if !b.started {
			return
		}
		b.acceptor.stop(ctx)
		b.sweeper.stop()
		b.dispatcher.stop(ctx)
		b.stopErr = b.finisher.stop(context.WithoutCancel(ctx))
	})
	return b.stopErr
}

// Broadcast is a message to accept. Channel and Producer are as of the catalog by which it was authenticated.
type Broadcast struct {
	Channel      *storage.Channel
	Producer     *storage.Producer
	MessageID    string // empty: one is made
	ContentType  string
	Priority     uint32
	Headers      map[string]string // passed on with every delivery
	Body         []byte            // kept by the broker: not to be changed
	ScheduledFor *time.Time        // nil: now
}

// Accept stores a message and its jobs and returns its id after the commit. The errors: storage.ErrDuplicate,
// ErrStale (authenticate again), ErrBusy and ErrDraining (later, or elsewhere), or the database's. After any but the
// first two the message may have been stored nonetheless where the connection broke at the commit.
func (b *Broker) Accept(ctx context.Context, m Broadcast) (messageID string, err error) {
	return b.acceptor.accept(ctx, m)
}

// Kick tells the broker that a consumer has work, so that it is looked at now and not at the next poll.
func (b *Broker) Kick(consumerKey uint32) { b.dispatcher.wake(consumerKey) }
