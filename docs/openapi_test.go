package docs_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"github.com/redrive-mq/redrive/docs"
)

func load(t *testing.T) (*openapi3.T, routers.Router) {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(docs.OpenAPI)
	if err != nil {
		t.Fatalf("load: %v", err)
	}
	if err := doc.Validate(context.Background()); err != nil {
		t.Fatalf("validate: %v", err)
	}
	router, err := gorillamux.NewRouter(doc)
	if err != nil {
		t.Fatalf("router: %v", err)
	}
	return doc, router
}

// The paths and methods that clients rely on; a row that goes missing here breaks somebody.
func TestEveryRowOfTheContractIsDescribed(t *testing.T) {
	t.Parallel()
	doc, _ := load(t)
	want := map[string]string{
		"/producers":                            "GET",
		"/producer/{producerId}":                "GET PUT",
		"/producer/{producerId}/signing-secret": "POST",
		"/channel/{channelId}/consumer/{consumerId}/signing-secret": "POST",
		"/channels":                                                               "GET",
		"/channel/{channelId}":                                                    "GET PUT",
		"/channel/{channelId}/consumers":                                          "GET",
		"/channel/{channelId}/consumer/{consumerId}":                              "DELETE GET PUT",
		"/channel/{channelId}/broadcast":                                          "POST",
		"/channel/{channelId}/message/{messageId}":                                "GET",
		"/channel/{channelId}/messages":                                           "GET",
		"/channel/{channelId}/messages-status":                                    "GET",
		"/channel/{channelId}/scheduled-messages":                                 "GET",
		"/channel/{channelId}/scheduled-message/{messageId}":                      "GET",
		"/channel/{channelId}/consumer/{consumerId}/queued-jobs":                  "GET",
		"/channel/{channelId}/consumer/{consumerId}/job/{jobId}":                  "DELETE GET POST",
		"/channel/{channelId}/consumer/{consumerId}/job/{jobId}/requeue-dead-job": "POST",
		"/channel/{channelId}/consumer/{consumerId}/dlq":                          "DELETE GET POST",
		"/api/alerts":                      "POST",
		"/api/dlq":                         "GET POST",
		"/api/dlq/expire":                  "POST",
		"/api/dlq/{engine}/{rowKey}":       "GET PATCH",
		"/api/dlq/{engine}/{rowKey}/retry": "POST",
		"/api/engines":                     "GET",
		"/api/engines/{engine}/runs":       "POST",
		"/api/history":                     "GET POST",
		"/api/history/{engine}/{rowKey}":   "GET",
		"/api/destinations":                "GET",
		"/dlq-status":                      "GET",
		"/job-status":                      "GET",
		"/_status":                         "GET",
		"/metrics":                         "GET",
		"/livez":                           "GET",
		"/readyz":                          "GET",
		"/openapi.yaml":                    "GET",
	}
	for path, methods := range want {
		item := doc.Paths.Value(path)
		if item == nil {
			t.Errorf("%s is not described", path)
			continue
		}
		for method := range strings.FieldsSeq(methods) {
			if item.GetOperation(method) == nil {
				t.Errorf("%s %s is not described", method, path)
			}
		}
		if got := len(item.Operations()); got != len(strings.Fields(methods)) {
			t.Errorf("%s has %d operations, want %s", path, got, methods)
		}
	}
	if got := doc.Paths.Len(); got != len(want) {
		t.Errorf("%d paths are described, %d are wanted: add the new one here too", got, len(want))
	}
}

func TestEveryOperationIsComplete(t *testing.T) {
	t.Parallel()
	doc, _ := load(t)
	seen := map[string]bool{}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			name := method + " " + path
			if op.OperationID == "" || seen[op.OperationID] {
				t.Errorf("%s: operationId %q is empty or used twice", name, op.OperationID)
			}
			seen[op.OperationID] = true
			if op.Summary == "" || len(op.Tags) != 1 {
				t.Errorf("%s has no summary, or not one tag", name)
			}
			for status, response := range op.Responses.Map() {
				if header := response.Value.Headers["X-Request-ID"]; header == nil || !header.Value.Required {
					t.Errorf("%s %s does not require X-Request-ID", name, status)
				}
				if status == "503" && response.Value.Headers["Retry-After"] == nil {
					t.Errorf("%s 503 has no Retry-After", name)
				}
			}
			if op.Responses.Default() != nil {
				t.Errorf("%s has a default response, so no status could ever be wrong", name)
			}
		}
	}
}

