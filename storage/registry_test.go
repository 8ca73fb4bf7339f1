package storage_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

func TestRegistryIsChangedUnderItsLock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	ctx := t.Context()
	if r, err := w.Registry(ctx, "i"); err != nil || r.Version != 0 || r.LockJobID != "" || r.Document != nil {
		t.Fatalf("one that is not there is %+v, %v", r, err)
	}
	// Of many who want it one gets it, whether it is there or not.
	for round := range 2 {
		var won, lost atomic.Int32
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				switch _, err := w.LockRegistry(ctx, "i", string(rune('a'+i)), time.Hour); {
				case err == nil:
					won.Add(1)
				case errors.Is(err, storage.ErrRegistryLocked):
					lost.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 || lost.Load() != 7 {
			t.Fatalf("round %d: %d got the lock, %d did not", round, won.Load(), lost.Load())
		}
		r, err := w.Registry(ctx, "i")
		if err != nil || r.LockJobID == "" || r.LockUntil == nil || r.LockDuration != time.Hour {
			t.Fatalf("it is %+v, %v", r, err)
		}
		if err := w.UnlockRegistry(ctx, "i", "somebody else"); err != nil {
			t.Fatal(err)
		}
		if again, err := w.LockRegistry(ctx, "i", r.LockJobID, 2*time.Hour); err != nil || again.Version != r.Version+1 || again.LockDuration != 2*time.Hour {
			t.Fatalf("its holder gets %+v, %v", again, err)
		}
		if err := w.UnlockRegistry(ctx, "i", r.LockJobID); err != nil {
			t.Fatal(err)
		}
	}

	held, err := w.LockRegistry(ctx, "i", "me", time.Hour)
	if err != nil || held.LockJobID != "me" {
		t.Fatalf("%+v, %v", held, err)
	}
	version, err := w.UpdateRegistry(ctx, "i", "me", held.Version, []byte(`{"a":1}`))
	if err != nil || version != held.Version+1 {
		t.Fatalf("version %d, %v", version, err)
	}
	for name, change := range map[string]struct {
		job     string
		version uint64
	}{"an old version": {"me", held.Version}, "another job": {"you", version}} {
		if _, err := w.UpdateRegistry(ctx, "i", change.job, change.version, []byte(`{"a":2}`)); !errors.Is(err, storage.ErrRegistryChanged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A lock that has expired is none: its holder changes nothing, and another one takes it.
	if _, err := w.DB().ExecContext(ctx, `UPDATE registry SET lockUntilUtc = NOW(6) - INTERVAL 1 SECOND`); err != nil {
		t.Fatal(err)
	}
	if _, err := w.UpdateRegistry(ctx, "i", "me", version, []byte(`{"a":2}`)); !errors.Is(err, storage.ErrRegistryChanged) {
		t.Errorf("after its time: %v", err)
	}
	if r, err := w.Registry(ctx, "i"); err != nil || r.LockJobID != "" || r.LockUntil != nil || string(r.Document) != `{"a":1}` {
		t.Errorf("it is %+v, %v", r, err)
	}
	if r, err := w.LockRegistry(ctx, "i", "you", time.Hour); err != nil || r.LockJobID != "you" {
		t.Errorf("another one gets %+v, %v", r, err)
	}
	if err := w.UnlockRegistry(ctx, "i", "me"); err != nil { // as one does in the end, whatever became of it
		t.Error(err)
	}
	if r, err := w.Registry(ctx, "i"); err != nil || r.LockJobID != "you" {
		t.Errorf("the lock of another was given back: %+v, %v", r, err)
	}
}
