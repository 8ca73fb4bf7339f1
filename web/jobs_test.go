package web_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/web"
)

func (a *api) jobStatus(path string) string {
	a.t.Helper()
	return a.get(path, as("pull")...).want(200).json()["Status"].(string)
}

// Every endpoint of a job or of a consumer's jobs checks who asks in the same order.
func TestJobEndpointsCheckWhoAsks(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.put("/channel/other", "token=c-token")
	a.send("m")
	job := a.jobOf("m", "pull")
	const body = `{"NextState":"INFLIGHT"}`
	for _, tc := range []struct {
		method, path string
		unknown      int // the status of a consumer that is not there
		foreign      int // the status of another consumer's job; 0: it names no job
	}{
		{"GET", "/queued-jobs", 401, 0},
		{"GET", "/job/" + job, 401, 401},
		{"POST", "/job/" + job, 401, 401},
		{"POST", "/job/" + job + "/requeue-dead-job", 401, 401},
		{"DELETE", "/job/" + job, 404, 404},
		{"DELETE", "/dlq", 404, 0},
	} {
		t.Run(tc.method+" "+strings.ReplaceAll(tc.path, job, "j"), func(t *testing.T) {
			call := func(channel, consumer string, headers ...string) answer {
				return a.call(tc.method, "/channel/"+channel+"/consumer/"+consumer+tc.path, body, append(headers, "Content-Type: application/json")...)
			}
			call("nowhere", "pull", as("pull")...).want(404)
			call("c", "pull").want(403)
			call("c", "nobody").want(403) // without the channel's token nobody learns who is there
			call("c", "pull", "X-Broker-Channel-Token: wrong", as("pull")[1]).want(403)
			call("c", "nobody", as("pull")...).want(tc.unknown)
			call("c", "pull", as("push")...).want(403)
			call("c", "pull", as("pull")[0]).want(403)
			if tc.foreign != 0 {
				call("c", "push", as("push")...).want(tc.foreign)
				for _, id := range []string{"x", storage.NewID().String(), strings.ToUpper(job), job + "0", "%FF"} {
					a.call(tc.method, strings.Replace("/channel/c/consumer/pull"+tc.path, job, id, 1), body, as("pull", "Content-Type: application/json")...).want(404)
				}
			}
		})
	}
}

func TestPullConsumersTakeAndReportJobs(t *testing.T) {
	t.Parallel()
	a := newAPI(t, func(o *web.Options) { o.PullLease = time.Hour })
	a.send("low", "X-Broker-Message-Priority: 1", "X-Broker-Metadata-Headers: X-A", "X-A: 1")
	a.send("high", "X-Broker-Message-Priority: 9")
	const base = "/channel/c/consumer/pull"
	queued := func(query string) []any {
		t.Helper()
		return a.get(base+"/queued-jobs"+query, as("pull")...).want(200).json()["Result"].([]any)
	}
	jobs := queued("")
	if len(jobs) != 2 {
		t.Fatalf("queued are %v", jobs)
	}
	low := jobs[1].(map[string]any)
	if got := fmt.Sprint(low["Message"]); got != "map[ContentType:application/octet-stream Headers:map[X-A:1] MessageID:low Payload:payload of low]" || low["Priority"] != 1.0 {
		t.Errorf("the job of less priority is %v", low)
	}
	for query, want := range map[string]int{"?limit=1": 1, "?limit=0": 0, "?limit=1000": 2} {
		if got := len(queued(query)); got != want {
			t.Errorf("%s lists %d, want %d", query, got, want)
		}
	}
	for _, query := range []string{"?limit=-1", "?limit=x", "?limit=1.5", "?limit=%zz"} {
		a.get(base+"/queued-jobs"+query, as("pull")...).want(400)
	}
	a.get("/channel/c/consumer/push/queued-jobs", as("push")...).want(412)

	path := base + "/job/" + low["ID"].(string)
	report := func(body string, want int) {
		t.Helper()
		a.call("POST", path, body, as("pull", "Content-Type: application/json")...).want(want)
	}
	for _, body := range []string{
		"", "x", "[]", `"INFLIGHT"`, `{}`, `{"NextState":"SHELVED"}`, `{"NextState":"inflight"}`, `{"NextState":1002}`,
		`{"NextState":"DELIVERED"}`, `{"NextState":"DEAD"}`, `{"NextState":"INFLIGHT"}{}`, `{"NextState":"INFLIGHT"}}`, `{"NextState":"INFLIGHT"}]`,
		`{"NextState":"QUEUED","IncrementalTimeout":5}`, `{"NextState":"INFLIGHT","IncrementalTimeout":-1}`,
		`{"NextState":"INFLIGHT","IncrementalTimeout":1.5}`, `{"NextState":"INFLIGHT","IncrementalTimeout":"5"}`,
		`{"NextState":"INFLIGHT","IncrementalTimeout":4294967296}`,
	} {
		report(body, 400)
	}
	report(`{"NextState":"QUEUED"}`, 202) // it is already
	report(`{"NextState":"INFLIGHT","IncrementalTimeout":4294967295,"Worker":"seven"}`, 202)
	var lease float64
	if err := a.store.DB().QueryRowContext(t.Context(),
		`SELECT TIMESTAMPDIFF(SECOND, statusChangedAt, dueAt) FROM job WHERE status = 1002`).Scan(&lease); err != nil || lease != 4294967295+3600 {
		t.Errorf("the lease has %v s, want what the consumer asked for on top of 1 h; %v", lease, err)
	}
	if got := a.jobStatus(path); got != "INFLIGHT" {
		t.Errorf("it is %s", got)
	}
	report(`{"NextState":"INFLIGHT"}`, 202) // it is already
	report(`{"NextState":"INFLIGHT","IncrementalTimeout":5}`, 400)
	report(`{"NextState":"INFLIGHT","IncrementalTimeout":0}`, 202)
	report(`{"NextState":"QUEUED"}`, 400)
	report(`{"NextState":"DEAD"}`, 202)
	report(`{"NextState":"DELIVERED"}`, 400)
	report(`{"NextState":"INFLIGHT","IncrementalTimeout":5}`, 202)
	report(`{"NextState":"DELIVERED","IncrementalTimeout":5}`, 400)
	report(`{"NextState":"DELIVERED"}`, 202)
	report(`{"NextState":"DELIVERED"}`, 202)
	report(`{"NextState":"INFLIGHT"}`, 400)
	report(`{"NextState":"`+strings.Repeat("x", web.DefaultMaxBodyBytes)+`"}`, 413)
	if got := len(queued("")); got != 1 {
		t.Errorf("%d are still queued, want 1", got)
	}
	a.call("POST", "/channel/c/consumer/push/job/"+a.jobOf("low", "push"), `{"NextState":"INFLIGHT"}`, as("push", "Content-Type: application/json")...).want(412)
}

