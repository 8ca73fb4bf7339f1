package storage

import (
	"context"
	"database/sql"
	"sync/atomic"
	"time"
)

// turnWait bounds how long a large transaction waits for its turn: one that stands still must not hold up the rest.
const turnWait = 250 * time.Millisecond

// turns lets large transactions of this process take turns while something small must not be late beside them.
type turns struct {
	wanted atomic.Pointer[func() bool] // nil: never
	taken  chan struct{}               // holds a token while a turn lasts
}

// TakeTurns says when large transactions take turns: while wanted says so, one of them goes on at a time, and the others
// wait for it, at most 250 ms each.
func (s *Store) TakeTurns(wanted func() bool) { s.turns.wanted.Store(&wanted) }

// Turn waits, if need be, for the turn of a large transaction, some hundred rows, and returns what ends it. What
// this package does in batches (requeues, purges, expiry, retention, pruning, the summary) takes its turns by itself.
func (s *Store) Turn(ctx context.Context) (end func()) {
	if wanted := s.turns.wanted.Load(); wanted == nil || !(*wanted)() {
		return func() {}
	}
	patience := time.NewTimer(turnWait)
	defer patience.Stop()
	select {
	case s.turns.taken <- struct{}{}:
		return func() { <-s.turns.taken }
	case <-patience.C:
	case <-ctx.Done():
	}
	return func() {}
}

// inTurn is inTx for a large transaction.
func (s *Store) inTurn(ctx context.Context, fn func(tx *sql.Tx) error) error {
	defer s.Turn(ctx)()
	return s.inTx(ctx, fn)
}
