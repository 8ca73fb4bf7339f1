package storage

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"slices"
	"time"
)

// ClaimedJob is a job under this instance's lease, with all that an attempt needs.
type ClaimedJob struct {
	ID                ID
	ConsumerKey       uint32
	ChannelKey        uint32
	RetryAttemptCount uint16
	MessageID         string
	ContentType       string
	Priority          uint32
	ReceivedAt        time.Time // zero for a job that was leased as it was accepted: now
	Headers           map[string]string
	Body              []byte
	Token             uint64
}

// Claim takes up to limit QUEUED jobs of a consumer under the lease and returns them: retries whose time has come
// first (the longest due first), up to half of the limit while fresh jobs wait too, then jobs that never waited, the
// highest priority first and the oldest first within it.
func (s *Store) Claim(ctx context.Context, consumerKey uint32, lease Lease, limit int) ([]ClaimedJob, error) {
	if limit <= 0 {
		return nil, nil
	}
	var won []ID
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		won = nil
		candidates, err := claimable(ctx, tx, consumerKey, limit)
		if err != nil || len(candidates) == 0 {
			return err
		}
		n, err := affected(ctx, tx, `UPDATE job SET status = 1002, statusChangedAt = NOW(6), dueAt = NOW(6) + INTERVAL ? MICROSECOND,
			leaseOwner = ?, leaseToken = ? WHERE id IN (`+placeholders("?", len(candidates))+`) AND status = 1001`,
			append([]any{micros(lease.For), lease.Owner, lease.Token}, anyIDs(candidates)...)...)
		if err != nil {
			return err
		}
		won = candidates
		if n == int64(len(candidates)) {
			return nil
		}
		// Where SKIP LOCKED locks nothing, two claimers see the same rows and the update decides.
		won, err = collect(ctx, tx, scanID, `SELECT id FROM job WHERE id IN (`+placeholders("?", len(candidates))+`) AND status = 1002 AND leaseToken = ?`,
			append(anyIDs(candidates), lease.Token)...)
		return err
	})
	if err != nil || len(won) == 0 {
		return nil, err
	}
	return s.loadClaimed(ctx, won, lease.Token)
}

