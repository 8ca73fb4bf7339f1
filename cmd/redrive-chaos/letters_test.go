//go:build unix

package main

import (
	"fmt"
	"strings"
	"testing"
)

const (
	checkOfShelved = "SHELVED is what was resolved or expired"
	checkOfRetries = "a dead letter is retried once, under its job's id"
	checkOfClosing = "a dead letter is resolved or expired once"
	checkOfExpiry  = "what is expired is SHELVED, and all that is old"
)

// faultyLetters are the faulty histories about the API of dead letters.
var faultyLetters = []faulty{
	{"a resolved dead letter's job is still dead", func(h *history) { jobNamed(h, "triage.m3").Status = statusDead },
		checkOfShelved, "triage.m3 ends with status 1004"},
	{"a resolved dead letter's job comes back", func(h *history) { jobNamed(h, "triage.m3").Status = statusDelivered },
		checkOfShelved, "nobody retried it"},
	{"a retry was refused, and the job came back", func(h *history) {
		remove(&h.Ops, func(o *op) bool { return o.Retry != nil && !o.Retry.Retried })
		o := retryOf(h, "m6", true)
		o.Status, o.Outcome, o.Retry = 409, refused, nil
	}, checkOfShelved, "triage.m6 ends with status 1003"},
	{"a resolved dead letter's job is gone", func(h *history) {
		remove(&h.Jobs, func(j *finalJob) bool { return j.Job == "triage.m3" })
	}, checkOfShelved, "triage.m3 is gone"},
	{"a job is SHELVED that nobody resolved", func(h *history) { jobNamed(h, "broken.m3").Status = statusShelved },
		checkOfShelved, "broken.m3 (m3 of returns/broken) is SHELVED"},
	{"a job is SHELVED whose resolving was refused", func(h *history) {
		o := opOf(h, opResolveLetter, "m3", 200)
		o.Status, o.Outcome = 409, refused
	}, checkOfShelved, "triage.m3 (m3 of returns/triage) is SHELVED"},
	{"a retried job stays SHELVED", func(h *history) { jobNamed(h, "triage.m6").Status = statusShelved },
		checkOfShelved, "triage.m6 (m6 of returns/triage) is SHELVED"},
	{"requeuing all takes a SHELVED job with it", func(h *history) { h.Rests[1].Jobs["returns/triage SHELVED"] = 0 },
		checkOfShelved, "0 returns/triage SHELVED, 2 before it"},
	{"a message is SHELVED for a consumer that nobody resolves for", func(h *history) { jobNamed(h, "broken.m3").Status = statusShelved },
		"no accepted message is lost", "ends with status 1005"},
	{"a DEAD job is SHELVED later, and nobody resolved it", func(h *history) { jobNamed(h, "broken.m3").Status = statusShelved },
		"a finished job stays finished", "had status 1004 at 6.000s and ends with 1005"},
	{"a DEAD job is requeued, and ends SHELVED though nobody resolved it", func(h *history) { jobNamed(h, "flapper.m2").Status = statusShelved },
		"a finished job stays finished", "ends with 1005"},
	{"a SHELVED job is requeued by another way than a retry", func(h *history) {
		remove(&h.Ops, func(o *op) bool { return o.Kind == opRetryLetter })
		h.Ops = append(h.Ops, op{Kind: opRequeueAll, Start: 8 * sec, End: 8*sec + 1, Status: 202, Outcome: ok, Consumer: "returns/triage", Total: count(0)})
	}, "a finished job stays finished", "triage.m6 (m6 of returns/triage) had status 1005"},
	{"a SHELVED job disappears", func(h *history) {
		remove(&h.Jobs, func(j *finalJob) bool { return j.Job == "triage.m3" })
	}, "a finished job stays finished", "triage.m3 had status 1005 at 7.000s and is gone"},
	{"SHELVED with retries left", func(h *history) { jobNamed(h, "triage.m3").Retries = 1 },
		"dead only after all attempts", "has status 1005 with 1 retries"},
	{"a retried job gets five more attempts", func(h *history) {
		for at := 10 * sec; at < 14*sec; at += sec {
			h.Receipts = append(h.Receipts, receipt{Consumer: "returns/triage", Message: "m6", Tag: "t-m6", Start: at, End: at, Answer: 500})
		}
	}, "at most 4 attempts a life", "received m6 9 times"},
	{"a retry that changed nothing begins another life", func(h *history) { retryOf(h, "m6", true).Retry.Retried = false },
		"at most 4 attempts a life", "received m6 5 times"},

	{"a dead letter is retried twice", func(h *history) { retryOf(h, "m6", false).Retry.Retried = true },
		checkOfRetries, "so did another before it"},
	{"a retry takes effect after one that was told of another", func(h *history) {
		a, b := retryOf(h, "m6", true), retryOf(h, "m6", false)
		a.Retry, b.Retry = b.Retry, a.Retry
	}, checkOfRetries, "so did another before it"},
	{"two retries name different queue messages", func(h *history) { retryOf(h, "m6", false).Retry.QueueMessageID = "q2" },
		checkOfRetries, "names queue message q2, another named q1"},
	{"a retry names no queue message", func(h *history) { retryOf(h, "m6", true).Retry.QueueMessageID = "" },
		checkOfRetries, "names no queue message"},
	{"a retry queues another job", func(h *history) { retryOf(h, "m6", true).Retry.JobID = "triage.m9" },
		checkOfRetries, `queued job "triage.m9", want "triage.m6"`},
	{"a retry was retried before by nobody", func(h *history) {
		remove(&h.Ops, func(o *op) bool { return o.Retry != nil && o.Retry.Retried })
	}, checkOfRetries, "nothing can have retried it before"},
	{"a retry finds no job", func(h *history) {
		o := retryOf(h, "m6", false)
		o.Status, o.Outcome, o.Retry = 409, refused, nil
	}, checkOfRetries, "nobody purged its job"},
	{"a listed dead letter cannot be retried", func(h *history) {
		o := retryOf(h, "m6", false)
		o.Status, o.Outcome, o.Retry = 404, refused, nil
	}, checkOfRetries, "it was listed at 8.100s"},

	{"a dead letter is resolved and expired", func(h *history) {
		o := opOf(h, opExpireLetter, "m3", 409)
		o.Status, o.Outcome = 200, ok
	}, checkOfClosing, "expire-letter of dead letter triage.m3-died at 6.200s was taken"},
	{"two at once close a dead letter", func(h *history) {
		o := opOf(h, opExpireLetter, "m3", 409)
		o.Status, o.Outcome, o.Start = 200, ok, 6*sec+1
	}, checkOfClosing, "was taken, and it had been closed before"},
	{"a retried dead letter is expired", func(h *history) {
		o := opOf(h, opExpireLetter, "m6", 200)
		o.Start, o.End = 9*sec, 9*sec+1
	}, checkOfClosing, "m6-died at 9.000s was taken"},
	{"a dead letter that nobody closed cannot be expired", func(h *history) {
		remove(&h.Ops, func(o *op) bool { return o.Kind == opResolveLetter })
	}, checkOfClosing, "nothing can have closed it before"},
	{"a listed dead letter cannot be resolved", func(h *history) {
		o := opOf(h, opResolveLetter, "m3", 200)
		o.Status, o.Outcome = 404, refused
	}, checkOfClosing, "it was listed at 5.900s"},

	{"an instance lists a dead letter too many at rest", func(h *history) {
		o := find(h.Rests[0].Shown, func(o *op) bool { return o.Kind == opLetters && o.Instance == 2 })
		o.Counts = map[string]int64{"returns/broken": 3}
	}, "every count at rest is exact", "list-letters of instance 2: returns/broken has 3 (shown: true), want 2"},
	{"an instance cannot list the dead letters at rest", func(h *history) {
		find(h.Rests[1].Shown, func(o *op) bool { return o.Kind == opLetters }).Outcome = unknown
	}, "every count at rest is exact", "list-letters of instance 1"},
	{"a dead letter more than dead jobs at rest", func(h *history) {
		t := h.Rests[0].Tallies["returns/triage"]
		t.Pending++
		h.Rests[0].Tallies["returns/triage"] = t
	}, "every count at rest is exact", "1 pending dead letters"},
	{"job-status does not show the SHELVED at rest", func(h *history) {
		h.Rests[0].Shown[2].Counts = map[string]int64{"returns/triage SHELVED": 1}
	}, "every count at rest is exact", "returns/triage SHELVED has 1, want 2"},
	{"dead letters are listed without a database", func(h *history) {
		o := find(h.Ops, func(o *op) bool { return o.Kind == opLetters && o.Status == 503 })
		o.Status, o.Outcome = 200, ok
	}, "no database: nothing but 503", "a list-letters from 11.000s"},
	{"dead letters get a 503 without Retry-After", func(h *history) {
		find(h.Ops, func(o *op) bool { return o.Kind == opLetters && o.Status == 503 }).RetryAfter = ""
	}, "503 comes with Retry-After", "a list-letters at 11.000s"},
	{"a retry is answered 500", func(h *history) {
		o := retryOf(h, "m6", false)
		o.Status, o.Outcome, o.Retry = 500, unknown, nil
	}, "allowed answers only, readable", "retry-letter at 8.200s got 500"},
	{"nobody resolved anything", func(h *history) {
		jobNamed(h, "triage.m3").Status, jobNamed(h, "triage.m8").Status = statusDead, statusDead
	}, "there was something to check", "0 shelved jobs at rest"},

	{"an expired dead letter's job is still dead", func(h *history) { jobNamed(h, "triage.m8").Status = statusDead },
		checkOfExpiry, "triage.m8-died is expired and its job ends with status 1004"},
	{"an expired dead letter's job is gone", func(h *history) {
		remove(&h.Jobs, func(j *finalJob) bool { return j.Job == "triage.m8" })
	}, checkOfExpiry, "triage.m8-died is expired and its job gone"},
	{"a fresh dead letter is expired with the old", func(h *history) { letterNamed(h, "triage.m8-died").Old = false },
		checkOfExpiry, "triage.m8-died (old: false) is expired, and nothing can have done that"},
	{"an old dead letter is not expired", func(h *history) { letterNamed(h, "triage.m8-died").Status = letterPending },
		checkOfExpiry, "triage.m8-died is old and still Pending"},
	{"a job is SHELVED and nobody expired its dead letter", func(h *history) {
		remove(&h.Ops, func(o *op) bool { return o.Kind == opExpireOld })
	}, checkOfShelved, "triage.m8 (m8 of returns/triage) is SHELVED"},
	{"an expired and retried job stays SHELVED", func(h *history) { jobNamed(h, "triage.m7").Status = statusShelved },
		checkOfShelved, "triage.m7 (m7 of returns/triage) is SHELVED"},
	{"an expiry reports another number", func(h *history) {
		find(h.Ops, func(o *op) bool { return o.Kind == opExpireOld && o.Before != nil }).Total = count(3)
	}, "totals of requeue and purge are the change", "reported 3; dead before 2, after 0"},
	{"an expiry tells no number", func(h *history) {
		find(h.Ops, func(o *op) bool { return o.Kind == opExpireOld && o.Before == nil }).Total = nil
	}, "totals of requeue and purge are the change", "reported no total"},
	{"nothing was expired with the old", func(h *history) { letterNamed(h, "triage.m8-died").Status = letterResolved },
		"there was something to check", "0 dead letters expired with all that is old"},
	{"none of the old came back", func(h *history) {
		remove(&h.Ops, func(o *op) bool { return o.Kind == opRetryLetter && o.Message == "m7" })
	}, "there was something to check", "0 of them brought back at rest"},
	{"nobody retried anything", func(h *history) {
		remove(&h.Ops, func(o *op) bool { return o.Kind == opRetryLetter })
	}, "there was something to check", "0 dead letters retried"},
}