func TestDeadJobsAreShownRequeuedAndDeleted(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	const base = "/channel/c/consumer/push"
	ids := map[string]string{}
	for _, m := range []string{"a", "b", "c", "d", "e"} {
		a.send(m)
		ids[m] = a.jobOf(m, "push")
	}
	for _, m := range []string{"a", "b", "c", "d"} {
		a.kill(ids[m])
	}

	v := a.get(base+"/job/"+ids["a"], as("push")...).want(200).json()
	delete(v, "StatusChangedAt")
	want := map[string]any{
		"ListenerEndpoint": "https://consumer.example/hook", "ListenerName": "Pusher", "Status": "DEAD", "MessageURL": "/channel/c/message/a",
		"ChannelURL": "/channel/c", "ConsumerURL": base, "ProducerURL": "/producer/p", "JobRequeueURL": base + "/job/" + ids["a"] + "/requeue-dead-job",
	}
	if fmt.Sprint(v) != fmt.Sprint(want) {
		t.Errorf("the dead job is\n%v, want\n%v", v, want)
	}
	if v := a.get(base+"/job/"+ids["e"], as("push")...).want(200).json(); v["JobRequeueURL"] != "" || v["Status"] != "QUEUED" {
		t.Errorf("the live job is %v", v)
	}

	dead := a.get(base + "/dlq").want(200).json()["DeadJobs"].([]any)
	first := dead[0].(map[string]any)
	if len(dead) != 4 || first["MessageURL"] != "/channel/c/message/d" || first["JobRequeueURL"] != base+"/job/"+ids["d"]+"/requeue-dead-job" {
		t.Errorf("the dead jobs are %v", dead)
	}
	a.get("/channel/c/consumer/nobody/dlq").want(404)
	a.get("/channel/nowhere/consumer/push/dlq").want(404)

	a.call("POST", first["JobRequeueURL"].(string), "", as("push")...).want(202)
	a.call("POST", first["JobRequeueURL"].(string), "", as("push")...).want(400)
	if a.broker.kicks() != 1 {
		t.Error("nobody was told of the requeued job")
	}

	a.call("DELETE", base+"/job/"+ids["a"], "", as("push")...).want(204)
	a.call("DELETE", base+"/job/"+ids["a"], "", as("push")...).want(404)
	a.call("DELETE", base+"/job/"+ids["e"], "", as("push")...).want(404) // not dead
	if _, err := a.store.DB().ExecContext(t.Context(), `UPDATE job SET retryAttemptCount = 4 WHERE status = 1004 AND messageId = (SELECT id FROM message WHERE messageId = 'b')`); err != nil {
		t.Fatal(err)
	}
	a.call("DELETE", base+"/job/"+ids["b"], "", as("push")...).want(404) // retries left
	if got := a.call("DELETE", base+"/dlq", "", as("push")...).want(200); got.body != `{"deletedCount":1}` {
		t.Errorf("the purge answers %s", got.body)
	}
	if dead := a.get(base + "/dlq").json()["DeadJobs"].([]any); len(dead) != 1 {
		t.Errorf("left are %v", dead)
	}

	post := func(path, body string, headers ...string) answer { return a.call("POST", path, body, headers...) }
	post(base+"/dlq", "requeue=push-token").want(415)
	post(base+"/dlq", "requeue=push-token", "Content-Type: multipart/form-data").want(415)
	post(base+"/dlq", "requeue=wrong", asForm).want(400)
	post(base+"/dlq", "", asForm).want(400)
	post(base+"/dlq", "requeue=%zz", asForm).want(400)
	post("/channel/c/consumer/nobody/dlq", "requeue=push-token", asForm).want(404)
	post("/channel/nowhere/consumer/push/dlq", "requeue=push-token", asForm).want(404)
	if got := post(base+"/dlq", "requeue=push-token", asForm+";charset=utf-8").want(202); got.body != `{"requeuedCount":1}` {
		t.Errorf("the requeue answers %s", got.body)
	}
	if got := a.get(base + "/dlq").want(200); got.body != `{"DeadJobs":[],"Pages":{}}` {
		t.Errorf("left is %s", got.body)
	}
	if a.broker.kicks() != 3 {
		t.Errorf("the dispatcher was told %d times, want once for the job and twice for all", a.broker.kicks())
	}
}

