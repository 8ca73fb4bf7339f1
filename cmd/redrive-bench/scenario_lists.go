package main

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"time"
)

// pull measures how long a pull consumer waits for the jobs that it may take, with --backlog of them.
func (b *bench) pull(ctx context.Context) error {
	return b.inWorld(ctx, nil, func(ctx context.Context, w *world) error {
		const channel, consumer = "pulled", "puller"
		if err := w.api.putProducer(ctx, producerOf(channel)); err != nil {
			return err
		}
		if err := w.api.putChannel(ctx, channel, w.history); err != nil {
			return err
		}
		if err := w.api.putConsumer(ctx, channel, consumer, "pull", "http://127.0.0.1:9/never-called"); err != nil {
			return err
		}
		f := newFlow("q", b.set.Backlog)
		if err := w.store.Seed(ctx, seedSpec{
			Channel: channel, Consumer: consumer, Producer: producerOf(channel), Flow: f,
			PayloadBytes: b.set.PayloadBytes, Spread: deathSpread, Queued: true, Progress: b.seeding(b.set.Backlog),
		}); err != nil {
			return err
		}
		for _, limit := range []int{25, 100} {
			if err := b.queuedJobs(ctx, w, channel, consumer, limit, f); err != nil {
				return err
			}
		}
		return b.expectQueued(ctx, w, channel, consumer)
	})
}

