package app_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/docs"
	"github.com/redrive-mq/redrive/storage/storagetest"
)

// A message whose consumer fails is tried three times, dies, is counted, and is delivered after its requeue.
func TestDeadLetterComesBack(t *testing.T) {
	t.Parallel()
	i := start(t, testConfig(storagetest.DSN(t)))
	i.stage()
	good, bad := newSink(t), newSink(t)
	bad.fail(500)
	i.addConsumer("good", "push", good.URL)
	i.addConsumer("bad", "push", bad.URL)

	made := i.broadcast("m1", orderBody(1), "X-Broker-Metadata-Headers", "X-Kind", "X-Kind", "placed").want(201)
	if got := made.header.Get("Location"); got != channel+"/message/m1" {
		t.Errorf("Location is %q", got)
	}
	i.broadcast("m1", orderBody(1)).want(409)
	eventually(t, "one dead letter", func() bool { return i.dead("bad") == 1 })
	if n := len(bad.of("m1")); n != 3 {
		t.Errorf("%d attempts, not 1 and 2 retries", n)
	}
	eventually(t, "delivered to the good one", func() bool { return i.statusOf("m1", "good") == "DELIVERED" })
	d := good.of("m1")[0]
	for name, want := range map[string]string{
		"Content-Type": "application/json", "X-Broker-Channel-ID": "orders", "X-Broker-Consumer-ID": "good",
		"X-Broker-Consumer-Token": "good-token", "X-Broker-Metadata-Headers": "X-Kind", "X-Kind": "placed",
	} {
		if got := d.header.Get(name); got != want {
			t.Errorf("%s of the delivery is %q, not %q", name, got, want)
		}
	}
	if d.body != orderBody(1) || i.dead("good") != 0 {
		t.Errorf("delivered %q, %d dead", d.body, i.dead("good"))
	}

	var list struct {
		DeadJobs []struct{ JobRequeueURL string }
	}
	i.do("GET", channel+"/consumer/bad/dlq", "").want(200).into(&list)
	if len(list.DeadJobs) != 1 {
		t.Fatalf("%d dead letters in the list", len(list.DeadJobs))
	}
	bad.heal()
	i.do("POST", list.DeadJobs[0].JobRequeueURL, "", asConsumer("bad")...).want(202)
	eventually(t, "delivered after all", func() bool { return i.statusOf("m1", "bad") == "DELIVERED" })
	if n := i.dead("bad"); n != 0 {
		t.Errorf("%d dead after the requeue", n)
	}
	metrics := i.do("GET", "/metrics", "").want(200).body
	for _, want := range []string{`dead_job_count{channel="orders",consumer="bad"} 0`, "redrive_build_info{", "queued_job_count 0"} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics has no %s", want)
		}
	}
}

// The gauges have the labels that the description says.
func TestGaugesAreAsDescribed(t *testing.T) {
	t.Parallel()
	i := start(t, testConfig(storagetest.DSN(t)))
	i.stage()
	i.addConsumer("puller", "pull", "http://127.0.0.1:1/unused")
	metrics := i.do("GET", "/metrics", "").want(200).body
	labels := regexp.MustCompile(`(\w+)="[^"]*"`)
	said := regexp.MustCompile("`(dead_job_count|queued_job_count)(\\{[a-z,]+\\})?`").FindAllStringSubmatch(string(docs.OpenAPI), -1)
	if len(said) != 2 {
		t.Fatalf("the description says %v", said)
	}
	for _, s := range said {
		shown := regexp.MustCompile(`(?m)^` + s[1] + `(\{.*\})? \d+$`).FindStringSubmatch(metrics)
		if len(shown) != 2 || labels.ReplaceAllString(shown[1], "$1") != s[2] {
			t.Errorf("the description has %s, /metrics %q", s[0], shown)
		}
	}
}

// All dead letters of a consumer come back, or go, at once, and the answer says how many.
func TestRequeueAndPurgeAll(t *testing.T) {
	t.Parallel()
	i := start(t, testConfig(storagetest.DSN(t)))
	i.stage()
	bad := newSink(t)
	bad.fail(503)
	i.addConsumer("bad", "push", bad.URL)
	const n = 20
	for m := range n {
		i.broadcast(fmt.Sprintf("m%d", m), orderBody(m)).want(201)
	}
	eventually(t, "all dead", func() bool { return i.dead("bad") == n })
	before := len(bad.of(""))
	i.do("POST", channel+"/consumer/bad/dlq", "requeue=bad-token", "Content-Type", "application/x-www-form-urlencoded").want(202)
	eventually(t, "all dead again", func() bool { return len(bad.of("")) == before+3*n && i.dead("bad") == n })
	var purged struct{ DeletedCount int }
	i.do("DELETE", channel+"/consumer/bad/dlq", "", asConsumer("bad")...).want(200).into(&purged)
	if purged.DeletedCount != n || i.dead("bad") != 0 {
		t.Errorf("%d deleted, %d dead", purged.DeletedCount, i.dead("bad"))
	}
}

