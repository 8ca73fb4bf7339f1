package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/xid"
)

const (
	statusQueued = 1001
	statusDead   = 1004

	tallyJobs     = 1 // jobs ever made less jobs removed, of a consumer
	tallyMessages = 3 // messages dispatched less those pruned, of a channel

	// deathTime is how a dead letter's row key tells when it died.
	deathTime = "20060102T150405.000000Z"

	// seedBatch is the rows of one INSERT and, unless they go at once, of one transaction.
	seedBatch = 1000
	// seedWorkers insert side by side; more only wait for each other's pages.
	seedWorkers = 2
)

// seedSpec says which jobs to put into the database.
type seedSpec struct {
	Channel, Consumer, Producer string
	Flow                        *flow // the messages, one job each; all of them
	PayloadBytes                int
	Retries                     int            // retryAttemptCount, so that their retries count as exhausted
	Spread                      time.Duration  // they died, or came, evenly over this long until now
	Queued                      bool           // they are not dead but wait for their first attempt
	AtOnce                      bool           // in one transaction: they become visible together
	Progress                    func(done int) // may be nil; never called by two at once
}

// sqlStore reads and writes the broker's tables behind its back.
type sqlStore struct{ db *sql.DB }

// seedRefs are the database's own numbers for what the spec names.
type seedRefs struct{ channel, consumer, producer int64 }

// Seed inserts the messages, their payloads and their jobs, and what the tally must know of them. The
// broker finds the deaths by itself.
func (s *sqlStore) Seed(ctx context.Context, spec seedSpec) error {
	refs, err := s.refs(ctx, spec)
	if err != nil {
		return err
	}
	total := len(spec.Flow.sent)
	sd := &seeder{spec: spec, refs: refs, total: total, began: time.Now().UTC().Add(-spec.Spread)}
	if spec.AtOnce {
		err = s.inTx(ctx, func(tx *sql.Tx) error {
			for from := 0; from < total; from += seedBatch {
				if err := sd.insert(ctx, tx, 0, from, min(from+seedBatch, total)); err != nil {
					return err
				}
			}
			return nil
		})
	} else {
		err = s.seedParallel(ctx, total, spec.Progress, sd.insert)
	}
	if err != nil {
		return fmt.Errorf("seed %d jobs: %w", total, err)
	}
	spec.Flow.seeded()
	return nil
}

