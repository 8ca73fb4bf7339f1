package storage_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

// scheduled stores n messages that are due after d, a millisecond apart, and returns their keys.
func (w *world) scheduled(n int, d time.Duration) []storage.ID {
	w.t.Helper()
	var now time.Time
	w.ok(w.DB().QueryRowContext(w.ctx, `SELECT NOW(6)`).Scan(&now))
	keys := make([]storage.ID, n)
	msgs := make([]*storage.NewMessage, n)
	for i := range msgs {
		at := now.Add(d + time.Duration(i)*time.Millisecond)
		msgs[i] = w.message()
		msgs[i].Priority = uint32(i)
		msgs[i].ScheduledFor = &at
		keys[i] = msgs[i].Key
	}
	w.ok(w.Accept(w.ctx, 0, storage.Lease{}, msgs))
	return keys
}

func TestDispatchScheduled(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		a, b := w.consumer("a", storage.TypePush), w.consumer("b", storage.TypePull)
		w.scheduled(2, time.Hour)
		due := w.scheduled(5, -time.Minute)
		nobodys := w.message()
		nobodys.ChannelKey = must(w.PutChannel(w.ctx, storage.PutStakeholder{ID: "nobody listens", Name: "x", Token: "t"})).Key
		longAgo := time.Now().Add(-48 * time.Hour)
		nobodys.ScheduledFor = &longAgo
		w.ok(w.Accept(w.ctx, 0, storage.Lease{}, []*storage.NewMessage{nobodys}))
		consumersOf := func(channel uint32) []uint32 {
			if channel == w.channel.Key {
				return []uint32{a.Key, b.Key}
			}
			return nil
		}
		// The longest due first, by batches.
		for _, step := range []struct{ limit, want, jobs int }{{3, 3, 4}, {2, 2, 8}, {100, 1, 10}, {100, 0, 10}} {
			if n := must(w.DispatchScheduled(w.ctx, 5, step.limit, consumersOf)); n != step.want {
				t.Errorf("dispatched %d, want %d", n, step.want)
			}
			if n := w.number(`SELECT COUNT(*) FROM job`); n != int64(step.jobs) {
				t.Errorf("%d jobs, want %d", n, step.jobs)
			}
		}
		for i, key := range due {
			m, jobs, err := w.Message(w.ctx, w.channel.Key, key.String())
			w.ok(err)
			if m.DispatchedAt == nil || m.ScheduledFor == nil || m.DispatchedAt.Before(*m.ScheduledFor) || len(jobs) != 2 || jobs[0].Priority != uint32(i) || jobs[1].Status != storage.StatusQueued {
				t.Errorf("%+v, %+v", m, jobs)
			}
		}
		if c := must(w.MessageCounts(w.ctx, w.channel.Key)); c.Dispatched != 5 || c.ScheduledWaiting != 2 || c.ScheduledDispatched != 5 || c.NextScheduledAt == nil {
			t.Errorf("%+v", c)
		}
		if c := must(w.MessageCounts(w.ctx, nobodys.ChannelKey)); c.Dispatched != 1 || c.ScheduledWaiting != 0 || c.ScheduledDispatched != 1 || c.NextScheduledAt != nil {
			t.Errorf("%+v", c)
		}
		if jobs := must(w.Claim(w.ctx, a.Key, w.lease(longLease), 10)); len(jobs) != 5 || jobs[0].MessageID != due[4].String() {
			t.Errorf("the priority of a scheduled message was lost: %+v", jobs)
		}
		w.countsRight()
	})
}

func TestDispatchScheduledAtOnce(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		k := w.consumer("k", storage.TypePush)
		const total, instances = 120, 4
		w.scheduled(total, -time.Minute)
		done := make([]int, instances)
		errs := make([]error, instances)
		var wg sync.WaitGroup
		for i := range instances {
			s := w.another()
			wg.Go(func() {
				for errs[i] == nil {
					var n, left int
					n, errs[i] = s.DispatchScheduled(w.ctx, uint8(i), 7, func(uint32) []uint32 { return []uint32{k.Key} })
					if done[i] += n; errs[i] == nil && n == 0 {
						errs[i] = s.DB().QueryRowContext(w.ctx, `SELECT COUNT(*) FROM schedule WHERE dispatchedAt IS NULL`).Scan(&left)
						if left == 0 {
							return
						}
					}
				}
			})
		}
		wg.Wait()
		w.ok(errors.Join(errs...))
		sum := 0
		for _, n := range done {
			sum += n
		}
		if jobs := w.number(`SELECT COUNT(*) FROM job`); sum != total || jobs != total || w.number(`SELECT COUNT(DISTINCT messageId) FROM job`) != total {
			t.Errorf("%d messages were dispatched %d times into %d jobs", total, sum, jobs)
		}
		w.countsRight()
	})
}

// One transaction makes a bounded number of jobs, however many consumers there are; the rest comes with the next.
func TestDispatchScheduledIsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	k := w.consumer("k", storage.TypePull)
	w.scheduled(5, -time.Minute)
	thousand := make([]uint32, 1000)
	for i := range thousand {
		thousand[i] = k.Key
	}
	for _, want := range []int{2, 2, 1, 0} {
		if n := must(w.DispatchScheduled(w.ctx, 5, 100, func(uint32) []uint32 { return thousand })); n != want {
			t.Errorf("dispatched %d, want %d", n, want)
		}
	}
	if n := w.number(`SELECT COUNT(*) FROM job`); n != 5000 {
		t.Errorf("%d jobs", n)
	}
	for range 2 { // a single message may have more
		w.scheduled(1, -time.Minute)
	}
	if n := must(w.DispatchScheduled(w.ctx, 5, 100, func(uint32) []uint32 { return append(thousand, append(thousand, thousand...)...) })); n != 1 {
		t.Errorf("dispatched %d, want 1", n)
	}
}
