package main

import (
	"context"
	"time"
)

const (
	// acceptCeiling sizes the books of an accept run: more messages a second than any broker here takes.
	acceptCeiling = 50_000
	// acceptMost bounds them for long runs, which end early should it be reached.
	acceptMost = 20_000_000
	// idleWorkers is enough that a paced message practically never waits for a free connection.
	idleWorkers = 16
)

// accept measures how fast messages are taken in: closed-loop producers on a channel with one consumer,
// which gets its messages meanwhile, as in life.
func (b *bench) accept(ctx context.Context) error {
	return b.inWorld(ctx, nil, func(ctx context.Context, w *world) error {
		clients := []int{b.set.Clients}
		if b.set.Clients != 1 {
			clients = append(clients, 1)
		}
		for _, n := range clients {
			if err := b.acceptWith(ctx, w, n); err != nil {
				return err
			}
		}
		return nil
	})
}

func (b *bench) acceptWith(ctx context.Context, w *world, clients int) error {
	channel := "accept-many"
	if clients == 1 {
		channel = "accept-one"
	}
	f := newFlow("a", b.set.Warmup+min(int(b.set.Duration.Seconds()*acceptCeiling), acceptMost))
	r, err := w.newRoute(ctx, channel, 1, f, false)
	if err != nil {
		return err
	}
	transport := newTransport(clients)
	defer transport.CloseIdleConnections()
	l := r.loader(b.set.PayloadBytes, transport)
	warm, err := b.warmUp(ctx, r, l, clients)
	if err != nil {
		return err
	}
	res, err := l.closed(ctx, clients, 0, b.set.Duration)
	if err != nil {
		return err
	}
	if err := r.drain(ctx, b.set.Stall); err != nil {
		return err
	}
	p := params{Clients: clients, Consumers: 1, PayloadBytes: b.set.PayloadBytes, Seconds: wholeSeconds(b.set.Duration)}
	p50, p99 := quantiles(res.Latencies)
	b.rep.record("accept.rate", p, res.rate())
	b.rep.record("accept.p50", p, p50)
	b.rep.record("accept.p99", p, p99)
	return b.deliveries(ctx, "accept", r, warm, res)
}

// endToEnd measures jobs a second from the first broadcast to the last receipt, broadcasting included, with all
// attempts in the history and with none.
func (b *bench) endToEnd(ctx context.Context) error {
	consumers := []int{1}
	if b.set.Consumers != 1 {
		consumers = append(consumers, b.set.Consumers)
	}
	for _, n := range consumers {
		for _, metric := range []string{"e2e.rate", "e2e.off"} {
			err := b.inWorld(ctx, nil, func(ctx context.Context, w *world) error {
				if metric == "e2e.off" {
					w.history = "off"
				}
				return b.endToEndWith(ctx, w, n, metric)
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bench) endToEndWith(ctx context.Context, w *world, consumers int, metric string) error {
	f := newFlow("e", b.set.Warmup+b.set.Messages)
	r, err := w.newRoute(ctx, "end-to-end", consumers, f, false)
	if err != nil {
		return err
	}
	transport := newTransport(b.set.Clients)
	defer transport.CloseIdleConnections()
	l := r.loader(b.set.PayloadBytes, transport)
	warm, err := b.warmUp(ctx, r, l, b.set.Clients)
	if err != nil {
		return err
	}
	from := f.sentCount()
	res, err := l.closed(ctx, b.set.Clients, b.set.Messages, 0)
	if err != nil {
		return err
	}
	if err := r.drain(ctx, b.set.Stall); err != nil {
		return err
	}
	jobs, last := 0, instant(0)
	for _, got := range r.receipts {
		for i := from; i < f.sentCount(); i++ {
			if at := got.first[i].Load(); at != 0 {
				jobs++
				last = max(last, at)
			}
		}
	}
	if span := time.Duration(last - res.Began); span > 0 {
		p := params{Clients: b.set.Clients, Consumers: consumers, Messages: b.set.Messages, PayloadBytes: b.set.PayloadBytes}
		b.rep.record(metric, p, float64(jobs)/span.Seconds())
	}
	return b.deliveries(ctx, "e2e", r, warm, res)
}

// idle measures how long a message takes from its POST to its consumer when nothing else goes on.
func (b *bench) idle(ctx context.Context) error {
	return b.inWorld(ctx, nil, func(ctx context.Context, w *world) error {
		f := newFlow("i", b.set.Warmup+int(b.set.Duration.Seconds()+1)*b.set.Rate)
		r, err := w.newRoute(ctx, "idle", 1, f, false)
		if err != nil {
			return err
		}
		transport := newTransport(idleWorkers)
		defer transport.CloseIdleConnections()
		l := r.loader(b.set.PayloadBytes, transport)
		warm, err := b.warmUp(ctx, r, l, idleWorkers)
		if err != nil {
			return err
		}
		from := f.sentCount()
		res, err := l.paced(ctx, idleWorkers, b.set.Rate, b.set.Duration, nil)
		if err != nil {
			return err
		}
		if err := r.drain(ctx, b.set.Stall); err != nil {
			return err
		}
		var took []time.Duration
		for i := from; i < f.sentCount(); i++ {
			if at := r.receipts[0].first[i].Load(); at != 0 {
				took = append(took, time.Duration(at-f.sent[i]))
			}
		}
		p50, p99 := quantiles(took)
		p := params{Consumers: 1, Rate: b.set.Rate, PayloadBytes: b.set.PayloadBytes, Seconds: wholeSeconds(b.set.Duration)}
		b.rep.record("idle.p50", p, p50)
		b.rep.record("idle.p99", p, p99)
		return b.deliveries(ctx, "idle", r, warm, res)
	})
}

// warmUp sends what is not measured and waits until it is delivered.
func (b *bench) warmUp(ctx context.Context, r *route, l *loader, workers int) (*loadResult, error) {
	if b.set.Warmup == 0 {
		return &loadResult{}, nil
	}
	res, err := l.closed(ctx, workers, b.set.Warmup, 0)
	if err != nil {
		return nil, err
	}
	return res, r.drain(ctx, b.set.Stall)
}

func wholeSeconds(d time.Duration) int { return int(d.Round(time.Second).Seconds()) }