// seedParallel inserts batches in short transactions from seedWorkers connections.
func (s *sqlStore) seedParallel(ctx context.Context, total int, progress func(done int),
	insert func(ctx context.Context, tx *sql.Tx, worker, from, to int) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var next atomic.Int64
	var mu sync.Mutex
	done := 0
	errs := make([]error, seedWorkers)
	var wg sync.WaitGroup
	for w := range seedWorkers {
		wg.Go(func() {
			for ctx.Err() == nil {
				from := int(next.Add(seedBatch) - seedBatch)
				if from >= total {
					return
				}
				to := min(from+seedBatch, total)
				if err := s.inTx(ctx, func(tx *sql.Tx) error { return insert(ctx, tx, w, from, to) }); err != nil {
					errs[w] = err
					cancel()
					return
				}
				mu.Lock()
				if done += to - from; progress != nil {
					progress(done)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
	}
	return errors.Join(errors.Join(errs...), context.Cause(ctx))
}

func (s *sqlStore) refs(ctx context.Context, spec seedSpec) (r seedRefs, err error) {
	err = s.db.QueryRowContext(ctx, `
		SELECT c.id, k.id FROM consumer k JOIN channel c ON c.id = k.channelId
		WHERE c.channelId = ? AND k.consumerId = ?`, spec.Channel, spec.Consumer).Scan(&r.channel, &r.consumer)
	if err != nil {
		return r, fmt.Errorf("find consumer %s of %s: %w", spec.Consumer, spec.Channel, err)
	}
	err = s.db.QueryRowContext(ctx, `SELECT id FROM producer WHERE producerId = ?`, spec.Producer).Scan(&r.producer)
	if err != nil {
		return r, fmt.Errorf("find producer %s: %w", spec.Producer, err)
	}
	return r, nil
}

// inTx runs fn in a transaction, again when it lost a deadlock: the seeder shares tables with a live broker.
func (s *sqlStore) inTx(ctx context.Context, fn func(*sql.Tx) error) error {
	const tries = 10
	for try := 1; ; try++ {
		err := s.tryTx(ctx, fn)
		if err == nil || try == tries || !lostLockRace(err) {
			return err
		}
	}
}

func (s *sqlStore) tryTx(ctx context.Context, fn func(*sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // nothing after a commit
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// Owed counts the rows that the broker's counters have not settled yet.
func (s *sqlStore) Owed(ctx context.Context) (n int64, err error) {
	err = s.db.QueryRowContext(ctx, `SELECT COUNT(*) FROM job WHERE dlqDelta IS NOT NULL`).Scan(&n)
	return n, err
}

// Rows counts a consumer's jobs of a status the slow way, which is the truth that the shown numbers are held to.
func (s *sqlStore) Rows(ctx context.Context, channel, consumer string, status int) (n int64, err error) {
	err = s.db.QueryRowContext(ctx, `
		SELECT COUNT(*) FROM job j JOIN consumer k ON k.id = j.consumerId JOIN channel c ON c.id = k.channelId
		WHERE c.channelId = ? AND k.consumerId = ? AND j.status = ?`, channel, consumer, status).Scan(&n)
	return n, err
}

// Clock returns the database's time, in UTC.
func (s *sqlStore) Clock(ctx context.Context) (t time.Time, err error) {
	err = s.db.QueryRowContext(ctx, `SELECT UTC_TIMESTAMP(6)`).Scan(&t)
	return t, err
}

// seeder makes the rows of one Seed.
type seeder struct {
	spec  seedSpec
	refs  seedRefs
	total int
	began time.Time
}

// insert writes messages from (inclusive) to (exclusive), with their jobs.
func (s *seeder) insert(ctx context.Context, tx *sql.Tx, worker, from, to int) error {
	n := to - from
	messages := make([]any, 0, n*7)
	payloads := make([]any, 0, n*2)
	jobs := make([]any, 0, n*6)
	letters := make([]any, 0, n*9)
	status := statusDead
	if s.spec.Queued {
		status = statusQueued
	}
	body := strings.Repeat("redrive ", s.spec.PayloadBytes/8+1)[:s.spec.PayloadBytes]
	for i := from; i < to; i++ {
		// Ids rise with i, so that all three tables grow at their ends.
		at := s.began.Add(time.Duration(float64(s.spec.Spread) * float64(i) / float64(s.total)))
		at = at.Truncate(time.Microsecond) // as the database keeps it: the dead letter is found by it
		messageID, jobID := xid.NewWithTime(at), xid.NewWithTime(at)
		message, job := messageID.Bytes(), jobID.Bytes()
		messages = append(messages, message, s.refs.channel, s.refs.producer, s.spec.Flow.id(i), at, at)
		payloads = append(payloads, message, body)
		jobs = append(jobs, job, message, s.refs.consumer, status, at, s.spec.Retries)
		letters = append(letters, jobID.String()+"-"+at.Format(deathTime), s.spec.Consumer, s.spec.Channel, s.spec.Retries+1, at, at, s.spec.Flow.id(i), job)
	}
	if err := insertRows(ctx, tx, `
		INSERT INTO message (id, channelId, producerId, messageId, contentType, priority, receivedAt, dispatchedAt)
		VALUES `, `(?, ?, ?, ?, 'application/octet-stream', 0, ?, ?)`, n, messages); err != nil {
		return err
	}
	if err := insertRows(ctx, tx, `INSERT INTO message_payload (messageId, headers, body) VALUES `,
		`(?, '{}', ?)`, n, payloads); err != nil {
		return err
	}
	if err := insertRows(ctx, tx, `
		INSERT INTO job (id, messageId, consumerId, status, statusChangedAt, precedence, retryAttemptCount, dlqCounted)
		VALUES `, `(?, ?, ?, ?, ?, 0, ?, 0)`, n, jobs); err != nil {
		return err
	}
	if s.spec.Queued {
		return s.tally(ctx, tx, worker, n)
	}
	if err := insertRows(ctx, tx, `
		INSERT INTO engineDlq (PartitionKey, RowKey, InstanceId, OriginalQueue, ErrorMessage, DequeueCount, FirstFailureAtUtc, LastFailureAtUtc, Status, CorrelationId, JobId)
		VALUES `, `('delivery', ?, ?, ?, 'http_5xx: seeded', ?, ?, ?, 'Pending', ?, ?)`, n, letters); err != nil {
		return err
	}
	return s.tally(ctx, tx, worker, n)
}

func (s *seeder) tally(ctx context.Context, tx *sql.Tx, worker, n int) error {
	// Shards are for writers to keep out of each other's way; the sum is what counts.
	_, err := tx.ExecContext(ctx, `
		INSERT INTO tally (kind, refId, shard, n) VALUES (?, ?, ?, ?), (?, ?, ?, ?)
		ON DUPLICATE KEY UPDATE n = n + VALUES(n)`,
		tallyJobs, s.refs.consumer, 255-worker, n, tallyMessages, s.refs.channel, 255-worker, n)
	return err
}

// insertRows runs one INSERT of n rows.
func insertRows(ctx context.Context, tx *sql.Tx, head, row string, n int, args []any) error {
	query := head + strings.Repeat(row+", ", n-1) + row
	_, err := tx.ExecContext(ctx, query, args...)
	return err
}
