package storage

import (
	"context"
	"database/sql"
)

// RemoveJobs deletes up to limit jobs of consumers that were deleted, and reports whether there may be more. A
// removal stays open for ten minutes after the deletion, so that jobs of a broadcast that was being accepted at that
// moment are found too.
func (s *Store) RemoveJobs(ctx context.Context, limit int) (removed int64, more bool, err error) {
	consumers, err := collect(ctx, s.db, func(rows *sql.Rows) (key uint32, err error) { return key, rows.Scan(&key) },
		`SELECT consumerId FROM consumer_removal ORDER BY consumerId`)
	if err != nil {
		return 0, false, err
	}
	for _, consumer := range consumers {
		if removed, err = s.removeJobsOf(ctx, consumer, limit); err != nil || removed > 0 {
			return removed, removed > 0, err
		}
	}
	return 0, false, nil
}

func (s *Store) removeJobsOf(ctx context.Context, consumer uint32, limit int) (removed int64, err error) {
	err = s.inTurn(ctx, func(tx *sql.Tx) error {
		rows, err := collect(ctx, tx, func(rows *sql.Rows) (r removedRow, err error) { return r, rows.Scan(&r.id, &r.at, &r.status) },
			`SELECT id, statusChangedAt, status FROM job WHERE consumerId = ? ORDER BY status, dueAt, precedence, id LIMIT ? FOR UPDATE SKIP LOCKED`, consumer, limit)
		if err != nil {
			return err
		}
		if len(rows) > 0 {
			ids, dead := make([]ID, len(rows)), []deadRow(nil)
			for i, r := range rows {
				if ids[i] = r.id; r.status == StatusDead {
					dead = append(dead, r.deadRow)
				}
			}
			if err := s.closeRemoved(ctx, tx, dead); err != nil {
				return err
			}
			removed, err = affected(ctx, tx, `DELETE FROM job WHERE id IN (`+placeholders("?", len(ids))+`)`, anyIDs(ids)...)
			return err
		}
		removed = 0
		// Jobs that another transaction holds are not seen above; it may yet roll back.
		var left bool
		if err := tx.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM job WHERE consumerId = ?)`, consumer).Scan(&left); err != nil || left {
			return err
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM tally WHERE kind IN (?, ?, ?) AND refId = ?`, tallyJobs, tallyDelivered, tallyShelved, consumer); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `DELETE FROM consumer_removal WHERE consumerId = ? AND deletedAt < NOW(6) - INTERVAL 10 MINUTE`, consumer)
		return err
	})
	return removed, err
}

// closeRemoved closes the records of jobs whose consumer is gone, and with it what told their engine: they are looked for in
// each until all are found.
func (s *Store) closeRemoved(ctx context.Context, tx *sql.Tx, dead []deadRow) error {
	if len(dead) == 0 {
		return nil
	}
	engines, err := s.enginesOf(ctx, tx, "", "")
	left := int64(len(dead))
	for _, engine := range engines {
		if left == 0 {
			break
		}
		n, err := s.closeRecords(ctx, tx, engine, dead, noteDeleted, "broker")
		if err != nil {
			return err
		}
		left -= n
	}
	return err
}

type removedRow struct {
	deadRow
	status Status
}