func TestPullConsumer(t *testing.T) {
	t.Parallel()
	i := start(t, testConfig(storagetest.DSN(t)))
	i.stage()
	i.addConsumer("puller", "pull", "http://127.0.0.1:1/unused")
	i.broadcast("low", orderBody(1)).want(201)
	i.broadcast("high", orderBody(2), "X-Broker-Message-Priority", "7").want(201)

	jobs := queued(i.api)
	if len(jobs) != 2 || jobs[0].Message.MessageID != "high" || jobs[0].Message.Payload != orderBody(2) || jobs[0].Priority != 7 {
		t.Fatalf("queued: %+v", jobs)
	}
	i.report(jobs[0].ID, "DELIVERED").want(400)
	for _, j := range jobs {
		i.report(j.ID, "INFLIGHT").want(202)
		i.report(j.ID, "INFLIGHT").want(202)
	}
	if left := queued(i.api); len(left) != 0 {
		t.Errorf("still queued: %+v", left)
	}
	i.report(jobs[0].ID, "DELIVERED").want(202)
	i.report(jobs[1].ID, "DEAD").want(202)
	if i.statusOf("high", "puller") != "DELIVERED" || i.dead("puller") != 1 {
		t.Errorf("high is %s, %d dead", i.statusOf("high", "puller"), i.dead("puller"))
	}
	// What its consumer declared dead may be deleted although nothing was retried.
	i.do("DELETE", channel+"/consumer/puller/job/"+jobs[1].ID, "", asConsumer("puller")...).want(204)
	if n := i.dead("puller"); n != 0 {
		t.Errorf("%d dead after the deletion", n)
	}
}

type queuedJob struct {
	ID       string
	Priority int
	Message  struct{ MessageID, Payload string }
}

func queued(a *api) []queuedJob {
	a.t.Helper()
	var queue struct{ Result []queuedJob }
	a.do("GET", channel+"/consumer/puller/queued-jobs", "", asConsumer("puller")...).want(200).into(&queue)
	return queue.Result
}

func (a *api) report(job, state string) answer {
	a.t.Helper()
	body, err := json.Marshal(map[string]string{"NextState": state})
	if err != nil {
		a.t.Fatal(err)
	}
	return a.do("POST", channel+"/consumer/puller/job/"+job, string(body), append(asConsumer("puller"), "Content-Type", "application/json")...)
}

func TestScheduledMessage(t *testing.T) {
	t.Parallel()
	i := start(t, testConfig(storagetest.DSN(t)))
	i.stage()
	good := newSink(t)
	i.addConsumer("good", "push", good.URL)
	due := time.Now().Add(time.Second)
	made := i.broadcast("later", orderBody(1), "X-Broker-Scheduled-For", due.Format(time.RFC3339Nano)).want(201)
	if got := made.header.Get("Location"); got != channel+"/scheduled-message/later" {
		t.Errorf("Location is %q", got)
	}
	var m struct{ Status string }
	i.do("GET", channel+"/scheduled-message/later", "").want(200).into(&m)
	if m.Status != "SCHEDULED" {
		t.Errorf("it is %s", m.Status)
	}
	eventually(t, "delivery", func() bool { return len(good.of("later")) == 1 })
	// The database's clock is this machine's, and times have microseconds there.
	if at := good.of("later")[0].at; at.Before(due.Truncate(time.Microsecond)) {
		t.Errorf("delivered %s too early", due.Sub(at))
	}
	i.do("GET", channel+"/scheduled-message/later", "").want(200).into(&m)
	if m.Status != "DISPATCHED" {
		t.Errorf("it is %s after its delivery", m.Status)
	}
	i.broadcast("now", orderBody(1), "X-Broker-Scheduled-For", time.Now().Format(time.RFC3339Nano)).want(412)
	i.broadcast("wrong", orderBody(1), "X-Broker-Scheduled-For", "tomorrow").want(400)
}

// Two instances on one database know the same and share the work without another word.
func TestTwoInstances(t *testing.T) {
	t.Parallel()
	dsn := storagetest.DSN(t)
	a, b := start(t, testConfig(dsn)), start(t, testConfig(dsn))
	a.stage()
	good, bad := newSink(t), newSink(t)
	bad.fail(500)
	a.addConsumer("good", "push", good.URL)
	b.addConsumer("bad", "push", bad.URL)
	const n = 40
	for m := range n {
		sender := a
		if m%2 == 1 {
			sender = b
		}
		sender.broadcast(fmt.Sprintf("m%d", m), orderBody(m)).want(201)
	}
	eventually(t, "everything is delivered or dead", func() bool {
		return len(good.of("")) >= n && a.dead("bad") == n && b.dead("bad") == n
	})
	for m := range n {
		id := fmt.Sprintf("m%d", m)
		if len(good.of(id)) != 1 || len(bad.of(id)) != 3 {
			t.Errorf("%s was delivered %d times and tried %d times", id, len(good.of(id)), len(bad.of(id)))
		}
	}
	a.stop(t)
	if a.err != nil {
		t.Error(a.err)
	}
	b.broadcast("after", orderBody(n)).want(201)
	eventually(t, "one goes on alone", func() bool { return len(good.of("after")) == 1 })
}