// exchange is one request and the answer to it.
type exchange struct {
	method, target string
	header         http.Header
	body           string
	status         int
	answerHeader   http.Header
	answer         string
}

func check(t *testing.T, router routers.Router, e exchange) (requestErr, responseErr error) {
	t.Helper()
	request := httptest.NewRequest(e.method, e.target, strings.NewReader(e.body))
	if e.header != nil {
		request.Header = e.header
	}
	route, params, err := router.FindRoute(request)
	if err != nil {
		t.Fatalf("%s %s: %v", e.method, e.target, err)
	}
	for name, value := range params { // the router hands them on as they stood in the path
		if params[name], err = url.PathUnescape(value); err != nil {
			t.Fatalf("%s: %v", e.target, err)
		}
	}
	input := &openapi3filter.RequestValidationInput{
		Request: request, PathParams: params, Route: route,
		Options: &openapi3filter.Options{
			AuthenticationFunc:    openapi3filter.NoopAuthenticationFunc,
			IncludeResponseStatus: true,
		},
	}
	requestErr = openapi3filter.ValidateRequest(context.Background(), input)
	responseErr = openapi3filter.ValidateResponse(context.Background(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input, Status: e.status, Header: e.answerHeader,
		Body: io.NopCloser(bytes.NewBufferString(e.answer)), Options: input.Options,
	})
	return requestErr, responseErr
}

func answerHeader(contentType string, more ...string) http.Header {
	h := http.Header{"X-Request-Id": {"d2h6f3k8v0qg00b1c2d0"}}
	if contentType != "" {
		h.Set("Content-Type", contentType)
	}
	for i := 0; i+1 < len(more); i += 2 {
		h.Set(more[i], more[i+1])
	}
	return h
}

const (
	jsonType     = "application/json; charset=utf-8"
	formType     = "application/x-www-form-urlencoded; charset=utf-8"
	problemType  = "application/problem+json"
	lastModified = "Sat, 21 Nov 2026 11:28:00 GMT"
	consumerPath = "/channel/order-events/consumer/payment-service"
	statusEntry  = `{"channelId":"order-events","channelName":"Order Events","consumerId":"payment-service",` +
		`"consumerName":"Payment Service","deadCount":3,"lastCheckedAt":null}`
)