// What a page must not contain is found while it is read.
func TestPagesAreJudged(t *testing.T) {
	t.Parallel()
	item := func(key, at, consumer, status string) string {
		return fmt.Sprintf(`{"engine":"delivery","rowKey":%q,"instanceId":%q,"originalQueue":"returns","status":%q,"lastFailureAtUtc":"2026-01-01T00:00:%sZ"}`, key, consumer, status, at)
	}
	good := item("j2-b", "02", "triage", letterPending)
	for name, c := range map[string]struct{ second, says string }{
		"the next":         {item("j1-a", "01", "triage", letterPending), ""},
		"twice":            {good, "j2-b is listed twice"},
		"later":            {item("j3-c", "03", "triage", letterPending), "j3-c comes after j2-b"},
		"another consumer": {item("j1-a", "01", "broken", letterPending), "another filter's dead letter j1-a"},
		"another status":   {item("j1-a", "01", "triage", letterResolved), "another filter's dead letter j1-a"},
		"no JSON":          {"}", unreadable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := listPending("triage", 1)
			var first, second op
			l.note(&first, answer{body: []byte(`{"data":{"items":[` + good + `],"continuationToken":"t"}}`)})
			if first.Err != "" || l.token != "t" || l.letters[0].job() != "j2" {
				t.Fatalf("first page: %q, token %q, %+v", first.Err, l.token, l.letters)
			}
			l.note(&second, answer{body: []byte(`{"data":{"items":[` + c.second + `]}}`)})
			if !strings.Contains(second.Err, c.says) || (c.says == "") != (second.Err == "") {
				t.Errorf("second page: %q, want %q", second.Err, c.says)
			}
			if c.says == "" && (l.token != "" || len(l.letters) != 2) {
				t.Errorf("after the last page: token %q, %d dead letters", l.token, len(l.letters))
			}
		})
	}
}

