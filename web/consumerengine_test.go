package web_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/storage"
)

// TestEngineConsumers sees what clients are shown of an engine, and that only its dead jobs can be worked on.
func TestEngineConsumers(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("PUT", "/channel/c/consumer/hmac", form("callbackUrl", "https://consumer.example/", "type", "engine"), asAdmin, asForm).want(400)
	k, err := a.store.PutEngineQueue(t.Context(), "hmac", "c")
	if err != nil {
		t.Fatal(err)
	}
	const path = "/channel/c/consumer/hmac"
	got := a.get(path).want(200)
	if v := got.json(); v["Type"] != "engine" || v["CallbackURL"] != "" || v["Token"] != "" || v["DeadLetterQueueURL"] != path+"/dlq" {
		t.Errorf("GET shows %v", v)
	}
	modified := "If-Unmodified-Since: " + got.Header.Get("Last-Modified")
	for _, kind := range []string{"push", "pull"} {
		refused := a.call("PUT", path, form("callbackUrl", "https://consumer.example/", "type", kind), asAdmin, asForm, modified).want(409)
		if !strings.Contains(refused.body, "engine") {
			t.Errorf("the refusal says %q", refused.body)
		}
	}
	catalog, err := a.store.Catalog(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sealed, _ := catalog.ConsumerByKey(k.Key)
	asEngine := []string{"X-Broker-Channel-Token: c-token", "X-Broker-Consumer-Token: " + sealed.Token}
	a.call("GET", path+"/queued-jobs", "", "X-Broker-Channel-Token: c-token", "X-Broker-Consumer-Token: ").want(403)

	_, jobs, err := a.store.Enqueue(t.Context(), storage.Enqueued{Queue: "c", MessageID: "m", Body: json.RawMessage(`{"n":1}`)})
	if err != nil {
		t.Fatal(err)
	}
	if v := a.get("/channel/c/message/m").want(200).json(); v["ProducedBy"] != "" || v["Payload"] != `{"n":1}` || len(v["Jobs"].([]any)) != len(jobs) {
		t.Errorf("a message without a producer is shown as %v", v)
	}
	if urls, _ := a.get("/channel/c/messages").want(200).list(); len(urls) != 1 {
		t.Errorf("messages are %v", urls)
	}
	job := path + "/job/" + a.jobOf("m", "hmac")
	if v := a.get(job, asEngine...).want(200).json(); v["ProducerURL"] != "" || v["ListenerEndpoint"] != "" || v["ListenerName"] != "hmac" || v["Status"] != "QUEUED" {
		t.Errorf("its job is shown as %v", v)
	}
	a.get(path+"/queued-jobs", asEngine...).want(412)
	a.call("POST", job, `{"NextState":"INFLIGHT"}`, append(asEngine, "Content-Type: application/json")...).want(412)

	a.kill(a.jobOf("m", "hmac"))
	if body := a.get("/dlq-status").want(200).body; !strings.Contains(body, `"hmac"`) {
		t.Errorf("/dlq-status shows %s", body)
	}
	if body := a.get("/job-status").want(200).body; !strings.Contains(body, `"hmac"`) {
		t.Errorf("/job-status shows %s", body)
	}
	if urls := a.get(path+"/dlq", asEngine...).want(200).body; !strings.Contains(urls, job) {
		t.Errorf("dead are %s", urls)
	}
	a.call("POST", job+"/requeue-dead-job", "", append(asEngine, asForm)...).want(202)
	if a.broker.kicks() != 1 {
		t.Errorf("%d kicks", a.broker.kicks())
	}
	a.kill(a.jobOf("m", "hmac"))
	a.call("DELETE", path+"/dlq", "", asEngine...).want(200)
	a.call("DELETE", path, "", asAdmin, modified).want(204)
	a.get(path).want(404)
}
