//go:build unix

package main

import (
	"cmp"
	"slices"
	"time"
)

// The broker's numbers for the states of a job.
const (
	statusQueued    = 1001
	statusInflight  = 1002
	statusDelivered = 1003
	statusDead      = 1004
	statusShelved   = 1005
)

// violation is one broken promise, and what in the history it is about.
type violation struct {
	What     string
	Message  string
	Consumer string
	At       moment // when nothing narrower is known
}

// result is what one check found.
type result struct {
	Name       string
	Cases      int
	Violations []violation
}

func (r *result) flag(v violation) { r.Violations = append(r.Violations, v) }

// checkAll judges a whole history. It needs nothing but the history: one that was written to a file is judged
// the same.
func checkAll(h *history) []result {
	x := newIndex(h)
	checks := []func(*index) result{
		checkTraffic,
		checkNotLost, checkDeliveries, checkOneJobEach, checkSchedule,
		checkStale, checkFinal, checkAttempts, checkExhausted,
		checkSnapshots, checkMonotone, checkNegative, checkAtRest, checkCounted,
		checkTotals, checkPurged,
		checkEngineJobs, checkWorkOnce, checkSingleton, checkPosts, checkDemands, checkForwards, checkWebhookIDs,
		checkShelved, checkExpired, checkLetterRetries, checkClosedOnce,
		checkNoDatabase, checkRetryAfter, checkAnswers, checkIdempotent, checkUnanswered,
		checkCameToRest, checkIncidents,
	}
	var out []result
	for _, check := range checks {
		out = append(out, check(x))
	}
	return out
}

// index finds things in a history.
type index struct {
	*history
	tags       map[string][]*op // the attempts to broadcast each tag
	consumers  map[string]consumerInfo
	ofChannel  map[string][]consumerInfo
	receiptsOf map[string][]*receipt // by consumer and message, in the order of time
	jobOf      map[string]*finalJob  // by consumer and message
	jobByID    map[string]*finalJob
	letters    map[string][]*op    // by row key, in the order of time: what was done with a dead letter
	lettersOf  map[string][]string // by job: row keys
	letterByID map[string]*finalLetter
	expiries   []*op            // of all that is old: those that may have happened
	requeues   map[string][]*op // by consumer: those that may have happened, retries of dead letters among them
	purges     []*op            // those that may have happened
	pulls      map[string][]*op // by job: states reported that may have been taken
	employed   *employment
	over       moment // when the jobs were read: later operations did not show in them
}

func newIndex(h *history) *index {
	x := &index{
		history: h, tags: map[string][]*op{}, consumers: map[string]consumerInfo{}, ofChannel: map[string][]consumerInfo{},
		receiptsOf: map[string][]*receipt{}, jobOf: map[string]*finalJob{}, jobByID: map[string]*finalJob{},
		letters: map[string][]*op{}, letterByID: map[string]*finalLetter{}, lettersOf: map[string][]string{}, requeues: map[string][]*op{}, pulls: map[string][]*op{}, over: 1 << 62,
	}
	x.employed = newEmployment(h)
	for _, r := range h.Rests {
		if r.Label == restAfterTraffic {
			x.over = r.At
		}
	}
	for _, c := range h.Info.Consumers {
		x.consumers[c.Key] = c
		x.ofChannel[c.Channel] = append(x.ofChannel[c.Channel], c)
	}
	for i := range h.Ops {
		x.addOp(&h.Ops[i])
	}
	for i := range h.Letters {
		l := &h.Letters[i]
		x.letterByID[l.Letter] = l
		x.lettersOf[l.Job] = append(x.lettersOf[l.Job], l.Letter)
	}
	for key, ops := range x.letters {
		slices.SortFunc(ops, func(a, b *op) int { return cmp.Compare(a.Start, b.Start) })
		if x.letterByID[key] == nil {
			x.lettersOf[ops[0].Job] = append(x.lettersOf[ops[0].Job], key)
		}
	}
	for i := range h.Receipts {
		r := &h.Receipts[i]
		key := pair(r.Consumer, r.Message)
		x.receiptsOf[key] = append(x.receiptsOf[key], r)
	}
	for _, rs := range x.receiptsOf {
		slices.SortFunc(rs, func(a, b *receipt) int { return cmp.Compare(a.Start, b.Start) })
	}
	for i := range h.Jobs {
		j := &h.Jobs[i]
		x.jobOf[pair(j.Consumer, j.Message)] = j
		x.jobByID[j.Job] = j
	}
	return x
}

func (x *index) addOp(o *op) {
	switch o.Kind {
	case opBroadcast:
		x.tags[o.Tag] = append(x.tags[o.Tag], o)
	case opRequeueOne, opRequeueAll:
		if o.Outcome != refused {
			x.requeues[o.Consumer] = append(x.requeues[o.Consumer], o)
		}
	case opResolveLetter, opExpireLetter:
		x.letters[o.Letter] = append(x.letters[o.Letter], o)
	case opRetryLetter:
		x.letters[o.Letter] = append(x.letters[o.Letter], o)
		if o.Outcome != refused && (o.Retry == nil || o.Retry.Retried) {
			x.requeues[o.Consumer] = append(x.requeues[o.Consumer], o)
		}
	case opExpireOld:
		if o.Outcome != refused {
			x.expiries = append(x.expiries, o)
		}
	case opPurgeOne, opPurgeAll:
		if o.Outcome != refused {
			x.purges = append(x.purges, o)
		}
	case opPullState:
		if o.Outcome != refused {
			x.pulls[o.Job] = append(x.pulls[o.Job], o)
		}
	}
}

func pair(consumer, message string) string { return consumer + " " + message }

// accepted returns the attempt that tells that the message was accepted, or nil. A 409 tells it too when the id
// was the message's own: then an earlier attempt, whose outcome stayed unknown, had been accepted.
func accepted(attempts []*op) *op {
	for _, o := range attempts {
		if o.Outcome == ok || o.Status == 409 && o.OwnID && o.Want == 0 {
			return o
		}
	}
	return nil
}

// touches says whether a requeue may have brought this job back.
func touches(o *op, job, message string) bool {
	return o.Kind == opRequeueAll || o.Job != "" && o.Job == job || o.Message != "" && o.Message == message
}

// lastEffect is when an operation can have had its effect at the latest. Nobody knows with one that was not answered.
func lastEffect(o *op) moment {
	if o.Outcome == unknown {
		return 1 << 62
	}
	return o.End
}

// unsettled says whether what was seen in the database at that time may have been lost again: a server shows a
// commit a moment before it is on the disk, so a look just before the server was killed promises nothing.
func (x *index) unsettled(from, to moment) bool {
	for _, f := range x.Faults {
		if f.Kind == faultDatabase && to >= f.Start.add(-500*time.Millisecond) && from <= f.Down {
			return true
		}
	}
	return false
}

// disturbed says whether an instance or the database was broken between two times.
func (x *index) disturbed(from, to moment) bool {
	return slices.ContainsFunc(x.Faults, func(f fault) bool { return f.Kind != faultConsumer && f.overlaps(from, to) })
}

// receiptsBefore returns the deliveries of a job until its row was read: later ones are those of the last redrive.
func (x *index) receiptsBefore(consumer, message string) []*receipt {
	all := x.receiptsOf[pair(consumer, message)]
	n := slices.IndexFunc(all, func(r *receipt) bool { return r.Start >= x.over })
	if n < 0 {
		n = len(all)
	}
	return all[:n]
}
