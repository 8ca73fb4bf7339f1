package broker

import (
	"context"
	"fmt"
	"math/rand/v2"
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

	// retriesIn is told, after the commit, of a consumer's job that becomes due in so long.
	retriesIn func(consumerKey uint32, wait time.Duration)
}

func newFinisher(o Options, m *metrics) *finisher {
	return &finisher{o: o, metrics: m, others: newOutcomes(), failures: newOutcomes(), retriesIn: func(uint32, time.Duration) {}}
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
		f.write(shard, batch)
	}
}

// write tries until it is done or the finisher gives up. While the database is away it goes on trying: what was
// attempted is not attempted again as long as nobody else has the job, and the lease's token says whether somebody has.
func (f *finisher) write(shard uint8, batch []storage.Outcome) {
	until := time.Now().Add(2 * f.o.lease())
	for failed := false; ; failed = true {
		lost, took, err := f.finish(shard, batch)
		if err == nil {
			f.written(batch, lost, took)
			if failed {
				f.o.Log.Info("outcomes written after all", "outcomes", len(batch))
			}
			return
		}
		if !failed {
			f.o.Log.Warn("outcomes could not be written, trying again", "outcomes", len(batch), "error", err)
		}
		switch rejected := storage.IsRejected(err); {
		case f.writing.Err() == nil && rejected && len(batch) > 1:
			// One of them cannot be written: the others shall be.
			half := len(batch) / 2
			f.write(shard, batch[:half])
			f.write(shard, batch[half:])
			return
		case f.writing.Err() != nil, rejected, !storage.IsUnavailable(err) && time.Now().After(until):
			f.metrics.unwritten.Add(float64(len(batch)))
			f.o.Log.Error("outcomes given up: their jobs are attempted again when their leases end", "outcomes", len(batch), "error", err)
			return
		}
		select {
		case <-f.writing.Done():
		case <-time.After(finishRest):
		}
	}
}

func (f *finisher) finish(shard uint8, batch []storage.Outcome) (lost []storage.Outcome, took time.Duration, err error) {
	if len(batch) >= largeBatch {
		defer f.o.Store.Turn(f.writing)()
	}
	ctx, cancel := context.WithTimeout(f.writing, finishTimeout)
	defer cancel()
	began := time.Now()
	lost, err = f.o.Store.Finish(ctx, shard, batch)
	return lost, time.Since(began), err
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
		f.o.Log.Warn("an attempt outlived its lease: its outcome changes nothing", "job", o.JobID.String())
	}
	f.metrics.died.Add(float64(changed[storage.Die]))
	for key, wait := range retries {
		f.retriesIn(key, wait-took/2) // it began with a statement in between
	}
}
