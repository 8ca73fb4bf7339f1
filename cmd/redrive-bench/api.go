package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// token is what the bench gives every producer, channel and consumer that it makes.
const token = "bench-token"

// api is a client of the broker's endpoints other than broadcast.
type api struct {
	base   string
	client *http.Client
}

// newAPI returns a client of the broker at base. Requests are bounded by their contexts alone: purging
// millions may take minutes.
func newAPI(base string) *api {
	return &api{base: base, client: &http.Client{Transport: newTransport(4)}}
}

// dlqStatus is the answer of /dlq-status.
type dlqStatus struct {
	Exact         bool      `json:"exact"`
	AsOf          time.Time `json:"asOf"`
	LastCheckedAt time.Time `json:"lastCheckedAt"`
	Consumers     []struct {
		ChannelID  string `json:"channelId"`
		ConsumerID string `json:"consumerId"`
		DeadCount  int64  `json:"deadCount"`
	} `json:"consumers"`
}

// of returns the dead count of a consumer, -1 when it is not listed.
func (s *dlqStatus) of(channel, consumer string) int64 {
	for _, c := range s.Consumers {
		if c.ChannelID == channel && c.ConsumerID == consumer {
			return c.DeadCount
		}
	}
	return -1
}

// putProducer, putChannel and putConsumer create what does not exist yet.
func (a *api) putProducer(ctx context.Context, producer string) error {
	return a.put(ctx, "/producer/"+producer, url.Values{"token": {token}})
}

func (a *api) putChannel(ctx context.Context, channel, history string) error {
	form := url.Values{"token": {token}}
	if history != "" {
		form.Set("history", history)
	}
	return a.put(ctx, "/channel/"+channel, form)
}

func (a *api) putConsumer(ctx context.Context, channel, consumer, kind, callbackURL string) error {
	return a.put(ctx, "/channel/"+channel+"/consumer/"+consumer,
		url.Values{"token": {token}, "callbackUrl": {callbackURL}, "type": {kind}})
}

func (a *api) put(ctx context.Context, path string, form url.Values) error {
	_, err := a.do(ctx, http.MethodPut, path, form, http.StatusOK)
	return err
}

// dlq asks /dlq-status.
func (a *api) dlq(ctx context.Context) (*dlqStatus, error) {
	var s dlqStatus
	return &s, a.getJSON(ctx, "/dlq-status", &s)
}

// deadLetterPage is what a bench reads of a page of dead letters.
type deadLetterPage struct {
	Items             []struct{} `json:"items"`
	ContinuationToken string     `json:"continuationToken"`
}

// deadLetters asks for a page of /api/dlq.
func (a *api) deadLetters(ctx context.Context, filter url.Values) (deadLetterPage, error) {
	var answer struct {
		Data deadLetterPage `json:"data"`
	}
	err := a.getJSON(ctx, "/api/dlq?"+filter.Encode(), &answer)
	return answer.Data, err
}

// historyEntry is what a bench reads of an entry of the history.
type historyEntry struct {
	Engine        string    `json:"engine"`
	InstanceID    string    `json:"instanceId"`
	Operation     string    `json:"operation"`
	Status        string    `json:"status"`
	CorrelationID string    `json:"correlationId"`
	CreatedAt     time.Time `json:"createdAtUtc"`
}

// historyPage is a page of the history.
type historyPage struct {
	Items             []historyEntry `json:"items"`
	ContinuationToken string         `json:"continuationToken"`
}

// historyEntries asks for a page of /api/history.
func (a *api) historyEntries(ctx context.Context, filter url.Values) (historyPage, error) {
	var answer struct {
		Data historyPage `json:"data"`
	}
	err := a.getJSON(ctx, "/api/history?"+filter.Encode(), &answer)
	return answer.Data, err
}

