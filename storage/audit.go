package storage

import (
	"context"
	"database/sql"
	"errors"
)

// driftSQL is what /dlq-status would show for a consumer, less the dead jobs that are really there, in one statement
// and so of one snapshot. It reads all of the consumer's dead index entries: about a second for three million.
const driftSQL = `SELECT
	(SELECT COALESCE(SUM(dead_count), 0) FROM dlq_summary WHERE consumerId = ?)
	+ (SELECT COALESCE(SUM(dlqDelta), 0) FROM job FORCE INDEX (uncounted) WHERE dlqDelta IN (-1, 1) AND consumerId = ?)
	- (SELECT COUNT(*) FROM job FORCE INDEX (changed) WHERE consumerId = ? AND status = 1004)`

// DeadDrift audits one consumer's count. Anything but 0 means that somebody wrote to dlq_summary or dlqCounted past
// this package.
func (s *Store) DeadDrift(ctx context.Context, consumerKey uint32) (drift int64, err error) {
	err = s.db.QueryRowContext(ctx, driftSQL, consumerKey, consumerKey, consumerKey).Scan(&drift)
	return drift, err
}

// RepairDeadCount sets a consumer's count right and returns the drift it had, and makes its Pending dead letters those
// of its dead jobs: DeadLetterDrift. ErrNotFound where the consumer is gone.
func (s *Store) RepairDeadCount(ctx context.Context, consumerKey uint32) (drift int64, err error) {
	if drift, err = s.repairCount(ctx, consumerKey); err != nil {
		return drift, err
	}
	if err := s.recordMissing(ctx, consumerKey); err != nil {
		return drift, err
	}
	return drift, s.resolveStray(ctx, consumerKey)
}

// repairCount locks the summary row first, so no count moves meanwhile; jobs may.
func (s *Store) repairCount(ctx context.Context, consumerKey uint32) (drift int64, err error) {
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO dlq_summary (consumerId, consumerName, channelId, channelName, dead_count, last_checked_at)
			SELECT c.id, c.name, ch.channelId, ch.name, 0, `+never+` FROM consumer c JOIN channel ch ON ch.id = c.channelId WHERE c.id = ?
			ON DUPLICATE KEY UPDATE dead_count = dead_count`, consumerKey); err != nil {
			return err
		}
		var count int64
		err := tx.QueryRowContext(ctx, `SELECT dead_count FROM dlq_summary WHERE consumerId = ? FOR UPDATE`, consumerKey).Scan(&count)
		if errors.Is(err, sql.ErrNoRows) {
			return ErrNotFound
		}
		if err != nil {
			return err
		}
		if err := tx.QueryRowContext(ctx, driftSQL, consumerKey, consumerKey, consumerKey).Scan(&drift); err != nil || drift == 0 {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE dlq_summary SET dead_count = dead_count - ? WHERE consumerId = ?`, drift, consumerKey)
		return err
	})
	return drift, err
}