// queuedJobs measures answers with so many jobs, which are always the same: nobody takes one.
func (b *bench) queuedJobs(ctx context.Context, w *world, channel, consumer string, limit int, f *flow) error {
	wrong := int64(0)
	want := min(limit, b.set.Backlog)
	took, err := b.sample(func() error {
		ids, err := w.api.queuedJobs(ctx, channel, consumer, limit)
		if len(ids) != want {
			wrong++
		}
		for i, id := range ids {
			if id != f.id(i) {
				wrong++
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	p50, p99 := quantiles(took)
	p := params{Backlog: b.set.Backlog, PayloadBytes: b.set.PayloadBytes, Page: limit}
	b.rep.record("pull.p50", p, p50)
	b.rep.record("pull.p99", p, p99)
	b.rep.expect("pull", fmt.Sprintf("wrong jobs, or numbers of jobs, in answers with %d", limit), 0, wrong)
	return nil
}

// expectQueued checks that reading the backlog has left it as it was.
func (b *bench) expectQueued(ctx context.Context, w *world, channel, consumer string) error {
	want := int64(b.set.Backlog)
	dead, others, err := w.api.jobCounts(ctx, channel, consumer)
	if err != nil {
		return err
	}
	b.rep.expect("pull", "/job-status, dead", 0, dead)
	b.rep.expect("pull", "/job-status, not dead", want, others)
	rows, err := w.store.Rows(ctx, channel, consumer, statusQueued)
	if err != nil {
		return err
	}
	b.rep.expect("pull", "rows", want, rows)
	return nil
}

// historyRows is how many entries a page of the history has.
const historyRows = 50

// history measures pages of the history, with --history entries of a month.
func (b *bench) history(ctx context.Context) error {
	return b.inWorld(ctx, nil, func(ctx context.Context, w *world) error {
		now, err := w.store.Clock(ctx)
		if err != nil {
			return err
		}
		spec := historySpec{Total: b.set.History, Until: now, Progress: b.seeding(b.set.History)}
		if err := w.store.SeedHistory(ctx, spec); err != nil {
			return err
		}
		rows, err := w.store.HistoryRows(ctx)
		if err != nil {
			return err
		}
		b.rep.expect("history", "rows", int64(b.set.History), rows)
		middle := spec.entry(spec.Total / 2)
		date := func(daysAgo int) string { return now.AddDate(0, 0, -daysAgo).Format(time.RFC3339) }
		for _, list := range []struct {
			metric string
			filter url.Values
		}{
			{"history.all", url.Values{}},
			{"history.engine", url.Values{"engine": {"hmac"}}},
			{"history.status", url.Values{"engine": {"delivery"}, "status": {statusFailed}}},
			{"history.instance", url.Values{"instanceId": {middle.InstanceID}}},
			{"history.correlation", url.Values{"correlationId": {middle.CorrelationID}}},
			{"history.dates", url.Values{"engine": {"delivery"}, "operation": {"deliver"}, "fromDate": {date(20)}, "toDate": {date(10)}}},
		} {
			if err := b.historyList(ctx, w, list.metric, list.filter, spec); err != nil {
				return err
			}
		}
		return nil
	})
}

// historyList measures a list from its first page on, and again when it is at its end.
func (b *bench) historyList(ctx context.Context, w *world, metric string, filter url.Values, spec historySpec) error {
	scenario, name := "history", "/api/history?"+filter.Encode()
	begin := spec.latest(filter, historyRows)
	b.rep.expect(scenario, "lists without an entry", 0, int64(max(0, 1-len(begin))))
	wrong := int64(0)
	var last historyEntry // of the page before
	asked := filter
	took, err := b.sample(func() error {
		page, err := w.api.historyEntries(ctx, asked)
		if err != nil {
			return err
		}
		if !asked.Has("continuationToken") {
			last = historyEntry{}
			if !slices.EqualFunc(page.Items, begin, historyEntry.same) {
				wrong++
			}
		}
		for _, e := range page.Items {
			if !listed(e, filter) || last.Engine != "" && e.CreatedAt.After(last.CreatedAt) {
				wrong++
			}
			last = e
		}
		asked = maps.Clone(filter)
		if page.ContinuationToken != "" {
			asked.Set("continuationToken", page.ContinuationToken)
		}
		return nil
	})
	if err != nil {
		return err
	}
	p50, p99 := quantiles(took)
	p := params{History: b.set.History, Page: historyRows}
	b.rep.record(metric+".p50", p, p50)
	b.rep.record(metric+".p99", p, p99)
	b.rep.expect(scenario, "wrong first pages of "+name+", entries of another filter or out of order", 0, wrong)
	return nil
}

// same compares entries, whatever the zone of their times.
func (e historyEntry) same(o historyEntry) bool {
	when := e.CreatedAt.Equal(o.CreatedAt)
	e.CreatedAt, o.CreatedAt = time.Time{}, time.Time{}
	return when && e == o
}

// listed says whether an entry may be in the list with this filter.
func listed(e historyEntry, filter url.Values) bool {
	for name, value := range map[string]string{
		"engine": e.Engine, "status": e.Status, "instanceId": e.InstanceID, "operation": e.Operation, "correlationId": e.CorrelationID,
	} {
		if filter.Has(name) && filter.Get(name) != value {
			return false
		}
	}
	from, fromErr := time.Parse(time.RFC3339, filter.Get("fromDate"))
	to, toErr := time.Parse(time.RFC3339, filter.Get("toDate"))
	return (fromErr != nil || !e.CreatedAt.Before(from)) && (toErr != nil || e.CreatedAt.Before(to))
}

// sample calls ask once for connections and caches, and then --samples times, and returns how long these took.
func (b *bench) sample(ask func() error) ([]time.Duration, error) {
	if err := ask(); err != nil {
		return nil, err
	}
	took := make([]time.Duration, b.set.Samples)
	for i := range took {
		at := now()
		if err := ask(); err != nil {
			return nil, err
		}
		took[i] = time.Duration(now() - at)
	}
	return took, nil
}

// seeding returns a report of progress for those who seed so many rows.
func (b *bench) seeding(total int) func(done int) {
	const steps = 10
	step, next := max(total/steps, 1), 0
	return func(done int) {
		if total >= 500_000 && done/step > next {
			next = done / step
			b.progress("  %d of %d seeded", done, total)
		}
	}
}
