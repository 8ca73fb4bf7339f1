package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
)

// deathSpread is how long ago the oldest seeded job died.
const deathSpread = 24 * time.Hour

// maxRetry is the broker's limit of retries; a seeded job has used them all up, or it could not be purged.
const maxRetry = 5

// graveyard is a world with a consumer that has many dead jobs.
type graveyard struct {
	*world
	route    *route
	consumer string
	dead     int64 // how many it has
	fresh    int   // how many consumers with new deaths it has had
}

// deadJobs seeds --dead jobs and runs status, cycle and purge on them, each as far as it is wanted.
func (b *bench) deadJobs(ctx context.Context) error {
	worlds := 1
	if b.set.wants("purge") {
		worlds = b.set.Repeat
	}
	for n := range worlds {
		b.progress("dead jobs: seed %d, run %d of %d", b.set.Dead, n+1, worlds)
		err := b.inWorld(ctx, map[string]string{"REDRIVE_DLQ_SUMMARY_INTERVAL": cycleInterval},
			func(ctx context.Context, w *world) error { return b.withDead(ctx, w, n == 0) })
		if err != nil {
			return fmt.Errorf("dead jobs: %w", err)
		}
	}
	return nil
}

func (b *bench) withDead(ctx context.Context, w *world, measureAll bool) error {
	g, err := b.newGraveyard(ctx, w, "archive", b.set.Dead, b.set.DeadPayloadBytes)
	if err != nil {
		return err
	}
	for range b.set.Repeat {
		if measureAll && b.set.wants("status") {
			b.progress("status")
			if err := b.status(ctx, g); err != nil {
				return fmt.Errorf("status: %w", err)
			}
		}
		if measureAll && b.set.wants("cycle") {
			b.progress("cycle")
			if err := b.cycle(ctx, g); err != nil {
				return fmt.Errorf("cycle: %w", err)
			}
		}
	}
	if b.set.wants("purge") {
		b.progress("purge")
		if err := b.purge(ctx, g); err != nil {
			return fmt.Errorf("purge: %w", err)
		}
	}
	return nil
}

// newGraveyard makes a consumer, seeds its dead jobs, and waits until the broker has counted them.
func (b *bench) newGraveyard(ctx context.Context, w *world, channel string, dead, payloadBytes int) (*graveyard, error) {
	f := newFlow("d", dead)
	r, err := w.newRoute(ctx, channel, 1, f, false)
	if err != nil {
		return nil, err
	}
	g := &graveyard{world: w, route: r, consumer: r.consumers[0]}
	if err := b.bury(ctx, g, f, payloadBytes, false); err != nil {
		return nil, err
	}
	if err := b.expectDead(ctx, "seed", "at once after seeding", g, g.dead); err != nil {
		return nil, err
	}
	return g, b.awaitCounted(ctx, "seed", g)
}

// bury adds the jobs of f to the dead.
func (b *bench) bury(ctx context.Context, g *graveyard, f *flow, payloadBytes int, atOnce bool) error {
	spread := deathSpread
	if atOnce {
		spread = 0
	}
	err := g.store.Seed(ctx, seedSpec{
		Channel: g.route.channel, Consumer: g.consumer, Producer: producerOf(g.route.channel),
		Flow: f, PayloadBytes: payloadBytes, Retries: maxRetry, Spread: spread, AtOnce: atOnce,
		Progress: b.seeding(len(f.sent)),
	})
	g.dead += int64(len(f.sent))
	return err
}

