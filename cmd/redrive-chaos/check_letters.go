//go:build unix

package main

import (
	"fmt"
	"net/http"
	"slices"
)

// ofAPI says whether an operation is one on the API of dead letters and engines.
func ofAPI(kind string) bool {
	return slices.Contains([]string{opLetters, opRetryLetter, opResolveLetter, opExpireLetter, opExpireOld, opBeginRun, opAlert}, kind)
}

func shelves(o *op) bool {
	return o.Kind == opResolveLetter || o.Kind == opExpireLetter || o.Kind == opExpireOld
}

// doneTo is what was done with a dead letter, or may have been, as with all that are as old.
func (x *index) doneTo(key string) []*op {
	ops := x.letters[key]
	if l := x.letterByID[key]; l != nil && l.Old {
		ops = slices.Concat(ops, x.expiries)
	}
	return ops
}

// tellsRetried says whether the answer to a retry proves that its dead letter was retried. What one that changed nothing
// has read may have been lost again with the database.
func (x *index) tellsRetried(o *op) bool {
	return o.Retry != nil && (o.Retry.Retried || !x.unsettled(o.Start, o.End))
}

// mayShelve says whether one of the operations on a dead letter may have shelved its job at that time or later, and for
// good: a dead letter that was retried never shelves it again.
func (x *index) mayShelve(ops []*op, since moment) bool {
	may := false
	for _, o := range ops {
		if x.tellsRetried(o) {
			return false
		}
		may = may || shelves(o) && o.Outcome != refused && lastEffect(o) >= since
	}
	return may
}

// mayBeShelved says whether somebody's resolving or expiring may be why a job ends SHELVED.
func (x *index) mayBeShelved(job string, since moment) bool {
	return slices.ContainsFunc(x.lettersOf[job], func(key string) bool { return x.mayShelve(x.doneTo(key), since) })
}

// checkShelved: the job of a dead letter that was resolved or expired ends SHELVED, unless the dead letter was retried;
// no other job does; and requeuing all that is dead leaves them where they are.
func checkShelved(x *index) result {
	r := result{Name: "SHELVED is what was resolved or expired"}
	for _, key := range sortedKeys(x.letters) {
		ops := x.letters[key]
		n := slices.IndexFunc(ops, func(o *op) bool { return shelves(o) && o.Outcome == ok })
		if n < 0 {
			continue
		}
		r.Cases++
		o := ops[n]
		retried := slices.ContainsFunc(ops, func(o *op) bool { return o.Kind == opRetryLetter && o.Outcome != refused })
		v := violation{Message: o.Message, Consumer: o.Consumer, At: o.Start}
		switch j := x.jobByID[o.Job]; {
		case j == nil:
			v.What = fmt.Sprintf("job %s is gone; its dead letter %s was closed by %s at %s", o.Job, key, o.Kind, o.Start)
		case !retried && j.Status != statusShelved:
			v.What = fmt.Sprintf("job %s ends with status %d; its dead letter %s was closed by %s at %s and nobody retried it", o.Job, j.Status, key, o.Kind, o.Start)
		default:
			continue
		}
		r.flag(v)
	}
	for _, j := range x.Jobs {
		if j.Status != statusShelved {
			continue
		}
		r.Cases++
		if !x.mayBeShelved(j.Job, 0) {
			r.flag(violation{Message: j.Message, Consumer: j.Consumer, What: fmt.Sprintf("job %s (%s of %s) is SHELVED; it has no dead letter that was resolved or expired and not retried", j.Job, j.Message, j.Consumer)})
		}
	}
	for n := 1; n < len(x.Rests); n++ {
		for _, c := range x.Info.Consumers {
			r.Cases++
			key := c.Key + " SHELVED"
			if before, now := x.Rests[n-1].Jobs[key], x.Rests[n].Jobs[key]; before != now {
				r.flag(violation{Consumer: c.Key, At: x.Rests[n].At, What: fmt.Sprintf("%s: %d %s, %d before it", x.Rests[n].Label, now, key, before)})
			}
		}
	}
	return r
}

// quietExpiry is the expiry of all that is old while nothing else went on; nil where there was none.
func (x *index) quietExpiry() *op {
	n := slices.IndexFunc(x.expiries, func(o *op) bool { return o.Before != nil && o.Outcome == ok })
	if n < 0 {
		return nil
	}
	return x.expiries[n]
}

// broughtBack counts the jobs that were delivered once their dead letters, which that expiry had expired, were retried.
func (x *index) broughtBack(expiry *op) (n int) {
	for key, ops := range x.letters {
		l := x.letterByID[key]
		if l == nil || !l.Old || !slices.ContainsFunc(ops, func(o *op) bool { return x.tellsRetried(o) && o.Retry.Retried && o.Start > expiry.End }) {
			continue
		}
		if j := x.jobByID[l.Job]; j != nil && j.Status == statusDelivered {
			n++
		}
	}
	return n
}