func TestWhatTheContractAllowsIsValid(t *testing.T) {
	t.Parallel()
	_, router := load(t)
	form := http.Header{"Content-Type": {formType}}
	tests := map[string]exchange{
		"a producer is made": {
			method: "PUT", target: "/producer/order-service", header: form, body: url.Values{"token": {"s3cret"}}.Encode(),
			status: 200, answerHeader: answerHeader(jsonType, "Last-Modified", lastModified),
			answer: `{"ID":"order-service","Name":"order-service","Token":"s3cret","ChangedAt":"2026-11-21T11:28:00Z"}`,
		},
		"a channel is made without a form": {
			method: "PUT", target: "/channel/a%2Fb", header: form,
			status: 200, answerHeader: answerHeader(jsonType, "Last-Modified", lastModified),
			answer: `{"ID":"a/b","Name":"a/b","Token":"x","ChangedAt":"2026-11-21T11:28:00Z","ConsumersURL":"/channel/a%2Fb/consumers",` +
				`"MessagesURL":"/channel/a%2Fb/messages","BroadcastURL":"/channel/a%2Fb/broadcast",` +
				`"MessagesStatusURL":"/channel/a%2Fb/messages-status","ScheduledMessagesURL":"/channel/a%2Fb/scheduled-messages"}`,
		},
		"a consumer with an empty type": {
			method: "PUT", target: consumerPath, header: form, body: "callbackUrl=https%3A%2F%2Fexample.com%2Fhook&type=",
			status: 200, answerHeader: answerHeader(jsonType, "Last-Modified", lastModified),
			answer: `{"ID":"payment-service","Name":"Payment","Token":"x","ChangedAt":"2026-11-21T11:28:00Z",` +
				`"CallbackURL":"https://example.com/hook","DeadLetterQueueURL":"` + consumerPath + `/dlq","Type":"push"}`,
		},
		"a broadcast of any type": {
			method: "POST", target: "/channel/order-events/broadcast", body: "\x00\xff",
			header: http.Header{"X-Broker-Producer-Id": {"order-service"}, "Content-Type": {"image/x-odd"}, "X-Broker-Scheduled-For": {"2030-01-02T03:04:05+01:00"}},
			status: 201, answerHeader: answerHeader("", "Location", "/channel/order-events/scheduled-message/m1"),
		},
		"a broadcast without type and body": {
			method: "POST", target: "/channel/order-events/broadcast", header: http.Header{"X-Broker-Producer-Id": {"order-service"}},
			status: 409, answerHeader: answerHeader("text/plain; charset=utf-8"), answer: "duplicate message id\n",
		},
		"no database, as a problem": {
			method: "POST", target: "/channel/order-events/broadcast", header: http.Header{"X-Broker-Producer-Id": {"order-service"}},
			status: 503, answerHeader: answerHeader(problemType, "Retry-After", "2"),
			answer: `{"type":"about:blank","title":"Service Unavailable","status":503,"requestId":"r"}`,
		},
		"messages of two states": {
			method: "GET", target: "/channel/order-events/messages?status=101&status=102&next=abc",
			status: 200, answerHeader: answerHeader(jsonType),
			answer: `{"Result":["/channel/order-events/message/m1"],"Pages":{"next":"/channel/order-events/messages?next=x"}}`,
		},
		"a job update": {
			method: "POST", target: consumerPath + "/job/d2h6f3k8v0qg00b1c2d0", header: http.Header{"Content-Type": {"application/json"}},
			body: `{"NextState":"INFLIGHT","IncrementalTimeout":30}`, status: 202, answerHeader: answerHeader(""),
		},
		"a requeue of all": {
			method: "POST", target: consumerPath + "/dlq", header: form, body: "requeue=token",
			status: 202, answerHeader: answerHeader(jsonType), answer: `{"requeuedCount":200000}`,
		},
		"the dead-letter status": {
			method: "GET", target: "/dlq-status", status: 200, answerHeader: answerHeader(jsonType),
			answer: `{"consumers":[` + statusEntry + `],"exact":true,"asOf":"2026-11-21T11:28:00.123456Z","lastCheckedAt":"2026-11-21T11:20:00Z"}`,
		},
		"the job status": {
			method: "GET", target: "/job-status", status: 200, answerHeader: answerHeader(jsonType),
			answer: `{"order-events":{"payment-service":[{"status":"DEAD","count":1,"oldestItemTimestamp":"2026-11-21T11:28:00Z","newestItemTimestamp":"2026-11-21T11:28:00Z"}]}}`,
		},
		"Alertmanager's alerts": {
			method: "POST", target: "/api/alerts", header: http.Header{"Content-Type": {jsonType}},
			body:   `{"version":"4","more":1,"alerts":[{"status":"firing","labels":{"a":"b"},"startsAt":"2026-11-21T11:28:00.1Z","endsAt":"0001-01-01T00:00:00Z"}]}`,
			status: 202, answerHeader: answerHeader(jsonType),
			answer: `{"status":"Succeeded","correlationId":"r","timestamp":"2026-11-21T11:28:00Z","data":{"received":1,"queued":1,"repeated":0}}`,
		},
		"an alert of Azure Monitor": {
			method: "POST", target: "/api/alerts?token=t", header: http.Header{"Content-Type": {jsonType}},
			body:   `{"schemaId":"azureMonitorCommonAlertSchema","data":{"essentials":{"alertId":"/a","severity":null,"monitorCondition":"Fired"},"alertContext":null}}`,
			status: 401, answerHeader: answerHeader(problemType, "WWW-Authenticate", "Bearer"),
			answer: `{"type":"about:blank","title":"Unauthorized","status":401,"requestId":"r"}`,
		},
		"metrics": {
			method: "GET", target: "/metrics", status: 200, answer: "dead_job_count 1\n",
			answerHeader: answerHeader("text/plain; version=0.0.4; charset=utf-8; escaping=underscores"),
		},
	}
	for name, e := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requestErr, responseErr := check(t, router, e)
			if requestErr != nil {
				t.Errorf("request: %v", requestErr)
			}
			if responseErr != nil {
				t.Errorf("answer: %v", responseErr)
			}
		})
	}
}

