package broker

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

const (
	// Leased jobs may wait in memory for a slot where the consumer's pace says that this takes no longer than
	// queueWait. It spares them the way through the backlog: half of what the database does for a job.
	queueWait  = 100 * time.Millisecond
	queueMost  = 1024                  // jobs of a consumer that wait so
	queueBytes = 8 << 20               // of payload, estimated
	claimMost  = 256                   // jobs in a claim
	dueStep    = 10 * time.Millisecond // retries that become due within it of each other are claimed together
	dueSoon    = 50 * time.Millisecond // retries that become due within it shall find the database free
)

// lane gets one consumer's jobs done: it bounds the attempts under way, keeps the few leased jobs that wait for a
// slot, and claims from the backlog as places come free.
type lane struct {
	d        *dispatcher
	means    *means
	consumer atomic.Pointer[storage.Consumer] // the latest version
	wakeup   chan struct{}                    // holds a token when there may be work
	sooner   chan struct{}                    // holds a token when due was brought forward
	ended    chan struct{}
	endOnce  sync.Once

	mu       sync.Mutex
	busy     int           // attempts under way, at most means.concurrency
	reserved int           // places promised to jobs that are being stored or claimed
	queue    []leased      // jobs that wait for a slot
	backlog  bool          // QUEUED jobs wait, as far as is known: then new ones queue up behind them
	pace     time.Duration // of an attempt, a moving average; 0: none has ended yet
	size     int           // of a payload, a moving average
	due      time.Time     // when to look for the next retry; zero: none is known of
	looking  bool          // for retries that are due

	// Of run alone.
	claimSize int      // jobs in the next claim, at most
	claimed   int      // jobs in the last
	large     bool     // the last left a backlog and was large: so will the next be
	missed    bool     // the last look for a retry came too early, and this one is its repetition
	failing   bool     // the last failed
	unsettled []uint64 // tokens of claims that failed, and may have leased jobs nonetheless
}

// leased is a job under a lease that began, at the latest, at since.
type leased struct {
	job   storage.ClaimedJob
	since time.Time
}

func newLane(d *dispatcher, k *storage.Consumer, m *means) *lane {
	l := &lane{d: d, means: m, wakeup: make(chan struct{}, 1), sooner: make(chan struct{}, 1), ended: make(chan struct{}), claimSize: claimMost}
	l.consumer.Store(k)
	return l
}

func (l *lane) end() { l.endOnce.Do(func() { close(l.ended) }) }

// places is the number of jobs that the lane may hold beyond those it holds or has promised to hold. l.mu is held.
func (l *lane) places() int {
	most := l.means.concurrency
	if l.means.mayWait && l.pace > 0 {
		waiting := min(queueMost, int(int64(queueWait)*int64(most)/int64(l.pace)))
		if l.size > 0 {
			waiting = min(waiting, queueBytes/l.size)
		}
		most += waiting
	}
	return max(0, most-l.busy-l.reserved-len(l.queue))
}

// wake makes the lane look for jobs; until it has looked, new jobs queue up behind what may be there.
func (l *lane) wake() {
	l.mu.Lock()
	l.backlog = true
	l.mu.Unlock()
	l.signal()
}

func (l *lane) signal() {
	select {
	case l.wakeup <- struct{}{}:
	default:
	}
}

// expect makes the lane look for jobs when a retry becomes due, in wait.
func (l *lane) expect(wait time.Duration) { l.lookIn(max(wait, dueStep)) }

func (l *lane) lookIn(wait time.Duration) {
	at := time.Now().Add(wait)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.due.IsZero() && !at.Before(l.due) {
		return
	}
	l.due = at
	select {
	case l.sooner <- struct{}{}:
	default:
	}
}

// untilDue is the time until the next look for a retry; long where none is known of.
func (l *lane) untilDue() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.due.IsZero() {
		return time.Hour
	}
	return time.Until(l.due)
}

