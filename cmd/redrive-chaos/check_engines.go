//go:build unix

package main

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
)

// employment is what was asked of engines, and what the endpoint saw of it.
type employment struct {
	asked    map[work][]*op        // by anybody, refused or not
	messages map[string][]*op      // by consumer and message: those that ask by this message
	runs     map[work][]*engineRun // at the endpoint
}

func newEmployment(h *history) *employment {
	e := &employment{asked: map[work][]*op{}, messages: map[string][]*op{}, runs: map[work][]*engineRun{}}
	consumers := map[string]string{}
	for _, c := range h.Info.Consumers {
		if c.Engine != "" {
			consumers[c.Engine] = c.Key
		}
	}
	for i := range h.Ops {
		if o := &h.Ops[i]; o.Work != nil {
			e.asked[*o.Work] = append(e.asked[*o.Work], o)
			key := pair(consumers[o.Work.Engine], o.Message)
			e.messages[key] = append(e.messages[key], o)
		}
	}
	for i := range h.Runs {
		e.runs[h.Runs[i].Work] = append(e.runs[h.Runs[i].Work], &h.Runs[i])
	}
	return e
}

// mayBe says whether one of the requests may have been taken.
func mayBe(ops []*op) bool {
	return slices.ContainsFunc(ops, func(o *op) bool { return o.Outcome != refused })
}

// queued says whether the requests tell that their message is in the queue. An engine that says that all was done before
// has queued nothing.
func queued(ops []*op) bool {
	return accepted(slices.DeleteFunc(slices.Clone(ops), func(o *op) bool { return o.Kind == opBeginRun && o.Status == http.StatusOK })) != nil
}

// atEngine is one reading at rest, in order.
type atEngine struct {
	*rest
	last  bool // all dead letters were retried before it
	jobs  map[string]*engineJob
	done  map[work]*workDone
	ended map[work]bool // some job of the work is DELIVERED
}

func (x *index) enginesAtRest() []atEngine {
	var out []atEngine
	for n := range x.Rests {
		at := atEngine{rest: &x.Rests[n], last: x.Rests[n].Label == restAfterRedrive, jobs: map[string]*engineJob{}, done: map[work]*workDone{}, ended: map[work]bool{}}
		for i := range at.Engines {
			j := &at.Engines[i]
			key := pair(j.Consumer, j.Message)
			at.jobs[key] = j
			for _, o := range x.employed.messages[key] {
				at.ended[*o.Work] = at.ended[*o.Work] || j.Status == statusDelivered
			}
		}
		for i := range at.Works {
			at.done[at.Works[i].Work] = &at.Works[i]
		}
		out = append(out, at)
	}
	return out
}

// checkEngineJobs: at rest every message that an engine's queue has taken is either done, and its work has succeeded once
// by the history, or dead with one dead letter that is Pending; and once these were retried, all are done.
func checkEngineJobs(x *index) result {
	r := result{Name: "an engine's message is done, or dead with its record"}
	for _, at := range x.enginesAtRest() {
		for _, key := range sortedKeys(x.employed.messages) {
			ops := x.employed.messages[key]
			if !queued(ops) {
				continue
			}
			r.Cases++
			if what := at.undone(key, *ops[0].Work); what != "" {
				r.flag(violation{Message: ops[0].Message, Consumer: x.consumerOf(ops[0].Work.Engine), At: at.At, What: fmt.Sprintf("%s: %s, %s: %s", at.Label, ops[0].Message, ops[0].Work, what)})
			}
		}
		for _, j := range at.Engines {
			r.Cases++
			v := violation{Message: j.Message, Consumer: j.Consumer, At: at.At}
			want := 0
			if j.Status == statusDead {
				want = 1
			}
			switch {
			case j.Pending != want:
				v.What = fmt.Sprintf("has status %d and %d pending dead letters", j.Status, j.Pending)
			case x.consumers[j.Consumer].Engine != "" && !mayBe(x.employed.messages[pair(j.Consumer, j.Message)]):
				v.What = "is of a message that nobody sent, or that was refused"
			default:
				continue
			}
			v.What = fmt.Sprintf("%s: job %s (%s of %s) %s", at.Label, j.Job, j.Message, j.Consumer, v.What)
			r.flag(v)
		}
	}
	return r
}

