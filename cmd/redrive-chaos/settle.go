//go:build unix

package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// settle heals every consumer, waits until nothing moves, and reads the counts from everywhere. What does not
// come to rest in time is noted, not an error.
func (s *stageState) settle(ctx context.Context, label string) error {
	s.healed.Store(true)
	for _, r := range s.receivers {
		if err := r.become(calm); err != nil {
			return err
		}
	}
	left, err := s.awaitRest(ctx)
	if err != nil {
		return err
	}
	if err := s.awaitCounted(ctx); err != nil {
		return err
	}
	return s.readRest(ctx, label, left)
}

// lastTriage works on dead letters while nothing else goes on, so that a run in which little was left standing has some
// SHELVED and some retried, too. What has not been delivered by then dies at the consumers that this is for.
func (s *stageState) lastTriage(ctx context.Context) error {
	s.healed.Store(true)
	for _, r := range s.receivers {
		mood := calm
		if r.spec.Triage {
			mood = failing
		}
		if err := r.become(mood); err != nil {
			return err
		}
	}
	if _, err := s.awaitRest(ctx); err != nil {
		return err
	}
	for n, r := range s.receivers {
		if !r.spec.Triage {
			continue
		}
		if err := r.become(calm); err != nil {
			return err
		}
		p := &triager{client: s.client, spec: r.spec, rng: s.rng(uint64(900 + n)), limit: answerLimit}
		var fresh, old []letter
		for _, d := range p.list(ctx, ctx) {
			if time.Since(d.LastFailureAtUtc) > 24*time.Hour {
				old = append(old, d)
			} else {
				fresh = append(fresh, d)
			}
		}
		for k, d := range fresh[:min(9, len(fresh))] {
			switch k % 3 {
			case 0:
				p.put(ctx, d, opResolveLetter, letterResolved)
			case 1:
				p.retry(ctx, d)
			default:
				p.put(ctx, d, opExpireLetter, letterExpired)
			}
		}
		if err := s.expireOld(ctx); err != nil {
			return err
		}
		for _, d := range old[:(len(old)+1)/2] {
			p.retry(ctx, d)
		}
	}
	return nil
}

// expireOld expires what is old while nothing else goes on, so that the total can be compared with the change seen.
func (s *stageState) expireOld(ctx context.Context) error {
	before, err := s.witness.number(ctx, oldPending)
	if err != nil {
		return err
	}
	r := expireOldRequest(answerLimit)
	o, a := s.client.exchange(ctx, op{Kind: opExpireOld, Instance: 1}, r)
	if o.Outcome == ok {
		r.note(&o, a)
	}
	after, err := s.witness.number(ctx, oldPending)
	if err != nil {
		return err
	}
	o.Before, o.After = &before, &after
	s.rec.op(o)
	return nil
}

// awaitRest returns what is left when nothing changes any more or patience ends; nothing, if all went well.
// The database decides; /job-status is waited for no longer than a little.
func (s *stageState) awaitRest(ctx context.Context) (map[string]int64, error) {
	deadline := time.Now().Add(s.cfg.Settle)
	var left map[string]int64
	for shownUntil := deadline; ; {
		var err error
		if left, err = s.witness.left(ctx); err != nil {
			return nil, fmt.Errorf("looking for what is left: %w", err)
		}
		if len(left) > 0 {
			shownUntil = deadline
		} else {
			if shownUntil == deadline {
				shownUntil = time.Now().Add(5 * time.Second)
			}
			if s.shownAtRest(ctx) || time.Now().After(shownUntil) {
				return nil, nil
			}
		}
		if time.Now().After(deadline) {
			return left, nil
		}
		if !hold(ctx, 100*time.Millisecond) {
			return nil, ctx.Err()
		}
	}
}

// shownAtRest says whether /job-status of every instance shows nothing QUEUED or INFLIGHT.
func (s *stageState) shownAtRest(ctx context.Context) bool {
	for _, i := range s.instances {
		o := s.client.show(ctx, i, opJobStatus)
		if o.Outcome != ok {
			return false
		}
		for _, c := range slices.Concat(s.specs, s.engines) {
			if o.Counts[c.Key+" QUEUED"]+o.Counts[c.Key+" INFLIGHT"] > 0 {
				return false
			}
		}
	}
	return true
}

