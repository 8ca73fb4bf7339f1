package storage

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"
)

// Job is a message on its way to one consumer.
type Job struct {
	ID, MessageKey          ID
	MessageID               string // the client's
	ConsumerKey             uint32
	ChannelKey, ProducerKey uint32
	Status                  Status
	StatusChangedAt         time.Time
	Priority                uint32
	RetryAttemptCount       uint16 // retries after the first attempt
	IncrementalTimeout      uint32 // seconds
	LastErrorClass          string // empty: no attempt failed
	LastError               string
}

const jobColumns = `j.id, j.messageId, m.messageId, j.consumerId, m.channelId, m.producerId, j.status, j.statusChangedAt, m.priority,
	j.retryAttemptCount, j.incrementalTimeout, COALESCE(j.lastErrorClass, ''), COALESCE(j.lastError, '')`

func (j *Job) fields() []any {
	return []any{&j.ID, &j.MessageKey, &j.MessageID, &j.ConsumerKey, &j.ChannelKey, &j.ProducerKey, &j.Status, &j.StatusChangedAt, &j.Priority,
		&j.RetryAttemptCount, &j.IncrementalTimeout, &j.LastErrorClass, &j.LastError}
}

func scanJob(rows *sql.Rows) (j Job, err error) { return j, rows.Scan(j.fields()...) }

// Job reads one job, or ErrNotFound.
func (s *Store) Job(ctx context.Context, id ID) (*Job, error) {
	var j Job
	err := s.db.QueryRowContext(ctx, `SELECT `+jobColumns+` FROM job j JOIN message m ON m.id = j.messageId WHERE j.id = ?`, id).Scan(j.fields()...)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, ErrNotFound
	}
	return &j, err
}

// QueuedJob is a job that a pull consumer may take.
type QueuedJob struct {
	Job
	ContentType string
	Headers     map[string]string
	Body        []byte
}

// QueuedBytes bounds the bodies of what QueuedJobs returns, together: 8 MiB.
const QueuedBytes = 8 << 20

// QueuedJobs lists the jobs that a pull consumer may take, the highest priority first and the oldest first within it:
// limit jobs, and no more than QueuedBytes of bodies, but one job at least where there is any.
// It reads at most twice limit rows of the claim key, however long the backlog is: jobs that never waited and, of a
// consumer that was a push consumer before, retries whose time has come.
func (s *Store) QueuedJobs(ctx context.Context, consumerKey uint32, limit int) ([]QueuedJob, error) {
	type sized struct {
		id   ID
		size int64 // of its body
	}
	listed, err := collect(ctx, s.db, func(rows *sql.Rows) (j sized, err error) { return j, rows.Scan(&j.id, &j.size) }, `SELECT listed.id, LENGTH(p.body) FROM (
			SELECT id, precedence FROM (
				(SELECT id, precedence FROM job FORCE INDEX (claim) WHERE consumerId = ? AND status = 1001 AND dueAt IS NULL ORDER BY precedence, id LIMIT ?)
				UNION ALL
				(SELECT id, precedence FROM job FORCE INDEX (claim) WHERE consumerId = ? AND status = 1001 AND dueAt <= NOW(6) ORDER BY dueAt LIMIT ?)
			) either ORDER BY precedence, id LIMIT ?
		) listed JOIN job j ON j.id = listed.id JOIN message_payload p ON p.messageId = j.messageId
		ORDER BY listed.precedence, listed.id`, consumerKey, limit, consumerKey, limit, limit)
	if err != nil || len(listed) == 0 {
		return nil, err
	}
	var ids []ID
	var bytes int64
	for _, j := range listed {
		if bytes += j.size; bytes > QueuedBytes && len(ids) > 0 {
			break
		}
		ids = append(ids, j.id)
	}
	jobs, err := collect(ctx, s.db, func(rows *sql.Rows) (QueuedJob, error) {
		var q QueuedJob
		var headers []byte
		if err := rows.Scan(append(q.fields(), &q.ContentType, &headers, &q.Body)...); err != nil {
			return q, err
		}
		var err error
		q.Headers, err = decodeHeaders(headers)
		return q, err
	}, `SELECT `+jobColumns+`, m.contentType, p.headers, p.body
		FROM job j JOIN message m ON m.id = j.messageId JOIN message_payload p ON p.messageId = j.messageId
		WHERE j.id IN (`+placeholders("?", len(ids))+`) AND j.status = 1001`, anyIDs(ids)...)
	slices.SortFunc(jobs, func(a, b QueuedJob) int { return inOrder(a.Priority, a.ID, b.Priority, b.ID) })
	return jobs, err
}

