//go:build unix

package main

import (
	"fmt"
	"net/http"
	"slices"
	"time"
)

// checkTraffic guards the others against an empty history.
func checkTraffic(x *index) result {
	r := result{Name: "there was something to check"}
	need := func(what string, n, atLeast int) {
		r.Cases++
		if n < atLeast {
			r.flag(violation{What: fmt.Sprintf("%d %s, want at least %d", n, what, atLeast)})
		}
	}
	taken, dead, shelved, pulled, broken, retried, expired := 0, 0, 0, 0, 0, 0, 0
	for _, attempts := range x.tags {
		if accepted(attempts) != nil {
			taken++
		}
	}
	for _, j := range x.Jobs {
		switch {
		case j.Status == statusDead:
			dead++
		case j.Status == statusShelved:
			shelved++
		case j.Status == statusDelivered && x.consumers[j.Consumer].Pull:
			pulled++
		}
	}
	for _, f := range x.Faults {
		if f.Kind != faultConsumer {
			broken++
		}
	}
	for _, o := range x.Ops {
		if o.Retry != nil && o.Retry.Retried {
			retried++
		}
	}
	for _, l := range x.Letters {
		alone := slices.ContainsFunc(x.letters[l.Letter], func(o *op) bool { return shelves(o) && o.Outcome != refused })
		if l.Status == letterExpired && !alone {
			expired++
		}
	}
	need("messages accepted", taken, 1)
	need("receipts", len(x.Receipts), 1)
	need("dead jobs at rest", dead, 1)
	need("shelved jobs at rest", shelved, 1)
	need("dead letters retried", retried, 1)
	need("dead letters expired with all that is old", expired, 1)
	if quiet := x.quietExpiry(); quiet != nil {
		need("of them brought back at rest", x.broughtBack(quiet), int(min(1, *quiet.Before)))
	}
	x.needEngines(need)
	need("jobs delivered by pull", pulled, 1)
	need("faults", broken, 1)
	need("snapshots", len(x.Snapshots), 1)
	need("readings at rest", len(x.Rests), 2)
	return r
}

// needEngines is what a history must have of engines.
func (x *index) needEngines(need func(what string, n, atLeast int)) {
	begun, refusals, done, dead, arrived := 0, 0, 0, 0, 0
	for _, o := range x.Ops {
		if o.Kind == opBeginRun && o.Status == http.StatusAccepted {
			begun++
		}
		if o.Kind == opBeginRun && o.Status == http.StatusConflict {
			refusals++
		}
	}
	for _, run := range x.Runs {
		if run.Done {
			done++
		}
	}
	for _, j := range x.Jobs {
		switch {
		case x.consumers[j.Consumer].Engine != "" && j.Status == statusDead:
			dead++
		case j.Consumer == consumerAlerted && j.Status == statusDelivered:
			arrived++
		}
	}
	need("runs begun on demand", begun, 1)
	need("runs on demand refused while another was under way", refusals, 1)
	need("runs done at the endpoint", done, 1)
	need("dead jobs of engines at rest", dead, 1)
	need("alerts delivered", arrived, 1)
}

// checkNotLost: an accepted message has reached every consumer of its channel, or is dead there, or was purged or
// shelved there by somebody.
func checkNotLost(x *index) result {
	r := result{Name: "no accepted message is lost"}
	stored := map[string]finalMessage{}
	for _, m := range x.Messages {
		stored[m.Channel+" "+m.Message] = m
	}
	for _, attempts := range x.tags {
		o := accepted(attempts)
		if o == nil || o.Message == "" {
			continue
		}
		r.Cases++
		if m, there := stored[o.Channel+" "+o.Message]; !there || !m.Dispatched {
			r.flag(violation{Message: o.Message, What: fmt.Sprintf("%s was accepted by %s; it is stored: %t, dispatched: %t", o.Message, o.Channel, there, m.Dispatched)})
			continue
		}
		for _, c := range x.ofChannel[o.Channel] {
			r.Cases++
			if why := x.lost(o, c); why != "" {
				r.flag(violation{Message: o.Message, Consumer: c.Key, What: fmt.Sprintf("%s was accepted; for %s %s", o.Message, c.Key, why)})
			}
		}
	}
	return r
}

// lost says how a message is lost for a consumer; empty: it is not.
func (x *index) lost(o *op, c consumerInfo) string {
	job := x.jobOf[pair(c.Key, o.Message)]
	switch {
	case job == nil && c.Purged && x.mayBePurged(o, c):
		return ""
	case job == nil:
		return "there is no job"
	case job.Status == statusShelved && x.mayBeShelved(job.Job, o.Start):
		return ""
	case job.Status != statusDelivered && job.Status != statusDead:
		return fmt.Sprintf("its job %s ends with status %d", job.Job, job.Status)
	}
	return ""
}

func (x *index) mayBePurged(o *op, c consumerInfo) bool {
	return slices.ContainsFunc(x.purges, func(p *op) bool {
		return p.Consumer == c.Key && p.Start < x.over && lastEffect(p) >= o.Start && (p.Kind == opPurgeAll || p.Message == o.Message)
	})
}