// A requeue goes on when its client has gone away, however long the request may take otherwise.
func TestRequeueAllOutlivesItsClient(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.send("m")
	a.kill(a.jobOf("m", "push"))
	// The job is locked by somebody, so the requeue waits for it.
	tx, err := a.store.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(t.Context(), `UPDATE job SET lastError = 'x' WHERE status = 1004`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, "POST", a.server.URL+"/channel/c/consumer/push/dlq", strings.NewReader("requeue=push-token"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	gone := make(chan error, 1)
	go func() {
		res, err := a.server.Client().Do(r)
		if err == nil {
			_ = res.Body.Close()
		}
		gone <- err
	}()
	eventually(t, "the requeue has begun", func() bool { return a.broker.kicks() == 1 })
	cancel()
	if err := <-gone; err == nil {
		t.Fatal("the request was answered while the job was locked")
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the requeue was finished", func() bool { return a.broker.kicks() == 2 })
	if got := a.get("/channel/c/consumer/push/dlq").want(200); got.body != `{"DeadJobs":[],"Pages":{}}` {
		t.Errorf("left is %s", got.body)
	}
}

// The server's shutdown ends what is detached from its request.
func TestShutdownEndsRequeueAll(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a := newAPI(t, func(o *web.Options) { o.Shutdown = ctx })
	a.send("m")
	a.kill(a.jobOf("m", "push"))
	got := a.call("POST", "/channel/c/consumer/push/dlq", "requeue=push-token", asForm).want(503)
	if got.Header.Get("Retry-After") == "" {
		t.Error("there is no Retry-After")
	}
	a.call("DELETE", "/channel/c/consumer/push/dlq", "", as("push")...).want(503)
}

func TestDeadLettersOfManyConsumersAreCounted(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.send("m")
	a.kill(a.jobOf("m", "push"))
	v := a.get("/dlq-status").want(200).json()
	if v["exact"] != true || v["asOf"] == "" || v["lastCheckedAt"] != nil {
		t.Errorf("dlq-status is %v", v)
	}
	consumers := v["consumers"].([]any)
	if got, want := fmt.Sprint(consumers), "[map[channelId:c channelName:The Channel consumerId:pull consumerName:Puller deadCount:0 lastCheckedAt:<nil>]"+
		" map[channelId:c channelName:The Channel consumerId:push consumerName:Pusher deadCount:1 lastCheckedAt:<nil>]]"; got != want {
		t.Errorf("the consumers are %s, want %s", got, want)
	}
	status := a.get("/job-status").want(200).json()["c"].(map[string]any)
	dead := status["push"].([]any)[0].(map[string]any)
	if dead["status"] != "DEAD" || dead["count"] != 1.0 || dead["oldestItemTimestamp"] == nil || dead["newestItemTimestamp"] != dead["oldestItemTimestamp"] {
		t.Errorf("job-status is %v", status)
	}
	if queued := status["pull"].([]any)[0].(map[string]any); queued["status"] != "QUEUED" {
		t.Errorf("job-status is %v", status)
	}

	empty := newBareAPI(t)
	if got := empty.get("/dlq-status").want(200).json()["consumers"].([]any); len(got) != 0 {
		t.Errorf("nobody's dead letters are %v", got)
	}
	if got := empty.get("/job-status").want(200).body; got != "{}" {
		t.Errorf("nobody's jobs are %s", got)
	}
}
