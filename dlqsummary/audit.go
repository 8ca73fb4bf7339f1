package dlqsummary

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

const (
	// firstAudit is the most that an instance waits for its first audit: one that is restarted every day audits too.
	firstAudit = 10 * time.Minute
	// recheckEvery is how soon a consumer with a drift is looked at again: another process may have repaired it.
	recheckEvery = 5 * time.Minute
	// auditPause lies between two consumers, so that the audit of many is no burst.
	auditPause = 200 * time.Millisecond
)

// Drift is what one consumer's number is off by: shown less true; and where its dead letters are not those of its dead
// jobs. Anything but 0 means that somebody wrote to dlq_summary, job or the dead letters past this program.
type Drift struct {
	ConsumerKey           uint32
	ChannelID, ConsumerID string
	Drift                 int64
	Letters               storage.LetterDrift
}

// none tells that nothing is wrong.
func (d Drift) none() bool { return d.Drift == 0 && d.Letters == storage.LetterDrift{} }

// Audit compares every consumer's number and dead letters with its dead jobs, one consumer at a time, and returns all of
// them. It reads the index entries of every dead job and its dead letter. It takes no lock: background audits do.
func (s *Summary) Audit(ctx context.Context) ([]Drift, error) {
	return s.audit(ctx, func(Drift) bool { return true })
}

// audit looks at the consumers that wanted names, and notes and reports what it finds.
func (s *Summary) audit(ctx context.Context, wanted func(Drift) bool) ([]Drift, error) {
	consumers, err := s.consumers(ctx)
	if err != nil {
		return nil, err
	}
	s.drift.keep(consumers)
	var out []Drift
	for _, d := range consumers {
		if !wanted(d) {
			continue
		}
		if len(out) > 0 && !pause(ctx, auditPause) {
			return out, ctx.Err()
		}
		if d.Drift, err = s.store.DeadDrift(ctx, d.ConsumerKey); err != nil {
			return out, fmt.Errorf("audit of channel %q, consumer %q: %w", d.ChannelID, d.ConsumerID, err)
		}
		if d.Letters, err = s.store.AuditDeadLetters(ctx, d.ConsumerKey); err != nil {
			return out, fmt.Errorf("audit of the dead letters of channel %q, consumer %q: %w", d.ChannelID, d.ConsumerID, err)
		}
		s.tell(ctx, s.drift.set(d), d)
		out = append(out, d)
	}
	return out, nil
}

// tell logs what an audit found that was not known before.
func (s *Summary) tell(ctx context.Context, before, d Drift) {
	if d.Drift != before.Drift {
		if d.Drift != 0 {
			s.log.ErrorContext(ctx, "the number of dead jobs shown is wrong: somebody changed dlq_summary or dlqCounted by hand; "+
				"run `redrive dlq repair` to set it right", "channel", d.ChannelID, "consumer", d.ConsumerID, "drift", d.Drift)
		} else {
			s.log.InfoContext(ctx, "the number of dead jobs is right again", "channel", d.ChannelID, "consumer", d.ConsumerID, "driftWas", before.Drift)
		}
	}
	if d.Letters != before.Letters {
		if (d.Letters != storage.LetterDrift{}) {
			s.log.ErrorContext(ctx, "the dead letters are not those of the dead jobs: somebody changed either by hand; "+
				"run `redrive dlq repair` to set them right", "channel", d.ChannelID, "consumer", d.ConsumerID,
				"missing", d.Letters.Missing, "stray", d.Letters.Stray)
		} else {
			s.log.InfoContext(ctx, "the dead letters are those of the dead jobs again", "channel", d.ChannelID, "consumer", d.ConsumerID)
		}
	}
}

// Repair sets every consumer's number and dead letters right and returns the drift that each number had. Counts are Exact afterwards; other
// instances that know of a drift see that it is gone within some minutes.
func (s *Summary) Repair(ctx context.Context) ([]Drift, error) {
	consumers, err := s.consumers(ctx)
	if err != nil {
		return nil, err
	}
	s.drift.keep(consumers)
	var out []Drift
	var failed []error
	for _, d := range consumers {
		if d.Drift, err = s.repairOne(ctx, d.ConsumerKey); err != nil {
			failed = append(failed, fmt.Errorf("repair of channel %q, consumer %q: %w", d.ChannelID, d.ConsumerID, err))
			if ctx.Err() != nil {
				break
			}
			continue
		}
		if d.Drift != 0 {
			s.log.WarnContext(ctx, "the number of dead jobs was repaired", "channel", d.ChannelID, "consumer", d.ConsumerID, "driftWas", d.Drift)
		}
		out = append(out, d)
		d.Drift = 0
		s.drift.set(d)
	}
	return out, errors.Join(failed...)
}

