//go:build unix

package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const (
	remoteKey = queueRemote + "/" + engineRemote
	lockedKey = queueLocked + "/" + engineLocked
	alertsKey = queueAlerts + "/" + engineAlerts
	theAlert  = "disk/firing/2026-03-01T10:00:00Z"

	checkOfJobs      = "an engine's message is done, or dead with its record"
	checkOfWork      = "an engine's work is done once"
	checkOfSingleton = "runs of one instance id never overlap"
	checkOfPosts     = "a run is what was asked for, under one key"
	checkOfDemands   = "runs on demand are answered rightly"
	checkOfForwards  = "alerts are forwarded once and arrive"
	checkOfIDs       = "webhook-id is the job's id"
)

var (
	twice  = work{engineRemote, "w1", "tenant-1", "work"}
	doomed = work{engineRemote, "w2", "tenant-1", "work"}
	demand = work{engineLocked, "w3", "tenant-2", "change"}
	late   = work{engineLocked, "w4", "tenant-2", "change"}
	alarm  = work{engineAlerts, theAlert, "disk", operationAlert}
)

func (s *script) asked(at moment, kind string, w work, message string, status int) {
	o := op{Kind: kind, Start: at, Status: status, Message: message, Work: &w}
	switch kind {
	case opBroadcast:
		o.Channel, o.Tag, o.OwnID = queueRemote, message, true
	case opAlert:
		o.Channel = channelForwards
	}
	s.op(o)
}

// ran notes a run that the endpoint saw from its first POST until it had ended.
func (s *script) ran(id string, w work, fate string, from, to moment) {
	s.Runs = append(s.Runs, engineRun{
		Work: w, Run: id, Fate: fate, Begin: from, Final: to, Done: fate == fateDone || fate == fateLate || fate == fateCompleted,
		Posts: []enginePost{{At: from, Key: "key of " + id}},
	})
}

// goodEngines is what engines do in a good run:
//
//	w1 remote   two messages ask for it; it is done once, by a run that was taken up after a crash
//	w2 remote   fails until all is mended, dies, and is retried in the end
//	w3 locked   on demand; asked for again, it was done
//	w4 locked   on demand while w3's run is under way: refused
//	an alert    sent twice, forwarded once
func (s *script) goodEngines() {
	s.asked(4*sec, opBroadcast, twice, "w1-a", 201)
	s.asked(4*sec+1, opBroadcast, twice, "w1-b", 201)
	s.ran("r1", twice, fateLate, 5*sec, 7*sec)
	s.Runs[0].Posts = append(s.Runs[0].Posts, enginePost{At: 8 * sec, Key: "key of r1"})
	s.asked(5*sec, opBroadcast, doomed, "w2-a", 201)
	for at, id := range map[moment]string{9 * sec: "r2", 10 * sec: "r3", 11 * sec: "r4"} {
		s.ran(id, doomed, fateFailed, at, at)
	}
	s.asked(8*sec, opBeginRun, demand, demand.message(), 202)
	s.asked(8*sec+sec/2, opBeginRun, late, late.message(), 409)
	s.ran("r5", demand, fateCompleted, 8*sec+1, 9*sec)
	s.Runs[len(s.Runs)-1].Polls = []moment{8*sec + sec/2, 9 * sec}
	s.asked(30*sec, opBeginRun, demand, demand.message(), 200)
	s.asked(8*sec, opAlert, alarm, theAlert, 202)
	s.asked(9*sec, opAlert, alarm, theAlert, 202)
	s.received(consumerAlerted, theAlert, map[moment]int{9 * sec: 500, 14 * sec: 200})
	s.job(consumerAlerted, theAlert, statusDelivered, 1)
	s.job(remoteKey, "w1-a", statusDelivered, 0)
	s.job(remoteKey, "w1-b", statusDelivered, 0)
	s.job(remoteKey, "w2-a", statusDead, engineRetries)
	s.job(lockedKey, demand.message(), statusDelivered, 0)
	s.job(alertsKey, theAlert, statusDelivered, 0)
	for message, channel := range map[string]string{"w1-a": queueRemote, "w1-b": queueRemote, "w2-a": queueRemote, demand.message(): queueLocked} {
		s.Messages = append(s.Messages, finalMessage{Channel: channel, Message: message, Dispatched: true})
	}
	for _, channel := range []string{queueAlerts, channelForwards} {
		s.Messages = append(s.Messages, finalMessage{Channel: channel, Message: theAlert, Dispatched: true})
	}
	s.ran("r6", doomed, fateDone, 43*sec, 43*sec)
}

