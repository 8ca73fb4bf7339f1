package storage_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

func TestAcceptStoresAMessageAndItsJobs(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		a, b := w.consumer("a", storage.TypePush), w.consumer("b", storage.TypePull)
		lease := w.lease(time.Minute)
		m := w.message(a, b)
		m.MessageID, m.ContentType, m.Priority = "order-1", "text/plain; charset=utf-8", 7
		m.Headers = map[string]string{"X-Tenant": "ümlaut \"q\"", "Traceparent": "00-1"}
		m.Body = []byte("payload\x00'\\ \xff")
		m.Jobs[0].Leased = true
		w.ok(w.Accept(w.ctx, 0, lease, []*storage.NewMessage{m}))

		got, jobs, err := w.Message(w.ctx, w.channel.Key, "order-1")
		w.ok(err)
		if got.Key != m.Key || got.ProducerKey != w.producer.Key || got.ContentType != m.ContentType || got.Priority != 7 || !bytes.Equal(got.Body, m.Body) ||
			!maps.Equal(got.Headers, m.Headers) || got.DispatchedAt == nil || got.ScheduledFor != nil {
			t.Errorf("%+v", got)
		}
		if off := time.Since(got.ReceivedAt).Abs(); off > time.Hour {
			t.Errorf("received at %v", got.ReceivedAt)
		}
		if len(jobs) != 2 || jobs[0].ID != m.Jobs[0].ID || jobs[0].Status != storage.StatusInflight || jobs[1].Status != storage.StatusQueued ||
			jobs[1].ConsumerKey != b.Key || jobs[0].MessageID != "order-1" || jobs[0].ChannelKey != w.channel.Key {
			t.Errorf("%+v", jobs)
		}
		leased, queued := w.row(m.Jobs[0].ID), w.row(m.Jobs[1].ID)
		if leased.Token != lease.Token || leased.Owner != string(lease.Owner[:]) || !leased.DueAt.Valid {
			t.Errorf("leased job %+v", leased)
		}
		if d := leased.DueAt.Time.Sub(leased.ChangedAt); d != time.Minute {
			t.Errorf("the lease lasts %v", d)
		}
		if queued.Token != 0 || queued.Owner != "" || queued.DueAt.Valid {
			t.Errorf("queued job %+v", queued)
		}
		w.countsRight()
	})
}

func TestAcceptDuplicates(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		k := w.consumer("k", storage.TypePush)
		other := must(w.PutChannel(w.ctx, storage.PutStakeholder{ID: "other", Name: "o", Token: "t"}))
		stored := w.message(k)
		stored.MessageID = "stored"
		w.ok(w.Accept(w.ctx, 0, storage.Lease{}, []*storage.NewMessage{stored}))

		named := func(id string) *storage.NewMessage {
			m := w.message(k)
			m.MessageID, m.Body = id, []byte("second of "+id)
			return m
		}
		elsewhere := named("stored")
		elsewhere.ChannelKey = other.Key
		soon := time.Now().Add(time.Hour)
		scheduled := named("twice")
		scheduled.ScheduledFor, scheduled.Jobs = &soon, nil
		batch := []*storage.NewMessage{named("new 1"), named("stored"), named("twice"), elsewhere, named("twice"), scheduled, named("STORED"), named("new 2")}
		batch[0].Duplicate = true // left from an earlier try
		w.ok(w.Accept(w.ctx, 1, storage.Lease{}, batch))

		want := []bool{false, true, false, false, true, true, false, false}
		for i, m := range batch {
			if m.Duplicate != want[i] {
				t.Errorf("message %d (%s): duplicate %v, want %v", i, m.MessageID, m.Duplicate, want[i])
			}
			if n := w.number(`SELECT (SELECT COUNT(*) FROM message WHERE id = ?) + (SELECT COUNT(*) FROM message_payload WHERE messageId = ?) + (SELECT COUNT(*) FROM job WHERE messageId = ?)`,
				m.Key, m.Key, m.Key); n != map[bool]int64{true: 0, false: 3}[want[i]] {
				t.Errorf("message %d (%s, duplicate %v): %d rows", i, m.MessageID, want[i], n)
			}
		}
		if got, _, err := w.Message(w.ctx, w.channel.Key, "stored"); err != nil || got.Key != stored.Key || string(got.Body) != `{"n":1}` {
			t.Errorf("the stored message is now %+v, %v", got, err)
		}
		if n := w.number(`SELECT COUNT(*) FROM schedule`); n != 0 {
			t.Errorf("a duplicate was scheduled")
		}
		w.countsRight()

		all := []*storage.NewMessage{named("stored"), named("new 1")}
		w.ok(w.Accept(w.ctx, 1, storage.Lease{}, all))
		if !all[0].Duplicate || !all[1].Duplicate {
			t.Error("a batch of duplicates was stored")
		}
		w.countsRight()
	})
}