// checkDeliveries: what arrives is what was sent, to those it was for, and nothing that was refused.
func checkDeliveries(x *index) result {
	r := result{Name: "deliveries are as sent, none of a refused message"}
	judge := func(tag, message, consumer, flaw string, at moment) {
		r.Cases++
		v := violation{Message: message, Consumer: consumer, At: at}
		attempts := x.tags[tag]
		if consumer == consumerAlerted {
			attempts = x.employed.messages[pair(x.consumerOf(engineAlerts), message)]
		}
		possible, known := false, ""
		for _, o := range attempts {
			possible = possible || o.Outcome != refused
			if o.Message != "" {
				known = o.Message
			}
		}
		switch {
		case flaw != "":
			v.What = flaw
		case len(attempts) == 0:
			v.What = fmt.Sprintf("nobody sent the tag %q", tag)
		case !possible:
			v.What = fmt.Sprintf("%s was refused with %d", tag, attempts[0].Status)
		case known != "" && known != message:
			v.What = fmt.Sprintf("%s came as message %q, want %q", tag, message, known)
		case x.consumers[consumer].Channel != attempts[0].Channel:
			v.What = fmt.Sprintf("%s was sent to %s", tag, attempts[0].Channel)
		default:
			return
		}
		v.What = fmt.Sprintf("%s received at %s: %s", consumer, at, v.What)
		r.flag(v)
	}
	for _, rc := range x.Receipts {
		judge(rc.Tag, rc.Message, rc.Consumer, rc.Flaw, rc.Start)
	}
	for _, o := range x.Ops {
		if o.Kind == opPullState {
			judge(o.Tag, o.Message, o.Consumer, "", o.Start)
		}
	}
	return r
}

// checkOneJobEach: a message has at most one job for a consumer.
func checkOneJobEach(x *index) result {
	r := result{Name: "one job for each message and consumer"}
	seen := map[string]string{}
	for _, j := range x.Jobs {
		r.Cases++
		key := pair(j.Consumer, j.Message)
		if other, twice := seen[key]; twice {
			r.flag(violation{Message: j.Message, Consumer: j.Consumer, What: fmt.Sprintf("%s has the jobs %s and %s for %s", j.Message, other, j.Job, j.Consumer)})
		}
		seen[key] = j.Job
	}
	return r
}

// checkSchedule: nothing arrives before its time. Sender, broker and database share one clock here.
func checkSchedule(x *index) result {
	r := result{Name: "no scheduled message comes early"}
	const rounding = 5 * time.Millisecond
	judge := func(tag, message, consumer string, at moment) {
		attempts := x.tags[tag]
		if len(attempts) == 0 || attempts[0].Scheduled == 0 {
			return
		}
		r.Cases++
		if due := attempts[0].Scheduled; at.add(rounding) < due {
			r.flag(violation{Message: message, Consumer: consumer, What: fmt.Sprintf("%s reached %s at %s, scheduled for %s", message, consumer, at, due)})
		}
	}
	for _, rc := range x.Receipts {
		judge(rc.Tag, rc.Message, rc.Consumer, rc.Start)
	}
	for _, o := range x.Ops {
		if o.Kind == opPullState {
			judge(o.Tag, o.Message, o.Consumer, o.Start)
		}
	}
	return r
}

// checkStale: a job is DELIVERED only if some attempt of it was answered with a 2xx in time, or its pull consumer
// said so; and it is DEAD at a pull consumer only if that one said so.
func checkStale(x *index) result {
	r := result{Name: "the final state agrees with the receipts"}
	for i := range x.Jobs {
		j := &x.Jobs[i]
		if j.Status != statusDelivered && j.Status != statusDead {
			continue
		}
		v := violation{Message: j.Message, Consumer: j.Consumer}
		if x.consumers[j.Consumer].Pull {
			r.Cases++
			want := "DELIVERED"
			if j.Status == statusDead {
				want = "DEAD"
			}
			if !x.reported(j.Job, want) {
				v.What = fmt.Sprintf("job %s (%s of %s) is %s; no pull consumer said so", j.Job, j.Message, j.Consumer, want)
				r.flag(v)
			}
			continue
		}
		if j.Status != statusDelivered || x.consumers[j.Consumer].Engine != "" { // the history tells what engines did
			continue
		}
		r.Cases++
		receipts := x.receiptsBefore(j.Consumer, j.Message)
		good := false
		for _, rc := range receipts {
			good = good || x.mayCount(rc)
		}
		if !good {
			v.What = fmt.Sprintf("job %s (%s of %s) is DELIVERED; none of its %d receipts was answered with a 2xx in time", j.Job, j.Message, j.Consumer, len(receipts))
			r.flag(v)
		}
	}
	return r
}

// mayCount says whether the broker may have taken an answer for a delivery. A stopped instance reads late what was
// answered late, and may be right in calling it in time by its own clock: such a receipt is not held against it.
func (x *index) mayCount(rc *receipt) bool {
	if rc.Answer < 200 || rc.Answer > 299 || rc.Gone {
		return false
	}
	if rc.End.sub(rc.Start) <= leaseTime {
		return true
	}
	for _, f := range x.Faults {
		if f.Kind == faultStop && f.overlaps(rc.Start, rc.End) {
			return true
		}
	}
	return false
}

func (x *index) reported(job, state string) bool {
	for _, o := range x.pulls[job] {
		if o.State == state && o.Start < x.over {
			return true
		}
	}
	return false
}