func letterNamed(h *history, key string) *finalLetter {
	return find(h.Letters, func(l *finalLetter) bool { return l.Letter == key })
}

// The answer to an expiry has a number.
func TestAnswersToExpiriesAreRead(t *testing.T) {
	t.Parallel()
	var o op
	if noteExpired(&o, answer{body: []byte(`{"data":{"expired":7}}`)}); o.Err != "" || o.Total == nil || *o.Total != 7 {
		t.Errorf("%+v", o)
	}
	for _, body := range []string{`{"data":{}}`, `{}`, `7`} {
		o = op{}
		if noteExpired(&o, answer{body: []byte(body)}); o.Err == "" {
			t.Errorf("%s passes", body)
		}
	}
}

// The answer to a change is judged against what was asked for.
func TestAnswersToChangesAreJudged(t *testing.T) {
	t.Parallel()
	for body, good := range map[string]bool{
		`{"data":{"rowKey":"j1-a","jobId":"j1","status":"Expired"}}`:  true,
		`{"data":{"rowKey":"j1-a","jobId":"j1","status":"Resolved"}}`: false,
		`{"data":{"rowKey":"j1-b","jobId":"j1","status":"Expired"}}`:  false,
		`{"data":{"rowKey":"j1-a","jobId":"j2","status":"Expired"}}`:  false,
		`{}`: false,
	} {
		o := op{Letter: "j1-a", Job: "j1"}
		noteState(letterExpired)(&o, answer{body: []byte(body)})
		if good != (o.Err == "") {
			t.Errorf("%s: %q", body, o.Err)
		}
	}
	var o op
	if noteRetry(&o, answer{body: []byte(`{"data":null}`)}); o.Err == "" || o.Retry != nil {
		t.Errorf("a retry answered with nothing: %+v", o)
	}
	o = op{}
	noteRetry(&o, answer{body: []byte(`{"data":{"retried":true,"jobId":"j1","queueMessageId":"q1","note":"Retried"}}`)})
	if o.Err != "" || o.Retry == nil || *o.Retry != (retryAnswer{Retried: true, JobID: "j1", QueueMessageID: "q1"}) {
		t.Errorf("a retry: %+v", o)
	}
}