// reserve promises a place to a job that is about to be stored; push or release redeems it.
func (l *lane) reserve() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.backlog || l.places() == 0 {
		return false
	}
	l.reserved++
	return true
}

// reserveClaim promises places to a claim and clears the backlog mark: what the claim finds sets it again, and so does
// whoever stores a job after it began. Without a free place the mark is set, for the next that comes free.
func (l *lane) reserveClaim() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := min(l.places(), l.claimSize)
	l.reserved += n
	l.backlog = n == 0
	return n
}

func (l *lane) release(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reserved -= n
	l.signalIfWorthwhile()
}

// signalIfWorthwhile wakes the lane for its backlog when a slot is idle, or enough places are free for a claim of some
// size. l.mu is held.
func (l *lane) signalIfWorthwhile() {
	if free := l.places(); l.backlog && free > 0 && (l.busy+l.reserved < l.means.concurrency || free >= l.means.concurrency/2) {
		l.signal()
	}
}

// push takes a job in for which a place was promised: it is attempted now, or waits for a slot.
func (l *lane) push(p leased) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reserved--
	l.size += (len(p.job.Body) - l.size) / 8
	if l.busy >= l.means.concurrency {
		l.queue = append(l.queue, p)
		return
	}
	l.busy++
	l.d.attempts.Go(func() { l.work(p) })
}

// work attempts a job and then those that wait, until none does.
func (l *lane) work(p leased) {
	for more := true; more; {
		began := time.Now()
		outcome := l.d.attempter.attempt(l.d.attempting, l.means, l.consumer.Load(), p.job, p.since)
		l.d.finisher.add(outcome)
		p, more = l.next(time.Since(began))
	}
}

// next ends an attempt that took so long and returns the job that gets its slot.
func (l *lane) next(took time.Duration) (leased, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pace = max(l.pace+(took-l.pace)/8, time.Microsecond)
	if len(l.queue) > 0 && l.d.claiming.Err() == nil {
		p := l.queue[0]
		if l.queue = l.queue[1:]; len(l.queue) == 0 {
			l.queue = nil // lets go of the array
		}
		l.signalIfWorthwhile()
		return p, true
	}
	l.busy--
	l.signalIfWorthwhile()
	return leased{}, false
}

// handBack returns jobs to the backlog that have waited longer than they should: their consumer has become slow. A
// limit of 0 returns all of them.
func (l *lane) handBack(limit time.Duration) {
	l.mu.Lock()
	n := 0
	for n < len(l.queue) && time.Since(l.queue[n].since) >= limit {
		n++
	}
	back := l.queue[:n]
	if l.queue = l.queue[n:]; n > 0 {
		l.pace = max(l.pace, limit) // nothing waits here again before attempts end sooner
	}
	l.mu.Unlock()
	for _, p := range back {
		l.d.handBack(p.job)
	}
}

func (l *lane) run(ctx context.Context) {
	timer := time.NewTimer(l.untilDue())
	defer timer.Stop()
	defer func() {
		if l.failing { // with its consumer gone, or the broker: nothing to tell
			l.d.failing.Add(-1)
		}
	}()
	ahead := false // to find out when the next retry becomes due, once those that are have been claimed
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.ended:
			return
		case <-l.sooner:
			timer.Reset(l.untilDue())
			continue
		case <-l.wakeup:
		case <-timer.C:
			l.look()
			ahead = true
		}
		drained := l.claim(ctx)
		again := drained && ahead && l.lookAhead(ctx)
		if drained {
			ahead = again
		}
		if !again {
			l.looked()
		}
		timer.Reset(l.untilDue())
	}
}

// look notes that the retry that was expected is due, and looked the end of the look for it.
func (l *lane) look() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.due, l.looking = time.Time{}, true
}

func (l *lane) looked() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looking = false
}

