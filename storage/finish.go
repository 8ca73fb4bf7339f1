package storage

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"time"
)

// Verdict is what becomes of a job after an attempt.
type Verdict uint8

// The verdicts.
const (
	Delivered  Verdict = iota + 1
	RetryLater         // back to QUEUED after Outcome.Delay, one retry more
	Die                // its attempts are used up
	HandBack           // it was not attempted, or its outcome does not count: QUEUED after Outcome.Delay, nothing else changes
)

// Outcome reports an attempt on a leased job.
type Outcome struct {
	JobID       ID
	Token       uint64 // of the lease the attempt was made under
	ConsumerKey uint32
	Verdict     Verdict
	Delay       time.Duration // of RetryLater and HandBack; 0 of HandBack: at once
	ErrorClass  string        // of RetryLater and Die: at most 32 ASCII characters
	Error       string        // of RetryLater and Die: cut to 512 characters
	Attempt     *Attempt      // for the history; nil: none is kept
	Subject     *Subject      // of Die, of an engine's job; nil: its consumer and its message
}

// Subject is what the dead letter of an engine's job is about. What is empty is the consumer's id, or the message's; both
// are cut to 255 characters.
type Subject struct{ InstanceID, CorrelationID string }

// group is the part of outcomes that one statement can write for many jobs.
type group struct {
	verdict           Verdict
	delay             time.Duration
	errorClass, error string
}

// errSomeLost makes Finish look at each job: some lease was lost, but rows affected do not tell which.
var errSomeLost = errors.New("some leases were lost")

// Finish writes the outcomes of attempts in one transaction and returns the ones that changed nothing because the
// job's lease was no longer theirs: it had run out and somebody else has the job, or had it.
func (s *Store) Finish(ctx context.Context, shard uint8, outcomes []Outcome) (lost []Outcome, err error) {
	outcomes = inOrderOfJobs(outcomes)
	attempts, err := s.attemptsOf(ctx, outcomes)
	if err != nil {
		return nil, err
	}
	err = s.inTx(ctx, func(tx *sql.Tx) error { return s.finish(ctx, tx, shard, outcomes, attempts) })
	if !errors.Is(err, errSomeLost) {
		return nil, err
	}
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		held, gone, err := stillHeld(ctx, tx, outcomes, ` ORDER BY id FOR UPDATE`)
		if err != nil {
			return err
		}
		lost = gone
		return s.finish(ctx, tx, shard, held, attempts)
	})
	return lost, err
}

// FinishFree is Finish for jobs that somebody may have locked: it waits for no such lock, and returns as busy the outcomes
// of those that are locked, which it left alone. It costs a statement more. Where SKIP LOCKED is no more than parsed it
// waits as Finish does.
func (s *Store) FinishFree(ctx context.Context, shard uint8, outcomes []Outcome) (lost, busy []Outcome, err error) {
	outcomes = inOrderOfJobs(outcomes)
	attempts, err := s.attemptsOf(ctx, outcomes)
	if err != nil {
		return nil, nil, err
	}
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		held, others, err := stillHeld(ctx, tx, outcomes, ` ORDER BY id FOR UPDATE SKIP LOCKED`)
		if err != nil {
			return err
		}
		lost, busy = others, nil
		if len(others) > 0 {
			if busy, lost, err = stillHeld(ctx, tx, others, ``); err != nil {
				return err
			}
		}
		if len(held) == 0 {
			return nil
		}
		return s.finish(ctx, tx, shard, held, attempts)
	})
	if err != nil {
		return nil, nil, err
	}
	return lost, busy, nil
}

// inOrderOfJobs is the order in which jobs are locked.
func inOrderOfJobs(outcomes []Outcome) []Outcome {
	outcomes = slices.Clone(outcomes)
	slices.SortStableFunc(outcomes, func(a, b Outcome) int { return slices.Compare(a.JobID[:], b.JobID[:]) })
	return outcomes
}

