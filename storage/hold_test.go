package storage_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

func TestHold(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	owner := func() (name string) {
		w.ok(w.DB().QueryRowContext(w.ctx, "SELECT owner FROM `lock` WHERE lockId = 'l'").Scan(&name))
		return name
	}
	failed := errors.New("what it was about went wrong")
	for _, want := range []error{nil, failed} {
		err := w.Hold(w.ctx, "l", "a", time.Minute, func(ctx context.Context) error {
			if owner() != "a" || ctx.Err() != nil {
				t.Errorf("inside: owner %q, %v", owner(), ctx.Err())
			}
			if err := w.Hold(ctx, "l", "b", time.Minute, func(context.Context) error { t.Error("two hold it"); return nil }); !errors.Is(err, storage.ErrLocked) {
				t.Errorf("a second holder: %v", err)
			}
			return want
		})
		if !errors.Is(err, want) || owner() != "" {
			t.Errorf("%v, want %v; then the owner is %q", err, want, owner())
		}
	}
	func() {
		defer func() {
			if recover() == nil || owner() != "" {
				t.Errorf("after a panic the owner is %q", owner())
			}
		}()
		_ = w.Hold(w.ctx, "l", "a", time.Minute, func(context.Context) error { panic("in the middle of it") })
	}()
	ctx, cancel := context.WithCancel(w.ctx)
	if err := w.Hold(ctx, "l", "a", time.Minute, func(ctx context.Context) error { cancel(); <-ctx.Done(); return ctx.Err() }); !errors.Is(err, context.Canceled) || owner() != "" {
		t.Errorf("cancelled: %v; then the owner is %q", err, owner())
	}
}

// TestHoldRenews works under a lock for several times as long as the lock would last by itself.
func TestHoldRenews(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	const ttl = 900 * time.Millisecond
	w.ok(w.Hold(w.ctx, "l", "a", ttl, func(context.Context) error {
		w.exec("UPDATE `lock` SET acquiredAt = NOW(6)")
		eventually(t, "three times its ttl pass", func() bool {
			if _, err := w.AcquireLock(w.ctx, "l", "b", ttl); !errors.Is(err, storage.ErrLocked) {
				t.Fatalf("it ran out under its holder: %v", err)
			}
			return w.number("SELECT TIMESTAMPDIFF(MICROSECOND, acquiredAt, NOW(6)) FROM `lock`") > 3*ttl.Microseconds()
		})
		return nil
	}))
}

func TestHoldOfALostLock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	var stolen storage.Lock
	err := w.Hold(w.ctx, "l", "a", 300*time.Millisecond, func(ctx context.Context) error {
		w.exec("UPDATE `lock` SET owner = ''")
		stolen = must(w.AcquireLock(w.ctx, "l", "thief", time.Minute))
		select {
		case <-ctx.Done():
		case <-time.After(patience):
			t.Error("the work under the lock goes on")
		}
		return ctx.Err()
	})
	if !errors.Is(err, storage.ErrLockLost) || errors.Is(err, storage.ErrLocked) {
		t.Error(err)
	}
	w.ok(w.RenewLock(w.ctx, stolen, time.Minute))
}
