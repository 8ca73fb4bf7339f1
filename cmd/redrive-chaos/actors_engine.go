//go:build unix

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"
)

// How many instance ids the engines have. Few, so that runs contend.
const (
	remoteInstances = 10
	lockedInstances = 3
)

// employer gives the engines work: as messages in their queues, on demand, as alerts. What got no answer it asks for
// again, as somebody does who needs it done.
type employer struct {
	*client
	name string
	spec *spec
	rng  *rand.Rand
	n    int
}

func (p *employer) any() int { return p.rng.IntN(len(p.instances)) + 1 }

// next is work that nobody has asked for.
func (p *employer) next() work {
	p.n++
	instances := remoteInstances
	if p.spec.Engine == engineLocked {
		instances = lockedInstances
	}
	operations := operationsOf(p.spec.Engine)
	return work{
		Engine: p.spec.Engine, Correlation: fmt.Sprintf("%s-%d", p.name, p.n),
		Instance: fmt.Sprintf("tenant-%d", p.rng.IntN(instances)), Operation: operations[p.rng.IntN(len(operations))],
	}
}

// messages broadcasts into the engine's queue until the traffic ends. Now and then two messages ask for the same work.
func (p *employer) messages(ctx, traffic context.Context, every time.Duration) {
	for hold(traffic, between(p.rng, every/2, every*3/2)) {
		w := p.next()
		doomed := p.n%10 == 1 // the first one, so that every run has some
		p.message(ctx, w, doomed, "a")
		if p.rng.IntN(5) == 0 {
			p.message(ctx, w, doomed, "b")
		}
	}
}

func (p *employer) message(ctx context.Context, w work, doomed bool, which string) {
	tag := w.Correlation + "-" + which
	p.insist(ctx, 10, op{Kind: opBroadcast, Channel: p.spec.Channel, Message: tag, Tag: tag, OwnID: true, Work: &w}, request{
		method: http.MethodPost, path: "/channel/" + p.spec.Channel + "/broadcast", body: w.body(doomed), limit: patience,
		header: map[string]string{
			"Content-Type": contentType, "X-Broker-Channel-Token": channelToken(p.spec.Channel), "X-Broker-Producer-ID": producerID,
			"X-Broker-Producer-Token": producerToken, "X-Broker-Message-ID": tag,
		},
	})
}

// insist repeats a request that got no answer, or a 5xx, from any instance.
func (p *employer) insist(ctx context.Context, times int, o op, r request) op {
	for {
		o.Instance = p.any()
		done, _ := p.do(ctx, o, r)
		if done.Outcome == ok || done.Status >= 400 && done.Status < 500 || times == 0 || !hold(ctx, 300*time.Millisecond) {
			return done
		}
		times--
	}
}

// demands asks for runs on demand until the traffic ends.
func (p *employer) demands(ctx, traffic context.Context) {
	for hold(traffic, between(p.rng, 700*time.Millisecond, 2*time.Second)) {
		p.demand(ctx)
	}
}

// demand has several callers at once ask for runs of one instance: one gets it, or none while another run is under way. It
// returns how many of each answer there were.
func (p *employer) demand(ctx context.Context) (answers map[int]int) {
	const callers = 3
	w := p.next()
	done := make(chan op, callers)
	for n := range callers {
		mine := w
		if n > 0 && p.rng.IntN(4) > 0 { // else the same work
			mine.Correlation = fmt.Sprintf("%s-%d", w.Correlation, n)
		}
		c := &employer{client: p.client, spec: p.spec, rng: rand.New(rand.NewPCG(p.rng.Uint64(), uint64(n)))}
		go func() {
			done <- c.insist(ctx, 3, op{Kind: opBeginRun, Message: mine.message(), Work: &mine}, beginRequest(mine))
		}()
	}
	answers = map[int]int{}
	for range callers {
		answers[(<-done).Status]++
	}
	return answers
}

// lastDemands asks for runs on demand while nothing is broken, so that the shortest run has one that was begun and one that was
// refused meanwhile.
func (s *stageState) lastDemands(ctx context.Context) {
	p := &employer{client: s.client, name: "last", spec: s.engines[0], rng: s.rng(1300)}
	begun, refusals := 0, 0
	for range 10 {
		answers := p.demand(ctx)
		begun, refusals = begun+answers[http.StatusAccepted], refusals+answers[http.StatusConflict]
		if begun > 0 && refusals > 0 {
			return
		}
	}
}

