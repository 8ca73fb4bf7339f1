//go:build unix

package main

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

const sec = moment(1_000_000)

// script builds a history by hand, a line for each thing that happens.
type script struct {
	*history
	seq int64
}

func (s *script) op(o op) *op {
	s.seq++
	o.Seq = s.seq
	if o.Instance == 0 {
		o.Instance = 1
	}
	if o.End == 0 {
		o.End = o.Start + 10_000
	}
	switch {
	case o.Outcome != "":
	case o.Status >= 200 && o.Status < 300:
		o.Outcome = ok
	case o.Status >= 400 && o.Status < 500:
		o.Outcome = refused
	default:
		o.Outcome = unknown
	}
	s.Ops = append(s.Ops, o)
	return &s.Ops[len(s.Ops)-1]
}

func (s *script) sent(at moment, channel, message string, status int) {
	o := op{Kind: opBroadcast, Start: at, Channel: channel, Message: message, OwnID: true, Tag: "t-" + message, Status: status}
	if status == 503 {
		o.RetryAfter = "1"
	}
	s.op(o)
}

// received notes receipts of a message, each answered after 5 ms.
func (s *script) received(consumer, message string, answers map[moment]int) {
	for at, answer := range answers {
		s.seq++
		s.Receipts = append(s.Receipts, receipt{
			Seq: s.seq, Consumer: consumer, Message: message, Tag: "t-" + message, Job: jobName(consumer, message), Start: at, End: at + 5_000, Answer: answer,
		})
	}
}

func (s *script) job(consumer, message string, status, retries int) {
	s.Jobs = append(s.Jobs, finalJob{Job: jobName(consumer, message), Message: message, Consumer: consumer, Status: status, Retries: retries})
}

func jobName(consumer, message string) string {
	return consumer[strings.Index(consumer, "/")+1:] + "." + message
}

func (s *script) pulled(at moment, message string, states ...string) {
	for i, state := range states {
		s.op(op{
			Kind: opPullState, Start: at + moment(i)*20_000, Status: 202, Consumer: "orders/puller", Message: message,
			Job: jobName("orders/puller", message), State: state, Tag: "t-" + message,
		})
	}
}

func count(n int64) *int64 { return new(n) }

// died is a life whose every attempt was answered 500.
func died(from moment) map[moment]int {
	return map[moment]int{from: 500, from + sec/4: 500, from + sec: 500, from + 2*sec: 500}
}

// goodHistory is a run in which every promise was kept, with something for each check to look at:
//
//	m1 orders   503 without a database, sent again: 201
//	m2 orders   no answer from an instance that was killed, sent again: 409; flapper let it die, and it was requeued
//	m3 returns  dies at broken, at scrap, where it is purged, and at triage, where it is resolved
//	m4 orders   scheduled
//	m5 orders   an attempt hangs at healthy, then it is delivered
//	m6 returns  dies at broken and at scrap, and stays there, and at triage, where it is expired, then retried
//	m7 returns  dies at triage, where it is expired with all that is old, then retried
//	m8 returns  likewise, and not retried
//
// and what goodEngines has.
func goodHistory() *history {
	s := &script{history: &history{Starts: 3}}
	s.Info = runInfo{Seed: 7, Instances: 2, Consumers: []consumerInfo{
		{Key: "orders/healthy", Channel: "orders"},
		{Key: "orders/flapper", Channel: "orders", Redrive: true},
		{Key: "orders/puller", Channel: "orders", Pull: true, Redrive: true},
		{Key: "returns/broken", Channel: "returns"},
		{Key: "returns/scrap", Channel: "returns", Purged: true, Redrive: true},
		{Key: "returns/triage", Channel: "returns", Triage: true, Redrive: true},
		{Key: consumerAlerted, Channel: channelForwards, Redrive: true},
	}}
	for _, c := range engineCast() {
		s.Info.Consumers = append(s.Info.Consumers, c.consumerInfo)
	}
	s.Faults = []fault{
		{Kind: faultDatabase, Start: 10 * sec, Down: 10*sec + 1, Up: 12 * sec, End: 13 * sec},
		{Kind: faultKill, Target: "2", Start: 20 * sec, Down: 20*sec + 1, Up: 21 * sec, End: 22 * sec},
		{Kind: faultConsumer, Target: "orders/healthy", What: hanging, Start: 30 * sec, Down: 30 * sec, Up: 32 * sec, End: 32 * sec},
	}
	s.goodTraffic()
	s.goodTriage()
	s.goodEngines()
	s.goodEnd()
	s.goodEnginesAtRest()
	return s.history
}

