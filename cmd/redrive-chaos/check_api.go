//go:build unix

package main

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// checkNoDatabase: while there is no database nothing is accepted, of broadcasts, on dead letters and by engines, and what is answered
// is a 503.
func checkNoDatabase(x *index) result {
	r := result{Name: "no database: nothing but 503"}
	for _, f := range x.Faults {
		if f.Kind != faultDatabase {
			continue
		}
		for _, o := range x.Ops {
			if o.Kind != opBroadcast && !ofAPI(o.Kind) || o.Start <= f.Down || o.End >= f.Up || o.Status == 0 {
				continue
			}
			r.Cases++
			// What is wrong with a request may be known without the database: a schedule that has come too near
			// while the request waited for a stopped instance (412), or what the request was made to be refused for.
			if o.Status != http.StatusServiceUnavailable && o.Status != http.StatusPreconditionFailed && (o.Want == 0 || o.Status != o.Want) {
				r.flag(violation{Message: o.Message, At: o.Start, What: fmt.Sprintf("a %s from %s to %s got %d, without a database from %s to %s", o.Kind, o.Start, o.End, o.Status, f.Down, f.Up)})
			}
		}
	}
	return r
}

// checkRetryAfter: a broadcast, or what concerns dead letters or engines, answered 503 is told when to come again.
func checkRetryAfter(x *index) result {
	r := result{Name: "503 comes with Retry-After"}
	for _, o := range x.Ops {
		if o.Kind != opBroadcast && !ofAPI(o.Kind) || o.Status != http.StatusServiceUnavailable {
			continue
		}
		r.Cases++
		if o.RetryAfter == "" {
			r.flag(violation{Message: o.Message, At: o.Start, What: fmt.Sprintf("a %s at %s got 503 without Retry-After: %s", o.Kind, o.Start, o.Err)})
		}
	}
	return r
}

// allowed are the answers of each kind of operation; 503 is added to all.
var allowed = map[string][]int{
	opListDead:   {200},
	opRequeueOne: {202, 400},
	opRequeueAll: {202},
	opPurgeOne:   {204, 404},
	opPurgeAll:   {200},
	opQueued:     {200},
	opPullState:  {202, 400},
	opDLQStatus:  {200},
	opJobStatus:  {200},
	opMetrics:    {200},

	opLetters:       {200},
	opRetryLetter:   {200, 404, 409}, // whether these are right is the business of the checks of letters
	opResolveLetter: {200, 404, 409},
	opExpireLetter:  {200, 404, 409},
	opExpireOld:     {200},

	opBeginRun: {200, 202, 409},
	opAlert:    {202},
}

// checkAnswers: nothing is answered that the contract does not allow; above all no 500.
func checkAnswers(x *index) result {
	r := result{Name: "allowed answers only, readable"}
	for i := range x.Ops {
		o := &x.Ops[i]
		if o.Status == 0 {
			continue
		}
		r.Cases++
		v := violation{Message: o.Message, Consumer: o.Consumer, At: o.Start}
		switch {
		case o.Status != http.StatusServiceUnavailable && !slices.Contains(x.mayAnswer(o), o.Status):
			v.What = fmt.Sprintf("%s at %s got %d, allowed are %v and 503: %s", o.Kind, o.Start, o.Status, x.mayAnswer(o), o.Err)
		case o.Outcome == ok && o.Err != "":
			v.What = fmt.Sprintf("%s at %s: %s", o.Kind, o.Start, o.Err)
		default:
			continue
		}
		r.flag(v)
	}
	return r
}

func (x *index) mayAnswer(o *op) []int {
	switch {
	case o.Kind == opRequeueOne && x.consumers[o.Consumer].Purged:
		return append([]int{404}, allowed[o.Kind]...)
	case o.Kind != opBroadcast:
		return allowed[o.Kind]
	case o.Want != 0:
		return []int{o.Want}
	}
	codes := []int{201}
	if o.OwnID {
		codes = append(codes, 409) // whether it is right is checkIdempotent's business
	}
	if o.Scheduled != 0 && o.Scheduled.sub(o.End) < minSchedule {
		codes = append(codes, 412) // sent again, it has become too late
	}
	return codes
}

// checkIdempotent: of all broadcasts with one id in a channel at most one gets a 201, and a 409 only comes when
// another may have been accepted.
func checkIdempotent(x *index) result {
	r := result{Name: "one id is accepted once"}
	same := map[string][]*op{}
	for i := range x.Ops {
		if o := &x.Ops[i]; o.Kind == opBroadcast && o.OwnID {
			key := o.Channel + " " + o.Message
			same[key] = append(same[key], o)
		}
	}
	for _, ops := range same {
		r.Cases++
		slices.SortFunc(ops, func(a, b *op) int { return cmp.Compare(a.Start, b.Start) })
		taken, possible := 0, false
		for _, o := range ops {
			if o.Status == http.StatusConflict && !possible {
				r.flag(violation{Message: o.Message, What: fmt.Sprintf("%s got 409 at %s; nothing with this id can have been accepted before", o.Message, o.Start)})
			}
			if o.Status == http.StatusCreated {
				taken++
			}
			possible = possible || o.Outcome != refused
		}
		if taken > 1 {
			r.flag(violation{Message: ops[0].Message, What: fmt.Sprintf("%s was accepted %d times", ops[0].Message, taken)})
		}
	}
	return r
}

// checkUnanswered: an instance that nobody has broken answers, while there is a database and a little after it came
// back. A caller that lost patience early proves nothing.
func checkUnanswered(x *index) result {
	r := result{Name: "unbroken instances answer"}
	for _, o := range x.Ops {
		broken := slices.ContainsFunc(x.Faults, func(f fault) bool {
			switch f.Kind {
			case faultConsumer:
				return false
			case faultDatabase:
				return f.overlaps(o.Start.add(-5*time.Second), o.End)
			}
			return f.Target == strconv.Itoa(o.Instance) && f.overlaps(o.Start.add(-time.Second), o.End.add(time.Second))
		})
		if broken || o.Timeout && o.End.sub(o.Start) < patienceOfChecks {
			continue
		}
		r.Cases++
		if o.Status == 0 {
			r.flag(violation{Message: o.Message, Consumer: o.Consumer, At: o.Start, What: fmt.Sprintf("instance %d did not answer a %s from %s to %s: %s", o.Instance, o.Kind, o.Start, o.End, o.Err)})
		}
	}
	return r
}

// patienceOfChecks is how long an instance may take to answer.
const patienceOfChecks = 7 * time.Second

// checkCameToRest: healed, all jobs end within the time allowed.
func checkCameToRest(x *index) result {
	r := result{Name: "everything comes to rest"}
	for _, at := range x.Rests {
		r.Cases++
		for _, what := range sortedKeys(at.Left) {
			consumer, _, _ := strings.Cut(what, " ")
			r.flag(violation{Consumer: consumer, At: at.At, What: fmt.Sprintf("%s: still %d %s at %s", at.Label, at.Left[what], what, at.At)})
		}
	}
	return r
}

// checkIncidents: instances end only when told to, and then in time and in order.
func checkIncidents(x *index) result {
	r := result{Name: "instances stay up and stop in order", Cases: x.Starts}
	for _, i := range x.Incidents {
		r.flag(violation{At: i.At, What: fmt.Sprintf("at %s: %s", i.At, i.What)})
	}
	return r
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
