package storage

import (
	"context"
	"database/sql"
	"sync"
	"sync/atomic"
	"time"
)

// turnWait bounds how long a large transaction waits for its turn: one that stands still must not hold up the rest.
const turnWait = 250 * time.Millisecond

// turns lets large transactions of this process take turns while something small must not be late beside them.
type turns struct {
	wanted atomic.Pointer[func() bool] // nil: never

	mu      sync.Mutex
	current chan struct{} // of whoever has the turn, closed when it is over; nil: nobody has it
}

// TakeTurns says when large transactions take turns: while wanted says so, one of them goes on at a time, and the others
// wait for it, at most 250 ms each. Who waited so long has the turn from then on: what stands still is waited for once.
func (s *Store) TakeTurns(wanted func() bool) { s.turns.wanted.Store(&wanted) }

// Turn waits, if need be, for the turn of a large transaction, some hundred rows, and returns what ends it; where ctx ends
// first there is no turn to end. What this package does in batches (requeues, purges, expiry, retention, pruning, the summary)
// takes its turns by itself.
func (s *Store) Turn(ctx context.Context) (end func()) {
	if wanted := s.turns.wanted.Load(); wanted == nil || !(*wanted)() {
		return func() {}
	}
	patience := time.NewTimer(turnWait)
	defer patience.Stop()
	mine := make(chan struct{})
	for now := s.turns.take(mine, false); now != nil; now = s.turns.take(mine, false) {
		select {
		case <-now:
			continue
		case <-patience.C:
			s.turns.take(mine, true)
		case <-ctx.Done():
			return func() {}
		}
		break
	}
	return func() { s.turns.end(mine) }
}

// take makes mine the current turn where there is none, or whatever there is, and returns the one that stays current
// instead.
func (t *turns) take(mine chan struct{}, anyway bool) (instead chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current != nil && !anyway {
		return t.current
	}
	if t.current != nil {
		close(t.current) // the others wait for mine now
	}
	t.current = mine
	return nil
}

// end ends a turn unless it was taken over.
func (t *turns) end(mine chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current == mine {
		close(mine)
		t.current = nil
	}
}

// inTurn is inTx for a large transaction.
func (s *Store) inTurn(ctx context.Context, fn func(tx *sql.Tx) error) error {
	defer s.Turn(ctx)()
	return s.inTx(ctx, fn)
}