// queuedJobs asks for the jobs that a pull consumer may take, and returns their messages' ids.
func (a *api) queuedJobs(ctx context.Context, channel, consumer string, limit int) ([]string, error) {
	var answer struct {
		Result []struct{ Message struct{ MessageID string } }
	}
	path := fmt.Sprintf("/channel/%s/consumer/%s/queued-jobs?limit=%d", channel, consumer, limit)
	if err := a.getJSON(ctx, path, &answer); err != nil {
		return nil, err
	}
	ids := make([]string, len(answer.Result))
	for i, j := range answer.Result {
		ids[i] = j.Message.MessageID
	}
	return ids, nil
}

// jobCounts asks /job-status and returns a consumer's numbers of dead jobs and of all others.
func (a *api) jobCounts(ctx context.Context, channel, consumer string) (dead, others int64, err error) {
	var all map[string]map[string][]struct {
		Status any   `json:"status"`
		Count  int64 `json:"count"`
	}
	if err := a.getJSON(ctx, "/job-status", &all); err != nil {
		return 0, 0, err
	}
	for _, row := range all[channel][consumer] {
		// The number or the name: both are in use.
		if s := fmt.Sprint(row.Status); s == "DEAD" || s == strconv.Itoa(statusDead) {
			dead += row.Count
		} else {
			others += row.Count
		}
	}
	return dead, others, nil
}

// purge deletes a consumer's dead jobs and returns the number that the broker says it deleted.
func (a *api) purge(ctx context.Context, channel, consumer string) (int64, error) {
	body, err := a.do(ctx, http.MethodDelete, "/channel/"+channel+"/consumer/"+consumer+"/dlq", nil, http.StatusOK)
	if err != nil {
		return 0, err
	}
	var answer struct {
		DeletedCount int64 `json:"deletedCount"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return 0, fmt.Errorf("answer to the purge: %w", err)
	}
	return answer.DeletedCount, nil
}

// requeue puts all of a consumer's dead jobs back into its queue.
func (a *api) requeue(ctx context.Context, channel, consumer string) error {
	_, err := a.do(ctx, http.MethodPost, "/channel/"+channel+"/consumer/"+consumer+"/dlq",
		url.Values{"requeue": {token}}, http.StatusAccepted)
	return err
}

// metrics scrapes /metrics.
func (a *api) metrics(ctx context.Context) (string, error) {
	body, err := a.get(ctx, "/metrics")
	return string(body), err
}

func (a *api) getJSON(ctx context.Context, path string, into any) error {
	body, err := a.get(ctx, path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("answer of %s: %w", path, err)
	}
	return nil
}

func (a *api) get(ctx context.Context, path string) ([]byte, error) {
	return a.do(ctx, http.MethodGet, path, nil, http.StatusOK)
}

// do sends a request with all tokens on it, and fails unless the answer has the status want.
func (a *api) do(ctx context.Context, method, path string, form url.Values, want int) ([]byte, error) {
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, body)
	if err != nil {
		return nil, err
	}
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	req.Header.Set("X-Broker-Channel-Token", token)
	req.Header.Set("X-Broker-Consumer-Token", token)
	resp, err := a.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: read the answer: %w", method, path, err)
	}
	if resp.StatusCode != want {
		return nil, fmt.Errorf("%s %s: %s, not %d: %.300s", method, path, resp.Status, want, answer)
	}
	return answer, nil
}

// sumMetric adds up the series of a metric in the Prometheus text format whose labels (the text between the
// braces) match accepts; found is false when there is none.
func sumMetric(text, name string, match func(labels string) bool) (sum float64, found bool) {
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest == "" || (rest[0] != '{' && rest[0] != ' ') {
			continue
		}
		labels := ""
		if end := strings.LastIndexByte(rest, '}'); end >= 0 {
			labels, rest = rest[1:end], rest[end+1:]
		}
		fields := strings.Fields(rest)
		if len(fields) == 0 || (match != nil && !match(labels)) {
			continue
		}
		if v, err := strconv.ParseFloat(fields[0], 64); err == nil {
			sum, found = sum+v, true
		}
	}
	return sum, found
}
