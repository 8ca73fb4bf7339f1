//go:build unix

package main

import (
	"fmt"
	"slices"
	"time"
)

// checkFinal: what was once seen DELIVERED stays so, what was seen DEAD stays so unless somebody brought it back, purged
// or shelved it, and what was seen SHELVED stays so unless its dead letter was retried. An attempt whose lease was lost would break this.
func checkFinal(x *index) result {
	r := result{Name: "a finished job stays finished"}
	for _, s := range x.Sightings {
		if s.End >= x.over || x.unsettled(s.Start, s.End) {
			continue
		}
		for _, id := range s.Delivered {
			r.Cases++
			x.stays(&r, id, statusDelivered, s.Start)
		}
		for _, id := range s.Dead {
			r.Cases++
			if !x.mayHaveLeft(id, s.Start) {
				x.stays(&r, id, statusDead, s.Start)
			}
		}
		for _, id := range s.Shelved {
			r.Cases++
			if !x.mayBeRetried(id, s.Start) {
				x.stays(&r, id, statusShelved, s.Start)
			}
		}
	}
	// What a pull consumer was told is taken is as good as seen.
	for _, o := range x.Ops {
		if o.Kind == opPullState && o.State == "DELIVERED" && o.Outcome == ok && o.End < x.over {
			r.Cases++
			x.stays(&r, o.Job, statusDelivered, o.End)
		}
	}
	return r
}

func (x *index) stays(r *result, id string, status int, since moment) {
	j := x.jobByID[id]
	switch {
	case j == nil:
		r.flag(violation{At: since, What: fmt.Sprintf("job %s had status %d at %s and is gone", id, status, since)})
	case j.Status != status:
		r.flag(violation{Message: j.Message, Consumer: j.Consumer, What: fmt.Sprintf("job %s (%s of %s) had status %d at %s and ends with %d", id, j.Message, j.Consumer, status, since, j.Status)})
	}
}

// mayHaveLeft says whether a job that was dead may rightly be something else, or gone, later.
func (x *index) mayHaveLeft(id string, since moment) bool {
	j := x.jobByID[id]
	if j == nil {
		return slices.ContainsFunc(x.purges, func(o *op) bool {
			return (o.Kind == opPurgeAll || o.Job == id) && o.Start < x.over && lastEffect(o) >= since
		})
	}
	if j.Status == statusShelved {
		return x.mayBeShelved(id, since)
	}
	return x.consumers[j.Consumer].Pull || slices.ContainsFunc(x.requeues[j.Consumer], func(o *op) bool {
		return touches(o, j.Job, j.Message) && o.Start < x.over && lastEffect(o) >= since
	})
}

// mayBeRetried says whether a retry of a dead letter may have brought a job back at that time or later.
func (x *index) mayBeRetried(id string, since moment) bool {
	j := x.jobByID[id]
	return j != nil && slices.ContainsFunc(x.requeues[j.Consumer], func(o *op) bool {
		return o.Kind == opRetryLetter && o.Job == id && lastEffect(o) >= since
	})
}

const attemptsPerLife = 1 + maxRetry

// checkAttempts: a consumer sees a job at most 1 + max-retry times in a life; only a requeue begins another life.
func checkAttempts(x *index) result {
	r := result{Name: fmt.Sprintf("at most %d attempts a life", attemptsPerLife)}
	for key, receipts := range x.receiptsOf {
		consumer, message := receipts[0].Consumer, receipts[0].Message
		job := ""
		if j := x.jobOf[key]; j != nil {
			job = j.Job
		}
		var requeues []*op
		for _, o := range x.requeues[consumer] {
			if touches(o, job, message) {
				requeues = append(requeues, o)
			}
		}
		r.Cases++
		if what := x.tooMany(receipts, requeues); what != "" {
			r.flag(violation{Message: message, Consumer: consumer, What: fmt.Sprintf("%s received %s %s", consumer, message, what)})
		}
	}
	return r
}

// tooMany looks at every stretch of receipts: it can hold the attempts of the life that was under way when it
// began, and of as many more as requeues may have begun in it. An attempt that an instance had claimed before it was
// stopped may come in a later life than its own, so in a stretch from the middle each stop excuses one.
func (x *index) tooMany(receipts []*receipt, requeues []*op) string {
	for from := range receipts {
		for to := from + attemptsPerLife; to < len(receipts); to++ {
			begin, end := receipts[from].Start, receipts[to].Start
			lives := 1
			for _, o := range requeues {
				if o.Start <= end && (from == 0 || lastEffect(o) >= begin) {
					lives++
				}
			}
			excused := 0
			for _, f := range x.Faults {
				if from > 0 && f.Kind == faultStop && f.overlaps(receipts[0].Start, end) {
					excused++
				}
			}
			if n := to - from + 1; n > lives*attemptsPerLife+excused {
				return fmt.Sprintf("%d times from %s to %s, in at most %d lives", n, begin, end, lives)
			}
		}
	}
	return ""
}

// checkExhausted: a push job is DEAD, or SHELVED after that, only after its attempts are used up; and where nothing was broken in its whole
// life, its consumer has seen every one of them.
func checkExhausted(x *index) result {
	r := result{Name: "dead only after all attempts"}
	for i := range x.Jobs {
		j := &x.Jobs[i]
		c := x.consumers[j.Consumer]
		if j.Status != statusDead && j.Status != statusShelved || c.Pull {
			continue
		}
		r.Cases++
		v := violation{Message: j.Message, Consumer: j.Consumer}
		receipts := x.receiptsBefore(j.Consumer, j.Message)
		want := maxRetry
		if c.Engine != "" {
			want = c.Retries
		}
		switch {
		case !j.NoRetry && j.Retries != want:
			v.What = fmt.Sprintf("job %s (%s of %s) has status %d with %d retries, want %d", j.Job, j.Message, j.Consumer, j.Status, j.Retries, want)
		case !c.Redrive && len(receipts) != attemptsPerLife && !x.disturbedLife(receipts):
			v.What = fmt.Sprintf("job %s (%s of %s) is DEAD after %d receipts, want %d: nothing was broken meanwhile", j.Job, j.Message, j.Consumer, len(receipts), attemptsPerLife)
		default:
			continue
		}
		r.flag(v)
	}
	return r
}

func (x *index) disturbedLife(receipts []*receipt) bool {
	if len(receipts) == 0 {
		return len(x.Faults) > 0
	}
	begin := receipts[0].Start
	if attempts := x.tags[receipts[0].Tag]; len(attempts) > 0 {
		begin = min(begin, attempts[0].Start)
	}
	return x.disturbed(begin, receipts[len(receipts)-1].Start.add(leaseTime+time.Second))
}