// undone says what is wrong with a message that was taken; empty: nothing.
func (at atEngine) undone(key string, w work) string {
	succeeded := 0
	if d := at.done[w]; d != nil {
		succeeded = d.Succeeded
	}
	switch j := at.jobs[key]; {
	case j == nil:
		return "there is no job"
	case j.Status == statusDelivered && succeeded != 1:
		return fmt.Sprintf("it is done; the history has %d successes", succeeded)
	case j.Status == statusDelivered:
		return ""
	case j.Status != statusDead:
		return fmt.Sprintf("its job %s has status %d", j.Job, j.Status)
	case at.last:
		return "it is dead again, and all could be done"
	case succeeded > 0 && !at.ended[w]:
		return fmt.Sprintf("it is dead, and the history has %d successes", succeeded)
	}
	return ""
}

func (x *index) consumerOf(engine string) string {
	for key, c := range x.consumers {
		if c.Engine == engine {
			return key
		}
	}
	return ""
}

// checkWorkOnce: no work is done twice, by the history and by what the endpoint saw; and it is done where the history says so.
func checkWorkOnce(x *index) result {
	r := result{Name: "an engine's work is done once"}
	judge := func(w work, what string) {
		r.flag(violation{Message: w.message(), Consumer: x.consumerOf(w.Engine), What: fmt.Sprintf("the %s %s", w, what)})
	}
	for w, runs := range x.employed.runs {
		r.Cases++
		var done []string
		for _, run := range runs {
			if run.Done {
				done = append(done, fmt.Sprintf("run %s from %s to %s", run.Run, run.Begin, run.Final))
			}
		}
		if len(done) > 1 {
			judge(w, fmt.Sprintf("was done %d times: %v", len(done), done))
		}
	}
	for _, at := range x.enginesAtRest() {
		for _, d := range at.Works {
			r.Cases++
			done := slices.ContainsFunc(x.employed.runs[d.Work], func(run *engineRun) bool { return run.Done })
			switch {
			case d.Succeeded > 1:
				judge(d.Work, fmt.Sprintf("has succeeded %d times by the history", d.Succeeded))
			case d.Succeeded > 0 && d.Work.Engine != engineAlerts && !done:
				judge(d.Work, "has succeeded by the history; the endpoint did not do it")
			}
		}
	}
	return r
}

// checkSingleton: of one instance id of an engine one run at a time is alive. What the endpoint sees of a run is less than
// its life (it has begun before its first POST, and ends after the endpoint has told how it ended), so two that
// overlap there have overlapped. A run that an instance took up after another's death is the same one.
func checkSingleton(x *index) result {
	r := result{Name: "runs of one instance id never overlap"}
	of := map[string][]*engineRun{}
	for i := range x.Runs {
		run := &x.Runs[i]
		key := run.Work.Engine + " " + run.Work.Instance
		of[key] = append(of[key], run)
	}
	for _, key := range sortedKeys(of) {
		runs := of[key]
		slices.SortFunc(runs, func(a, b *engineRun) int { return cmp.Compare(a.Begin, b.Begin) })
		longest := runs[0]
		for _, run := range runs[1:] {
			r.Cases++
			if run.Begin < longest.last() {
				r.flag(violation{Message: run.Work.message(), Consumer: x.consumerOf(run.Work.Engine), At: run.Begin, What: fmt.Sprintf("%s: run %s (%s) began at %s, while run %s (%s, %s) from %s to %s was alive",
					key, run.Run, run.Work.Correlation, run.Begin, longest.Run, longest.Work.Correlation, longest.Fate, longest.Begin, longest.last())})
			}
			if run.last() > longest.last() {
				longest = run
			}
		}
	}
	return r
}

// checkPosts: what comes to the endpoint is what somebody asked for; all POSTs of one run have one Idempotency-Key, and no
// other run has it.
func checkPosts(x *index) result {
	r := result{Name: "a run is what was asked for, under one key"}
	of := map[string]string{} // runs by key
	for i := range x.Runs {
		run := &x.Runs[i]
		for _, p := range run.Posts {
			r.Cases++
			v := violation{Message: run.Work.message(), Consumer: x.consumerOf(run.Work.Engine), At: p.At}
			if of[p.Key] == "" {
				of[p.Key] = run.Run
			}
			switch {
			case p.Flaw != "":
				v.What = p.Flaw
			case p.Key != run.Posts[0].Key:
				v.What = fmt.Sprintf("it has the keys %s and %s", run.Posts[0].Key, p.Key)
			case of[p.Key] != run.Run:
				v.What = fmt.Sprintf("run %s has its key, too", of[p.Key])
			case !mayBe(x.employed.asked[run.Work]):
				v.What = "nobody asked for it, or it was refused"
			default:
				continue
			}
			v.What = fmt.Sprintf("run %s (the %s), POST at %s: %s", run.Run, run.Work, p.At, v.What)
			r.flag(v)
		}
	}
	return r
}