// Unclaim returns the jobs of a consumer that are under the lease with this token: QUEUED at once, no attempt counted.
func (s *Store) Unclaim(ctx context.Context, consumerKey uint32, token uint64) error {
	return s.inTx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE job FORCE INDEX (claim) SET status = 1001, statusChangedAt = NOW(6), dueAt = NULL, leaseOwner = NULL
			WHERE consumerId = ? AND status = 1002 AND leaseToken = ?`, consumerKey, token)
		return err
	})
}

// ExtendLease lets the lease of a job end in so long from now. False: it is no longer this one, or has ended and the job
// was taken back.
func (s *Store) ExtendLease(ctx context.Context, id ID, token uint64, by time.Duration) (bool, error) {
	n, err := affected(ctx, s.db, `UPDATE job FORCE INDEX (PRIMARY) SET dueAt = NOW(6) + INTERVAL ? MICROSECOND
		WHERE id = ? AND status = 1002 AND leaseToken = ?`, micros(by), id, token)
	return n == 1, err
}

// claimable locks and lists jobs that may be claimed now.
func claimable(ctx context.Context, tx *sql.Tx, consumerKey uint32, limit int) ([]ID, error) {
	const due = `SELECT id FROM job FORCE INDEX (claim) WHERE consumerId = ? AND status = 1001 AND dueAt <= NOW(6)
		ORDER BY dueAt, precedence, id LIMIT ? FOR UPDATE SKIP LOCKED`
	const ready = `SELECT id FROM job FORCE INDEX (claim) WHERE consumerId = ? AND status = 1001 AND dueAt IS NULL
		ORDER BY precedence, id LIMIT ? FOR UPDATE SKIP LOCKED`
	dueIDs, err := collect(ctx, tx, scanID, due, consumerKey, limit)
	if err != nil {
		return nil, err
	}
	readyIDs, err := collect(ctx, tx, scanID, ready, consumerKey, limit)
	if err != nil {
		return nil, err
	}
	share := max((limit+1)/2, limit-len(readyIDs)) // what is left when each has its half goes to the other
	dueIDs = dueIDs[:min(len(dueIDs), share)]
	readyIDs = readyIDs[:min(len(readyIDs), limit-len(dueIDs))]
	return append(dueIDs, readyIDs...), nil
}

// loadClaimed reads what an attempt needs. A job that was deleted since it was claimed, with its consumer, is left out.
func (s *Store) loadClaimed(ctx context.Context, ids []ID, token uint64) ([]ClaimedJob, error) {
	jobs, err := collect(ctx, s.db, func(rows *sql.Rows) (ClaimedJob, error) {
		j := ClaimedJob{Token: token}
		var headers []byte
		if err := rows.Scan(&j.ID, &j.ConsumerKey, &j.RetryAttemptCount, &j.ChannelKey, &j.MessageID, &j.ContentType, &j.Priority, &j.ReceivedAt, &headers, &j.Body); err != nil {
			return j, err
		}
		var err error
		j.Headers, err = decodeHeaders(headers)
		return j, err
	}, `SELECT j.id, j.consumerId, j.retryAttemptCount, m.channelId, m.messageId, m.contentType, m.priority, m.receivedAt, p.headers, p.body
		FROM job j JOIN message m ON m.id = j.messageId JOIN message_payload p ON p.messageId = j.messageId
		WHERE j.id IN (`+placeholders("?", len(ids))+`)`, anyIDs(ids)...)
	// Sorted here: a server that sorts rows with payloads does it on disk.
	slices.SortFunc(jobs, func(a, b ClaimedJob) int { return inOrder(a.Priority, a.ID, b.Priority, b.ID) })
	return jobs, err
}

// inOrder compares jobs: the highest priority first, the oldest first within it.
func inOrder(aPriority uint32, a ID, bPriority uint32, b ID) int {
	return cmp.Or(cmp.Compare(bPriority, aPriority), bytes.Compare(a[:], b[:]))
}

// Work is what waits for one consumer.
type Work struct {
	ConsumerKey uint32
	Ready       bool           // jobs may be claimed now
	NextDue     *time.Duration // until the next retry may be claimed; nil: none waits, or it is not looked at because Ready is true
	LeaseEnds   *time.Duration // until the next lease ends (0 or less: it has); nil: none in flight
}

// FindWork looks at every consumer with three index probes each, in one statement; times are by the database's clock.
func (s *Store) FindWork(ctx context.Context) ([]Work, error) {
	// Ready jobs stand before the waiting retries in the key, and a probe for a retry would read them all: it is made
	// only where there are none. MySQL sorts unless the ORDER BY names the whole key down to the column that matters.
	const ready = `EXISTS (SELECT 1 FROM job j FORCE INDEX (claim) WHERE j.consumerId = c.id AND j.status = 1001 AND j.dueAt IS NULL)`
	return collect(ctx, s.db, func(rows *sql.Rows) (Work, error) {
		var w Work
		var due, lease sql.NullInt64
		if err := rows.Scan(&w.ConsumerKey, &w.Ready, &due, &lease); err != nil {
			return w, err
		}
		w.NextDue, w.LeaseEnds = durationOf(due), durationOf(lease)
		return w, nil
	}, `SELECT c.id, `+ready+`,
		IF(`+ready+`, NULL, TIMESTAMPDIFF(MICROSECOND, NOW(6), (SELECT j.dueAt FROM job j FORCE INDEX (claim)
			WHERE j.consumerId = c.id AND j.status = 1001 AND j.dueAt IS NOT NULL ORDER BY j.consumerId, j.status, j.dueAt LIMIT 1))),
		TIMESTAMPDIFF(MICROSECOND, NOW(6), (SELECT j.dueAt FROM job j FORCE INDEX (claim)
			WHERE j.consumerId = c.id AND j.status = 1002 ORDER BY j.consumerId, j.status, j.dueAt LIMIT 1))
		FROM consumer c`)
}

func durationOf(us sql.NullInt64) *time.Duration {
	if !us.Valid {
		return nil
	}
	d := time.Duration(us.Int64) * time.Microsecond
	return &d
}

// NextDue returns the time until the consumer's next retry may be claimed, 0 or less where one may be now, and nil
// where none waits.
func (s *Store) NextDue(ctx context.Context, consumerKey uint32) (*time.Duration, error) {
	var us sql.NullInt64
	err := s.db.QueryRowContext(ctx, `SELECT TIMESTAMPDIFF(MICROSECOND, NOW(6), (SELECT dueAt FROM job FORCE INDEX (claim)
		WHERE consumerId = ? AND status = 1001 AND dueAt > '1970-01-01' ORDER BY dueAt LIMIT 1))`, consumerKey).Scan(&us)
	return durationOf(us), err
}