// goodEnginesAtRest is what the database then says of it: w2 is dead, and done in the end.
func (s *script) goodEnginesAtRest() {
	for n := range s.Rests {
		r := &s.Rests[n]
		for _, j := range s.Jobs {
			if c := find(s.Info.Consumers, func(c *consumerInfo) bool { return c.Key == j.Consumer }); c.Engine == "" && c.Key != consumerAlerted {
				continue
			}
			e := engineJob{Job: j.Job, Message: j.Message, Consumer: j.Consumer, Status: j.Status}
			switch {
			case j.Status == statusDead && r.Label == restAfterRedrive:
				e.Status = statusDelivered
			case j.Status == statusDead:
				e.Pending = 1
			}
			r.Engines = append(r.Engines, e)
		}
		r.Works = []workDone{{Work: twice, Succeeded: 1}, {Work: doomed, Failed: 3, Succeeded: n}, {Work: demand, Succeeded: 1}, {Work: alarm, Succeeded: 1}}
	}
}

func engineJobOf(r *rest, message string) *engineJob {
	return find(r.Engines, func(j *engineJob) bool { return j.Message == message && j.Consumer != consumerAlerted })
}

func workOf(r *rest, w work) *workDone {
	return find(r.Works, func(d *workDone) bool { return d.Work == w })
}

func runOf(h *history, id string) *engineRun {
	return find(h.Runs, func(r *engineRun) bool { return r.Run == id })
}

