package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

const (
	// retryDelay is the wait before every retry in the requeue scenario; lateness is measured against it.
	retryDelay = time.Second
	// liveMessages bounds the other consumer's traffic around a requeue.
	liveMessages = 200_000
	liveWorkers  = 8
)

// requeue measures bringing --requeue dead jobs of one consumer back, while another consumer, of another
// channel, fails every message once and waits for its retry.
func (b *bench) requeue(ctx context.Context) error {
	env := map[string]string{
		"REDRIVE_DLQ_SUMMARY_INTERVAL": cycleInterval,
		"REDRIVE_BROKER_RETRY_BACKOFF": "1s,1s,1s,1s,1s", // retryDelay
	}
	return b.inWorld(ctx, env, func(ctx context.Context, w *world) error {
		g, err := b.newGraveyard(ctx, w, "revived", b.set.Requeue, b.set.PayloadBytes)
		if err != nil {
			return err
		}
		live, err := w.newRoute(ctx, "live", 1, newFlow("l", liveMessages), true)
		if err != nil {
			return err
		}
		return b.requeueBeside(ctx, g, live)
	})
}

// requeueBeside runs the live traffic around the requeue, and judges both.
func (b *bench) requeueBeside(ctx context.Context, g *graveyard, live *route) error {
	transport := newTransport(liveWorkers)
	defer transport.CloseIdleConnections()
	loaded := make(chan error, 1)
	stop := make(chan struct{})
	var load *loadResult
	go func() {
		var err error
		load, err = live.loader(b.set.PayloadBytes, transport).paced(ctx, liveWorkers, b.set.RetryRate, 0, stop)
		loaded <- err
	}()
	err := sleep(ctx, b.set.Baseline)
	var began, ended instant
	if err == nil {
		began, ended, err = b.revive(ctx, g)
	}
	close(stop)
	if loadErr := <-loaded; err == nil {
		err = loadErr
	}
	if err != nil {
		return err
	}
	if err := live.drain(ctx, b.set.Stall); err != nil {
		return err
	}
	p := params{Dead: b.set.Requeue, PayloadBytes: b.set.PayloadBytes}
	b.lateness(p, live.receipts[0], began, ended)
	return b.deliveries(ctx, "requeue, the other consumer", live, load)
}

// revive requeues and waits for the deliveries; it returns when the requeue was asked for and when its last
// message came.
func (b *bench) revive(ctx context.Context, g *graveyard) (began, ended instant, err error) {
	p := params{Dead: b.set.Requeue, PayloadBytes: b.set.PayloadBytes}
	got := g.route.receipts[0]
	resetErr := g.proc.ResetPeak()

	type answer struct {
		at  instant
		err error
	}
	answered := make(chan answer, 1)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	began = now()
	go func() {
		err := g.api.requeue(ctx, g.route.channel, g.consumer)
		if err != nil {
			cancel(err) // nothing to wait for
		}
		answered <- answer{now(), err}
	}()
	waitErr := got.wait(ctx, b.set.Requeue, b.set.Stall)
	a := <-answered // ends with ctx too
	if a.err != nil {
		return 0, 0, a.err
	}
	if waitErr != nil {
		return 0, 0, waitErr
	}
	first, last, err := got.bounds(0)
	if err != nil {
		return 0, 0, fmt.Errorf("after the requeue %w", err)
	}
	b.rep.record("requeue.answer", p, time.Duration(a.at-began).Seconds())
	b.rep.record("requeue.first", p, time.Duration(first-began).Seconds())
	b.rep.record("requeue.all", p, time.Duration(last-began).Seconds())
	b.memory("requeue.memory", p, g.world, resetErr)

	b.rep.expect("requeue", "requeued messages that "+g.consumer+" never got", 0, int64(got.missing()))
	if n := got.repeats.Load(); n > 0 {
		b.rep.note("requeue: %d deliveries came more than once, which at-least-once allows", n)
	}
	b.rep.expect("requeue", "deliveries before the requeue", 0, deliveredBefore(got, began))
	g.dead = 0
	return began, last, b.expectDead(ctx, "requeue", "after the requeue", g, 0)
}

// deliveredBefore counts receipts of the dead before they were requeued.
func deliveredBefore(r *receipts, began instant) (n int64) {
	for i := range r.first {
		if at := r.first[i].Load(); at != 0 && at < began {
			n++
		}
	}
	return n
}

// lateness records how much later than retryDelay after its failure each message came again: of those due
// before the requeue, and of those due while it went on.
func (b *bench) lateness(p params, r *receipts, began, ended instant) {
	var before, during []time.Duration
	for i := range r.flow.sentCount() {
		failed, again := r.failedAt[i].Load(), r.late[i].Load()
		if failed == 0 || again == 0 {
			continue
		}
		due := failed + instant(retryDelay)
		switch late := time.Duration(again - due); {
		case due < began:
			before = append(before, late)
		case due <= ended:
			during = append(during, late)
		}
	}
	if len(before) > 0 {
		b.rep.record("requeue.late.before", p, millis(slices.Max(before)))
	}
	if len(during) == 0 {
		b.rep.note("requeue: it was over before a retry of the other consumer came due")
		return
	}
	slices.Sort(during)
	b.rep.record("requeue.late.p50", p, millis(percentile(during, 0.5)))
	b.rep.record("requeue.late.p99", p, millis(percentile(during, 0.99)))
	b.rep.record("requeue.late.worst", p, millis(during[len(during)-1]))
}
