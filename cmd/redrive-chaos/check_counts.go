//go:build unix

package main

import (
	"cmp"
	"fmt"
	"slices"
)

// checkSnapshots: at every instant, what the summary holds is the dead jobs it has counted, and with what is
// still owed to that it is the dead jobs there are, each with one pending dead letter.
func checkSnapshots(x *index) result {
	r := result{Name: "every snapshot is exact"}
	for _, s := range x.Snapshots {
		for consumer, t := range s.Of {
			r.Cases++
			v := violation{Consumer: consumer, At: s.Start}
			switch {
			case t.DeadCount != t.Counted:
				v.What = fmt.Sprintf("at %s dead_count of %s was %d with %d jobs counted", s.Start, consumer, t.DeadCount, t.Counted)
			case t.DeadCount+t.Delta != t.Dead:
				v.What = fmt.Sprintf("at %s %s showed %d + %d with %d jobs dead", s.Start, consumer, t.DeadCount, t.Delta, t.Dead)
			case t.Pending != t.Dead:
				v.What = fmt.Sprintf("at %s %s had %d pending dead letters with %d jobs dead", s.Start, consumer, t.Pending, t.Dead)
			default:
				continue
			}
			r.flag(v)
		}
	}
	return r
}

// reading is one number of dead jobs that somebody read between start and end.
type reading struct {
	start, end moment
	n          int64
	by         string
}

// checkMonotone: where nobody requeues or purges, the number of dead jobs never falls, whoever is asked: a
// reading that begins after another has ended, on any instance, is not below it. So no instance shows an old count.
func checkMonotone(x *index) result {
	r := result{Name: "no instance shows an old count"}
	for key, c := range x.consumers {
		if c.Redrive || c.Purged || c.Pull {
			continue
		}
		readings := x.readings(key)
		byEnd := slices.Clone(readings)
		slices.SortFunc(readings, func(a, b reading) int { return cmp.Compare(a.start, b.start) })
		slices.SortFunc(byEnd, func(a, b reading) int { return cmp.Compare(a.end, b.end) })
		var high reading
		next := 0
		for _, now := range readings {
			for ; next < len(byEnd) && byEnd[next].end < now.start; next++ {
				if a := byEnd[next]; a.n > high.n && !x.unsettled(a.start, a.end) {
					high = a
				}
			}
			r.Cases++
			if now.n < high.n {
				r.flag(violation{Consumer: key, At: now.start, What: fmt.Sprintf("%s: %s read %d at %s, after %s had read %d at %s", key, now.by, now.n, now.start, high.by, high.n, high.end)})
			}
		}
	}
	return r
}

// readings are all readings of a consumer's dead jobs during the traffic.
func (x *index) readings(consumer string) []reading {
	var out []reading
	for _, o := range x.Ops {
		if (o.Kind == opDLQStatus || o.Kind == opMetrics) && o.Outcome == ok && o.Start < x.over {
			if n, shown := o.Counts[consumer]; shown {
				out = append(out, reading{o.Start, o.End, n, fmt.Sprintf("%s of instance %d", o.Kind, o.Instance)})
			}
		}
	}
	for _, s := range x.Snapshots {
		if t, shown := s.Of[consumer]; shown && s.Start < x.over {
			out = append(out, reading{s.Start, s.End, t.Dead, "the database"})
		}
	}
	return out
}

// checkNegative: no number shown or stored is ever below 0.
func checkNegative(x *index) result {
	r := result{Name: "never a negative number"}
	judge := func(n int64, where, what string, at moment) {
		r.Cases++
		if n < 0 {
			r.flag(violation{At: at, What: fmt.Sprintf("%s showed %d for %s at %s", where, n, what, at)})
		}
	}
	for _, o := range x.Ops {
		for what, n := range o.Counts {
			judge(n, fmt.Sprintf("%s of instance %d", o.Kind, o.Instance), what, o.Start)
		}
		if o.Total != nil {
			judge(*o.Total, o.Kind, o.Consumer, o.Start)
		}
	}
	for _, s := range x.Snapshots {
		for consumer, t := range s.Of {
			judge(t.DeadCount, "dead_count", consumer, s.Start)
			judge(t.DeadCount+t.Delta, "dead_count + SUM(dlqDelta)", consumer, s.Start)
		}
	}
	return r
}

// checkAtRest: when nothing moves, all instances show in all ways what is in the database.
func checkAtRest(x *index) result {
	r := result{Name: "every count at rest is exact"}
	for _, at := range x.Rests {
		for _, c := range x.Info.Consumers {
			t := at.Tallies[c.Key]
			r.Cases++
			if t.Dead != t.DeadCount || t.Dead != t.Counted || t.Dead != t.Pending {
				r.flag(violation{Consumer: c.Key, At: at.At, What: fmt.Sprintf("%s: %s has %d dead jobs, %d counted, dead_count %d, %d pending dead letters",
					at.Label, c.Key, t.Dead, t.Counted, t.DeadCount, t.Pending)})
			}
		}
		for _, o := range at.Shown {
			compareShown(&r, x, at, o)
		}
	}
	return r
}