// faultyEngines are the faulty histories about engines.
var faultyEngines = []faulty{
	{"a message of an engine's is lost", func(h *history) {
		remove(&h.Rests[0].Engines, func(j *engineJob) bool { return j.Message == "w1-a" })
	}, checkOfJobs, "w1-a, work of w1 for tenant-1 by chaos-remote: there is no job"},
	{"a run on demand has no message", func(h *history) {
		remove(&h.Rests[0].Engines, func(j *engineJob) bool { return j.Message == demand.message() })
	}, checkOfJobs, "there is no job"},
	{"an alert has no message", func(h *history) {
		remove(&h.Rests[0].Engines, func(j *engineJob) bool { return j.Consumer == alertsKey })
	}, checkOfJobs, "there is no job"},
	{"a message is done and the history does not know", func(h *history) { workOf(&h.Rests[0], twice).Succeeded = 0 },
		checkOfJobs, "it is done; the history has 0 successes"},
	{"a message is left behind", func(h *history) { engineJobOf(&h.Rests[0], "w1-b").Status = statusQueued },
		checkOfJobs, "has status 1001"},
	{"a dead message has no record", func(h *history) { engineJobOf(&h.Rests[0], "w2-a").Pending = 0 },
		checkOfJobs, "has status 1004 and 0 pending dead letters"},
	{"a dead message has two records", func(h *history) { engineJobOf(&h.Rests[0], "w2-a").Pending = 2 },
		checkOfJobs, "2 pending dead letters"},
	{"a message that is done has a record", func(h *history) { engineJobOf(&h.Rests[0], "w1-a").Pending = 1 },
		checkOfJobs, "has status 1003 and 1 pending dead letters"},
	{"a message is dead though its work succeeded", func(h *history) { workOf(&h.Rests[0], doomed).Succeeded = 1 },
		checkOfJobs, "it is dead, and the history has 1 successes"},
	{"a retried message is dead again", func(h *history) {
		j := engineJobOf(&h.Rests[1], "w2-a")
		j.Status, j.Pending = statusDead, 1
	}, checkOfJobs, "it is dead again"},
	{"a refused run has a message", func(h *history) {
		h.Rests[0].Engines = append(h.Rests[0].Engines, engineJob{Job: "x", Message: late.message(), Consumer: lockedKey, Status: statusDelivered})
	}, checkOfJobs, "nobody sent, or that was refused"},
	{"two successes in the history", func(h *history) { workOf(&h.Rests[1], twice).Succeeded = 2 },
		checkOfWork, "has succeeded 2 times by the history"},
	{"two runs do the same work", func(h *history) { runOf(h, "r2").Done = true },
		checkOfWork, "the work of w2 for tenant-1 by chaos-remote was done 2 times"},
	{"the history has what was not done", func(h *history) { runOf(h, "r5").Done = false },
		checkOfWork, "the endpoint did not do it"},
	{"a run begins while another is alive", func(h *history) { runOf(h, "r2").Begin = 6 * sec },
		checkOfSingleton, "run r2 (w2) began at 6.000s, while run r1 (w1, 200 late) from 5.000s to 7.000s was alive"},
	{"a run begins while another is looked at", func(h *history) {
		runOf(h, "r5").Final = 0
		h.Runs = append(h.Runs, engineRun{Work: late, Run: "r9", Begin: 9*sec - 1, Final: 9 * sec, Posts: []enginePost{{At: 9*sec - 1, Key: "k"}}})
	}, checkOfSingleton, "run r9 (w4) began at 9.000s, while run r5"},
	{"a repeated POST has another key", func(h *history) { runOf(h, "r1").Posts[1].Key = "other" },
		checkOfPosts, "it has the keys key of r1 and other"},
	{"two runs have one key", func(h *history) { runOf(h, "r3").Posts[0].Key = "key of r2" },
		checkOfPosts, "has its key, too"},
	{"a POST is not as it should be", func(h *history) { runOf(h, "r5").Posts[0].Flaw = "no Idempotency-Key" },
		checkOfPosts, "no Idempotency-Key"},
	{"a run of work that was refused", func(h *history) { runOf(h, "r5").Work = late },
		checkOfPosts, "nobody asked for it, or it was refused"},
	{"409 with nothing else under way", func(h *history) {
		remove(&h.Ops, func(o *op) bool { return o.Kind == opBeginRun && o.Status == 202 })
		remove(&h.Ops, func(o *op) bool { return o.Kind == opBeginRun && o.Status == 200 })
	}, checkOfDemands, "got 409, and nothing else can have been under way"},
	{"a run is said to be done that is not", func(h *history) {
		workOf(&h.Rests[0], demand).Succeeded, workOf(&h.Rests[1], demand).Succeeded = 0, 0
	}, checkOfDemands, "the history does not know it"},
	{"an alert is not forwarded", func(h *history) {
		remove(&h.Rests[0].Engines, func(j *engineJob) bool { return j.Consumer == consumerAlerted })
	}, checkOfForwards, "it was not forwarded"},
	{"an alert is forwarded twice", func(h *history) {
		h.Rests[0].Engines = append(h.Rests[0].Engines, engineJob{Job: "x", Message: theAlert, Consumer: consumerAlerted, Status: statusDelivered})
	}, checkOfForwards, "has 2 jobs"},
	{"an alert does not arrive", func(h *history) { answers(h, consumerAlerted, theAlert, 500) }, checkOfForwards, "it never arrived"},
	{"an alert stays dead", func(h *history) {
		find(h.Rests[1].Engines, func(j *engineJob) bool { return j.Consumer == consumerAlerted }).Status = statusDead
	}, checkOfForwards, "its job has status 1004"},
	{"an alert arrives that nobody sent", func(h *history) {
		remove(&h.Ops, func(o *op) bool { return o.Kind == opAlert })
	}, "deliveries are as sent, none of a refused message", "nobody sent"},
	{"an attempt has another webhook-id", func(h *history) { h.Receipts[0].Job = "other" }, checkOfIDs, `as "other"`},
	{"a delivery has no webhook-id", func(h *history) { h.Receipts[0].Job = "" }, checkOfIDs, `as ""`},
	{"a run on demand answers 500", func(h *history) { opOf(h, opBeginRun, demand.message(), 202).Status = 500 },
		"allowed answers only, readable", "begin-run at 8.000s got 500"},
	{"an engine's dead job with retries left", func(h *history) { jobNamed(h, "chaos-remote.w2-a").Retries = 1 },
		"dead only after all attempts", "with 1 retries, want 2"},
	{"a dead job of an engine's is requeued, and nobody asked", func(h *history) {
		h.Sightings = append(h.Sightings, sighting{Start: 30 * sec, End: 31 * sec, Dead: []string{"chaos-remote.w1-a"}})
	}, "a finished job stays finished", "had status 1004 at 30.000s and ends with 1003"},
}