// checkExpired: an expired dead letter's job is SHELVED; it was expired by somebody, and together with others only if it
// was old enough; and nothing old is left Pending by an expiry at rest.
func checkExpired(x *index) result {
	r := result{Name: "what is expired is SHELVED, and all that is old"}
	quiet := x.quietExpiry()
	for i := range x.Letters {
		l := &x.Letters[i]
		v := violation{Consumer: l.Consumer}
		j := x.jobByID[l.Job]
		if j != nil {
			v.Message = j.Message
		}
		switch {
		case l.Status == letterPending && l.Old && quiet != nil:
			v.What = fmt.Sprintf("dead letter %s is old and still Pending", l.Letter)
		case l.Status != letterExpired:
		case !slices.ContainsFunc(x.doneTo(l.Letter), func(o *op) bool {
			return (o.Kind == opExpireLetter || o.Kind == opExpireOld) && o.Outcome != refused
		}):
			v.What = fmt.Sprintf("dead letter %s (old: %t) is expired, and nothing can have done that", l.Letter, l.Old)
		case j == nil:
			v.What = fmt.Sprintf("dead letter %s is expired and its job gone", l.Letter)
		case j.Status != statusShelved:
			v.What = fmt.Sprintf("dead letter %s is expired and its job ends with status %d", l.Letter, j.Status)
		}
		if l.Status == letterExpired || l.Old {
			r.Cases++
		}
		if v.What != "" {
			r.flag(v)
		}
	}
	return r
}

// checkLetterRetries: of all retries of a dead letter one takes effect, whoever asks and however often; the others say so
// and name the same ids; and the job keeps its own. Of a job that nobody purges there is always something to retry.
func checkLetterRetries(x *index) result {
	r := result{Name: "a dead letter is retried once, under its job's id"}
	for _, key := range sortedKeys(x.letters) {
		var first *op // that tells of a retry
		for _, o := range x.letters[key] {
			if o.Kind != opRetryLetter {
				continue
			}
			r.Cases++
			if what := x.badRetry(o, first); what != "" {
				r.flag(violation{Message: o.Message, Consumer: o.Consumer, At: o.Start, What: fmt.Sprintf("a retry of dead letter %s at %s %s", key, o.Start, what)})
			}
			if first == nil && x.tellsRetried(o) {
				first = o
			}
		}
	}
	return r
}

// badRetry says what is wrong with a retry, given the earliest one that tells of a retry, or nil.
func (x *index) badRetry(o, first *op) string {
	switch {
	case o.Status == http.StatusConflict && !x.consumers[o.Consumer].Purged:
		return fmt.Sprintf("got %d, and nobody purged its job", o.Status)
	case o.Status == http.StatusNotFound && !x.unsettled(o.Seen, o.End):
		return fmt.Sprintf("got %d; it was listed at %s", o.Status, o.Seen)
	case o.Retry == nil:
		return ""
	case o.Retry.JobID != o.Job:
		return fmt.Sprintf("queued job %q, want %q", o.Retry.JobID, o.Job)
	case o.Retry.QueueMessageID == "":
		return "names no queue message"
	case first != nil && first.Retry.QueueMessageID != o.Retry.QueueMessageID:
		return fmt.Sprintf("names queue message %s, another named %s", o.Retry.QueueMessageID, first.Retry.QueueMessageID)
	case o.Retry.Retried && x.retriedBefore(o):
		return "took effect, and so did another before it"
	case !o.Retry.Retried && !slices.ContainsFunc(x.requeues[o.Consumer], func(c *op) bool {
		return touches(c, o.Job, o.Message) && (c.Letter == "" || c.Letter == o.Letter) && c.Start <= o.End
	}):
		return "changed nothing, and nothing can have retried it before"
	}
	return ""
}

// retriedBefore says whether another retry of the dead letter took effect earlier, or was told that one had.
func (x *index) retriedBefore(o *op) bool {
	return slices.ContainsFunc(x.letters[o.Letter], func(c *op) bool {
		return c != o && x.tellsRetried(c) && c.Start <= o.Start && (c.Retry.Retried || c.End < o.Start)
	})
}

// checkClosedOnce: a dead letter is resolved or expired once at most, and not after a retry; and it is refused only
// where something else may have closed it.
func checkClosedOnce(x *index) result {
	r := result{Name: "a dead letter is resolved or expired once"}
	for _, key := range sortedKeys(x.letters) {
		ops := x.letters[key]
		for _, o := range ops {
			if !shelves(o) {
				continue
			}
			r.Cases++
			v := violation{Message: o.Message, Consumer: o.Consumer, At: o.Start}
			switch {
			case o.Outcome == ok && slices.ContainsFunc(ops, func(c *op) bool { return c != o && c.Outcome == ok && closedBefore(c, o) }):
				v.What = "was taken, and it had been closed before"
			case o.Status == http.StatusNotFound && !x.unsettled(o.Seen, o.End):
				v.What = fmt.Sprintf("got %d; it was listed at %s", o.Status, o.Seen)
			case o.Status == http.StatusConflict && !x.mayBeClosed(o):
				v.What = fmt.Sprintf("got %d, and nothing can have closed it before", o.Status)
			default:
				continue
			}
			v.What = fmt.Sprintf("%s of dead letter %s at %s %s", o.Kind, key, o.Start, v.What)
			r.flag(v)
		}
	}
	return r
}

// closedBefore says whether c had closed the dead letter of o before. Of two that overlap and both close, one had.
func closedBefore(c, o *op) bool { return c.End < o.Start || shelves(c) && c.Start <= o.Start }

// mayBeClosed says whether a dead letter may have been closed before an operation on it ended, by another or by a requeue.
func (x *index) mayBeClosed(o *op) bool {
	closes := func(c *op) bool { return c != o && c.Outcome != refused && c.Start <= o.End }
	return slices.ContainsFunc(x.doneTo(o.Letter), closes) || slices.ContainsFunc(x.requeues[o.Consumer], func(c *op) bool {
		return c.Letter == "" && touches(c, o.Job, o.Message) && closes(c)
	})
}
