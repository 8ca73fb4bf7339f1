//go:build unix

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"
)

const (
	producerID    = "chaos-producer"
	producerToken = "token-of-chaos-producer"
	contentType   = "application/json"
	tagHeader     = "X-Chaos-Tag"
	padding       = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
)

func channelToken(channel string) string { return "token-of-" + channel }

// producer broadcasts at a rate until its context ends.
type producer struct {
	*client
	name  string
	rng   *rand.Rand
	every time.Duration
	sent  int
	taken []string // own ids that were accepted, to send some again
}

// run sends; traffic bounds the sending, ctx the requests under way.
func (p *producer) run(ctx, traffic context.Context) {
	for hold(traffic, time.Duration(float64(p.every)*(0.5+p.rng.Float64()))) {
		p.sent++
		switch n := p.rng.IntN(100); {
		case n < 3:
			p.hostile(ctx)
		case n < 6 && len(p.taken) > 0:
			p.again(ctx)
		default:
			p.message(ctx)
		}
	}
}

func (p *producer) next() op {
	o := op{Kind: opBroadcast, Instance: p.any(), Channel: channelOrders, Tag: fmt.Sprintf("%s-%d", p.name, p.sent)}
	switch n := p.rng.IntN(20); {
	case n < 5:
		o.Channel = channelReturns
	case n < 6:
		o.Channel = channelVoid
	}
	return o
}

func (p *producer) any() int { return p.rng.IntN(len(p.instances)) + 1 }

// message sends one message, with an id of its own or without. With one, an unknown outcome may be asked for again.
func (p *producer) message(ctx context.Context) {
	o := p.next()
	header := map[string]string{}
	if p.rng.IntN(4) > 0 {
		o.OwnID, o.Message = true, "own-"+o.Tag
		header["X-Broker-Message-ID"] = o.Message
	}
	if p.rng.IntN(4) == 0 {
		header["X-Broker-Message-Priority"] = fmt.Sprint(p.rng.IntN(5))
	}
	if p.rng.IntN(10) == 0 {
		at := time.Now().Add(between(p.rng, minSchedule+500*time.Millisecond, minSchedule+4*time.Second))
		o.Scheduled = p.rec.at(at)
		header["X-Broker-Scheduled-For"] = at.UTC().Format("2006-01-02T15:04:05.000000Z07:00")
	}
	retries := 0
	if o.OwnID && p.rng.IntN(10) < 8 {
		retries = 10
	}
	for {
		done := p.send(ctx, o, header)
		if done.Outcome == ok && o.OwnID {
			p.taken = append(p.taken, o.Channel+" "+o.Message)
		}
		if done.Outcome == ok || done.Status >= 400 && done.Status < 500 || retries == 0 || !hold(ctx, 300*time.Millisecond) {
			return
		}
		retries--
		o.Instance = p.any()
	}
}

// again sends another body under an id that was accepted: it must be refused.
func (p *producer) again(ctx context.Context) {
	o := p.next()
	o.Channel, o.Message, _ = strings.Cut(p.taken[p.rng.IntN(len(p.taken))], " ")
	o.OwnID, o.Want = true, http.StatusConflict
	p.send(ctx, o, map[string]string{"X-Broker-Message-ID": o.Message})
}

// hostile sends what must be refused.
func (p *producer) hostile(ctx context.Context) {
	o := p.next()
	header := map[string]string{}
	switch p.rng.IntN(5) {
	case 0:
		header["X-Broker-Channel-Token"], o.Want = "wrong", http.StatusForbidden
	case 1:
		header["X-Broker-Producer-Token"], o.Want = "wrong", http.StatusForbidden
	case 2:
		header["X-Broker-Producer-ID"], o.Want = "nobody", http.StatusUnauthorized
	case 3:
		header["X-Broker-Scheduled-For"], o.Want = "tomorrow", http.StatusBadRequest
	case 4:
		header["X-Broker-Scheduled-For"], o.Want = time.Now().UTC().Format(time.RFC3339), http.StatusPreconditionFailed
	}
	p.send(ctx, o, header)
}

func (p *producer) send(ctx context.Context, o op, extra map[string]string) op {
	header := map[string]string{
		"Content-Type":              contentType,
		"X-Broker-Channel-Token":    channelToken(o.Channel),
		"X-Broker-Producer-ID":      producerID,
		"X-Broker-Producer-Token":   producerToken,
		"X-Broker-Metadata-Headers": tagHeader,
		tagHeader:                   o.Tag,
	}
	maps.Copy(header, extra)
	text, err := json.Marshal(body{Tag: o.Tag, Pad: padding})
	if err != nil {
		panic(err) // two strings
	}
	o, _ = p.do(ctx, o, request{
		method: http.MethodPost, path: "/channel/" + o.Channel + "/broadcast", header: header, body: string(text), limit: patience,
		note: func(o *op, a answer) {
			location := a.header.Get("Location")
			id := location[strings.LastIndex(location, "/")+1:]
			if id == "" || o.Message != "" && o.Message != id {
				o.Err = fmt.Sprintf("%sLocation %q", unreadable, location)
			}
			o.Message = id
		},
	})
	return o
}