func (s *script) goodTraffic() {
	s.sent(11*sec, "orders", "m1", 503)
	s.sent(14*sec, "orders", "m1", 201)
	s.op(op{Kind: opBroadcast, Instance: 2, Start: 20*sec - 5, End: 20*sec + 5, Channel: "orders", Message: "m2", OwnID: true, Tag: "t-m2", Err: "EOF"})
	s.sent(21*sec, "orders", "m2", 409)
	s.sent(2*sec, "returns", "m3", 201)
	s.sent(24*sec, "orders", "m4", 201)
	s.Ops[len(s.Ops)-1].Scheduled = 26 * sec
	s.sent(30*sec, "orders", "m5", 201)
	s.sent(3*sec, "returns", "m6", 201)
	s.sent(sec, "returns", "m7", 201)
	s.sent(sec, "returns", "m8", 201)
	s.op(op{Kind: opBroadcast, Start: 4 * sec, Channel: "orders", Tag: "t-bad", Status: 403, Want: 403})
	s.op(op{Kind: opBroadcast, Start: 15 * sec, Channel: "orders", Tag: "t-again", Message: "m1", OwnID: true, Status: 409, Want: 409})

	for m, at := range map[string]moment{"m1": 15 * sec, "m2": 21 * sec, "m4": 26*sec + 1, "m5": 34 * sec} {
		s.received("orders/healthy", m, map[moment]int{at: 200})
		s.job("orders/healthy", m, statusDelivered, 0)
		s.pulled(at, m, "INFLIGHT", "DELIVERED")
		s.job("orders/puller", m, statusDelivered, 0)
		if m != "m2" {
			s.received("orders/flapper", m, map[moment]int{at: 500, at + sec: 200})
			s.job("orders/flapper", m, statusDelivered, 1)
		}
	}
	s.Receipts = append(s.Receipts, receipt{Consumer: "orders/healthy", Message: "m5", Tag: "t-m5", Job: "healthy.m5", Start: 30 * sec, End: 32 * sec, Gone: true})
	s.received("orders/flapper", "m2", died(22*sec))
	s.op(op{Kind: opRequeueOne, Start: 25 * sec, Status: 202, Consumer: "orders/flapper", Message: "m2", Job: "flapper.m2"})
	s.received("orders/flapper", "m2", map[moment]int{26 * sec: 500, 27 * sec: 200})
	s.job("orders/flapper", "m2", statusDelivered, 1)
	for _, consumer := range []string{"returns/broken", "returns/scrap"} {
		s.received(consumer, "m3", died(2*sec))
		s.received(consumer, "m6", died(3*sec))
		s.job(consumer, "m6", statusDead, maxRetry)
	}
	for _, m := range []string{"m7", "m8"} {
		for _, consumer := range []string{"returns/broken", "returns/scrap"} {
			s.received(consumer, m, map[moment]int{sec: 200})
			s.job(consumer, m, statusDelivered, 0)
		}
	}
	s.job("returns/broken", "m3", statusDead, maxRetry)
	s.op(op{Kind: opPurgeOne, Start: 7 * sec, Status: 204, Consumer: "returns/scrap", Message: "m3", Job: "scrap.m3"})
	s.Sightings = []sighting{
		{Start: 6 * sec, End: 6*sec + 1, Dead: []string{"broken.m3", "scrap.m3", "scrap.m6"}},
		{Start: 24*sec + sec/2, End: 24*sec + sec/2 + 1, Dead: []string{"flapper.m2"}, Delivered: []string{"healthy.m2"}},
	}
}

// letter notes an operation on the dead letter of triage's job.
func (s *script) letter(kind string, at moment, message string, status int, answer *retryAnswer) {
	job := jobName("returns/triage", message)
	s.op(op{
		Kind: kind, Start: at, Status: status, Consumer: "returns/triage", Message: message, Job: job,
		Letter: job + "-died", Seen: at - sec/10, Retry: answer,
	})
}

