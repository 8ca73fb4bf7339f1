package broker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

const (
	finishLanes   = 2                // for each of the two queues
	finishBatch   = 256              // outcomes in a transaction
	largeBatch    = 32               // outcomes, or claimed jobs, of a transaction that takes its turn
	finishTimeout = 10 * time.Second // of one transaction
	finishGrace   = 5 * time.Second  // for the last outcomes at a stop
	finishRest    = 200 * time.Millisecond
	// A transaction that takes longer than finishBrisk may wait for a lock that somebody else has on a job. It is broken off,
	// and for as long as finishWary after the last such lock was met no transaction waits for any.
	finishBrisk = 5 * time.Second
	finishWary  = 30 * time.Second
)

// finisher writes the outcomes of attempts, many in a transaction. While the database is away it tries again; an
// outcome that never gets written is an attempt whose lease ends. Failures have a queue and lanes of their own: a retry's
// wait begins as its failure is written, and that must not be held up by large transactions full of deliveries.
type finisher struct {
	o        Options
	metrics  *metrics
	others   *outcomes // deliveries, and jobs that are handed back at once
	failures *outcomes // and jobs that are handed back for later
	lanes    sync.WaitGroup
	writing  context.Context // ends when even the last writes are given up
	giveUp   context.CancelFunc

	mu        sync.Mutex
	waryUntil time.Time           // while locks of somebody else on jobs are expected
	locked    map[storage.ID]bool // jobs whose outcomes wait for such a lock

	// retriesIn is told, after the commit, of a consumer's job that becomes due in so long.
	retriesIn func(consumerKey uint32, wait time.Duration)
}

func newFinisher(o Options, m *metrics) *finisher {
	return &finisher{o: o, metrics: m, others: newOutcomes(), failures: newOutcomes(), locked: map[storage.ID]bool{}, retriesIn: func(uint32, time.Duration) {}}
}

func (f *finisher) start(ctx context.Context) {
	f.writing, f.giveUp = context.WithCancel(ctx)
	first := uint8(rand.N(storage.TallyShards))
	for i := range uint8(finishLanes) {
		f.lanes.Go(func() { f.lane(f.others, first+i) })
		f.lanes.Go(func() { f.lane(f.failures, first+i) }) // the shard is for deliveries
	}
}

// add hands in an outcome. All attempts have ended before the finisher stops, so none is added after that.
func (f *finisher) add(o storage.Outcome) {
	if o.Verdict == storage.RetryLater || o.Verdict == storage.Die || o.Delay > 0 {
		f.failures.add(o)
		return
	}
	f.others.add(o)
}

// unbound lets every add go on: nothing waits for room any more.
func (f *finisher) unbound() {
	f.others.unbound()
	f.failures.unbound()
}

// stop writes what was handed in, for at most finishGrace.
func (f *finisher) stop(ctx context.Context) error {
	f.others.close()
	f.failures.close()
	ended := make(chan struct{})
	go func() { f.lanes.Wait(); close(ended) }()
	defer f.giveUp()
	select {
	case <-ended:
		return nil
	case <-time.After(finishGrace):
	case <-ctx.Done():
	}
	f.giveUp()
	<-ended
	if n := f.others.left() + f.failures.left(); n > 0 {
		return fmt.Errorf("the outcomes of %d attempts could not be written; the jobs will be attempted again", n)
	}
	return nil
}

// lane writes batches: of one outcome when idle, of many under load.
func (f *finisher) lane(queue *outcomes, shard uint8) {
	for {
		batch := queue.take()
		if batch == nil {
			return
		}
		if busy := f.write(shard, batch); len(busy) > 0 {
			queue.again(busy)
			if len(busy) == len(batch) {
				f.rest()
			}
		}
	}
}

func (f *finisher) rest() {
	select {
	case <-f.writing.Done():
	case <-time.After(finishRest):
	}
}