func compareShown(r *result, x *index, at rest, o op) {
	where := fmt.Sprintf("%s: %s of instance %d", at.Label, o.Kind, o.Instance)
	r.Cases++
	if o.Outcome != ok || o.Err != "" {
		r.flag(violation{At: o.Start, What: fmt.Sprintf("%s: %d %s", where, o.Status, o.Err)})
		return
	}
	for _, c := range x.Info.Consumers {
		if o.Kind != opJobStatus {
			r.Cases++
			if n, shown := o.Counts[c.Key]; !shown || n != at.Tallies[c.Key].Dead {
				r.flag(violation{Consumer: c.Key, At: o.Start, What: fmt.Sprintf("%s: %s has %d (shown: %t), want %d", where, c.Key, n, shown, at.Tallies[c.Key].Dead)})
			}
			continue
		}
		for _, status := range []string{"QUEUED", "INFLIGHT", "DELIVERED", "DEAD", "SHELVED"} {
			r.Cases++
			key := c.Key + " " + status
			if o.Counts[key] != at.Jobs[key] {
				r.flag(violation{Consumer: c.Key, At: o.Start, What: fmt.Sprintf("%s: %s has %d, want %d", where, key, o.Counts[key], at.Jobs[key])})
			}
		}
	}
}

// checkCounted: after a cycle at rest, nothing is owed to the summary.
func checkCounted(x *index) result {
	r := result{Name: "nothing is left uncounted at rest"}
	for _, at := range x.Rests {
		r.Cases++
		if at.Uncounted != 0 {
			r.flag(violation{At: at.At, What: fmt.Sprintf("%s: %d jobs still have a dlqDelta", at.Label, at.Uncounted)})
		}
	}
	return r
}

// checkTotals: the total that a requeue, a purge or an expiry of the old reports is the change it made.
func checkTotals(x *index) result {
	r := result{Name: "totals of requeue and purge are the change"}
	for _, o := range x.Ops {
		if o.Kind != opRequeueAll && o.Kind != opPurgeAll && o.Kind != opExpireOld {
			continue
		}
		v := violation{Consumer: o.Consumer, At: o.Start}
		switch {
		case o.Outcome == ok && o.Total == nil:
			v.What = fmt.Sprintf("%s of %s at %s reported no total", o.Kind, o.Consumer, o.Start)
		case o.Before != nil && o.Outcome != ok:
			v.What = fmt.Sprintf("%s of %s at rest was answered %d %s", o.Kind, o.Consumer, o.Status, o.Err)
		case o.Before != nil && (*o.Total != *o.Before || *o.After != 0):
			v.What = fmt.Sprintf("%s of %s at rest reported %d; dead before %d, after %d", o.Kind, o.Consumer, *o.Total, *o.Before, *o.After)
		}
		r.Cases++
		if v.What != "" {
			r.flag(v)
		}
	}
	return r
}

// checkPurged: the jobs that are gone are as many as purges have reported, if each of them was answered, and
// otherwise at least as many; and a job whose purge was confirmed is gone.
func checkPurged(x *index) result {
	r := result{Name: "what is gone is what was purged"}
	made, here, reported, unclear := map[string]int64{}, map[string]int64{}, map[string]int64{}, map[string]int64{}
	for _, m := range x.Messages {
		if m.Dispatched {
			made[m.Channel]++
		}
	}
	for _, j := range x.Jobs {
		here[j.Consumer]++
	}
	for _, o := range x.Ops {
		if o.Kind != opPurgeAll && o.Kind != opPurgeOne || o.End >= x.over {
			continue
		}
		switch {
		case o.Outcome == unknown:
			unclear[o.Consumer]++
		case o.Outcome == ok && o.Kind == opPurgeOne:
			reported[o.Consumer]++
			r.Cases++
			if j := x.jobByID[o.Job]; j != nil {
				r.flag(violation{Message: j.Message, Consumer: o.Consumer, What: fmt.Sprintf("job %s was purged at %s and has status %d", o.Job, o.End, j.Status)})
			}
		case o.Outcome == ok && o.Total != nil:
			reported[o.Consumer] += *o.Total
		}
	}
	for _, c := range x.Info.Consumers {
		r.Cases++
		gone := made[c.Channel] - here[c.Key]
		if gone < reported[c.Key] || gone > reported[c.Key] && unclear[c.Key] == 0 {
			r.flag(violation{Consumer: c.Key, What: fmt.Sprintf("%s: %d jobs are gone, %d reported as purged, %d purges without an answer", c.Key, gone, reported[c.Key], unclear[c.Key])})
		}
	}
	return r
}
