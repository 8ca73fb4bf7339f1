//go:build unix

package main

// faulty is a history with one thing wrong: what, how a good one is spoiled so, which check finds it and what it says.
type faulty struct {
	what  string
	spoil func(*history)
	check string
	says  string
}

var faultyHistories = []faulty{
	{"an accepted message has no job for a consumer", func(h *history) {
		remove(&h.Jobs, func(j *finalJob) bool { return j.Job == "healthy.m1" })
	}, "no accepted message is lost", "there is no job"},
	{"an accepted message is not stored", func(h *history) {
		remove(&h.Messages, func(m *finalMessage) bool { return m.Message == "m5" })
	}, "no accepted message is lost", "stored: false"},
	{"a scheduled message is never dispatched", func(h *history) {
		find(h.Messages, func(m *finalMessage) bool { return m.Message == "m4" }).Dispatched = false
	}, "no accepted message is lost", "dispatched: false"},
	{"a message known by its 409 is lost", func(h *history) {
		remove(&h.Jobs, func(j *finalJob) bool { return j.Job == "healthy.m2" })
	}, "no accepted message is lost", "m2 was accepted"},
	{"a job is left behind QUEUED", func(h *history) { jobNamed(h, "flapper.m4").Status = statusQueued },
		"no accepted message is lost", "ends with status 1001"},
	{"a job is gone that nobody purged", func(h *history) {
		remove(&h.Ops, func(o *op) bool { return o.Kind == opPurgeOne })
		remove(&h.Jobs, func(j *finalJob) bool { return j.Job == "scrap.m6" })
		remove(&h.Ops, func(o *op) bool { return o.Kind == opPurgeAll })
	}, "no accepted message is lost", "there is no job"},

	{"a message arrives that nobody sent", func(h *history) { h.Receipts[0].Tag = "t-m0" },
		"deliveries are as sent, none of a refused message", "nobody sent"},
	{"a refused message arrives", func(h *history) { h.Receipts[0].Tag = "t-bad" },
		"deliveries are as sent, none of a refused message", "was refused with 403"},
	{"the body of the second use of an id arrives", func(h *history) { h.Receipts[0].Tag = "t-again" },
		"deliveries are as sent, none of a refused message", "was refused with 409"},
	{"a delivery lacks a header", func(h *history) { h.Receipts[0].Flaw = "no token" },
		"deliveries are as sent, none of a refused message", "no token"},
	{"a delivery has another's message id", func(h *history) { h.Receipts[0].Message = "m9" },
		"deliveries are as sent, none of a refused message", `as message "m9"`},
	{"a message arrives at another channel's consumer", func(h *history) { h.Receipts[0].Consumer = "returns/broken" },
		"deliveries are as sent, none of a refused message", "was sent to orders"},

	{"two jobs for one message and consumer", func(h *history) {
		h.Jobs = append(h.Jobs, finalJob{Job: "second", Message: "m1", Consumer: "orders/healthy", Status: statusDelivered})
	}, "one job for each message and consumer", "second"},
	{"a scheduled message comes early", func(h *history) {
		find(h.Receipts, func(r *receipt) bool { return r.Message == "m4" }).Start = 25 * sec
	}, "no scheduled message comes early", "scheduled for 26.000s"},

	{"DELIVERED though all answers were 500", func(h *history) { answers(h, "orders/flapper", "m1", 500) },
		"the final state agrees with the receipts", "none of its 2 receipts"},
	{"DELIVERED without a receipt", func(h *history) {
		remove(&h.Receipts, func(r *receipt) bool { return r.Consumer == "orders/healthy" && r.Message == "m2" })
	}, "the final state agrees with the receipts", "none of its 0 receipts"},
	{"DELIVERED by an answer that came too late", func(h *history) {
		each(h.Receipts, func(r *receipt) {
			if r.Consumer == "orders/healthy" && r.Message == "m1" {
				r.End = r.Start + 4*sec
			}
		})
	}, "the final state agrees with the receipts", "with a 2xx in time"},
	{"a pull job DELIVERED that nobody reported", func(h *history) {
		remove(&h.Ops, func(o *op) bool { return o.Kind == opPullState && o.State == "DELIVERED" && o.Message == "m1" })
	}, "the final state agrees with the receipts", "no pull consumer said so"},
	{"a pull job dies by itself", func(h *history) { jobNamed(h, "puller.m1").Status = statusDead },
		"the final state agrees with the receipts", "is DEAD; no pull consumer said so"},

	{"a DELIVERED job is DEAD later", func(h *history) { jobNamed(h, "healthy.m2").Status = statusDead },
		"a finished job stays finished", "had status 1003 at 24.500s and ends with 1004"},
	{"a DEAD job is DELIVERED later, and nobody requeued it", func(h *history) { jobNamed(h, "broken.m3").Status = statusDelivered },
		"a finished job stays finished", "had status 1004"},
	{"a requeue was refused, and the job came back", func(h *history) {
		o := opOf(h, opRequeueOne, "m2", 202)
		o.Status, o.Outcome = 400, refused
	}, "a finished job stays finished", "flapper.m2"},
	{"a dead job disappears", func(h *history) {
		remove(&h.Ops, func(o *op) bool { return o.Kind == opPurgeOne || o.Kind == opPurgeAll })
	}, "a finished job stays finished", "is gone"},
	{"a pull job that was taken as DELIVERED is not", func(h *history) { jobNamed(h, "puller.m5").Status = statusDead },
		"a finished job stays finished", "puller.m5"},

	{"five attempts in one life", func(h *history) {
		h.Receipts = append(h.Receipts, receipt{Consumer: "returns/broken", Message: "m3", Tag: "t-m3", Start: 8 * sec, End: 8 * sec, Answer: 500})
	}, "at most 4 attempts a life", "received m3 5 times"},
	{"six attempts and one refused requeue", func(h *history) {
		o := opOf(h, opRequeueOne, "m2", 202)
		o.Status, o.Outcome = 400, refused
	}, "at most 4 attempts a life", "in at most 1 lives"},
	{"nine attempts in two lives, within the second", func(h *history) {
		for at := 28 * sec; at < 31*sec; at += sec {
			h.Receipts = append(h.Receipts, receipt{Consumer: "orders/flapper", Message: "m2", Tag: "t-m2", Start: at, End: at, Answer: 500})
		}
	}, "at most 4 attempts a life", "m2"},
	{"DEAD with retries left", func(h *history) { jobNamed(h, "broken.m3").Retries = 2 },
		"dead only after all attempts", "with 2 retries"},
	{"DEAD after three receipts and nothing was broken", func(h *history) {
		remove(&h.Receipts, func(r *receipt) bool { return r.Consumer == "returns/broken" && r.Message == "m3" && r.Start == 3*sec })
	}, "dead only after all attempts", "after 3 receipts, want 4"},

	{"dead_count is not what is counted", func(h *history) {
		h.Snapshots[1].Of["returns/broken"] = tally{Dead: 2, Counted: 2, DeadCount: 3, Delta: -1}
	},
		"every snapshot is exact", "dead_count of returns/broken was 3"},
	{"the number shown is not the dead", func(h *history) { h.Snapshots[0].Of["returns/broken"] = tally{Dead: 1} },
		"every snapshot is exact", "showed 0 + 0 with 1 jobs dead"},
	{"a dead job without a dead letter", func(h *history) {
		h.Snapshots[0].Of["returns/broken"] = tally{Dead: 1, Delta: 1}
	}, "every snapshot is exact", "0 pending dead letters with 1 jobs dead"},
	{"an instance shows an old count", func(h *history) {
		find(h.Ops, func(o *op) bool { return o.Kind == opDLQStatus && o.Instance == 2 }).Counts["returns/broken"] = 1
	}, "no instance shows an old count", "instance 2 read 1"},
	{"an instance knows deaths before they are", func(h *history) {
		find(h.Ops, func(o *op) bool { return o.Kind == opDLQStatus && o.Start == sec }).Counts["returns/broken"] = 2
	}, "no instance shows an old count", "the database read 1"},
	{"a negative number is shown", func(h *history) {
		find(h.Ops, func(o *op) bool { return o.Kind == opDLQStatus }).Counts["returns/scrap"] = -1
	}, "never a negative number", "-1"},
	{"dead_count is negative", func(h *history) { h.Snapshots[1].Of["returns/scrap"] = tally{DeadCount: -1, Counted: -1, Delta: 1} },
		"never a negative number", "dead_count showed -1"},
	{"an instance is wrong at rest", func(h *history) { h.Rests[0].Shown[4].Counts = map[string]int64{"returns/broken": 2} },
		"every count at rest is exact", "instance 2"},
	{"a consumer without dead jobs is not shown", func(h *history) { delete(h.Rests[1].Shown[0].Counts, "orders/healthy") },
		"every count at rest is exact", "shown: false"},
	{"job-status is wrong at rest", func(h *history) {
		h.Rests[0].Shown[2].Counts = map[string]int64{"orders/healthy DELIVERED": 3}
	}, "every count at rest is exact", "orders/healthy DELIVERED has 3, want 4"},
	{"the metrics cannot be read at rest", func(h *history) { h.Rests[0].Shown[1].Outcome = unknown },
		"every count at rest is exact", "metrics of instance 1"},
	{"a delta is left after the cycle", func(h *history) { h.Rests[0].Uncounted = 3 },
		"nothing is left uncounted at rest", "3 jobs"},

	{"a purge reports too many", func(h *history) {
		find(h.Ops, func(o *op) bool { return o.Kind == opPurgeAll }).Total = count(5)
	}, "totals of requeue and purge are the change", "reported 5; dead before 1"},
	{"a requeue leaves some", func(h *history) {
		find(h.Ops, func(o *op) bool { return o.Kind == opRequeueAll }).After = count(1)
	}, "totals of requeue and purge are the change", "after 1"},
	{"a requeue reports nothing", func(h *history) {
		find(h.Ops, func(o *op) bool { return o.Kind == opRequeueAll }).Total = nil
	}, "totals of requeue and purge are the change", "no total"},
	{"more is gone than was purged", func(h *history) {
		remove(&h.Jobs, func(j *finalJob) bool { return j.Job == "scrap.m6" })
	}, "what is gone is what was purged", "2 jobs are gone, 1 reported"},
	{"what was purged is still there", func(h *history) {
		h.Jobs = append(h.Jobs, finalJob{Job: "scrap.m3", Message: "m3", Consumer: "returns/scrap", Status: statusDead, Retries: maxRetry})
	}, "what is gone is what was purged", "scrap.m3 was purged"},

	{"a 201 without a database", func(h *history) {
		o := opOf(h, opBroadcast, "m1", 503)
		o.Status, o.Outcome = 201, ok
	}, "no database: nothing but 503", "got 201"},
	{"a 500 without a database", func(h *history) { opOf(h, opBroadcast, "m1", 503).Status = 500 },
		"no database: nothing but 503", "got 500"},
	{"a 503 without Retry-After", func(h *history) { opOf(h, opBroadcast, "m1", 503).RetryAfter = "" },
		"503 comes with Retry-After", "11.000s"},
	{"a 500", func(h *history) {
		o := find(h.Ops, func(o *op) bool { return o.Kind == opDLQStatus })
		o.Status, o.Outcome = 500, unknown
	}, "allowed answers only, readable", "got 500"},
	{"a wrong token is let in", func(h *history) {
		o := find(h.Ops, func(o *op) bool { return o.Tag == "t-bad" })
		o.Status, o.Outcome = 201, ok
	}, "allowed answers only, readable", "got 201"},
	{"an answer cannot be read", func(h *history) {
		find(h.Ops, func(o *op) bool { return o.Kind == opDLQStatus }).Err = unreadable
	}, "allowed answers only, readable", unreadable},
	{"an id is accepted twice", func(h *history) {
		o := opOf(h, opBroadcast, "m1", 409)
		o.Status, o.Outcome = 201, ok
	}, "one id is accepted once", "m1 was accepted 2 times"},
	{"a 409 for an id that was never sent before", func(h *history) {
		remove(&h.Ops, func(o *op) bool { return o.Message == "m2" && o.Err == "EOF" })
	}, "one id is accepted once", "m2 got 409"},
	{"a living instance does not answer", func(h *history) {
		o := opOf(h, opBroadcast, "m3", 201)
		o.Status, o.Outcome, o.Err = 0, unknown, "EOF"
	}, "unbroken instances answer", "instance 1 did not answer"},

	{"jobs never come to rest", func(h *history) { h.Rests[0].Left = map[string]int64{"orders/healthy QUEUED": 2} },
		"everything comes to rest", "still 2 orders/healthy QUEUED"},
	{"an instance ends by itself", func(h *history) {
		h.Incidents = []incident{{At: sec, What: "instance 1 ended by itself"}}
	}, "instances stay up and stop in order", "ended by itself"},
	{"nothing happened at all", func(h *history) { *h = history{Info: h.Info} },
		"there was something to check", "0 messages accepted"},
}
