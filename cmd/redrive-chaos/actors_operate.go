//go:build unix

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// operator requeues and purges, as people and scripts do while all goes wrong.
type operator struct {
	*client
	rng *rand.Rand
}

// requeues brings dead jobs of a consumer back, one or all, until the traffic ends.
func (p *operator) requeues(ctx, traffic context.Context, s *spec) {
	for hold(traffic, between(p.rng, 300*time.Millisecond, 1500*time.Millisecond)) {
		if p.rng.IntN(4) == 0 {
			p.requeueAll(ctx, s)
			continue
		}
		if j, found := p.pick(ctx, s); found {
			p.do(ctx, op{Kind: opRequeueOne, Instance: p.any(), Consumer: s.Key, Job: j.job, Message: j.message}, request{
				method: http.MethodPost, path: j.requeue, header: tokens(s),
			})
		}
	}
}

// purges deletes dead jobs of a consumer, one or all, until the traffic ends.
func (p *operator) purges(ctx, traffic context.Context, s *spec) {
	for hold(traffic, between(p.rng, 300*time.Millisecond, 1500*time.Millisecond)) {
		if p.rng.IntN(4) == 0 {
			p.purgeAll(ctx, s)
			continue
		}
		if j, found := p.pick(ctx, s); found {
			p.do(ctx, op{Kind: opPurgeOne, Instance: p.any(), Consumer: s.Key, Job: j.job, Message: j.message}, request{
				method: http.MethodDelete, path: consumerPath(s) + "/job/" + j.job, header: tokens(s),
			})
		}
	}
}

func (p *operator) any() int { return p.rng.IntN(len(p.instances)) + 1 }

func (p *operator) requeueAll(ctx context.Context, s *spec) op {
	o, _ := p.do(ctx, op{Kind: opRequeueAll, Instance: p.any(), Consumer: s.Key}, requeueAllRequest(s))
	return o
}

func requeueAllRequest(s *spec) request {
	return request{
		method: http.MethodPost, path: consumerPath(s) + "/dlq",
		header: map[string]string{"Content-Type": "application/x-www-form-urlencoded"},
		body:   url.Values{"requeue": {s.token}}.Encode(),
		note:   noteTotal("requeuedCount"),
	}
}

func (p *operator) purgeAll(ctx context.Context, s *spec) op {
	o, _ := p.do(ctx, op{Kind: opPurgeAll, Instance: p.any(), Consumer: s.Key}, purgeAllRequest(s))
	return o
}

func purgeAllRequest(s *spec) request {
	return request{method: http.MethodDelete, path: consumerPath(s) + "/dlq", header: tokens(s), note: noteTotal("deletedCount")}
}

type deadJob struct{ job, message, requeue string }

// pick chooses one of the dead jobs that the consumer's list shows first.
func (p *operator) pick(ctx context.Context, s *spec) (deadJob, bool) {
	var list struct {
		DeadJobs []struct{ MessageURL, JobRequeueURL string }
	}
	_, _ = p.do(ctx, op{Kind: opListDead, Instance: p.any(), Consumer: s.Key}, request{
		method: http.MethodGet, path: consumerPath(s) + "/dlq",
		note: func(o *op, a answer) {
			if err := json.Unmarshal(a.body, &list); err != nil {
				o.Err = unreadable + err.Error()
			}
		},
	})
	if len(list.DeadJobs) == 0 {
		return deadJob{}, false
	}
	chosen := list.DeadJobs[p.rng.IntN(len(list.DeadJobs))]
	parts := strings.Split(chosen.JobRequeueURL, "/")
	if len(parts) < 3 || parts[len(parts)-1] != "requeue-dead-job" {
		p.rec.incident("the dead letters of %s have a JobRequeueURL %q", s.Key, chosen.JobRequeueURL)
		return deadJob{}, false
	}
	return deadJob{
		job:     parts[len(parts)-2],
		message: chosen.MessageURL[strings.LastIndex(chosen.MessageURL, "/")+1:],
		requeue: chosen.JobRequeueURL,
	}, true
}

// prepare makes producer, channels and consumers, before anything is broken.
func prepare(ctx context.Context, c *client, specs []*spec, urls map[string]string) error {
	put := func(path string, form url.Values, header ...string) error {
		req := request{
			method: http.MethodPut, path: path, body: form.Encode(),
			header: map[string]string{"Content-Type": "application/x-www-form-urlencoded"},
		}
		if len(header) == 2 {
			req.header[header[0]] = header[1]
		}
		if o, _ := c.exchange(ctx, op{Instance: 1}, req); o.Status != http.StatusOK {
			return fmt.Errorf("PUT %s: %d %s", path, o.Status, o.Err)
		}
		return nil
	}
	if err := put("/producer/"+producerID, url.Values{"token": {producerToken}}); err != nil {
		return err
	}
	for _, channel := range []string{channelOrders, channelReturns, channelVoid, channelForwards} {
		if err := put("/channel/"+channel, url.Values{"token": {channelToken(channel)}}); err != nil {
			return err
		}
	}
	// The instances have made the engines' queues. Who wants to broadcast into one sets its token.
	for _, channel := range []string{queueRemote, queueLocked} {
		_, there := c.exchange(ctx, op{Instance: 1}, request{method: http.MethodGet, path: "/channel/" + channel})
		if err := put("/channel/"+channel, url.Values{"token": {channelToken(channel)}}, "If-Unmodified-Since", there.header.Get("Last-Modified")); err != nil {
			return err
		}
	}
	for _, s := range specs {
		form := url.Values{"token": {s.token}, "callbackUrl": {urls[s.Key]}}
		if s.Pull {
			form.Set("type", "pull")
		}
		if err := put(consumerPath(s), form); err != nil {
			return err
		}
	}
	return nil
}
