package storage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrLockLost is why work under a lock was cancelled: the lock's time ran out before it could be renewed.
var ErrLockLost = errors.New("the lock was lost")

// releaseWithin bounds the release of a lock when everything else has been cancelled.
const releaseWithin = 3 * time.Second

// Hold runs fn under the named lock, which it renews at every third of ttl for as long as fn runs, so that a lock never
// runs out under a living holder. ErrLocked: another holder has it, and fn was not run. Where the lock is lost all the
// same (the database was away for longer than ttl) fn's context is cancelled and the error is ErrLockLost: what is done
// under a lock must stay right when two do it.
func (s *Store) Hold(ctx context.Context, id, owner string, ttl time.Duration, fn func(ctx context.Context) error) error {
	held := time.Now()
	lock, err := s.AcquireLock(ctx, id, owner, ttl)
	if err != nil {
		return err
	}
	work, cancel := context.WithCancelCause(ctx)
	var renewal sync.WaitGroup
	renewal.Go(func() { s.keep(work, cancel, lock, ttl, held) })
	defer func() {
		cancel(nil)
		renewal.Wait()
		release, done := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
		defer done()
		if err := s.ReleaseLock(release, lock); err != nil {
			s.log.DebugContext(ctx, "a lock was not released, it runs out by itself", "lock", id, "error", err)
		}
	}()
	err = fn(work)
	if cause := context.Cause(work); err != nil && errors.Is(cause, ErrLockLost) {
		return cause
	}
	return err
}

// keep renews the lock until ctx ends. An error is no reason to give up before the lock's time is over: the database
// may be back by then.
func (s *Store) keep(ctx context.Context, lost context.CancelCauseFunc, lock Lock, ttl time.Duration, held time.Time) {
	every := time.NewTicker(ttl / 3)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
		before := time.Now()
		attempt, done := context.WithTimeout(ctx, ttl/3)
		err := s.RenewLock(attempt, lock, ttl)
		done()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			held = before
		case errors.Is(err, ErrLocked) || time.Since(held) >= ttl:
			lost(fmt.Errorf("%w: %s: %v", ErrLockLost, lock.ID, err)) //nolint:errorlint // it must not pass for the ErrLocked of an acquisition
			return
		}
	}
}