func TestWhatTheContractForbidsIsNot(t *testing.T) {
	t.Parallel()
	_, router := load(t)
	const top = `"exact":true,"asOf":"2026-11-21T11:28:00Z","lastCheckedAt":null}`
	status := func(answer string) exchange {
		return exchange{method: "GET", target: "/dlq-status", status: 200, answerHeader: answerHeader(jsonType), answer: answer}
	}
	unavailable := status("gone")
	unavailable.status, unavailable.answerHeader = 503, answerHeader("text/plain")
	teapot := status("no")
	teapot.status, teapot.answerHeader = 418, answerHeader("text/plain")
	nameless := status(`{"consumers":[],` + top)
	nameless.answerHeader = http.Header{"Content-Type": {jsonType}}
	answers := map[string]exchange{
		"a negative count":           status(`{"consumers":[` + strings.Replace(statusEntry, ":3", ":-1", 1) + `],` + top),
		"a field nobody knows":       status(`{"consumers":[],"more":1,` + top),
		"a field that is not there":  status(`{"consumers":[]}`),
		"a time that is no time":     status(`{"consumers":[],"exact":true,"asOf":"yesterday","lastCheckedAt":null}`),
		"null where a list is due":   status(`{"consumers":null,` + top),
		"a 503 without Retry-After":  unavailable,
		"a status nobody knows":      teapot,
		"an answer without an id":    nameless,
		"a type other than declared": {method: "GET", target: "/channels", status: 200, answerHeader: answerHeader("text/html"), answer: "<p>"},
	}
	for name, e := range answers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := check(t, router, e); err == nil {
				t.Error("the answer counts as valid")
			}
		})
	}
	form := http.Header{"Content-Type": {formType}}
	requests := map[string]exchange{
		"an id of 256 bytes":              {method: "GET", target: "/channel/" + strings.Repeat("a", 256)},
		"an id with a control character":  {method: "GET", target: "/channel/a%0Ab"},
		"an id with a space in front":     {method: "GET", target: "/channel/%20a"},
		"a consumer without callback":     {method: "PUT", target: consumerPath, header: form, body: "type=push"},
		"a consumer of an unknown type":   {method: "PUT", target: consumerPath, header: form, body: "callbackUrl=http%3A%2F%2Fa&type=poll"},
		"a form that is JSON":             {method: "PUT", target: "/producer/p", header: http.Header{"Content-Type": {"application/json"}}, body: "{}"},
		"a broadcast by nobody":           {method: "POST", target: "/channel/c/broadcast"},
		"a schedule that is no time":      {method: "POST", target: "/channel/c/broadcast", header: http.Header{"X-Broker-Producer-Id": {"p"}, "X-Broker-Scheduled-For": {"soon"}}},
		"a limit below 0":                 {method: "GET", target: consumerPath + "/queued-jobs?limit=-1"},
		"a state nobody knows":            {method: "POST", target: consumerPath + "/job/x", header: http.Header{"Content-Type": {"application/json"}}, body: `{"NextState":"LOST"}`},
		"alerts of a version to come":     {method: "POST", target: "/api/alerts", header: http.Header{"Content-Type": {jsonType}}, body: `{"version":"5","alerts":[]}`},
		"a delete without a precondition": {method: "DELETE", target: consumerPath},
	}
	for name, e := range requests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e.status, e.answerHeader = 400, answerHeader("text/plain")
			if err, _ := check(t, router, e); err == nil {
				t.Error("the request counts as valid")
			}
		})
	}
}