// retryNear tells whether a retry is due, or will be shortly. Of a lane with a backlog it does not: its retries take their
// share of that.
func (l *lane) retryNear() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.backlog && (l.looking || !l.due.IsZero() && time.Until(l.due) < dueSoon)
}

// lookAhead finds out when the next retry becomes due, and tells whether that is now, so that another look is to follow.
func (l *lane) lookAhead(ctx context.Context) (again bool) {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	next, err := l.d.o.Store.NextDue(ctx, l.consumer.Load().Key)
	early := l.claimed == 0 // the look was: the database's clock is the one that counts
	switch {
	case err != nil, next == nil: // of an error the next poll tells
	case !early:
		l.expect(*next)
	case *next > 0:
		l.lookIn(*next)
	case !l.missed:
		l.missed = true
		l.signal()
		return true
	default:
		l.lookIn(10 * dueStep) // another transaction has it just now
	}
	l.missed = false
	return false
}

// claim fills the free places with claimed jobs and tells whether that was all there were. Where there may be more,
// the backlog mark stays, and the release, or the end of an attempt, wakes the lane again.
func (l *lane) claim(ctx context.Context) (drained bool) {
	endTurn := func() {}
	if l.large {
		endTurn = l.d.o.Store.Turn(ctx)
	}
	places := l.reserveClaim()
	if places == 0 {
		endTurn()
		return false
	}
	began := time.Now()
	k := l.consumer.Load()
	jobs, err := l.claimJobs(ctx, k, newLease(l.d.o), places)
	endTurn()
	l.claimed, l.large = len(jobs), len(jobs) == places && places >= largeBatch
	l.d.metrics.claimDuration.Observe(time.Since(began).Seconds())
	if err == nil && len(jobs) == places {
		l.mu.Lock()
		l.backlog = true
		l.mu.Unlock()
	}
	for _, j := range jobs {
		l.push(leased{j, began})
	}
	l.release(places - len(jobs))
	l.d.metrics.claimed.Add(float64(len(jobs)))
	if err == nil {
		l.claimSize = min(2*l.claimSize, claimMost)
		l.claimsAgain()
		return len(jobs) < places
	}
	l.claimSize = max(places/2, 1)
	if ctx.Err() == nil {
		l.claimsFail(k, err)
		select {
		case <-ctx.Done():
		case <-l.ended:
		case <-time.After(claimRest):
			l.wake()
		}
	}
	return false
}

// claimsFail notes, and claimsAgain ends, that the lane's claims fail. An outage fails those of all lanes, at each try: it is
// logged when it begins and when it is over. What the database has against one consumer's jobs is logged for each.
func (l *lane) claimsFail(k *storage.Consumer, err error) {
	if l.failing {
		return
	}
	l.failing = true
	if n := l.d.failing.Add(1); n == 1 || !storage.IsUnavailable(err) {
		l.d.o.Log.Warn("cannot claim jobs", "channel", k.ChannelID, "consumer", k.ID, "error", err)
	}
}

func (l *lane) claimsAgain() {
	if !l.failing {
		return
	}
	l.failing = false
	if l.d.failing.Add(-1) == 0 {
		l.d.o.Log.Info("again able to claim jobs")
	}
}

// claimJobs claims, after it has undone the claims that failed. It does not end with ctx: a claim that is broken off may
// have been committed, and its jobs would wait for their lease to end.
func (l *lane) claimJobs(ctx context.Context, k *storage.Consumer, lease storage.Lease, places int) ([]storage.ClaimedJob, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(l.d.attempting, claimTimeout)
	defer cancel()
	for len(l.unsettled) > 0 {
		if err := l.d.o.Store.Unclaim(ctx, k.Key, l.unsettled[0]); err != nil {
			return nil, err
		}
		l.unsettled = l.unsettled[1:]
	}
	jobs, err := l.d.o.Store.Claim(ctx, k.Key, lease, places)
	if err != nil {
		l.unsettled = append(l.unsettled, lease.Token)
	}
	return jobs, err
}
