package dlqsummary

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

// errLockLost is why work under a lock was cancelled: its time ran out before it could be renewed.
var errLockLost = errors.New("the lock was lost")

// lastWrites bounds the release of a lock when everything else has been cancelled.
const lastWrites = 3 * time.Second

// hold runs fn under the named lock, which it renews for as long as fn runs; storage.ErrLocked: another instance has
// it, and fn was not run. When the lock is lost all the same, fn's context is cancelled: the work here stays right
// even then, it is only done twice.
func (s *Summary) hold(ctx context.Context, lockID string, fn func(ctx context.Context) error) error {
	held := time.Now()
	lock, err := s.store.AcquireLock(ctx, lockID, s.o.Owner, s.o.LockTTL)
	if err != nil {
		return err
	}
	work, cancel := context.WithCancelCause(ctx)
	var renewal sync.WaitGroup
	renewal.Go(func() { s.renew(work, cancel, lock, held) })
	defer func() {
		cancel(nil)
		renewal.Wait()
		release, done := context.WithTimeout(context.WithoutCancel(ctx), lastWrites)
		defer done()
		if err := s.store.ReleaseLock(release, lock); err != nil {
			s.log.DebugContext(ctx, "a lock was not released, it runs out by itself", "lock", lockID, "error", err)
		}
	}()
	err = fn(work)
	if cause := context.Cause(work); err != nil && errors.Is(cause, errLockLost) {
		return cause
	}
	return err
}

// renew extends the lock at every third of its time until ctx ends. An error is no reason to give up before the time
// is over: the database may be back by then.
func (s *Summary) renew(ctx context.Context, lost context.CancelCauseFunc, lock storage.Lock, held time.Time) {
	every := time.NewTicker(s.o.LockTTL / 3)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
		before := time.Now()
		attempt, done := context.WithTimeout(ctx, s.o.LockTTL/3)
		err := s.store.RenewLock(attempt, lock, s.o.LockTTL)
		done()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			held = before
		case errors.Is(err, storage.ErrLocked) || time.Since(held) >= s.o.LockTTL:
			lost(fmt.Errorf("%w: %s: %v", errLockLost, lock.ID, err)) //nolint:errorlint // it must not pass for the ErrLocked of an acquisition
			return
		}
	}
}