// The endpoint answers a repeated POST as it answered the first, and does what is doomed once it is mended.
func TestEndpoint(t *testing.T) {
	t.Parallel()
	rec := newRecorder(runInfo{})
	var healed atomic.Bool
	healed.Store(true)
	e, err := newEndpoint(rec, &healed, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer e.shut()
	post := func(run string, doomed bool) int {
		text, err := json.Marshal(call{engineMessage{"c", "i", "work", input{doomed, padding}}, engineRemote, run})
		if err != nil {
			t.Fatal(err)
		}
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/"+engineRemote+"/run", strings.NewReader(string(text)))
		req.Header.Set("Content-Type", contentType)
		req.Header.Set("Idempotency-Key", "key of "+run)
		w := httptest.NewRecorder()
		e.srv.Handler.ServeHTTP(w, req)
		return w.Code
	}
	for run, want := range map[string]int{"good": 200, "doomed": 500} {
		if got := post(run, run == "doomed"); got != want {
			t.Errorf("%s: %d, want %d", run, got, want)
		}
	}
	e.mended.Store(true)
	if again, other := post("doomed", true), post("mended", true); again != 500 || other != 200 {
		t.Errorf("after the mending: the same run %d, another %d", again, other)
	}
	h := rec.history()
	if len(h.Incidents) > 0 || len(h.Runs) != 3 || len(runOf(h, "doomed").Posts) != 2 || !runOf(h, "mended").Done || runOf(h, "doomed").Done {
		t.Errorf("recorded: %+v %v", h.Runs, h.Incidents)
	}
	for _, r := range h.Runs {
		for _, p := range r.Posts {
			if p.Flaw != "" {
				t.Errorf("run %s: %s", r.Run, p.Flaw)
			}
		}
	}
}

// What was forwarded is judged by the id of its alert.
func TestForwardedAlertsAreJudged(t *testing.T) {
	t.Parallel()
	a := alert{Status: "firing", Fingerprint: "disk", StartsAt: time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC), Labels: map[string]string{"pad": padding}}
	good, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	if flaw := flawOfAlert(theAlert, good); flaw != "" {
		t.Error(flaw)
	}
	for _, bad := range []string{"{", strings.Replace(string(good), "firing", "resolved", 1), strings.Replace(string(good), "disk", "load", 1), strings.Replace(string(good), padding, "", 1)} {
		if flawOfAlert(theAlert, []byte(bad)) == "" {
			t.Errorf("%s passes", bad)
		}
	}
}

// The answer to a run on demand is about the work asked for.
func TestAnswersToDemandsAreJudged(t *testing.T) {
	t.Parallel()
	good := `{"data":{"engine":"chaos-locked","queue":"locked-queue","instanceId":"tenant-2","operation":"change","correlationId":"w3","done":false}}`
	for text, says := range map[string]bool{
		good: true, `{}`: false, strings.Replace(good, "tenant-2", "tenant-1", 1): false, strings.Replace(good, "w3", "w4", 1): false,
		strings.Replace(good, "false", "true", 1): false,
	} {
		o := op{Work: &demand, Status: http.StatusAccepted}
		if noteBegun(&o, answer{body: []byte(text)}); (o.Err == "") != says {
			t.Errorf("%s: %q", text, o.Err)
		}
	}
}
