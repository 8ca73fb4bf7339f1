package storage_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

const week = 7 * 24 * time.Hour

// aged makes messages as if they had been accepted and dispatched that long ago, their jobs DELIVERED.
func (w *world) aged(n int, ago time.Duration, consumers ...*storage.Consumer) []*storage.NewMessage {
	w.t.Helper()
	msgs := make([]*storage.NewMessage, n)
	for i := range msgs {
		msgs[i] = w.message(consumers...)
		seconds := binary.BigEndian.Uint32(msgs[i].Key[:4])
		binary.BigEndian.PutUint32(msgs[i].Key[:4], seconds-uint32(ago/time.Second))
	}
	w.ok(w.Accept(w.ctx, 0, storage.Lease{}, msgs))
	lease := w.lease(longLease)
	for _, m := range msgs {
		w.exec(`UPDATE message SET dispatchedAt = NOW(6) - INTERVAL ? SECOND, receivedAt = dispatchedAt WHERE id = ?`, int64(ago/time.Second), m.Key)
		w.exec(`UPDATE job SET status = 1002, leaseToken = ? WHERE messageId = ?`, lease.Token, m.Key)
		for i, j := range m.Jobs {
			w.finish(outcome(j.ID, lease.Token, consumers[i], storage.Delivered))
		}
	}
	return msgs
}

func prunedKeys(msgs []storage.PrunedMessage) (keys []storage.ID) {
	for _, m := range msgs {
		keys = append(keys, m.Key)
	}
	return keys
}

func TestPrunable(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	a, b := w.consumer("a", storage.TypePush), w.consumer("b", storage.TypePush)
	old := w.aged(3, 2*week, a, b)
	for i, status := range []int{1001, 1002, 1004, 1005} { // one job of two is not delivered
		m := w.aged(1, 2*week, a, b)[0]
		w.exec(`UPDATE job SET status = ? WHERE id = ?`, status, m.Jobs[i%2].ID)
	}
	w.aged(2, week/2, a)
	nobodys := w.aged(1, 2*week)
	waiting := w.aged(1, 2*week)[0] // an old one whose schedule has not come
	w.exec(`UPDATE message SET dispatchedAt = NULL WHERE id = ?`, waiting.Key)
	lately := w.aged(1, 2*week)[0] // an old one that was dispatched lately
	w.exec(`UPDATE message SET dispatchedAt = NOW(6) WHERE id = ?`, lately.Key)
	want := []storage.ID{old[0].Key, old[1].Key, old[2].Key, nobodys[0].Key}

	page := must(w.Prunable(w.ctx, week, storage.ID{}, 100))
	if !slices.Equal(prunedKeys(page.Messages), want) || page.More {
		t.Errorf("%v, more %v, want %v", prunedKeys(page.Messages), page.More, want)
	}
	m := page.Messages[0]
	if m.MessageID != old[0].MessageID || !bytes.Equal(m.Body, old[0].Body) || m.Headers["X-Trace"] != "t1" || len(m.Jobs) != 2 || m.Jobs[1].ConsumerKey != b.Key ||
		m.DispatchedAt == nil || m.ProducerKey != w.producer.Key || m.Jobs[0].Status != storage.StatusDelivered {
		t.Errorf("%+v", m)
	}

	// By stretches, as a pruner walks.
	var walked []storage.ID
	after, stretches := storage.ID{}, 0
	for {
		page := must(w.Prunable(w.ctx, week, after, 2))
		walked = append(walked, prunedKeys(page.Messages)...)
		if stretches++; !page.More {
			break
		}
		after = page.Last
	}
	if !slices.Equal(walked, want) || stretches < 5 {
		t.Errorf("in %d stretches %v, want %v", stretches, walked, want)
	}
	if page := must(w.Prunable(w.ctx, 100*week, storage.ID{}, 100)); len(page.Messages) != 0 || page.More {
		t.Errorf("%+v", page)
	}
}

func TestPrune(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		a, b := w.consumer("a", storage.TypePush), w.consumer("b", storage.TypePush)
		old := w.aged(4, 2*week, a, b)
		w.exec(`INSERT INTO schedule (messageId, channelId, scheduledFor, dispatchedAt) SELECT id, channelId, dispatchedAt, dispatchedAt FROM message WHERE id = ?`, old[0].Key)
		kept := w.aged(2, 0, a)
		w.dead(1, a)
		page := must(w.Prunable(w.ctx, week, storage.ID{}, 100))
		if len(page.Messages) != 4 {
			t.Fatalf("%d prunable", len(page.Messages))
		}
		w.ok(w.Prune(w.ctx, 1, page.Messages[:1]))
		w.countsRight()

		// Several instances prune the same messages, one of which is gone already.
		errs := make([]error, 4)
		var wg sync.WaitGroup
		for i := range errs {
			s := w.another()
			wg.Go(func() { errs[i] = s.Prune(w.ctx, uint8(i), page.Messages) })
		}
		wg.Wait()
		w.ok(errors.Join(errs...))
		w.ok(w.Prune(w.ctx, 0, nil))
		for _, table := range []string{"message", "message_payload"} {
			if n := w.number(`SELECT COUNT(*) FROM ` + table); n != 3 {
				t.Errorf("%d rows in %s, want 3", n, table)
			}
		}
		if n := w.number(`SELECT (SELECT COUNT(*) FROM schedule) * 100 + (SELECT COUNT(*) FROM job)`); n != 3 {
			t.Errorf("schedule rows * 100 + jobs = %d, want 3", n)
		}
		for _, m := range kept {
			if _, jobs, err := w.Message(w.ctx, w.channel.Key, m.MessageID); err != nil || len(jobs) != 1 {
				t.Errorf("%v, %d jobs", err, len(jobs))
			}
		}
		if c := must(w.MessageCounts(w.ctx, w.channel.Key)); c.Dispatched != 3 {
			t.Errorf("%+v", c)
		}
		w.countsRight()
	})
}