func TestAcceptKinds(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		k := w.consumer("k", storage.TypePush)
		soon := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
		nobody, empty, null, scheduled, urgent := w.message(), w.message(k), w.message(k), w.message(), w.message(k)
		empty.Body, empty.Headers = []byte{}, map[string]string{}
		null.Body, null.Headers = nil, nil
		scheduled.ScheduledFor = &soon
		urgent.Priority = 1<<32 - 1
		urgent.MessageID = strings.Repeat("é", 127) + "x" // 255 bytes
		w.ok(w.Accept(w.ctx, 255, storage.Lease{}, []*storage.NewMessage{nobody, empty, null, scheduled, urgent}))
		w.ok(w.Accept(w.ctx, 0, storage.Lease{}, nil))

		for name, m := range map[string]*storage.NewMessage{"no consumers": nobody, "empty body": empty, "nil body": null, "scheduled": scheduled, "urgent": urgent} {
			got, jobs, err := w.Message(w.ctx, w.channel.Key, m.MessageID)
			if err != nil || len(jobs) != len(m.Jobs) || len(got.Body) != len(m.Body) || len(got.Headers) != len(m.Headers) || got.Priority != m.Priority {
				t.Errorf("%s: %+v, %d jobs, %v", name, got, len(jobs), err)
			} else if (got.DispatchedAt == nil) != (m == scheduled) {
				t.Errorf("%s: dispatched at %v", name, got.DispatchedAt)
			}
		}
		if got, _, _ := w.Message(w.ctx, w.channel.Key, scheduled.MessageID); got.ScheduledFor == nil || !got.ScheduledFor.Equal(soon) {
			t.Errorf("scheduled for %v, want %v", got.ScheduledFor, soon)
		}
		if c := must(w.MessageCounts(w.ctx, w.channel.Key)); c.Dispatched != 4 || c.ScheduledWaiting != 1 || c.ScheduledDispatched != 0 || c.NextScheduledAt == nil || !c.NextScheduledAt.Equal(soon) {
			t.Errorf("%+v", c)
		}
		jobs := must(w.Claim(w.ctx, k.Key, w.lease(longLease), 10))
		if len(jobs) != 3 || jobs[0].MessageID != urgent.MessageID {
			t.Errorf("the most urgent does not go first: %+v", jobs)
		}
		w.countsRight()
	})
}

func TestAcceptAtOnce(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		k := w.consumer("k", storage.TypePush)
		// Every writer brings the same ten ids, in an order of its own: each is stored once.
		const writers, ids = 6, 10
		fresh := make([]int, writers)
		errs := make([]error, writers)
		var wg sync.WaitGroup
		for i := range writers {
			batch := make([]*storage.NewMessage, ids)
			for n := range batch {
				batch[n] = w.message(k)
				batch[n].MessageID = fmt.Sprint("m", (n*(2*i+1)+i)%ids)
			}
			wg.Go(func() {
				errs[i] = w.Accept(w.ctx, uint8(i), storage.Lease{}, batch)
				for _, m := range batch {
					if !m.Duplicate {
						fresh[i]++
					}
				}
			})
		}
		wg.Wait()
		w.ok(errors.Join(errs...))
		sum := 0
		for _, n := range fresh {
			sum += n
		}
		if n := w.number(`SELECT COUNT(*) FROM message`); sum != int(n) || w.number(`SELECT COUNT(*) FROM job`) != n {
			t.Errorf("%d messages stored, %d reported", n, sum)
		}
		w.countsRight()
	})
}

func TestMessageNotFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	if _, _, err := w.Message(w.ctx, w.channel.Key, "nothing"); !errors.Is(err, storage.ErrNotFound) {
		t.Error(err)
	}
	if _, err := w.Job(w.ctx, storage.NewID()); !errors.Is(err, storage.ErrNotFound) {
		t.Error(err)
	}
}

func TestIDs(t *testing.T) {
	t.Parallel()
	id := storage.NewID()
	back, err := storage.ParseID(id.String())
	if err != nil || back != id || len(id.String()) != 20 || id.IsZero() || !(storage.ID{}).IsZero() {
		t.Errorf("%v, %v, %v", id, back, err)
	}
	for _, bad := range []string{"", "x", strings.Repeat("z", 20), id.String() + "0"} {
		if _, err := storage.ParseID(bad); err == nil {
			t.Errorf("%q was read as an id", bad)
		}
	}
	for _, bad := range []any{nil, "twelve bytes", []byte("short"), 12} {
		if err := new(storage.ID).Scan(bad); err == nil {
			t.Errorf("%v was scanned as an id", bad)
		}
	}
}