// write tries until it is done or the finisher gives up. While the database is away it goes on trying: what was
// attempted is not attempted again as long as nobody else has the job, and the lease's token says whether somebody has. It
// returns the outcomes of jobs that somebody has locked: they are to be tried again, without holding up the others.
func (f *finisher) write(shard uint8, batch []storage.Outcome) (busy []storage.Outcome) {
	until := time.Now().Add(2 * f.o.lease())
	for failed := false; ; failed = true {
		lost, busy, took, err := f.finish(shard, batch)
		if err == nil {
			done := without(batch, busy)
			f.written(done, lost, took)
			if failed && len(done) > 0 {
				f.o.Log.Info("outcomes written after all", "outcomes", len(done))
			}
			return busy
		}
		if !failed {
			f.o.Log.Warn("outcomes could not be written, trying again", "outcomes", len(batch), "error", err)
		}
		switch rejected := storage.IsRejected(err); {
		case f.writing.Err() == nil && rejected && len(batch) > 1:
			// One of them cannot be written: the others shall be.
			half := len(batch) / 2
			return append(f.write(shard, batch[:half]), f.write(shard, batch[half:])...)
		case f.writing.Err() != nil, rejected, !storage.IsUnavailable(err) && time.Now().After(until):
			f.metrics.unwritten.Add(float64(len(batch)))
			f.o.Log.Error("outcomes given up: their jobs are attempted again when their leases end", "outcomes", len(batch), "error", err)
			return nil
		}
		f.rest()
	}
}

func (f *finisher) finish(shard uint8, batch []storage.Outcome) (lost, busy []storage.Outcome, took time.Duration, err error) {
	if len(batch) >= largeBatch {
		defer f.o.Store.Turn(f.writing)()
	}
	began := time.Now()
	wary := f.wary(began)
	timeout := finishBrisk
	if wary {
		timeout = finishTimeout
	}
	ctx, cancel := context.WithTimeout(f.writing, timeout)
	defer cancel()
	if wary {
		lost, busy, err = f.o.Store.FinishFree(ctx, shard, batch)
	} else {
		lost, err = f.o.Store.Finish(ctx, shard, batch)
	}
	took = time.Since(began)
	switch {
	case wary && err == nil:
		f.noteLocked(batch, busy)
	case err != nil && took >= finishBrisk:
		f.beWary()
	}
	return lost, busy, took, err
}

// wary tells whether locks of somebody else on jobs are expected.
func (f *finisher) wary(now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return now.Before(f.waryUntil)
}

func (f *finisher) beWary() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waryUntil = time.Now().Add(finishWary)
}

// noteLocked notes which outcomes of a batch wait for locks, and tells of the first of them and when none does any more.
func (f *finisher) noteLocked(batch, busy []storage.Outcome) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := len(f.locked)
	for _, o := range batch {
		delete(f.locked, o.JobID)
	}
	for _, o := range busy {
		f.locked[o.JobID] = true
		f.waryUntil = time.Now().Add(finishWary)
	}
	switch now := len(f.locked); {
	case before == 0 && now > 0:
		f.o.Log.Warn("outcomes wait: another transaction has their jobs locked", "outcomes", now)
	case before > 0 && now == 0:
		f.o.Log.Info("no outcome waits for another transaction any more")
	}
}

// without is the outcomes that are not among the others.
func without(outcomes, others []storage.Outcome) []storage.Outcome {
	if len(others) == 0 {
		return outcomes
	}
	type attempt struct {
		job   storage.ID
		token uint64
	}
	among := map[attempt]bool{}
	for _, o := range others {
		among[attempt{o.JobID, o.Token}] = true
	}
	return slices.DeleteFunc(slices.Clone(outcomes), func(o storage.Outcome) bool { return among[attempt{o.JobID, o.Token}] })
}

func (f *finisher) written(batch, lost []storage.Outcome, took time.Duration) {
	f.metrics.finishDuration.Observe(took.Seconds())
	f.metrics.finishBatch.Observe(float64(len(batch)))
	f.metrics.stale.Add(float64(len(lost)))
	changed := map[storage.Verdict]int{}
	retries := map[uint32]time.Duration{}
	for _, o := range batch {
		changed[o.Verdict]++
		later := o.Verdict == storage.RetryLater || o.Verdict == storage.HandBack && o.Delay > 0
		if wait, known := retries[o.ConsumerKey]; later && (!known || o.Delay < wait) {
			retries[o.ConsumerKey] = o.Delay
		}
	}
	for _, o := range lost {
		changed[o.Verdict]--
	}
	if len(lost) > 0 {
		f.o.Log.Warn("outcomes change nothing: their attempts outlived the leases, or a try that broke off had written them",
			"outcomes", len(lost), "job", lost[0].JobID.String())
	}
	f.metrics.died.Add(float64(changed[storage.Die]))
	for key, wait := range retries {
		f.retriesIn(key, wait-took/2) // it began with a statement in between
	}
}
