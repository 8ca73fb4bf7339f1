package storage_test

import (
	"testing"

	"github.com/redrive-mq/redrive/storage"
)

// FinishFree writes what nobody has locked, leaves alone what somebody has, and tells both from what was lost.
func TestFinishFree(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	k := w.consumer("k", storage.TypePush)
	lease := w.lease(longLease)
	ids := w.accepted(4, k, lease)
	somebody, err := w.DB().BeginTx(w.ctx, nil)
	w.ok(err)
	defer func() { _ = somebody.Rollback() }()
	_, err = somebody.ExecContext(w.ctx, `SELECT id FROM job FORCE INDEX (PRIMARY) WHERE id IN (?, ?) FOR UPDATE`, ids[0], ids[3])
	w.ok(err)

	all := []storage.Outcome{
		outcome(ids[0], lease.Token, k, storage.Delivered), outcome(ids[1], lease.Token, k, storage.Die),
		outcome(ids[2], lease.Token+1, k, storage.Delivered), outcome(ids[3], lease.Token+1, k, storage.Delivered),
	}
	lost, busy, err := w.FinishFree(w.ctx, 0, all)
	w.ok(err)
	if len(lost) != 2 || len(busy) != 1 || busy[0].JobID != ids[0] {
		t.Errorf("lost %v, busy %v", lost, busy)
	}
	w.is(storage.StatusInflight, ids[0], ids[2], ids[3])
	w.is(storage.StatusDead, ids[1])
	w.countsRight()

	w.ok(somebody.Rollback())
	lost, busy, err = w.FinishFree(w.ctx, 0, busy)
	w.ok(err)
	if len(lost)+len(busy) != 0 {
		t.Errorf("lost %v, busy %v", lost, busy)
	}
	w.is(storage.StatusDelivered, ids[0])
	w.countsRight()
}
