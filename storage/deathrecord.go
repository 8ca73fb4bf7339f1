package storage

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
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
// clock went back, or a job was killed again by hand) is opened again. The record of an engine's job says what subjects
// say of it.
func (s *Store) recordDeaths(ctx context.Context, tx *sql.Tx, ids []ID, subjects map[ID]Subject) error {
	if len(ids) == 0 {
		return nil
	}
	instance, args := subjectSQL(ids, subjects, `k.consumerId`, func(s Subject) string { return s.InstanceID })
	correlation, more := subjectSQL(ids, subjects, `COALESCE(m.messageId, '')`, func(s Subject) string { return s.CorrelationID })
	_, err := tx.ExecContext(ctx, `INSERT INTO `+s.tables.dlq+` (PartitionKey, RowKey, InstanceId, OriginalQueue, ErrorMessage, DequeueCount,
			FirstFailureAtUtc, LastFailureAtUtc, Status, CorrelationId, JobId)
		SELECT STRAIGHT_JOIN IF(k.type = 'engine', k.consumerId, 'delivery'), CONCAT(`+xidSQL("j.id")+`, '-', `+rowKeyTimeSQL("j.statusChangedAt")+`), `+instance+`, ch.channelId,
			COALESCE(CONCAT(j.lastErrorClass, ': ', j.lastError), ''), j.retryAttemptCount + 1,
			COALESCE(j.firstFailedAt, j.statusChangedAt), j.statusChangedAt, 'Pending', `+correlation+`, j.id
		FROM job j FORCE INDEX (PRIMARY) LEFT JOIN message m ON m.id = j.messageId JOIN consumer k ON k.id = j.consumerId JOIN channel ch ON ch.id = k.channelId
		WHERE j.id IN (`+placeholders("?", len(ids))+`) AND j.status = 1004
		ON DUPLICATE KEY UPDATE Status = 'Pending', ResolutionNotes = NULL, ResolvedAtUtc = NULL, ResolvedBy = NULL, QueueMessageId = NULL`, slices.Concat(args, more, anyIDs(ids))...)
	return err
}

// subjectSQL is SQL for what the records of jobs are about: of an engine's job the part of its subject, where there is one,
// else what the expression says.
func subjectSQL(ids []ID, subjects map[ID]Subject, otherwise string, part func(Subject) string) (text string, args []any) {
	for _, id := range ids {
		if v := clip(part(subjects[id]), maxSubject); v != "" {
			args = append(args, id, v)
		}
	}
	if len(args) == 0 {
		return otherwise, nil
	}
	return `IF(k.type = 'engine', CASE j.id` + strings.Repeat(` WHEN ? THEN ?`, len(args)/2) + ` ELSE ` + otherwise + ` END, ` + otherwise + `)`, args
}

const maxSubject = 255 // characters

// closeRecords resolves the records of an engine's jobs that were dead until this transaction, which has them locked, and
// returns how many. Of a retry
// each gets a queue message id: the job's own, with the present second in place of the one that it was made in. A job
// that was killed by hand may have no record.
func (s *Store) closeRecords(ctx context.Context, tx *sql.Tx, engine string, jobs []deadRow, note, by string) (int64, error) {
	if len(jobs) == 0 {
		return 0, nil
	}
	queueMessage := `NULL`
	if note == noteRetried {
		queueMessage = xidSQL(`CONCAT(UNHEX(LPAD(HEX(UNIX_TIMESTAMP()), 8, '0')), SUBSTRING(JobId, 5))`)
	}
	args := []any{note, by, engine}
	for _, j := range jobs {
		args = append(args, deathRowKey(j.id, j.at))
	}
	return affected(ctx, tx, `UPDATE `+s.tables.dlq+` FORCE INDEX (PRIMARY) SET Status = 'Resolved', ResolutionNotes = ?, ResolvedBy = ?,
		ResolvedAtUtc = NOW(6), QueueMessageId = `+queueMessage+`
		WHERE PartitionKey = ? AND RowKey IN (`+placeholders("?", len(jobs))+`) AND Status = 'Pending'`, args...)
}

// recordMissing writes the records of a consumer's dead jobs that have none, in batches of a transaction each.
func (s *Store) recordMissing(ctx context.Context, consumerKey uint32) error {
	_, err := s.eachDeadBatch(ctx, consumerKey, "", nil, func(tx *sql.Tx, jobs []deadRow) (int64, error) {
		return 0, s.recordDeaths(ctx, tx, idsOf(jobs), nil)
	})
	return err
}

// openOf selects the records that tell of the deaths of a consumer's jobs and are Pending. Those of a delivery are found by
// their consumer; what an engine's are about is the engine's own business, so they are found among all that are Pending of
// the engine. Records from outside the broker have no job.
func openOf(of owner) (index, where string, args []any) {
	if of.engine == EngineDelivery {
		return `instance`, `d.InstanceId = ? AND d.PartitionKey = 'delivery' AND d.Status = 'Pending' AND d.OriginalQueue = ?`, []any{of.id, of.channelID}
	}
	return `latest`, `d.PartitionKey = ? AND d.Status = 'Pending' AND d.OriginalQueue = ? AND d.JobId IS NOT NULL`, []any{of.engine, of.channelID}
}