// repairOne is right about consumers without a row in dlq_summary, too: they are shown as 0 and whatever is uncounted.
func (s *Summary) repairOne(ctx context.Context, consumerKey uint32) (drift int64, err error) {
	drift, err = s.store.RepairDeadCount(ctx, consumerKey)
	if !errors.Is(err, storage.ErrNotFound) {
		return drift, err
	}
	if drift, err = s.store.DeadDrift(ctx, consumerKey); err == nil && drift != 0 {
		err = fmt.Errorf("it is off by %d and cannot be repaired: its row in dlq_summary is gone", drift)
	}
	return drift, err
}

func (s *Summary) consumers(ctx context.Context) ([]Drift, error) {
	cat, err := s.store.Catalog(ctx)
	if err != nil {
		return nil, err
	}
	var out []Drift
	for _, ch := range cat.Channels() {
		for _, k := range cat.ConsumersOf(ch) {
			out = append(out, Drift{ConsumerKey: k.Key, ChannelID: ch.ID, ConsumerID: k.ID})
		}
	}
	return out, nil
}

// auditForever audits everything every AuditInterval, and meanwhile looks again at what was found wrong.
func (s *Summary) auditForever(ctx context.Context) {
	watch := outage{log: s.log, doing: "auditing the numbers of dead jobs"}
	full := time.Now().Add(spread(min(s.o.AuditInterval, firstAudit)))
	for {
		wait := time.Until(full)
		if !s.drift.calm() {
			wait = min(wait, recheckEvery)
		}
		if !pause(ctx, wait) {
			return
		}
		everything := !time.Now().Before(full)
		err := s.store.Hold(ctx, lockAudit, s.o.Owner, s.o.LockTTL, func(ctx context.Context) error {
			_, err := s.audit(ctx, func(d Drift) bool { return everything || !s.drift.of(d.ConsumerKey).none() })
			return err
		})
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, storage.ErrLocked): // another instance audits; each does, so that each knows
			err = nil
			if everything {
				full = time.Now().Add(s.o.LockTTL + spread(s.o.LockTTL))
			}
		case err == nil && everything:
			full = time.Now().Add(s.o.AuditInterval + spread(s.o.AuditInterval/10))
		}
		if retry, failed := watch.note(ctx, err); failed && !pause(ctx, retry) {
			return
		}
	}
}

// pause waits and reports whether ctx is still alive.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}

// driftBook is what the audits of this process know.
type driftBook struct {
	mu    sync.Mutex
	known map[uint32]Drift // by consumer key, of every consumer that was audited
}

// set notes a drift and returns the one known before.
func (b *driftBook) set(d Drift) (before Drift) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.known == nil {
		b.known = map[uint32]Drift{}
	}
	before = b.known[d.ConsumerKey]
	b.known[d.ConsumerKey] = d
	return before
}

// keep forgets consumers that are no more.
func (b *driftBook) keep(consumers []Drift) {
	b.mu.Lock()
	defer b.mu.Unlock()
	there := make(map[uint32]bool, len(consumers))
	for _, d := range consumers {
		there[d.ConsumerKey] = true
	}
	for key := range b.known {
		if !there[key] {
			delete(b.known, key)
		}
	}
}

func (b *driftBook) of(consumerKey uint32) Drift {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.known[consumerKey]
}

func (b *driftBook) all() []Drift {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]Drift, 0, len(b.known))
	for _, d := range b.known {
		out = append(out, d)
	}
	return out
}

// exact tells that no number is known to be wrong.
func (b *driftBook) exact() bool { return b.each(func(d Drift) bool { return d.Drift == 0 }) }

// calm tells that nothing is known to be wrong.
func (b *driftBook) calm() bool { return b.each(Drift.none) }

func (b *driftBook) each(holds func(Drift) bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range b.known {
		if !holds(d) {
			return false
		}
	}
	return true
}
