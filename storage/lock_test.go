package storage_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

func TestLock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	lapse := func() { w.exec("UPDATE `lock` SET expiresAt = NOW(6) - INTERVAL 1 MICROSECOND WHERE lockId = 'l'") }
	held := func(l storage.Lock) bool {
		return w.number("SELECT COUNT(*) FROM `lock` WHERE lockId = ? AND owner = ? AND token = ? AND expiresAt > NOW(6)", l.ID, l.Owner, l.Token) == 1
	}

	a := must(w.AcquireLock(w.ctx, "l", "a", time.Minute))
	if !held(a) || a.ID != "l" || a.Owner != "a" || a.Token == 0 {
		t.Errorf("%+v", a)
	}
	for _, owner := range []string{"b", "a"} {
		if _, err := w.AcquireLock(w.ctx, "l", owner, time.Minute); !errors.Is(err, storage.ErrLocked) {
			t.Errorf("%s got a lock that is held: %v", owner, err)
		}
	}
	if other := must(w.AcquireLock(w.ctx, "another lock", "b", time.Minute)); !held(other) {
		t.Error("one lock is in the way of another")
	}

	// Renewed, it lasts from now.
	w.ok(w.RenewLock(w.ctx, a, time.Hour))
	if s := w.number("SELECT TIMESTAMPDIFF(SECOND, NOW(6), expiresAt) FROM `lock` WHERE lockId = 'l'"); s < 3590 || s > 3600 {
		t.Errorf("%d s left", s)
	}

	// It ran out, and nobody took it: its holder may still renew it.
	lapse()
	w.ok(w.RenewLock(w.ctx, a, time.Minute))
	if !held(a) {
		t.Error("not renewed")
	}

	// It ran out, and somebody took it: the old holder can do nothing to it.
	lapse()
	b := must(w.AcquireLock(w.ctx, "l", "b", time.Minute))
	if b.Token <= a.Token {
		t.Errorf("token %d after %d", b.Token, a.Token)
	}
	if err := w.RenewLock(w.ctx, a, time.Minute); !errors.Is(err, storage.ErrLocked) {
		t.Errorf("renewed by a stale holder: %v", err)
	}
	w.ok(w.ReleaseLock(w.ctx, a))
	if !held(b) {
		t.Error("released by a stale holder")
	}
	w.ok(w.ReleaseLock(w.ctx, storage.Lock{ID: "l", Owner: "b", Token: a.Token}))
	if !held(b) {
		t.Error("released under an old token")
	}

	// Released, it is free at once, cannot be renewed, and the next holder's token is higher.
	w.ok(w.ReleaseLock(w.ctx, b))
	if err := w.RenewLock(w.ctx, b, time.Minute); !errors.Is(err, storage.ErrLocked) {
		t.Errorf("renewed after its release: %v", err)
	}
	c := must(w.AcquireLock(w.ctx, "l", "c", time.Minute))
	if c.Token <= b.Token {
		t.Errorf("token %d after %d", c.Token, b.Token)
	}
	w.ok(w.ReleaseLock(w.ctx, c))
	w.ok(w.ReleaseLock(w.ctx, c))
}

// TestLockAtOnce has several instances want one lock again and again: never do two hold it, tokens rise, and each
// increment under it is kept.
func TestLockAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	const instances, rounds = 4, 15
	var mu sync.Mutex
	var seen []uint64
	counter := 0 // guarded by the lock alone: the race detector would see two holders
	var wg sync.WaitGroup
	for i := range instances {
		s := w.another()
		wg.Go(func() {
			for n := 0; n < rounds; {
				l, err := s.AcquireLock(w.ctx, "l", fmt.Sprint("instance ", i), time.Minute)
				if errors.Is(err, storage.ErrLocked) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				counter++
				seen = append(seen, l.Token)
				mu.Unlock()
				n++
				if err := s.ReleaseLock(w.ctx, l); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if counter != instances*rounds {
		t.Errorf("%d rounds", counter)
	}
	for i := 1; i < len(seen); i++ {
		if seen[i] <= seen[i-1] {
			t.Fatalf("tokens %v do not rise", seen)
		}
	}
}