func (s *script) goodTriage() {
	s.received("returns/triage", "m3", died(2*sec))
	s.received("returns/triage", "m6", died(3*sec))
	s.op(op{Kind: opLetters, Start: 6 * sec, Status: 200})
	s.letter(opResolveLetter, 6*sec, "m3", 200, nil)
	s.letter(opExpireLetter, 6*sec+sec/5, "m3", 409, nil)
	s.letter(opExpireLetter, 6*sec, "m6", 200, nil)
	s.Sightings = append(s.Sightings, sighting{Start: 7 * sec, End: 7*sec + 1, Shelved: []string{"triage.m3", "triage.m6"}})
	s.letter(opRetryLetter, 8*sec, "m6", 200, &retryAnswer{Retried: true, JobID: "triage.m6", QueueMessageID: "q1"})
	s.letter(opRetryLetter, 8*sec+sec/5, "m6", 200, &retryAnswer{JobID: "triage.m6", QueueMessageID: "q1"})
	s.received("returns/triage", "m6", map[moment]int{9 * sec: 200})
	s.op(op{Kind: opLetters, Start: 11 * sec, Status: 503, RetryAfter: "1"})
	s.job("returns/triage", "m3", statusShelved, maxRetry)
	s.job("returns/triage", "m6", statusDelivered, 0)
	s.received("returns/triage", "m7", died(sec))
	s.received("returns/triage", "m8", died(sec))
	s.op(op{Kind: opExpireOld, Start: 2 * sec, Status: 200, Consumer: "returns/triage", Total: count(0)})
	s.op(op{Kind: opExpireOld, Start: 35 * sec, Status: 200, Total: count(2), Before: count(2), After: count(0)})
	s.letter(opRetryLetter, 36*sec, "m7", 200, &retryAnswer{Retried: true, JobID: "triage.m7", QueueMessageID: "q7"})
	s.received("returns/triage", "m7", map[moment]int{37 * sec: 200})
	s.job("returns/triage", "m7", statusDelivered, 0)
	s.job("returns/triage", "m8", statusShelved, maxRetry)
	for m, status := range map[string]string{"m3": letterResolved, "m6": letterResolved, "m7": letterResolved, "m8": letterExpired} {
		job := jobName("returns/triage", m)
		s.Letters = append(s.Letters, finalLetter{Letter: job + "-died", Job: job, Consumer: "returns/triage", Status: status, Old: m == "m7" || m == "m8"})
	}
}

func (s *script) goodEnd() {
	shown := func(at moment, instance int, broken, scrap int64) {
		counts := map[string]int64{"orders/healthy": 0, "orders/flapper": 0, "orders/puller": 0, "returns/broken": broken, "returns/scrap": scrap}
		s.op(op{Kind: opDLQStatus, Instance: instance, Start: at, Status: 200, Counts: counts})
	}
	shown(sec, 1, 0, 0)
	shown(6*sec, 1, 2, 2)
	shown(8*sec, 2, 2, 1)
	for _, m := range []string{"m1", "m2", "m4", "m5"} {
		s.Messages = append(s.Messages, finalMessage{Channel: "orders", Message: m, Dispatched: true})
	}
	for _, m := range []string{"m3", "m6", "m7", "m8"} {
		s.Messages = append(s.Messages, finalMessage{Channel: "returns", Message: m, Dispatched: true})
	}
	s.Snapshots = []snapshot{
		{Start: 5*sec + 1, End: 5*sec + 2, Of: map[string]tally{"returns/broken": {Dead: 1, Delta: 1, Pending: 1}, "returns/scrap": {Dead: 1, Counted: 1, DeadCount: 1, Pending: 1}}},
		{Start: 9 * sec, End: 9*sec + 2, Of: map[string]tally{"returns/broken": {Dead: 2, Counted: 2, DeadCount: 2, Pending: 2}, "returns/scrap": {Dead: 1, Counted: 2, DeadCount: 2, Delta: -1, Pending: 1}}},
	}
	s.restAt(restAfterTraffic, 40*sec, map[string]int64{"returns/broken": 2, "returns/scrap": 1, remoteKey: 1}, map[string]int64{
		remoteKey + " DELIVERED": 2, remoteKey + " DEAD": 1,
		"orders/healthy DELIVERED": 4, "orders/flapper DELIVERED": 4, "orders/puller DELIVERED": 4, "returns/broken DEAD": 2, "returns/scrap DEAD": 1,
		"returns/broken DELIVERED": 2, "returns/scrap DELIVERED": 2, "returns/triage SHELVED": 2, "returns/triage DELIVERED": 2,
	})
	s.op(op{Kind: opRequeueAll, Start: 41 * sec, Status: 202, Consumer: "returns/broken", Total: count(2), Before: count(2), After: count(0)})
	s.op(op{Kind: opPurgeAll, Start: 42 * sec, Status: 200, Consumer: "returns/scrap", Total: count(1), Before: count(1), After: count(0)})
	s.received("returns/broken", "m3", map[moment]int{42 * sec: 200})
	s.received("returns/broken", "m6", map[moment]int{42 * sec: 200})
	s.restAt(restAfterRedrive, 50*sec, map[string]int64{}, map[string]int64{
		remoteKey + " DELIVERED":   3,
		"orders/healthy DELIVERED": 4, "orders/flapper DELIVERED": 4, "orders/puller DELIVERED": 4, "returns/broken DELIVERED": 4,
		"returns/scrap DELIVERED": 2, "returns/triage SHELVED": 2, "returns/triage DELIVERED": 2,
	})
}

