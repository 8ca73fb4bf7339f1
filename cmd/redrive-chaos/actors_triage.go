//go:build unix

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	engineDelivery = "delivery"
	letterPending  = "Pending"
	letterResolved = "Resolved"
	letterExpired  = "Expired"
)

// letter is a dead letter as a list shows it.
type letter struct {
	Engine, RowKey, InstanceID, OriginalQueue, Status, CorrelationID string
	LastFailureAtUtc                                                 time.Time

	seen moment // when the page was asked for
}

// job is the id that the row key begins with.
func (l letter) job() string {
	job, _, _ := strings.Cut(l.RowKey, "-")
	return job
}

// consumer is whose dead letter it is. An engine's is about an instance of the engine.
func (l letter) consumer() string {
	if l.Engine != engineDelivery {
		return l.OriginalQueue + "/" + l.Engine
	}
	return l.OriginalQueue + "/" + l.InstanceID
}

// op is an operation on the dead letter.
func (l letter) op(kind string) op {
	o := op{Kind: kind, Consumer: l.consumer(), Message: l.CorrelationID, Job: l.job(), Letter: l.RowKey, Seen: l.seen}
	if l.Engine != engineDelivery {
		o.Message = "" // several may have its correlation id
	}
	return o
}

// listing is a list of dead letters, read page by page.
type listing struct {
	filter  url.Values
	letters []letter
	keys    map[string]bool
	token   string // of the next page; empty: there is none
}

// listPending begins a list of the broker's own dead letters that are Pending; of one consumer, or of all where id is empty.
func listPending(id string, limit int) *listing {
	l := &listing{keys: map[string]bool{}, filter: url.Values{
		"engine": {engineDelivery}, "status": {letterPending}, "limit": {fmt.Sprint(limit)},
	}}
	if id != "" {
		l.filter.Set("instanceId", id)
	}
	return l
}

// page reads the next page from an instance, with this patience. After a failure it can be read again, from any.
func (l *listing) page(ctx context.Context, c *client, instance int, limit time.Duration) op {
	if l.token != "" {
		l.filter.Set("continuationToken", l.token)
	}
	o, _ := c.do(ctx, op{Kind: opLetters, Instance: instance}, request{
		method: http.MethodGet, path: "/api/dlq?" + l.filter.Encode(), limit: limit, note: l.note,
	})
	return o
}

// note takes the page in, and leaves in op.Err what is not as the filter and the order promise.
func (l *listing) note(o *op, a answer) {
	var body struct {
		Data struct {
			Items             []letter
			ContinuationToken string
		}
	}
	if err := json.Unmarshal(a.body, &body); err != nil {
		o.Err = unreadable + err.Error()
		return
	}
	for _, item := range body.Data.Items {
		var last letter
		if len(l.letters) > 0 {
			last = l.letters[len(l.letters)-1]
		}
		id := l.filter.Get("instanceId")
		switch {
		case item.Engine != l.filter.Get("engine") || item.Status != letterPending || id != "" && item.InstanceID != id:
			o.Err = fmt.Sprintf("%sanother filter's dead letter %s of %s %s", unreadable, item.RowKey, item.InstanceID, item.Status)
		case l.keys[item.RowKey]:
			o.Err = fmt.Sprintf("%sdead letter %s is listed twice", unreadable, item.RowKey)
		case last.RowKey != "" && item.LastFailureAtUtc.After(last.LastFailureAtUtc):
			o.Err = fmt.Sprintf("%sdead letter %s comes after %s, which failed before it", unreadable, item.RowKey, last.RowKey)
		}
		item.seen = o.Start
		l.keys[item.RowKey] = true
		l.letters = append(l.letters, item)
	}
	l.token = body.Data.ContinuationToken
}

// counts are the dead letters listed, by consumer; 0 where there is none.
func (l *listing) counts(specs []*spec) map[string]int64 {
	out := map[string]int64{}
	for _, s := range specs {
		out[s.Key] = 0
	}
	for _, d := range l.letters {
		out[d.consumer()]++
	}
	return out
}

// showLetters counts the dead letters that one instance lists, of deliveries and of each engine. The answer is the one to
// the last page of the last list, or to the first that failed.
func (c *client) showLetters(ctx context.Context, i *instance, specs, engines []*spec) (o op) {
	counts := map[string]int64{}
	lists := []*listing{listPending("", 30)}
	for _, s := range engines {
		lists = append(lists, listOf(s, 30))
	}
	for n, l := range lists {
		for more := true; more; more = l.token != "" {
			if o = l.page(ctx, c, i.n, answerLimit); o.Outcome != ok || o.Err != "" {
				return o
			}
		}
		of := specs
		if n > 0 {
			of = engines[n-1 : n]
		}
		maps.Copy(counts, l.counts(of))
	}
	o.Counts = counts
	return o
}

// triager works on a consumer's dead letters as an operator does who looks at each. Several share one consumer, and
// requeuers work on it too, so they also meet at the same dead letter.
type triager struct {
	*client
	spec  *spec
	rng   *rand.Rand
	limit time.Duration // its patience with an instance
	aside []letter      // that it has resolved or expired, as far as it knows
}