// PullState is what a pull consumer reports of a job.
type PullState struct {
	Job                ID
	Consumer           *Consumer
	Next               Status
	IncrementalTimeout uint32        // seconds on top of Lease; with INFLIGHT only
	Lease              time.Duration // how long it may work before the job is QUEUED again; with INFLIGHT only
}

// SetPullState changes a pull consumer's job: QUEUED to INFLIGHT, INFLIGHT to DELIVERED or DEAD, DEAD to INFLIGHT; the
// state that it has already changes nothing. Otherwise ErrBadTransition; ErrNotFound where the consumer has no such job.
func (s *Store) SetPullState(ctx context.Context, p PullState) error {
	return s.inTx(ctx, func(tx *sql.Tx) error {
		var status Status
		was := deadRow{id: p.Job}
		err := tx.QueryRowContext(ctx, `SELECT status, statusChangedAt, dlqCounted FROM job WHERE id = ? AND consumerId = ? FOR UPDATE`, p.Job, p.Consumer.Key).
			Scan(&status, &was.at, &was.counted)
		if errors.Is(err, sql.ErrNoRows) {
			return ErrNotFound
		}
		if err != nil || status == p.Next {
			return err
		}
		switch {
		case p.Next == StatusInflight && (status == StatusQueued || status == StatusDead):
			return s.pullInflight(ctx, tx, p, status, was)
		case status == StatusInflight && p.Next == StatusDelivered:
			return pullDelivered(ctx, tx, p)
		case status == StatusInflight && p.Next == StatusDead:
			if err := guarded(affected(ctx, tx, `UPDATE job SET status = 1004, statusChangedAt = NOW(6), dueAt = NULL, noRetry = 1, leaseOwner = NULL,
				firstFailedAt = COALESCE(firstFailedAt, NOW(6)), lastErrorClass = 'declared', lastError = 'declared dead by its consumer'
				WHERE id = ? AND status = 1002`, p.Job)); err != nil {
				return err
			}
			return s.recordDeaths(ctx, tx, []ID{p.Job}, nil)
		}
		return ErrBadTransition
	})
}

func (s *Store) pullInflight(ctx context.Context, tx *sql.Tx, p PullState, from Status, was deadRow) error {
	lease := p.Lease + time.Duration(p.IncrementalTimeout)*time.Second
	if err := guarded(affected(ctx, tx, `UPDATE job SET status = 1002, statusChangedAt = NOW(6), dueAt = NOW(6) + INTERVAL ? MICROSECOND,
		incrementalTimeout = ?, noRetry = 0, dlqCounted = 0, leaseOwner = NULL, leaseToken = 0 WHERE id = ? AND status = ?`,
		micros(lease), p.IncrementalTimeout, p.Job, from)); err != nil {
		return err
	}
	if from != StatusDead {
		return uncount(ctx, tx, p.Consumer.Key, was.counted)
	}
	return s.leftDead(ctx, tx, ownerFrom(p.Consumer), []deadRow{was}, 1, noteRetried, byConsumer)
}

func pullDelivered(ctx context.Context, tx *sql.Tx, p PullState) error {
	if err := guarded(affected(ctx, tx, `UPDATE job SET status = 1003, statusChangedAt = NOW(6), dueAt = NULL, leaseOwner = NULL
		WHERE id = ? AND status = 1002`, p.Job)); err != nil {
		return err
	}
	counts := tallies{}
	counts.add(tallyDelivered, p.Consumer.Key, 1)
	return counts.write(ctx, tx, p.Job[len(p.Job)-1])
}

// guarded makes an error of a guarded update that found its row changed after all.
func guarded(n int64, err error) error {
	if err == nil && n != 1 {
		return ErrBadTransition
	}
	return err
}
