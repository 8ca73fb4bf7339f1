package storage

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Transactions are tried this often before their deadlock is the caller's.
const txAttempts = 12

func (s *Store) inTx(ctx context.Context, fn func(tx *sql.Tx) error) error {
	return InTx(ctx, s.db, fn)
}

// InTx runs fn in a transaction: commit when it returns nil, roll back otherwise, and on a panic, which goes on
// afterwards. It runs again as a whole as Retry says, so fn must set what it hands out, never add to it. See
// IsCommitUnknown for an error of the commit.
func InTx(ctx context.Context, db *sql.DB, fn func(tx *sql.Tx) error) error {
	return Retry(ctx, func() error { return tryTx(ctx, db, fn) })
}

// Retry runs do until it ends otherwise than in a lost race (a deadlock, a lock wait that timed out, a write conflict of
// TiDB), up to twelve times.
func Retry(ctx context.Context, do func() error) error {
	var err error
	for attempt := range txAttempts {
		if attempt > 0 {
			// Up to 2, 4, 8 ... 256 ms, evenly spread, so that two that met do not meet again.
			pause := rand.N(time.Duration(1<<min(attempt, 8)) * time.Millisecond)
			select {
			case <-ctx.Done():
				return errors.Join(ctx.Err(), err)
			case <-time.After(pause):
			}
		}
		if err = do(); err == nil || !isTxRetryable(err) {
			return err
		}
	}
	return err
}

func tryTx(ctx context.Context, db *sql.DB, fn func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	committed := false
	defer func() {
		if !committed {
			_ = tx.Rollback() // the error that led here is the one to report; a panic goes on
		}
	}()
	if err := fn(tx); err != nil {
		return clarified(err)
	}
	if err := tx.Commit(); err != nil {
		return commitError{err}
	}
	committed = true
	return nil
}

// clarified adds to the driver's word for a connection that it gave up in a transaction what that means: where a server
// refuses writes, the driver says no more.
func clarified(err error) error {
	if !errors.Is(err, driver.ErrBadConn) {
		return err
	}
	return fmt.Errorf("%w: the database is read-only (a replica, or a failover goes on), or gone", err)
}
