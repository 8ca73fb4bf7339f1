//go:build unix

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
)

// puller works through the jobs of a pull consumer. Several share one consumer, so they also meet at the same job.
type puller struct {
	*client
	spec *spec
	rng  *rand.Rand
	good *atomic.Bool // healed: it abandons nothing and lets nothing die
}

type pullJob struct {
	ID      string
	Message struct{ MessageID, Payload string }
}

// run works while looking lasts; ctx bounds the requests under way.
func (p *puller) run(ctx, looking context.Context) {
	for hold(looking, between(p.rng, pollEvery, 5*pollEvery)) {
		var jobs struct{ Result []pullJob }
		o, a := p.do(ctx, op{Kind: opQueued, Instance: p.rng.IntN(len(p.instances)) + 1, Consumer: p.spec.Key}, request{
			method: http.MethodGet, path: consumerPath(p.spec) + "/queued-jobs?limit=20", header: tokens(p.spec), limit: patience,
		})
		if o.Outcome != ok {
			continue
		}
		if err := json.Unmarshal(a.body, &jobs); err != nil {
			p.rec.incident("queued-jobs answered %q: %v", clip(string(a.body)), err)
			continue
		}
		for _, j := range jobs.Result {
			if looking.Err() != nil {
				return
			}
			p.work(ctx, j)
		}
	}
}

// work takes one job through its states, or leaves it behind somewhere.
func (p *puller) work(ctx context.Context, j pullJob) {
	fate := p.rng.IntN(100)
	if p.good.Load() {
		fate = 99
	}
	extra := 0
	if fate >= 20 && fate < 30 {
		extra = 2
	}
	if p.report(ctx, j, "INFLIGHT", extra).Outcome != ok {
		return
	}
	switch {
	case fate < 6: // hangs: its time runs out and the job is queued again
	case fate < 16:
		if p.report(ctx, j, "DEAD", 0).Outcome == ok && fate < 10 {
			// It thinks better of it.
			p.report(ctx, j, "INFLIGHT", 0)
			p.report(ctx, j, "DELIVERED", 0)
		}
	default:
		p.report(ctx, j, "DELIVERED", 0)
	}
}

func (p *puller) report(ctx context.Context, j pullJob, state string, extra int) op {
	o, _ := p.do(ctx, op{
		Kind: opPullState, Instance: p.rng.IntN(len(p.instances)) + 1, Consumer: p.spec.Key,
		Message: j.Message.MessageID, Job: j.ID, State: state, Tag: tagOf(j.Message.Payload),
	}, request{
		method: http.MethodPost, path: consumerPath(p.spec) + "/job/" + j.ID,
		header: with(tokens(p.spec), "Content-Type", contentType), body: stateBody(state, extra), limit: patience,
	})
	return o
}

func stateBody(state string, extra int) string {
	if extra == 0 {
		return fmt.Sprintf(`{"NextState":%q}`, state)
	}
	return fmt.Sprintf(`{"NextState":%q,"IncrementalTimeout":%d}`, state, extra)
}

func tagOf(payload string) string {
	var b body
	if json.Unmarshal([]byte(payload), &b) != nil || b.Pad != padding {
		return ""
	}
	return b.Tag
}

func consumerPath(s *spec) string { return "/channel/" + s.Channel + "/consumer/" + s.id }

func tokens(s *spec) map[string]string {
	return map[string]string{"X-Broker-Channel-Token": channelToken(s.Channel), "X-Broker-Consumer-Token": s.token}
}

func with(m map[string]string, k, v string) map[string]string {
	m[k] = v
	return m
}