// finish locks in the order job, engineDlq, engineHistory, tally.
func (s *Store) finish(ctx context.Context, tx *sql.Tx, shard uint8, outcomes []Outcome, attempts attemptLog) error {
	groups := map[group][]Outcome{}
	var dead []ID
	var order []group
	subjects := map[ID]Subject{}
	counts := tallies{}
	for _, o := range outcomes {
		g := group{o.Verdict, o.Delay, o.ErrorClass, o.Error}
		if _, seen := groups[g]; !seen {
			order = append(order, g)
		}
		groups[g] = append(groups[g], o)
		switch o.Verdict {
		case Delivered:
			counts.add(tallyDelivered, o.ConsumerKey, 1)
		case Die:
			dead = append(dead, o.JobID)
			if o.Subject != nil {
				subjects[o.JobID] = *o.Subject
			}
		}
	}
	for _, g := range order {
		if err := finishGroup(ctx, tx, g, groups[g]); err != nil {
			return err
		}
	}
	if err := s.recordDeaths(ctx, tx, dead, subjects); err != nil {
		return err
	}
	if err := s.recordAttempts(ctx, tx, outcomes, attempts); err != nil {
		return err
	}
	return counts.write(ctx, tx, shard)
}

// failed is set by every attempt that counts and fails.
const failed = `firstFailedAt = COALESCE(firstFailedAt, NOW(6))`

func finishGroup(ctx context.Context, tx *sql.Tx, g group, outcomes []Outcome) error {
	var set string
	var args []any
	switch g.verdict {
	case Delivered:
		set = `status = 1003, dueAt = NULL`
	case RetryLater:
		set = `status = 1001, retryAttemptCount = retryAttemptCount + 1, dueAt = NOW(6) + INTERVAL ? MICROSECOND, ` + failed + `, lastErrorClass = ?, lastError = ?`
		args = append(args, micros(g.delay), g.errorClass, clip(g.error, 512))
	case Die:
		set = `status = 1004, dueAt = NULL, ` + failed + `, lastErrorClass = ?, lastError = ?`
		args = append(args, g.errorClass, clip(g.error, 512))
	case HandBack:
		set = `status = 1001, dueAt = NULL`
		if g.delay > 0 {
			set = `status = 1001, dueAt = NOW(6) + INTERVAL ? MICROSECOND`
			args = append(args, micros(g.delay))
		}
	default:
		return errors.New("an outcome without a verdict")
	}
	for _, o := range outcomes {
		args = append(args, o.JobID, o.Token)
	}
	n, err := affected(ctx, tx, `UPDATE job FORCE INDEX (PRIMARY) SET `+set+`, statusChangedAt = NOW(6), leaseOwner = NULL
		WHERE status = 1002 AND (`+alternatives(`id = ? AND leaseToken = ?`, len(outcomes))+`)`, args...)
	if err == nil && n != int64(len(outcomes)) {
		return errSomeLost
	}
	return err
}

// stillHeld reads the jobs, with the locks that locking says, and splits the outcomes by whether their lease still holds. A
// job that occurs twice counts once: the second outcome finds it changed.
func stillHeld(ctx context.Context, tx *sql.Tx, outcomes []Outcome, locking string) (held, lost []Outcome, err error) {
	args := make([]any, len(outcomes))
	for i := range outcomes {
		args[i] = outcomes[i].JobID
	}
	type row struct {
		id    ID
		token uint64
	}
	rows, err := collect(ctx, tx, func(rows *sql.Rows) (r row, err error) { return r, rows.Scan(&r.id, &r.token) },
		`SELECT id, leaseToken FROM job FORCE INDEX (PRIMARY) WHERE id IN (`+placeholders("?", len(args))+`) AND status = 1002`+locking, args...)
	if err != nil {
		return nil, nil, err
	}
	tokens := make(map[ID]uint64, len(rows))
	for _, r := range rows {
		tokens[r.id] = r.token
	}
	for _, o := range outcomes {
		if token, inflight := tokens[o.JobID]; inflight && token == o.Token {
			held = append(held, o)
			delete(tokens, o.JobID)
		} else {
			lost = append(lost, o)
		}
	}
	return held, lost, nil
}