// countedWithin is what the counting cycle may take at rest: its interval, and before that the time until the lock of
// an instance that was killed while counting runs out.
const countedWithin = 45 * time.Second

// awaitCounted gives the counting cycle the time for a turn: after it, no row has a dlqDelta.
func (s *stageState) awaitCounted(ctx context.Context) error {
	deadline := time.Now().Add(countedWithin)
	for {
		n, err := s.witness.number(ctx, uncounted)
		if err != nil {
			return err
		}
		if n == 0 || time.Now().After(deadline) {
			return nil
		}
		if !hold(ctx, 100*time.Millisecond) {
			return ctx.Err()
		}
	}
}

const uncounted = `SELECT COUNT(*) FROM job WHERE dlqDelta IS NOT NULL`

// readRest reads every count there is, at rest.
func (s *stageState) readRest(ctx context.Context, label string, left map[string]int64) error {
	r := rest{Label: label, At: s.rec.now(), Left: left}
	snap, err := s.witness.snapshot(ctx)
	if err != nil {
		return err
	}
	r.Tallies = snap.Of
	if r.Uncounted, err = s.witness.number(ctx, uncounted); err != nil {
		return err
	}
	if r.Jobs, err = s.witness.byStatus(ctx); err != nil {
		return err
	}
	for _, i := range s.instances {
		for _, kind := range []string{opDLQStatus, opMetrics, opJobStatus} {
			r.Shown = append(r.Shown, s.client.show(ctx, i, kind))
		}
		r.Shown = append(r.Shown, s.client.showLetters(ctx, i, s.specs, s.engines))
	}
	if r.Engines, err = s.witness.engineJobs(ctx); err != nil {
		return err
	}
	if r.Works, err = s.witness.works(ctx); err != nil {
		return err
	}
	s.rec.edit(func(h *history) { h.Rests = append(h.Rests, r) })
	return nil
}

// readAll reads every job, message and dead letter there is.
func (s *stageState) readAll(ctx context.Context) error {
	jobs, err := s.witness.jobs(ctx)
	if err != nil {
		return err
	}
	messages, err := s.witness.messages(ctx)
	if err != nil {
		return err
	}
	letters, err := s.witness.letters(ctx)
	if err != nil {
		return err
	}
	s.rec.edit(func(h *history) { h.Jobs, h.Messages, h.Letters = jobs, messages, letters })
	return nil
}

// redriveAll brings every dead job back, or deletes it where that is the custom, while nothing else goes on. So
// the totals reported can be compared with the change seen, and all that was redriven must arrive.
func (s *stageState) redriveAll(ctx context.Context) error {
	for n, c := range s.specs {
		o := op{Kind: opRequeueAll, Instance: n%len(s.instances) + 1, Consumer: c.Key}
		r := requeueAllRequest(c)
		if c.Purged {
			o.Kind, r = opPurgeAll, purgeAllRequest(c)
		}
		r.limit = time.Minute
		before, err := s.dead(ctx, c)
		if err != nil {
			return err
		}
		o, a := s.client.exchange(ctx, o, r)
		if r.note != nil && o.Outcome == ok {
			r.note(&o, a)
		}
		after, err := s.dead(ctx, c)
		if err != nil {
			return err
		}
		o.Before, o.After = &before, &after
		s.rec.op(o)
	}
	return s.retryEngines(ctx)
}

// retryEngines sends every dead letter of the engines back, now that all can succeed.
func (s *stageState) retryEngines(ctx context.Context) error {
	s.endpoint.mended.Store(true)
	for n, c := range s.engines {
		t := &triager{client: s.client, spec: c, rng: s.rng(uint64(1200 + n)), limit: answerLimit}
		l := listOf(c, 30)
		for failures := 0; failures < 5; {
			if o := l.page(ctx, s.client, n%len(s.instances)+1, answerLimit); o.Outcome != ok {
				failures++
			} else if l.token == "" {
				break
			}
		}
		for _, d := range l.letters {
			t.retry(ctx, d)
		}
	}
	return ctx.Err()
}

func (s *stageState) dead(ctx context.Context, c *spec) (int64, error) {
	return s.witness.number(ctx, `SELECT COUNT(*) FROM job j JOIN consumer c ON c.id = j.consumerId JOIN channel ch ON ch.id = c.channelId
		WHERE ch.channelId = ? AND c.consumerId = ? AND j.status = 1004`, c.Channel, c.id)
}
