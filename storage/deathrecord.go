package storage

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"
)

// Notes of records that were not resolved by a person.
const (
	noteRetried = "Retried"
	noteDeleted = "Deleted"
	noteNotDead = "Its job was not dead"
)

// byConsumer is who resolved a record of a job that its consumer took up again.
const byConsumer = "consumer"

// recordDeaths writes the Pending records of jobs that died in this transaction. A record that is there already (the
// clock went back, or a job was killed again by hand) is opened again.
func (s *Store) recordDeaths(ctx context.Context, tx *sql.Tx, ids []ID) error {
	if len(ids) == 0 {
		return nil
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO `+s.tables.dlq+` (PartitionKey, RowKey, InstanceId, OriginalQueue, ErrorMessage, DequeueCount,
			FirstFailureAtUtc, LastFailureAtUtc, Status, CorrelationId, JobId)
		SELECT STRAIGHT_JOIN 'delivery', CONCAT(`+xidSQL("j.id")+`, '-', `+rowKeyTimeSQL("j.statusChangedAt")+`), k.consumerId, ch.channelId,
			COALESCE(CONCAT(j.lastErrorClass, ': ', j.lastError), ''), j.retryAttemptCount + 1,
			COALESCE(j.firstFailedAt, j.statusChangedAt), j.statusChangedAt, 'Pending', COALESCE(m.messageId, ''), j.id
		FROM job j FORCE INDEX (PRIMARY) LEFT JOIN message m ON m.id = j.messageId JOIN consumer k ON k.id = j.consumerId JOIN channel ch ON ch.id = k.channelId
		WHERE j.id IN (`+placeholders("?", len(ids))+`) AND j.status = 1004
		ON DUPLICATE KEY UPDATE Status = 'Pending', ResolutionNotes = NULL, ResolvedAtUtc = NULL, ResolvedBy = NULL, QueueMessageId = NULL`, anyIDs(ids)...)
	return err
}

// closeRecords resolves the records of jobs that were dead until this transaction, which has them locked. Of a retry
// each gets a queue message id: the job's own, with the present second in place of the one that it was made in. A job
// that was killed by hand may have no record.
func (s *Store) closeRecords(ctx context.Context, tx *sql.Tx, jobs []deadRow, note, by string) error {
	if len(jobs) == 0 {
		return nil
	}
	queueMessage := `NULL`
	if note == noteRetried {
		queueMessage = xidSQL(`CONCAT(UNHEX(LPAD(HEX(UNIX_TIMESTAMP()), 8, '0')), SUBSTRING(JobId, 5))`)
	}
	args := []any{note, by}
	for _, j := range jobs {
		args = append(args, deliveryRowKey(j.id, j.at))
	}
	_, err := tx.ExecContext(ctx, `UPDATE `+s.tables.dlq+` FORCE INDEX (PRIMARY) SET Status = 'Resolved', ResolutionNotes = ?, ResolvedBy = ?,
		ResolvedAtUtc = NOW(6), QueueMessageId = `+queueMessage+`
		WHERE PartitionKey = 'delivery' AND RowKey IN (`+placeholders("?", len(jobs))+`) AND Status = 'Pending'`, args...)
	return err
}

// recordMissing writes the records of a consumer's dead jobs that have none, in batches of a transaction each.
func (s *Store) recordMissing(ctx context.Context, consumerKey uint32) error {
	_, err := s.eachDeadBatch(ctx, consumerKey, "", nil, func(tx *sql.Tx, jobs []deadRow) (int64, error) {
		return 0, s.recordDeaths(ctx, tx, idsOf(jobs))
	})
	return err
}

// resolveStray resolves a consumer's Pending records whose job is not dead, or died another time since.
func (s *Store) resolveStray(ctx context.Context, consumerKey uint32) error {
	var channelID, consumerID string
	err := s.db.QueryRowContext(ctx, `SELECT ch.channelId, k.consumerId FROM consumer k JOIN channel ch ON ch.id = k.channelId WHERE k.id = ?`, consumerKey).
		Scan(&channelID, &consumerID)
	if errors.Is(err, sql.ErrNoRows) {
		return nil // it was deleted meanwhile, and its records go with its jobs
	}
	if err != nil {
		return err
	}
	type record struct {
		rowKey string
		job    ID
		at     time.Time
	}
	at, rowKey := time.Unix(0, 0).UTC(), ""
	for {
		rows, err := collect(ctx, s.db, func(rows *sql.Rows) (r record, err error) { return r, rows.Scan(&r.rowKey, &r.job, &r.at) },
			`SELECT RowKey, JobId, LastFailureAtUtc FROM `+s.tables.dlq+` FORCE INDEX (instance)
			 WHERE InstanceId = ? AND PartitionKey = 'delivery' AND Status = 'Pending' AND LastFailureAtUtc >= ? AND (LastFailureAtUtc > ? OR RowKey > ?)
				AND OriginalQueue = ? AND JobId IS NOT NULL
			 ORDER BY LastFailureAtUtc, RowKey LIMIT ?`, consumerID, at, at, rowKey, channelID, deadBatch)
		if err != nil || len(rows) == 0 {
			return err
		}
		at, rowKey = rows[len(rows)-1].at, rows[len(rows)-1].rowKey
		keys, jobs := map[string]bool{}, make([]ID, len(rows))
		for i, r := range rows {
			keys[r.rowKey], jobs[i] = true, r.job
		}
		slices.SortFunc(jobs, func(a, b ID) int { return slices.Compare(a[:], b[:]) })
		err = s.inTx(ctx, func(tx *sql.Tx) error {
			dead, err := collect(ctx, tx, scanDeadRow, `SELECT id, statusChangedAt, dlqCounted FROM job FORCE INDEX (PRIMARY)
				WHERE id IN (`+placeholders("?", len(jobs))+`) AND status = 1004 ORDER BY id FOR UPDATE`, anyIDs(jobs)...)
			if err != nil {
				return err
			}
			right := map[string]bool{}
			for _, j := range dead {
				right[deliveryRowKey(j.id, j.at)] = true
			}
			args := []any{noteNotDead}
			for _, r := range rows {
				if !right[r.rowKey] {
					args = append(args, r.rowKey)
				}
			}
			if len(args) == 1 {
				return nil
			}
			_, err = tx.ExecContext(ctx, `UPDATE `+s.tables.dlq+` FORCE INDEX (PRIMARY) SET Status = 'Resolved', ResolutionNotes = ?, ResolvedBy = 'repair',
				ResolvedAtUtc = NOW(6) WHERE PartitionKey = 'delivery' AND Status = 'Pending' AND RowKey IN (`+placeholders("?", len(args)-1)+`)`, args...)
			return err
		})
		if err != nil || len(rows) < deadBatch {
			return err
		}
	}
}

// DeadLetterDrift compares a consumer's dead jobs with their Pending records in one statement: missing are dead jobs
// without one, stray are records without a dead job. Anything but 0 means that somebody wrote to job past this package;
// RepairDeadCount mends it. It reads all of the consumer's dead jobs and Pending records.
func (s *Store) DeadLetterDrift(ctx context.Context, consumerKey uint32) (missing, stray int64, err error) {
	err = s.db.QueryRowContext(ctx, `SELECT
		(SELECT COUNT(*) FROM job j FORCE INDEX (changed) WHERE j.consumerId = ? AND j.status = 1004 AND NOT EXISTS
			(SELECT 1 FROM `+s.tables.dlq+` d FORCE INDEX (PRIMARY) WHERE d.PartitionKey = 'delivery' AND d.Status = 'Pending'
				AND d.RowKey = CONCAT(`+xidSQL("j.id")+`, '-', `+rowKeyTimeSQL("j.statusChangedAt")+`))),
		(SELECT COUNT(*) FROM consumer k JOIN channel ch ON ch.id = k.channelId
			JOIN `+s.tables.dlq+` d FORCE INDEX (instance) ON d.InstanceId = k.consumerId AND d.PartitionKey = 'delivery' AND d.Status = 'Pending' AND d.OriginalQueue = ch.channelId
			LEFT JOIN job j ON j.id = d.JobId AND j.status = 1004 AND j.statusChangedAt = d.LastFailureAtUtc
			WHERE k.id = ? AND j.id IS NULL)`, consumerKey, consumerKey).Scan(&missing, &stray)
	return missing, stray, err
}

func idsOf(jobs []deadRow) []ID {
	ids := make([]ID, len(jobs))
	for i, j := range jobs {
		ids[i] = j.id
	}
	return ids
}
