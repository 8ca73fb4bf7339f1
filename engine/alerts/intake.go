package alerts

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/redrive-mq/redrive/engine"
)

// Intake takes webhooks in.
type Intake struct {
	// Put puts a message into the engine's queue; created is false where one of this id was put before. Required.
	Put func(ctx context.Context, id string, m engine.Message) (created bool, err error)
}

// Take puts the alerts of a webhook's body into the queue and tells how many are new there, and how many repeat what was
// taken before. The errors: ErrUnreadable, before anything was put, and Put's, after which some alerts may be in the
// queue: the same body may be taken again.
func (in Intake) Take(ctx context.Context, body []byte) (queued, repeated int, err error) {
	found, err := Parse(body)
	if err != nil {
		return 0, 0, err
	}
	results := make([]result, len(found))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var next atomic.Int64
	var puts sync.WaitGroup
	for range min(putsAtOnce, len(found)) {
		puts.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(found)); i = next.Add(1) - 1 {
				if results[i] = in.put(ctx, found[i]); results[i].err != nil {
					cancel() // the sender comes again with all of them
				}
			}
		})
	}
	puts.Wait()
	for i, r := range results {
		switch {
		case r.err != nil && (err == nil || errors.Is(err, context.Canceled)):
			err = fmt.Errorf("alert %d of %d: %w", i+1, len(found), r.err)
		case r.created:
			queued++
		case r.err == nil:
			repeated++
		}
	}
	return queued, repeated, err
}

// putsAtOnce are the alerts of a webhook that are put at the same time: the database commits them together. One after the
// other, 10,000 took longer than their sender waits.
const putsAtOnce = 16

// result is what became of one alert.
type result struct {
	created bool
	err     error
}

func (in Intake) put(ctx context.Context, a Alert) result {
	if err := ctx.Err(); err != nil {
		return result{err: err}
	}
	m, err := Message(a)
	if err != nil {
		return result{err: err}
	}
	created, err := in.Put(ctx, a.ID(), m)
	return result{created, err}
}

// Unreadable tells whether an error of Take is the sender's: the body is no webhook that is understood.
func (in Intake) Unreadable(err error) bool { return errors.Is(err, ErrUnreadable) }
