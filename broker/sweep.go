package broker

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

const (
	sweepTimeout    = 20 * time.Second
	reapBatch       = 500
	scheduleBatch   = 200
	removalBatch    = 1000
	removalInterval = 5 * time.Second
	// After an outage, leases that ran out in it are left alone for so long: outcomes are written first.
	reapGrace = 3 * time.Second
)

// sweeper looks for work that nobody tells of: jobs that other instances queued, retries that became due, leases that
// ran out, schedules that came, jobs of deleted consumers.
type sweeper struct {
	o          Options
	metrics    *metrics
	dispatcher *dispatcher
	shard      uint8
	reapFrom   time.Time // no lease is reaped before; of poll alone
	cancel     context.CancelFunc
	loops      sync.WaitGroup
}

func newSweeper(o Options, m *metrics, d *dispatcher) *sweeper {
	return &sweeper{o: o, metrics: m, dispatcher: d, shard: uint8(rand.N(storage.TallyShards))}
}

func (s *sweeper) start(ctx context.Context) {
	ctx, s.cancel = context.WithCancel(ctx)
	s.loops.Go(func() { s.every(ctx, "look for work", s.o.PollInterval, s.poll) })
	s.loops.Go(func() { s.every(ctx, "dispatch scheduled messages", s.o.SchedulerInterval, s.dispatchScheduled) })
	s.loops.Go(func() { s.every(ctx, "remove jobs of deleted consumers", removalInterval, s.removeJobs) })
}

func (s *sweeper) stop() {
	s.cancel()
	s.loops.Wait()
}

// every runs work at once and then at each interval until ctx ends. An outage is logged when it begins and when it
// is over, not at each try.
func (s *sweeper) every(ctx context.Context, what string, interval time.Duration, work func(context.Context) error) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	failing := false
	for {
		workCtx, cancel := context.WithTimeout(ctx, sweepTimeout)
		err := work(workCtx)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if failed := err != nil; failed != failing {
			failing = failed
			if failed {
				s.o.Log.Warn("cannot "+what, "error", err)
			} else {
				s.o.Log.LogAttrs(ctx, slog.LevelInfo, "again able to "+what)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// poll looks for work, and remembers when it could not.
func (s *sweeper) poll(ctx context.Context) error {
	err := s.lookForWork(ctx)
	if err != nil {
		s.reapFrom = time.Now().Add(reapGrace)
	}
	return err
}

// lookForWork follows the catalog, wakes the lanes of consumers that have work, and takes back jobs whose lease ran out.
func (s *sweeper) lookForWork(ctx context.Context) error {
	s.dispatcher.relieve()
	defer func(began time.Time) { s.metrics.pollDuration.Observe(time.Since(began).Seconds()) }(time.Now())
	catalog, err := s.o.Store.Catalog(ctx)
	if err != nil {
		return err
	}
	s.dispatcher.follow(catalog)
	work, err := s.o.Store.FindWork(ctx)
	if err != nil {
		return err
	}
	for _, w := range work {
		k, ok := catalog.ConsumerByKey(w.ConsumerKey)
		if !ok {
			continue // created since; the next poll knows it
		}
		if w.LeaseEnds != nil && *w.LeaseEnds <= 0 && time.Now().After(s.reapFrom) {
			reaped, err := s.reap(ctx, k)
			if err != nil {
				return err
			}
			w.Ready = w.Ready || reaped
		}
		switch {
		case w.Ready, w.NextDue != nil && *w.NextDue <= 0:
			s.dispatcher.wake(k.Key)
		case w.NextDue != nil && *w.NextDue < s.o.PollInterval:
			s.dispatcher.expect(k.Key, *w.NextDue)
		}
	}
	return nil
}

func (s *sweeper) reap(ctx context.Context, k *storage.Consumer) (requeued bool, err error) {
	for {
		r, err := s.o.Store.ReapLeases(ctx, k.Key, storage.LeasePolicy{MaxRetry: s.o.MaxRetry, Type: k.Type, Limit: reapBatch})
		if err != nil {
			return requeued, err
		}
		requeued = requeued || r.Requeued > 0
		s.metrics.reaped.WithLabelValues("requeued").Add(float64(r.Requeued))
		s.metrics.reaped.WithLabelValues("dead").Add(float64(r.Dead))
		s.metrics.died.Add(float64(r.Dead))
		if n := r.Requeued + r.Dead; n > 0 {
			s.o.Log.Info("jobs taken back whose lease ran out", "channel", k.ChannelID, "consumer", k.ID, "requeued", r.Requeued, "dead", r.Dead)
		}
		if r.Requeued+r.Dead < reapBatch {
			return requeued, nil
		}
	}
}

func (s *sweeper) dispatchScheduled(ctx context.Context) error {
	for {
		catalog, err := s.o.Store.Catalog(ctx)
		if err != nil {
			return err
		}
		kicked := map[uint32]bool{}
		n, err := s.o.Store.DispatchScheduled(ctx, s.shard, scheduleBatch, func(channelKey uint32) []uint32 {
			ch, ok := catalog.ChannelByKey(channelKey)
			if !ok {
				return nil
			}
			var keys []uint32
			for _, k := range catalog.ConsumersOf(ch) {
				keys = append(keys, k.Key)
				kicked[k.Key] = true
			}
			return keys
		})
		if err != nil {
			return err
		}
		s.metrics.scheduled.Add(float64(n))
		for key := range kicked {
			s.dispatcher.wake(key)
		}
		if n == 0 {
			return nil
		}
	}
}

func (s *sweeper) removeJobs(ctx context.Context) error {
	for {
		_, more, err := s.o.Store.RemoveJobs(ctx, removalBatch)
		if err != nil || !more {
			return err
		}
	}
}