func (p *triager) any() int { return p.rng.IntN(len(p.instances)) + 1 }

// run works until the traffic ends.
func (p *triager) run(ctx, traffic context.Context) {
	for hold(traffic, between(p.rng, 200*time.Millisecond, 800*time.Millisecond)) {
		if p.rng.IntN(4) == 0 {
			p.do(ctx, op{Kind: opExpireOld, Instance: p.any(), Consumer: p.spec.Key}, expireOldRequest(p.limit))
		}
		pending := p.list(ctx, traffic)
		for range min(4, len(pending)) {
			p.decide(ctx, pending[p.rng.IntN(len(pending))])
		}
		if len(p.aside) > 0 && p.rng.IntN(3) == 0 {
			n := p.rng.IntN(len(p.aside))
			p.retry(ctx, p.aside[n])
			p.aside = append(p.aside[:n], p.aside[n+1:]...)
		}
	}
}

// list pages through the consumer's dead letters, each page from any instance. What it has when it gives up is as good as any.
func (p *triager) list(ctx, traffic context.Context) []letter {
	l := listPending(p.spec.id, 3+p.rng.IntN(10))
	if p.rng.IntN(4) == 0 {
		l = listPending("", 50+p.rng.IntN(51))
	}
	for failures := 0; failures < 3 && traffic.Err() == nil; {
		if l.page(ctx, p.client, p.any(), p.limit).Outcome != ok {
			failures++
			hold(traffic, 100*time.Millisecond)
		} else if l.token == "" {
			break
		}
	}
	var mine []letter
	for _, d := range l.letters {
		if d.consumer() == p.spec.Key {
			mine = append(mine, d)
		}
	}
	return mine
}

func (p *triager) decide(ctx context.Context, d letter) {
	switch n := p.rng.IntN(10); {
	case n < 4:
		p.retry(ctx, d)
	case n < 7:
		p.put(ctx, d, opResolveLetter, letterResolved)
	default:
		p.put(ctx, d, opExpireLetter, letterExpired)
	}
}

// retry sends a dead letter back, and again: where the first answer was lost, the second tells what became of it.
func (p *triager) retry(ctx context.Context, d letter) {
	for range 2 {
		o := d.op(opRetryLetter)
		o.Instance = p.any()
		p.do(ctx, o, request{method: http.MethodPost, path: letterPath(d) + "/retry", limit: p.limit, note: noteRetry})
	}
}

// put resolves or expires a dead letter, now and then twice.
func (p *triager) put(ctx context.Context, d letter, kind, status string) {
	for range 1 + p.rng.IntN(5)/4 {
		o := d.op(kind)
		o.Instance = p.any()
		o, _ = p.do(ctx, o, request{
			method: http.MethodPatch, path: letterPath(d), header: map[string]string{"Content-Type": contentType},
			body: fmt.Sprintf(`{"status":%q,"resolutionNotes":"chaos"}`, status), limit: p.limit, note: noteState(status),
		})
		if o.Outcome != refused {
			p.aside = append(p.aside, d)
		}
	}
}

// expireOldRequest expires the broker's own dead letters whose last failure is more than a day ago: see witness.makeOld.
func expireOldRequest(limit time.Duration) request {
	return request{
		method: http.MethodPost, path: "/api/dlq/expire", header: map[string]string{"Content-Type": contentType},
		body: fmt.Sprintf(`{"olderThanDays":1,"engine":%q}`, engineDelivery), limit: limit, note: noteExpired,
	}
}

func noteExpired(o *op, a answer) {
	var body struct{ Data struct{ Expired *int64 } }
	if err := json.Unmarshal(a.body, &body); err != nil || body.Data.Expired == nil {
		o.Err = fmt.Sprintf("%s%s (%v)", unreadable, clip(string(a.body)), err)
	}
	o.Total = body.Data.Expired
}

func letterPath(d letter) string {
	return "/api/dlq/" + d.Engine + "/" + url.PathEscape(d.RowKey)
}

// retryAnswer is what a retry of a dead letter says of itself.
type retryAnswer struct {
	Retried        bool   `json:"retried"`
	JobID          string `json:"jobId"`
	QueueMessageID string `json:"queueMessageId"`
}

func noteRetry(o *op, a answer) {
	var body struct{ Data *retryAnswer }
	if err := json.Unmarshal(a.body, &body); err != nil || body.Data == nil {
		o.Err = fmt.Sprintf("%s%s (%v)", unreadable, clip(string(a.body)), err)
	}
	o.Retry = body.Data
}

// noteState looks whether the answer to a change shows the state asked for, of the dead letter meant.
func noteState(status string) func(*op, answer) {
	return func(o *op, a answer) {
		var body struct {
			Data struct{ RowKey, Status, JobID string }
		}
		err := json.Unmarshal(a.body, &body)
		if d := body.Data; err != nil || d.RowKey != o.Letter || d.Status != status || d.JobID != o.Job {
			o.Err = fmt.Sprintf("%s%s (%v)", unreadable, clip(string(a.body)), err)
		}
	}
}
