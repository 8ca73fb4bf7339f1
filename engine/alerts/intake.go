package alerts

import (
	"context"
	"errors"
	"fmt"

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
	for i, a := range found {
		m, err := Message(a)
		if err != nil {
			return queued, repeated, fmt.Errorf("alert %d of %d: %w", i+1, len(found), err)
		}
		created, err := in.Put(ctx, a.ID(), m)
		switch {
		case err != nil:
			return queued, repeated, fmt.Errorf("alert %d of %d: %w", i+1, len(found), err)
		case created:
			queued++
		default:
			repeated++
		}
	}
	return queued, repeated, nil
}

// Unreadable tells whether an error of Take is the sender's: the body is no webhook that is understood.
func (in Intake) Unreadable(err error) bool { return errors.Is(err, ErrUnreadable) }