func (s *script) restAt(label string, at moment, dead, jobs map[string]int64) {
	r := rest{Label: label, At: at, Tallies: map[string]tally{}, Jobs: jobs}
	counts := map[string]int64{}
	for _, c := range s.Info.Consumers {
		n := dead[c.Key]
		r.Tallies[c.Key] = tally{Dead: n, Counted: n, DeadCount: n, Pending: n}
		counts[c.Key] = n
	}
	for instance := range s.Info.Instances {
		for _, kind := range []string{opDLQStatus, opMetrics, opJobStatus, opLetters} {
			o := op{Kind: kind, Instance: instance + 1, Start: at, End: at + 1, Status: 200, Outcome: ok, Counts: counts}
			if kind == opJobStatus {
				o.Counts = jobs
			}
			r.Shown = append(r.Shown, o)
		}
	}
	s.Rests = append(s.Rests, r)
}

func violated(h *history) map[string][]string {
	out := map[string][]string{}
	for _, r := range checkAll(h) {
		for _, v := range r.Violations {
			out[r.Name] = append(out[r.Name], v.What)
		}
	}
	return out
}

func TestGoodHistoryPasses(t *testing.T) {
	t.Parallel()
	h := goodHistory()
	for _, r := range checkAll(h) {
		if r.Cases == 0 {
			t.Errorf("%s: no case; the history proves nothing about it", r.Name)
		}
		for _, v := range r.Violations {
			t.Errorf("%s: %s", r.Name, v.What)
		}
	}
	var out bytes.Buffer
	if err := report(&out, h, checkAll(h), config{}); err != nil || !strings.Contains(out.String(), "no violations") {
		t.Errorf("report: %v\n%s", err, out.String())
	}
}

func TestHistoryFile(t *testing.T) {
	t.Parallel()
	h := goodHistory()
	h.Info.Started = time.Unix(1_800_000_000, 0).UTC()
	path := filepath.Join(t.TempDir(), "history.jsonl")
	if err := writeHistory(path, h); err != nil {
		t.Fatal(err)
	}
	back, err := readHistory(path)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(h, back) {
		t.Errorf("a history read back differs:\n%+v\n%+v", h, back)
	}
	var out bytes.Buffer
	if err := run(t.Context(), config{Check: path}, &out); err != nil {
		t.Errorf("--check: %v\n%s", err, out.String())
	}
	back.Jobs[0].Status = statusQueued
	if err := writeHistory(path, back); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), config{Check: path}, &out); !errors.Is(err, errViolations) {
		t.Errorf("--check of a broken history: %v", err)
	}
}

// find returns the first that fits; it panics if there is none, which is a mistake in the test.
func find[T any](s []T, fits func(*T) bool) *T {
	for i := range s {
		if fits(&s[i]) {
			return &s[i]
		}
	}
	panic("nothing fits")
}

func jobNamed(h *history, id string) *finalJob {
	return find(h.Jobs, func(j *finalJob) bool { return j.Job == id })
}

func opOf(h *history, kind, message string, status int) *op {
	return find(h.Ops, func(o *op) bool { return o.Kind == kind && o.Message == message && o.Status == status })
}

// retryOf is the retry of a message's dead letter that took effect, or the other one.
func retryOf(h *history, message string, tookEffect bool) *op {
	return find(h.Ops, func(o *op) bool { return o.Retry != nil && o.Message == message && o.Retry.Retried == tookEffect })
}

func remove[T any](s *[]T, fits func(*T) bool) {
	var kept []T
	for i := range *s {
		if !fits(&(*s)[i]) {
			kept = append(kept, (*s)[i])
		}
	}
	*s = kept
}

func answers(h *history, consumer, message string, status int) {
	each(h.Receipts, func(r *receipt) {
		if r.Consumer == consumer && r.Message == message {
			r.Answer = status
		}
	})
}

// Each of these histories has one thing wrong, and the check made for it must say so.
func TestFaultyHistoriesAreFlagged(t *testing.T) {
	t.Parallel()
	for n, c := range slices.Concat(faultyHistories, faultyLetters, faultyEngines) {
		t.Run(fmt.Sprintf("%d %s", n, c.what), func(t *testing.T) {
			t.Parallel()
			h := goodHistory()
			c.spoil(h)
			found := violated(h)
			if !strings.Contains(strings.Join(found[c.check], "\n"), c.says) || len(found[c.check]) == 0 {
				t.Errorf("check %q does not say %q; found: %v", c.check, c.says, found)
			}
			var out bytes.Buffer
			if err := report(&out, h, checkAll(h), config{}); !errors.Is(err, errViolations) || !strings.Contains(out.String(), "seed 7") {
				t.Errorf("report: %v\n%s", err, out.String())
			}
		})
	}
}
