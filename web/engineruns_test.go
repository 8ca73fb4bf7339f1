package web_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/redrive-mq/redrive/engine"
	"github.com/redrive-mq/redrive/web"
)

// fakeRunner remembers what was begun and refuses by instance id.
type fakeRunner struct {
	mu    sync.Mutex
	begun []web.EngineMessage
}

func (f *fakeRunner) Executed() []web.ExecutedEngine {
	return []web.ExecutedEngine{{Engine: "hmac", Queue: "hmac-rotation-queue", MaxRetryAttempts: 3, TimeoutSeconds: 3600, EverySeconds: 60}}
}

func (f *fakeRunner) Begin(_ context.Context, eng string, m web.EngineMessage) (web.EngineRun, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch m.InstanceID {
	case "busy":
		return web.EngineRun{}, fmt.Errorf("%w: busy", web.ErrEngineBusy)
	case "elsewhere":
		return web.EngineRun{}, web.ErrEngineElsewhere
	case "unreadable":
		return web.EngineRun{}, web.ErrEngineMessage
	case "broken":
		return web.EngineRun{}, errors.New("secret")
	}
	f.begun = append(f.begun, m)
	return web.EngineRun{Engine: eng, Queue: eng + "-queue", InstanceID: m.InstanceID, Operation: "rotate", CorrelationID: "c&1", Done: m.CorrelationID == "known"}, nil
}

func TestRunsOnDemand(t *testing.T) {
	t.Parallel()
	f := &fakeRunner{}
	a := newAPI(t)
	a = newAPIOn(t, a.store, withEngines(t, a.store, engine.Publisher), func(o *web.Options) { o.EngineRunner = f })
	list := a.get("/api/engines", asAdmin).want(200).data()
	if items := list["items"].([]any); list["context"] != "publisher" || len(items) != 7 {
		t.Errorf("the engines are %v", list)
	} else if hmac := items[2].(map[string]any); hmac["engine"] != "hmac" || hmac["executed"].(map[string]any)["everySeconds"] != 60.0 {
		t.Errorf("hmac is %v", hmac)
	} else if tls := items[5].(map[string]any); tls["engine"] != "tls" || tls["executed"] != nil {
		t.Errorf("tls is %v", tls)
	}
	got := a.post("/api/engines/hmac/runs", `{"instanceId":"i","input":{"force":true}}`).want(202)
	if d := got.data(); d["instanceId"] != "i" || d["done"] != false || got.Header.Get("Location") != "/api/history?correlationId=c%261&engine=hmac" {
		t.Errorf("it answers %v at %s", d, got.Header.Get("Location"))
	}
	if got := a.post("/api/engines/hmac/runs", `{"correlationId":"known"}`).want(200).data(); got["done"] != true {
		t.Errorf("again: %v", got)
	}
	if len(f.begun) != 2 || string(f.begun[0].Input) != `{"force":true}` || f.begun[1].Input != nil {
		t.Errorf("begun: %+v", f.begun)
	}
	for _, tc := range []struct {
		path, body string
		status     int
		says       string
	}{
		{"hmac", `{"instanceId":"busy"}`, 409, "under way"},
		{"hmac", `{"instanceId":"elsewhere"}`, 404, "not executed"},
		{"hmac", `{"instanceId":"unreadable"}`, 400, "cannot read"},
		{"hmac", `{"instanceId":"broken"}`, 500, "went wrong"},
		{"update", `{}`, 400, "publisher's engines: alerts, delivery, hmac"},
		{"hmac", `{"operation":"renew"}`, 400, "operations: notify, rotate"},
		{"hmac", `{"instance":"x"}`, 400, "correlationId, input"},
		{"hmac", `{"instanceId":"a\u0000"}`, 400, "control"},
		{"hmac", `{"correlationId":"` + strings.Repeat("x", 256) + `"}`, 400, "longer"},
		{"hmac", `[]`, 400, "JSON object"},
		{"hmac", ``, 400, "JSON object"},
	} {
		if says := a.call("POST", "/api/engines/"+tc.path+"/runs", tc.body, asAdmin, asJSON).problem(tc.status); !strings.Contains(says, tc.says) {
			t.Errorf("%s %s: %s", tc.path, tc.body, says)
		}
	}
	a.call("POST", "/api/engines/hmac/runs", `{}`, asJSON).problem(401)
	without := newAPIOn(t, a.store, withEngines(t, a.store, engine.Publisher))
	without.post("/api/engines/hmac/runs", `{}`).problem(404)
	without.get("/api/engines", asAdmin).want(200)
}