// resolveStray resolves a consumer's Pending records whose job is not dead, or died another time since.
func (s *Store) resolveStray(ctx context.Context, consumerKey uint32) error {
	of, err := ownerOf(ctx, s.db, consumerKey)
	if errors.Is(err, ErrNotFound) {
		return nil // it was deleted meanwhile, and its records go with its jobs
	}
	if err != nil {
		return err
	}
	index, where, args := openOf(of)
	at, rowKey := time.Unix(0, 0).UTC(), ""
	for {
		rows, err := collect(ctx, s.db, func(rows *sql.Rows) (r openRecord, err error) { return r, rows.Scan(&r.rowKey, &r.job, &r.at) },
			`SELECT d.RowKey, d.JobId, d.LastFailureAtUtc FROM `+s.tables.dlq+` d FORCE INDEX (`+index+`)
			 WHERE `+where+` AND d.JobId IS NOT NULL AND d.LastFailureAtUtc >= ? AND (d.LastFailureAtUtc > ? OR d.RowKey > ?)
			 ORDER BY d.LastFailureAtUtc, d.RowKey LIMIT ?`, append(slices.Clone(args), at, at, rowKey, deadBatch)...)
		if err != nil || len(rows) == 0 {
			return err
		}
		at, rowKey = rows[len(rows)-1].at, rows[len(rows)-1].rowKey
		if err := s.inTurn(ctx, func(tx *sql.Tx) error { return s.resolveStrayOf(ctx, tx, of.engine, rows) }); err != nil || len(rows) < deadBatch {
			return err
		}
	}
}

type openRecord struct {
	rowKey string
	job    ID
	at     time.Time
}

// resolveStrayOf resolves those of an engine's Pending records that are stray.
func (s *Store) resolveStrayOf(ctx context.Context, tx *sql.Tx, engine string, rows []openRecord) error {
	jobs := make([]ID, len(rows))
	for i, r := range rows {
		jobs[i] = r.job
	}
	slices.SortFunc(jobs, func(a, b ID) int { return slices.Compare(a[:], b[:]) })
	dead, err := lockJobs(ctx, tx, jobs, StatusDead)
	if err != nil {
		return err
	}
	args := []any{noteNotDead, engine}
	for _, r := range rows {
		if j, ok := dead[r.job]; !ok || deathRowKey(j.id, j.at) != r.rowKey {
			args = append(args, r.rowKey)
		}
	}
	if len(args) == 2 {
		return nil
	}
	_, err = tx.ExecContext(ctx, `UPDATE `+s.tables.dlq+` FORCE INDEX (PRIMARY) SET Status = 'Resolved', ResolutionNotes = ?, ResolvedBy = 'repair',
		ResolvedAtUtc = NOW(6) WHERE PartitionKey = ? AND Status = 'Pending' AND RowKey IN (`+placeholders("?", len(args)-2)+`)`, args...)
	return err
}

// DeadLetterDrift compares a consumer's dead jobs with their Pending records in one statement: missing are dead jobs
// without one, stray are records without a dead job. Anything but 0 means that somebody wrote to job past this package;
// RepairDeadCount mends it. It reads all of the consumer's dead jobs and Pending records, of an engine all that are
// Pending. A consumer that is gone has neither.
func (s *Store) DeadLetterDrift(ctx context.Context, consumerKey uint32) (missing, stray int64, err error) {
	of, err := ownerOf(ctx, s.db, consumerKey)
	if errors.Is(err, ErrNotFound) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, err
	}
	index, where, args := openOf(of)
	err = s.db.QueryRowContext(ctx, `SELECT
		(SELECT COUNT(*) FROM job j FORCE INDEX (changed) WHERE j.consumerId = ? AND j.status = 1004 AND NOT EXISTS
			(SELECT 1 FROM `+s.tables.dlq+` d FORCE INDEX (PRIMARY) WHERE d.PartitionKey = ? AND d.Status = 'Pending'
				AND d.RowKey = CONCAT(`+xidSQL("j.id")+`, '-', `+rowKeyTimeSQL("j.statusChangedAt")+`))),
		(SELECT COUNT(*) FROM `+s.tables.dlq+` d FORCE INDEX (`+index+`)
			LEFT JOIN job j ON j.id = d.JobId AND j.status = 1004 AND j.statusChangedAt = d.LastFailureAtUtc
			WHERE `+where+` AND j.id IS NULL)`, append([]any{consumerKey, of.engine}, args...)...).Scan(&missing, &stray)
	return missing, stray, err
}

func idsOf(jobs []deadRow) []ID {
	ids := make([]ID, len(jobs))
	for i, j := range jobs {
		ids[i] = j.id
	}
	return ids
}
