package broker

import (
	"testing"

	"github.com/redrive-mq/redrive/storage"
)

func outcomeOf(consumer uint32) storage.Outcome {
	return storage.Outcome{ConsumerKey: consumer, Verdict: storage.Delivered}
}

// A consumer with one outcome is in the next batch, whatever the others have waiting.
func TestOutcomesAreTakenInTurns(t *testing.T) {
	t.Parallel()
	q := newOutcomes()
	for range 1000 {
		q.add(outcomeOf(1))
		q.add(outcomeOf(2))
	}
	q.add(outcomeOf(3))
	batch := q.take()
	count := map[uint32]int{}
	for _, o := range batch {
		count[o.ConsumerKey]++
	}
	if len(batch) != 256 || count[3] != 1 || count[1] < 80 || count[2] < 80 {
		t.Errorf("a batch of %d: %v", len(batch), count)
	}
	taken := len(batch)
	q.close()
	for batch := q.take(); batch != nil; batch = q.take() {
		taken += len(batch)
	}
	if taken != 2001 || q.left() != 0 {
		t.Errorf("%d taken, %d left", taken, q.left())
	}
}

// A full queue holds up attempts of its consumer, but nobody who hands jobs back, and nobody at a stop.
func TestOutcomesOfAFullQueue(t *testing.T) {
	t.Parallel()
	q := newOutcomes()
	for range outcomesWaiting {
		q.add(outcomeOf(1))
	}
	q.add(outcomeOf(2))
	q.add(storage.Outcome{ConsumerKey: 1, Verdict: storage.HandBack})
	added := make(chan struct{})
	go func() {
		defer close(added)
		q.add(outcomeOf(1))
	}()
	q.unbound()
	<-added
	if q.left() != outcomesWaiting+3 {
		t.Errorf("%d wait", q.left())
	}
}
