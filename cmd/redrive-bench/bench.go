package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// cycleInterval is the summary interval of the scenarios with dead jobs.
const cycleInterval = "1s"

// bench runs the scenarios.
type bench struct {
	set  settings
	rep  *report
	log  io.Writer
	open func(ctx context.Context, env map[string]string) (*world, error)
}

// run measures all that the settings want, each --repeat times.
func (b *bench) run(ctx context.Context) error {
	if err := b.each(ctx, []scenario{{"accept", b.accept}, {"e2e", b.endToEnd}, {"idle", b.idle}}); err != nil {
		return err
	}
	// These share what is expensive, the dead jobs; only a purge uses them up.
	if b.set.wants("status") || b.set.wants("cycle") || b.set.wants("purge") {
		if err := b.deadJobs(ctx); err != nil {
			return err
		}
	}
	return b.each(ctx, []scenario{{"requeue", b.requeue}, {"pull", b.pull}, {"history", b.history}})
}

// scenario is one that needs nothing of the others.
type scenario struct {
	name string
	do   func(context.Context) error
}

// each runs those of the scenarios that are wanted.
func (b *bench) each(ctx context.Context, scenarios []scenario) error {
	for _, s := range scenarios {
		if !b.set.wants(s.name) {
			continue
		}
		for n := range b.set.Repeat {
			b.progress("%s, run %d of %d", s.name, n+1, b.set.Repeat)
			if err := s.do(ctx); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	return nil
}

// inWorld runs fn with a new broker, and closes it whatever happens.
func (b *bench) inWorld(ctx context.Context, env map[string]string, fn func(context.Context, *world) error) error {
	w, err := b.open(ctx, env)
	if err != nil {
		return err
	}
	watched, cancel := w.watch(ctx)
	err = fn(watched, w)
	if err != nil && errors.Is(err, context.Canceled) && context.Cause(watched) != nil {
		err = context.Cause(watched) // the broker's end says more than "canceled"
	}
	cancel()
	return errors.Join(err, w.close(context.WithoutCancel(ctx)))
}

func (b *bench) progress(format string, args ...any) {
	fmt.Fprintf(b.log, format+"\n", args...)
}

// deliveries records what went wrong between producers and consumers of a route, if anything.
func (b *bench) deliveries(ctx context.Context, scenario string, r *route, loads ...*loadResult) error {
	for _, l := range loads {
		if what := l.refused(); what != "" {
			b.rep.note("%s: broadcasts refused: %s", scenario, what)
		}
	}
	refused := 0
	for _, l := range loads {
		for _, n := range l.Refused {
			refused += n
		}
	}
	b.rep.expect(scenario, "broadcasts refused", 0, int64(refused))
	for i, got := range r.receipts {
		b.rep.expect(scenario, "accepted messages that "+r.consumers[i]+" never got", 0, int64(got.missing()))
		b.rep.expect(scenario, "deliveries to "+r.consumers[i]+" with a foreign id", 0, got.strange.Load())
		if n := got.repeats.Load(); n > 0 {
			b.rep.note("%s: %s got %d deliveries more than once, which at-least-once allows", scenario, r.consumers[i], n)
		}
	}
	status, err := r.world.api.dlq(ctx)
	if err != nil {
		return err
	}
	for _, k := range r.consumers {
		b.rep.expect(scenario, "/dlq-status of "+k, 0, status.of(r.channel, k))
	}
	return nil
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