// LeasePolicy says what becomes of jobs whose lease ran out.
type LeasePolicy struct {
	// MaxRetry: a push job that has made this many retries dies with the attempt that was lost; one that has not is
	// QUEUED at once with one retry more. Of a pull consumer nothing is counted: it was its time that ran out. Nor of an
	// engine: its run is durable and goes on with the next attempt, which finds out what became of it.
	MaxRetry int
	Type     ConsumerType
	Limit    int // jobs a call
}

// Reaped tells what ReapLeases did.
type Reaped struct{ Requeued, Dead int }

// ReapLeases takes back jobs of a consumer whose lease has ended by the database's clock.
func (s *Store) ReapLeases(ctx context.Context, consumerKey uint32, p LeasePolicy) (Reaped, error) {
	var out Reaped
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		out = Reaped{}
		type expired struct {
			id      ID
			retries int
		}
		rows, err := collect(ctx, tx, func(rows *sql.Rows) (e expired, err error) { return e, rows.Scan(&e.id, &e.retries) },
			`SELECT id, retryAttemptCount FROM job FORCE INDEX (claim) WHERE consumerId = ? AND status = 1002 AND dueAt <= NOW(6)
			 ORDER BY dueAt, precedence, id LIMIT ? FOR UPDATE SKIP LOCKED`, consumerKey, p.Limit)
		if err != nil {
			return err
		}
		var again, dead []ID
		for _, e := range rows {
			if p.Type == TypePush && e.retries >= p.MaxRetry {
				dead = append(dead, e.id)
			} else {
				again = append(again, e.id)
			}
		}
		if out.Requeued, err = takeBack(ctx, tx, again, p.Type == TypePush); err != nil {
			return err
		}
		out.Dead, err = s.dieOfLostLease(ctx, tx, dead)
		return err
	})
	return out, err
}

// The guards repeat what the SELECT saw, for servers where it locks nothing.
const leaseEnded = ` AND status = 1002 AND dueAt <= NOW(6)`

func takeBack(ctx context.Context, tx *sql.Tx, ids []ID, countAttempt bool) (int, error) {
	if len(ids) == 0 {
		return 0, nil
	}
	set := `status = 1001, statusChangedAt = NOW(6), incrementalTimeout = 0, leaseOwner = NULL`
	if countAttempt {
		set += `, retryAttemptCount = retryAttemptCount + 1, ` + failed + `, lastErrorClass = '` + ErrorClassLeaseLost + `', lastError = 'the instance that had it in flight was lost'`
	}
	// The guard reads dueAt, so it is the last to change.
	n, err := affected(ctx, tx, `UPDATE job SET `+set+`, dueAt = NULL WHERE id IN (`+placeholders("?", len(ids))+`)`+leaseEnded, anyIDs(ids)...)
	return int(n), err
}

func (s *Store) dieOfLostLease(ctx context.Context, tx *sql.Tx, ids []ID) (int, error) {
	if len(ids) == 0 {
		return 0, nil
	}
	n, err := affected(ctx, tx, `UPDATE job SET status = 1004, statusChangedAt = NOW(6), leaseOwner = NULL, `+failed+`, lastErrorClass = '`+ErrorClassLeaseLost+`',
		lastError = 'the instance that made the last attempt was lost: the outcome is unknown', dueAt = NULL
		WHERE id IN (`+placeholders("?", len(ids))+`)`+leaseEnded, anyIDs(ids)...)
	if err != nil {
		return 0, err
	}
	return int(n), s.recordDeaths(ctx, tx, ids, nil)
}

// ErrorClassLeaseLost is the error class of attempts whose instance did not come back.
const ErrorClassLeaseLost = "lease_lost"

// alternatives is "(cond) OR (cond) ..." n times.
func alternatives(cond string, n int) string {
	out := make([]byte, 0, n*(len(cond)+6))
	for i := range n {
		if i > 0 {
			out = append(out, " OR "...)
		}
		out = append(append(append(out, '('), cond...), ')')
	}
	return string(out)
}

// clip cuts a text to n characters and replaces what is not UTF-8.
func clip(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	count := 0
	for i := range s {
		if count == n {
			return s[:i]
		}
		count++
	}
	return s
}
