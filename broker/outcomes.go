package broker

import (
	"sync"

	"github.com/redrive-mq/redrive/storage"
)

// outcomesWaiting is how many outcomes of one consumer may wait to be written before its attempts wait to hand in
// theirs.
const outcomesWaiting = 4096

// outcomes is the queue of the finisher. It is fair: consumers with outcomes waiting share every batch, so the retries
// of one are never scheduled late because another has thousands of jobs delivered.
type outcomes struct {
	mu      sync.Mutex
	filled  *sync.Cond // something waits, or the queue is closed
	room    *sync.Cond // something was taken
	waiting map[uint32][]storage.Outcome
	turn    []uint32 // consumers that have outcomes waiting, the next one first
	closed  bool
	endless bool // add waits for no room
}

func newOutcomes() *outcomes {
	q := &outcomes{waiting: map[uint32][]storage.Outcome{}}
	q.filled, q.room = sync.NewCond(&q.mu), sync.NewCond(&q.mu)
	return q
}

// add hands in an outcome; it waits while too many of the same consumer do. A job that is handed back does not wait: no
// attempt holds it up, and whoever hands it back has others to look after.
func (q *outcomes) add(o storage.Outcome) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.waiting[o.ConsumerKey]) >= outcomesWaiting && !q.endless && o.Verdict != storage.HandBack {
		q.room.Wait()
	}
	q.append(o)
}

// again puts back outcomes that were taken and could not be written yet, behind those that wait.
func (q *outcomes) again(some []storage.Outcome) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, o := range some {
		q.append(o)
	}
}

// append puts an outcome at the end of its consumer's. q.mu is held.
func (q *outcomes) append(o storage.Outcome) {
	if len(q.waiting[o.ConsumerKey]) == 0 {
		q.turn = append(q.turn, o.ConsumerKey)
	}
	q.waiting[o.ConsumerKey] = append(q.waiting[o.ConsumerKey], o)
	q.filled.Signal()
}

// take waits for outcomes and returns up to finishBatch of them, nil when the queue is closed and empty.
func (q *outcomes) take() []storage.Outcome {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.turn) == 0 {
		if q.closed {
			return nil
		}
		q.filled.Wait()
	}
	var batch []storage.Outcome
	share := max(1, finishBatch/len(q.turn))
	for len(q.turn) > 0 && len(batch) < finishBatch {
		key := q.turn[0]
		q.turn = q.turn[1:]
		its := q.waiting[key]
		n := min(share, len(its), finishBatch-len(batch))
		batch = append(batch, its[:n]...)
		if n == len(its) {
			delete(q.waiting, key)
			continue
		}
		q.waiting[key] = its[n:]
		q.turn = append(q.turn, key)
	}
	q.room.Broadcast()
	return batch
}

// unbound lets every add go on, however many outcomes wait.
func (q *outcomes) unbound() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.endless = true
	q.room.Broadcast()
}

// close lets take end once nothing waits.
func (q *outcomes) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.filled.Broadcast()
}

// left is the number of outcomes that still wait.
func (q *outcomes) left() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, its := range q.waiting {
		n += len(its)
	}
	return n
}