// checkDemands: a run on demand is refused only where another work of the instance may be under way, and is said to be
// done only where it is.
func checkDemands(x *index) result {
	r := result{Name: "runs on demand are answered rightly"}
	of := map[string][]*op{}
	for w, ops := range x.employed.asked {
		key := w.Engine + " " + w.Instance
		of[key] = append(of[key], ops...)
	}
	rests := x.enginesAtRest()
	for i := range x.Ops {
		o := &x.Ops[i]
		if o.Kind != opBeginRun || o.Status == 0 {
			continue
		}
		r.Cases++
		v := violation{Message: o.Message, Consumer: x.consumerOf(o.Work.Engine), At: o.Start}
		other := func(c *op) bool { return *c.Work != *o.Work && c.Outcome != refused && c.Start <= o.End }
		switch {
		case o.Status == http.StatusConflict && !slices.ContainsFunc(of[o.Work.Engine+" "+o.Work.Instance], other):
			v.What = "got 409, and nothing else can have been under way"
		case o.Status == http.StatusOK && !slices.ContainsFunc(rests, func(at atEngine) bool { return at.done[*o.Work] != nil && at.done[*o.Work].Succeeded > 0 }):
			v.What = "was told that it was done, and the history does not know it"
		default:
			continue
		}
		v.What = fmt.Sprintf("who asked for the %s at %s %s", o.Work, o.Start, v.What)
		r.flag(v)
	}
	return r
}

// checkForwards: an alert that was taken is forwarded once its message is done, as one message, and arrives.
func checkForwards(x *index) result {
	r := result{Name: "alerts are forwarded once and arrive"}
	for _, at := range x.enginesAtRest() {
		messages := map[string]int{}
		for _, j := range at.Engines {
			if j.Consumer != consumerAlerted {
				continue
			}
			r.Cases++
			messages[j.Message]++
			if n := messages[j.Message]; n > 1 {
				r.flag(violation{Message: j.Message, Consumer: j.Consumer, What: fmt.Sprintf("%s: the alert %s has %d jobs", at.Label, j.Message, n)})
			}
		}
		for key, ops := range x.employed.messages {
			if ops[0].Kind != opAlert || at.jobs[key] == nil || at.jobs[key].Status != statusDelivered {
				continue
			}
			r.Cases++
			if what := x.notArrived(at, ops[0].Message); what != "" {
				r.flag(violation{Message: ops[0].Message, Consumer: consumerAlerted, At: at.At, What: fmt.Sprintf("%s: the alert %s is done; %s", at.Label, ops[0].Message, what)})
			}
		}
	}
	return r
}

func (x *index) notArrived(at atEngine, message string) string {
	j := at.jobs[pair(consumerAlerted, message)]
	switch {
	case j == nil:
		return "it was not forwarded"
	case !at.last:
		return ""
	case j.Status != statusDelivered:
		return fmt.Sprintf("where it was forwarded, its job has status %d", j.Status)
	case !slices.ContainsFunc(x.receiptsOf[pair(consumerAlerted, message)], func(rc *receipt) bool { return rc.Answer == http.StatusOK }):
		return "it never arrived"
	}
	return ""
}

// checkWebhookIDs: the webhook-id of a delivery is its job's id, so the same in every attempt of every life. Its signature was
// verified as it came: see receipt.Flaw.
func checkWebhookIDs(x *index) result {
	r := result{Name: "webhook-id is the job's id"}
	for key, receipts := range x.receiptsOf {
		want := receipts[0].Job
		if j := x.jobOf[key]; j != nil {
			want = j.Job
		}
		for _, rc := range receipts {
			r.Cases++
			if rc.Job == "" || rc.Job != want {
				r.flag(violation{Message: rc.Message, Consumer: rc.Consumer, At: rc.Start, What: fmt.Sprintf("%s received %s at %s as %q, want %q", rc.Consumer, rc.Message, rc.Start, rc.Job, want)})
			}
		}
	}
	return r
}