// awaitCounted waits until a cycle has counted every death so far. It gives up when the count stands still.
func (b *bench) awaitCounted(ctx context.Context, scenario string, g *graveyard) error {
	after, err := g.store.Clock(ctx)
	if err != nil {
		return err
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	last, since := int64(-1), time.Now()
	for {
		owed, err := g.store.Owed(ctx)
		if err != nil {
			return err
		}
		status, err := g.api.dlq(ctx)
		if err != nil {
			return err
		}
		if owed == 0 && status.Exact && !status.LastCheckedAt.Before(after) {
			return b.expectDead(ctx, scenario, "after a counting cycle", g, g.dead)
		}
		if owed != last {
			last, since = owed, time.Now()
		} else if time.Since(since) > b.set.Stall {
			return fmt.Errorf("not counted: %d deaths still open, exact is %v, lastCheckedAt is %v and not after %v",
				owed, status.Exact, status.LastCheckedAt, after)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// expectDead checks every number of dead jobs that the broker shows.
func (b *bench) expectDead(ctx context.Context, scenario, when string, g *graveyard, want int64) error {
	status, err := g.api.dlq(ctx)
	if err != nil {
		return err
	}
	b.rep.expect(scenario, "/dlq-status "+when, want, status.of(g.route.channel, g.consumer))

	dead, others, err := g.api.jobCounts(ctx, g.route.channel, g.consumer)
	if err != nil {
		return err
	}
	b.rep.expect(scenario, "/job-status, dead, "+when, want, dead)
	if want > 0 {
		b.rep.expect(scenario, "/job-status, not dead, "+when, 0, others)
	}

	text, err := g.api.metrics(ctx)
	if err != nil {
		return err
	}
	gauge, found := sumMetric(text, "dead_job_count", func(labels string) bool {
		return strings.Contains(labels, `consumer="`+g.consumer+`"`)
	})
	if !found {
		gauge = -1
	}
	b.rep.expect(scenario, "dead_job_count "+when, want, int64(gauge))

	rows, err := g.store.Rows(ctx, g.route.channel, g.consumer, statusDead)
	if err != nil {
		return err
	}
	b.rep.expect(scenario, "rows "+when, want, rows)
	return nil
}

// status measures what those who poll have to wait.
func (b *bench) status(ctx context.Context, g *graveyard) error {
	p := params{Dead: int(g.dead)}
	for _, ask := range []struct{ metric, path string }{
		{"status.dlq", "/dlq-status"}, {"status.metrics", "/metrics"}, {"status.jobs", "/job-status"},
	} {
		took := make([]time.Duration, b.set.Samples)
		if _, err := g.api.get(ctx, ask.path); err != nil { // connection and caches
			return err
		}
		for i := range took {
			at := now()
			if _, err := g.api.get(ctx, ask.path); err != nil {
				return err
			}
			took[i] = time.Duration(now() - at)
		}
		p50, p99 := quantiles(took)
		b.rep.record(ask.metric+".p50", p, p50)
		b.rep.record(ask.metric+".p99", p, p99)
	}
	return b.listings(ctx, g, p)
}

// listings measures pages of dead letters: of every kind of filter, each list from its first page on.
func (b *bench) listings(ctx context.Context, g *graveyard, p params) error {
	day := time.Now().UTC().Add(-deathSpread / 2).Format(time.RFC3339)
	filters := []url.Values{
		{}, {"status": {"Pending"}}, {"engine": {"delivery"}}, {"engine": {"delivery"}, "status": {"Pending"}},
		{"instanceId": {g.consumer}}, {"instanceId": {g.consumer}, "status": {"Pending"}, "toDate": {day}}, {"fromDate": {day}}, {"status": {"Expired"}},
	}
	took := make([]time.Duration, 0, b.set.Samples)
	for _, filter := range filters {
		for range max(b.set.Samples/len(filters), 1) {
			at := now()
			page, err := g.api.deadLetters(ctx, filter)
			if err != nil {
				return err
			}
			took = append(took, time.Duration(now()-at))
			filter.Del("continuationToken")
			if page.ContinuationToken != "" {
				filter.Set("continuationToken", page.ContinuationToken)
			}
			if want := filter.Get("status") != "Expired"; want != (len(page.Items) > 0) {
				b.rep.expect("status", "items of /api/dlq?"+filter.Encode(), 50, int64(len(page.Items)))
			}
		}
	}
	p50, p99 := quantiles(took)
	b.rep.record("list.dlq.p50", p, p50)
	b.rep.record("list.dlq.p99", p, p99)
	return nil
}

// cycle measures what counting costs, from the broker's own histogram: first with nothing to count, then
// with --new-dead deaths that became visible together.
func (b *bench) cycle(ctx context.Context, g *graveyard) error {
	began, err := readCycles(ctx, g.api)
	if err != nil {
		return err
	}
	quiet, err := b.awaitCycles(ctx, g, began.count+float64(b.set.Cycles))
	if err != nil {
		return err
	}
	none := (quiet.sum - began.sum) / (quiet.count - began.count)
	b.rep.record("cycle.none", params{Dead: int(g.dead)}, none*1000)

	// They are another consumer's and go afterwards, so that the next measurement finds as many as this one.
	g.fresh++
	name := fmt.Sprintf("fresh-%d", g.fresh)
	r, err := g.newRoute(ctx, name, 1, newFlow("n", b.set.NewDead), false)
	if err != nil {
		return err
	}
	fresh := &graveyard{world: g.world, route: r, consumer: r.consumers[0]}
	before, err := readCycles(ctx, g.api)
	if err != nil {
		return err
	}
	if err := b.bury(ctx, fresh, fresh.route.flow, b.set.DeadPayloadBytes, true); err != nil {
		return err
	}
	if err := b.awaitCounted(ctx, "cycle", fresh); err != nil {
		return err
	}
	counted, err := readCycles(ctx, g.api)
	if err != nil {
		return err
	}
	// The cycle that counted the last of them may not be in the histogram yet: the next one proves it is.
	after, err := b.awaitCycles(ctx, g, counted.count+1)
	if err != nil {
		return err
	}
	// All cycles of that time but one would have cost what a quiet one costs.
	cost := after.sum - before.sum - (after.count-before.count-1)*none
	b.rep.record("cycle.new", params{Dead: int(g.dead), NewDead: b.set.NewDead}, max(cost, 0)*1000)

	deleted, err := g.api.purge(ctx, name, fresh.consumer)
	if err != nil {
		return err
	}
	b.rep.expect("cycle", "deletedCount of the new dead", fresh.dead, deleted)
	return b.expectDead(ctx, "cycle", "after the new dead were purged", fresh, 0)
}

// cycles is a reading of the broker's histogram of cycle durations: seconds in all, and how many.
type cycles struct{ sum, count float64 }

func readCycles(ctx context.Context, a *api) (cycles, error) {
	text, err := a.metrics(ctx)
	if err != nil {
		return cycles{}, err
	}
	// A cycle that another instance had just done is no cycle.
	counted := func(labels string) bool { return !strings.Contains(labels, `"skipped"`) }
	sum, ok1 := sumMetric(text, "redrive_dlq_cycle_duration_seconds_sum", counted)
	count, ok2 := sumMetric(text, "redrive_dlq_cycle_duration_seconds_count", counted)
	if !ok1 || !ok2 {
		return cycles{}, errors.New("/metrics has no redrive_dlq_cycle_duration_seconds")
	}
	return cycles{sum, count}, nil
}

// awaitCycles waits until the histogram has at least count cycles.
func (b *bench) awaitCycles(ctx context.Context, g *graveyard, count float64) (cycles, error) {
	last, since := -1.0, time.Now()
	for {
		c, err := readCycles(ctx, g.api)
		if err != nil || c.count >= count {
			return c, err
		}
		if c.count != last {
			last, since = c.count, time.Now()
		} else if time.Since(since) > b.set.Stall {
			return c, fmt.Errorf("no counting cycle within %v though the interval is %s", b.set.Stall, cycleInterval)
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return c, err
		}
	}
}

// purge measures throwing all dead jobs away.
func (b *bench) purge(ctx context.Context, g *graveyard) error {
	p := params{Dead: int(g.dead)}
	resetErr := g.proc.ResetPeak()
	at := now()
	deleted, err := g.api.purge(ctx, g.route.channel, g.consumer)
	if err != nil {
		return err
	}
	b.rep.record("purge.answer", p, time.Duration(now()-at).Seconds())
	b.memory("purge.memory", p, g.world, resetErr)
	b.rep.expect("purge", "deletedCount", g.dead, deleted)
	g.dead = 0
	return b.expectDead(ctx, "purge", "after the purge", g, 0)
}

// memory records the broker's peak memory in units of 1,000,000 bytes, or says why it cannot.
func (b *bench) memory(metric string, p params, w *world, resetErr error) {
	peak, err := w.proc.PeakMemory()
	if err != nil {
		b.rep.note("%s: not known here: %v", metric, err)
		return
	}
	if resetErr != nil {
		b.rep.note("%s: the peak since the broker's start, as it could not be reset: %v", metric, resetErr)
	}
	b.rep.record(metric, p, float64(peak)/1e6)
}