func beginRequest(w work) request {
	return request{
		method: http.MethodPost, path: "/api/engines/" + w.Engine + "/runs", header: map[string]string{"Content-Type": contentType},
		body: w.body(false), limit: patience, note: noteBegun,
	}
}

// noteBegun looks whether the answer is about the work asked for.
func noteBegun(o *op, a answer) {
	var body struct {
		Data struct {
			Engine, InstanceID, Operation, CorrelationID string
			Done                                         *bool
		}
	}
	err := json.Unmarshal(a.body, &body)
	d := body.Data
	if err != nil || (work{d.Engine, d.CorrelationID, d.InstanceID, d.Operation}) != *o.Work || d.Done == nil || *d.Done != (o.Status == http.StatusOK) {
		o.Err = fmt.Sprintf("%s%s (%v)", unreadable, clip(string(a.body)), err)
	}
}

// alerts sends alerts as Alertmanager does, until the traffic ends: each at least once, some twice, and some resolved later.
func (p *employer) alerts(ctx, traffic context.Context) {
	for hold(traffic, between(p.rng, 300*time.Millisecond, 900*time.Millisecond)) {
		p.n++
		a := alert{Fingerprint: fmt.Sprintf("%s-%d", p.name, p.n), Status: "firing", StartsAt: time.Now().UTC().Truncate(time.Millisecond)}
		p.alert(ctx, a)
		if p.rng.IntN(3) == 0 {
			p.alert(ctx, a)
		}
		if p.rng.IntN(4) == 0 {
			a.Status = "resolved"
			p.alert(ctx, a)
		}
	}
}

// alert is one of Alertmanager's.
type alert struct {
	Status      string            `json:"status"`
	Fingerprint string            `json:"fingerprint"`
	StartsAt    time.Time         `json:"startsAt"`
	Labels      map[string]string `json:"labels"`
}

func (p *employer) alert(ctx context.Context, a alert) {
	a.Labels = map[string]string{"alertname": "Chaos", "pad": padding}
	text, err := json.Marshal(map[string]any{"version": "4", "receiver": "chaos", "status": a.Status, "alerts": []alert{a}})
	if err != nil {
		panic(err) // texts
	}
	w := work{engineAlerts, fmt.Sprintf("%s/%s/%s", a.Fingerprint, a.Status, a.StartsAt.Format(time.RFC3339Nano)), a.Fingerprint, operationAlert}
	p.insist(ctx, 10, op{Kind: opAlert, Channel: channelForwards, Message: w.message(), Work: &w}, request{
		method: http.MethodPost, path: "/api/alerts", header: map[string]string{"Content-Type": contentType}, body: string(text), limit: patience,
		note: func(o *op, a answer) {
			var body struct {
				Data struct{ Received, Queued, Repeated int }
			}
			err := json.Unmarshal(a.body, &body)
			if d := body.Data; err != nil || d.Received != 1 || d.Queued+d.Repeated != 1 {
				o.Err = fmt.Sprintf("%s%s (%v)", unreadable, clip(string(a.body)), err)
			}
		},
	})
}

// retries sends the engine's dead letters back, until the traffic ends; those that still cannot succeed die again.
func (p *employer) retries(ctx, traffic context.Context) {
	for hold(traffic, between(p.rng, 700*time.Millisecond, 2*time.Second)) {
		l := listOf(p.spec, 20)
		if l.page(ctx, p.client, p.any(), patience).Outcome != ok || len(l.letters) == 0 {
			continue
		}
		t := &triager{client: p.client, spec: p.spec, rng: p.rng, limit: patience}
		t.retry(ctx, l.letters[p.rng.IntN(len(l.letters))])
	}
}

// listOf begins a list of the dead letters of a consumer that are Pending.
func listOf(s *spec, limit int) *listing {
	if s.Engine == "" {
		return listPending(s.id, limit)
	}
	l := listPending("", limit)
	l.filter.Set("engine", s.Engine)
	return l
}

// flawOfAlert says what of an alert that was forwarded is not as it was sent; empty: nothing.
func flawOfAlert(id string, body []byte) string {
	var a alert
	err := json.Unmarshal(body, &a)
	switch fingerprint, rest, _ := strings.Cut(id, "/"); {
	case err != nil:
		return "body: " + err.Error()
	case a.Fingerprint != fingerprint || a.Status+"/"+a.StartsAt.Format(time.RFC3339Nano) != rest || a.Labels["pad"] != padding:
		return fmt.Sprintf("the body of %s is not the alert's", id)
	}
	return ""
}
