//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A stopped instance gives no answer. One that nobody has broken must give one within answerLimit, even on a busy
// machine; producers and pull consumers lose their patience earlier, as theirs do who have another instance to ask.
const (
	answerLimit = 8 * time.Second
	patience    = 2500 * time.Millisecond
)

// client speaks to the instances and records each request.
type client struct {
	http      *http.Client
	rec       *recorder
	instances []*instance
}

func newClient(rec *recorder, instances []*instance) *client {
	return &client{rec: rec, instances: instances, http: &http.Client{
		Transport:     &http.Transport{MaxIdleConnsPerHost: 64},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// request is what goes out; its op says what it is about and to which instance it goes.
type request struct {
	method, path string
	header       map[string]string
	body         string
	limit        time.Duration // 0: answerLimit
	note         func(*op, answer)
}

type answer struct {
	header http.Header
	body   []byte
}

// do sends the request, fills in what came of it, lets note add what only the caller can read off the
// answer, and records the operation.
func (c *client) do(ctx context.Context, o op, r request) (op, answer) {
	o, a := c.exchange(ctx, o, r)
	if r.note != nil && o.Outcome == ok {
		r.note(&o, a)
	}
	return c.rec.op(o), a
}

func (c *client) exchange(ctx context.Context, o op, r request) (op, answer) {
	if r.limit == 0 {
		r.limit = answerLimit
	}
	ctx, cancel := context.WithTimeout(ctx, r.limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, r.method, c.instances[o.Instance-1].base+r.path, strings.NewReader(r.body))
	if err != nil {
		panic(err) // only a mistake of ours makes a bad URL
	}
	for k, v := range r.header {
		req.Header.Set(k, v)
	}
	o.Start = c.rec.now()
	resp, err := c.http.Do(req)
	var a answer
	if err == nil {
		a.header = resp.Header
		a.body, err = io.ReadAll(io.LimitReader(resp.Body, 16<<20))
		resp.Body.Close()
	}
	o.End = c.rec.now()
	if err != nil {
		o.Err, o.Outcome, o.Timeout = err.Error(), unknown, errors.Is(err, context.DeadlineExceeded)
		if dial := (*net.OpError)(nil); errors.As(err, &dial) && dial.Op == "dial" {
			o.Outcome = refused
		}
		return o, a
	}
	o.Status, o.RetryAfter = resp.StatusCode, a.header.Get("Retry-After")
	switch {
	case o.Status < 300:
		o.Outcome = ok
	case o.Status < 500:
		o.Outcome = refused
		o.Err = clip(string(a.body))
	default:
		o.Outcome = unknown
		o.Err = clip(string(a.body))
	}
	return o, a
}

func clip(s string) string { return strings.TrimSpace(s[:min(len(s), 160)]) }

// The readers of answers. One that cannot be read leaves a text in op.Err, which a check finds.

func noteTotal(field string) func(*op, answer) {
	return func(o *op, a answer) {
		var body map[string]int64
		if err := json.Unmarshal(a.body, &body); err != nil {
			o.Err = unreadable + err.Error()
			return
		}
		if n, there := body[field]; there {
			o.Total = &n
		}
	}
}

// unreadable begins the error of an answer that was a success but not what it should be.
const unreadable = "unreadable answer: "

func noteDLQStatus(o *op, a answer) {
	var body struct {
		Consumers []struct {
			ChannelID, ConsumerID string
			DeadCount             int64
		}
		Exact *bool
	}
	if err := json.Unmarshal(a.body, &body); err != nil {
		o.Err = unreadable + err.Error()
		return
	}
	if body.Exact != nil && !*body.Exact {
		o.Err = "exact is false"
	}
	o.Counts = map[string]int64{}
	for _, c := range body.Consumers {
		o.Counts[c.ChannelID+"/"+c.ConsumerID] = c.DeadCount
	}
}

func noteJobStatus(o *op, a answer) {
	var body map[string]map[string][]struct {
		Status string
		Count  int64
	}
	if err := json.Unmarshal(a.body, &body); err != nil {
		o.Err = unreadable + err.Error()
		return
	}
	o.Counts = map[string]int64{}
	for channel, consumers := range body {
		for consumer, statuses := range consumers {
			for _, s := range statuses {
				o.Counts[channel+"/"+consumer+" "+s.Status] += s.Count
			}
		}
	}
}

// noteMetrics reads the samples of dead_job_count from the text format.
func noteMetrics(o *op, a answer) {
	o.Counts = map[string]int64{}
	for l := range strings.SplitSeq(string(a.body), "\n") {
		rest, found := strings.CutPrefix(l, "dead_job_count{")
		if !found {
			continue
		}
		labels, value, found := strings.Cut(rest, "} ")
		n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if !found || err != nil {
			o.Err = unreadable + l
			return
		}
		set := map[string]string{}
		for pair := range strings.SplitSeq(labels, ",") { // our ids have no commas
			name, quoted, _ := strings.Cut(pair, "=")
			set[name] = strings.Trim(quoted, `"`)
		}
		o.Counts[set["channel"]+"/"+set["consumer"]] = int64(n)
	}
}
