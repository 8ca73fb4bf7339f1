package storage

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// A transaction that moves dead jobs takes at most so many: short enough not to hold up live traffic, long enough
// that a million takes a thousand commits.
const deadBatch = 1000

// DeadJobs lists a consumer's dead jobs, the latest death first. A cursor is a job's StatusChangedAt and ID.
func (s *Store) DeadJobs(ctx context.Context, consumerKey uint32, cur *Cursor, limit int) ([]Job, Paging, error) {
	k := newKeyset(cur, limit, "statusChangedAt", "id")
	rows, err := collect(ctx, s.db, scanJob, `SELECT `+jobColumns+`
		FROM (SELECT id FROM job FORCE INDEX (changed) WHERE consumerId = ? AND status = 1004`+k.where+`
			ORDER BY statusChangedAt`+k.dir+`, id`+k.dir+` LIMIT ?) d
		JOIN job j ON j.id = d.id JOIN message m ON m.id = j.messageId
		ORDER BY j.statusChangedAt`+k.dir+`, j.id`+k.dir, append(append([]any{consumerKey}, k.args...), k.limit)...)
	if err != nil {
		return nil, Paging{}, err
	}
	rows, paging := pageOf(cur, limit, rows)
	return rows, paging, nil
}

// RequeueOne brings a dead job back: QUEUED at once, with all its attempts before it. ErrNotFound, ErrNotDead. by is who
// did it, at most 255 characters.
func (s *Store) RequeueOne(ctx context.Context, consumerKey uint32, id ID, by string) error {
	return s.inTx(ctx, func(tx *sql.Tx) error {
		of, err := ownerOf(ctx, tx, consumerKey)
		if err != nil {
			return err
		}
		job := deadRow{id: id}
		var status Status
		op := of.operation(opRequeue, by)
		op.job, op.count = id, 1
		err = tx.QueryRowContext(ctx, `SELECT j.status, j.statusChangedAt, j.dlqCounted, COALESCE((SELECT m.messageId FROM message m WHERE m.id = j.messageId), '')
			FROM job j WHERE j.id = ? AND j.consumerId = ? FOR UPDATE`, id, consumerKey).Scan(&status, &job.at, &job.counted, &op.correlationID)
		if errors.Is(err, sql.ErrNoRows) {
			return ErrNotFound
		}
		if err != nil {
			return err
		}
		if status != StatusDead {
			return ErrNotDead
		}
		if _, err := s.requeue(ctx, tx, of, []deadRow{job}, by); err != nil {
			return err
		}
		return s.recordOperation(ctx, tx, op)
	})
}

// RequeueAll brings back every job of the consumer that is dead when it begins, in batches of a transaction each,
// the longest dead first, and returns how many. An error or a crash leaves what was committed, and the counts, right.
// Jobs that die again meanwhile are not brought back twice. by is as of RequeueOne. ErrNotFound where the consumer is
// gone.
func (s *Store) RequeueAll(ctx context.Context, consumerKey uint32, by string) (int64, error) {
	of, err := ownerOf(ctx, s.db, consumerKey)
	if err != nil {
		return 0, err
	}
	op := of.operation(opRequeue, by)
	n, err := s.eachDeadBatch(ctx, consumerKey, "", nil, func(tx *sql.Tx, jobs []deadRow) (int64, error) {
		return s.requeue(ctx, tx, of, jobs, by)
	})
	return n, s.recordBatches(ctx, op, n, err)
}

// PurgeOne deletes a dead job whose retries are exhausted; otherwise ErrNotFound. An engine's job that is dead has none
// left, whatever maxRetry says: how many it has is the engine's own business. by is as of RequeueOne.
func (s *Store) PurgeOne(ctx context.Context, consumerKey uint32, id ID, maxRetry int, by string) error {
	return s.inTx(ctx, func(tx *sql.Tx) error {
		of, err := ownerOf(ctx, tx, consumerKey)
		if err != nil {
			return err
		}
		job := deadRow{id: id}
		op := of.operation(opPurge, by)
		op.job, op.count = id, 1
		err = tx.QueryRowContext(ctx, `SELECT j.statusChangedAt, j.dlqCounted, COALESCE((SELECT m.messageId FROM message m WHERE m.id = j.messageId), '')
			FROM job j WHERE j.id = ? AND j.consumerId = ? AND j.status = 1004`+exhausted+` FOR UPDATE`,
			id, consumerKey, of.maxRetry(maxRetry)).Scan(&job.at, &job.counted, &op.correlationID)
		if errors.Is(err, sql.ErrNoRows) {
			return ErrNotFound
		}
		if err != nil {
			return err
		}
		if _, err := s.purge(ctx, tx, of, []deadRow{job}, by); err != nil {
			return err
		}
		return s.recordOperation(ctx, tx, op)
	})
}

// PurgeAll deletes every job of the consumer that is dead, with its retries exhausted (as of PurgeOne), when it begins, as
// RequeueAll brings them back.
func (s *Store) PurgeAll(ctx context.Context, consumerKey uint32, maxRetry int, by string) (int64, error) {
	of, err := ownerOf(ctx, s.db, consumerKey)
	if err != nil {
		return 0, err
	}
	op := of.operation(opPurge, by)
	n, err := s.eachDeadBatch(ctx, consumerKey, exhausted, []any{of.maxRetry(maxRetry)}, func(tx *sql.Tx, jobs []deadRow) (int64, error) {
		return s.purge(ctx, tx, of, jobs, by)
	})
	return n, s.recordBatches(ctx, op, n, err)
}

// exhausted is the condition under which a dead job may be deleted: its retries are used up, or its consumer said
// that no retry will help.
const exhausted = ` AND (retryAttemptCount >= ? OR noRetry = 1)`

// owner is the consumer whose jobs an operation is about.
type owner struct {
	key           uint32
	id, channelID string
	engine        string // of its jobs' dead letters and history
}

func ownerFrom(k *Consumer) owner { return owner{k.Key, k.ID, k.ChannelID, k.Engine()} }

// ownerOf reads it; ErrNotFound. What it says of a consumer never changes.
func ownerOf(ctx context.Context, q querier, consumerKey uint32) (owner, error) {
	k := Consumer{Key: consumerKey}
	err := q.QueryRowContext(ctx, `SELECT k.consumerId, k.type, ch.channelId FROM consumer k JOIN channel ch ON ch.id = k.channelId WHERE k.id = ?`, consumerKey).
		Scan(&k.ID, &k.Type, &k.ChannelID)
	if errors.Is(err, sql.ErrNoRows) {
		return owner{}, ErrNotFound
	}
	return ownerFrom(&k), err
}

func (o owner) operation(name, by string) operation {
	return operation{engine: o.engine, instance: o.id, name: name, by: by, began: newStopwatch()}
}

func (o owner) maxRetry(most int) int {
	if o.engine != EngineDelivery {
		return 0
	}
	return most
}

// eachDeadBatch walks over the consumer's jobs that are dead now, in the order of their deaths, and calls fn with
// each batch locked. The walk goes forward by (statusChangedAt, id) and ends at the latest death there was at its
// beginning.
func (s *Store) eachDeadBatch(ctx context.Context, consumerKey uint32, cond string, condArgs []any,
	fn func(tx *sql.Tx, jobs []deadRow) (int64, error)) (total int64, err error) {
	var last sql.NullTime
	if err := s.db.QueryRowContext(ctx, `SELECT MAX(statusChangedAt) FROM job WHERE consumerId = ? AND status = 1004`, consumerKey).Scan(&last); err != nil {
		return 0, err
	}
	if !last.Valid {
		return 0, nil
	}
	at, id := time.Unix(0, 0).UTC(), ID{}
	for {
		var batch []deadRow
		var moved int64
		err := s.inTurn(ctx, func(tx *sql.Tx) (err error) {
			moved = 0 // of an attempt that was rolled back
			args := append([]any{consumerKey, at, at, id, last.Time}, condArgs...)
			batch, err = collect(ctx, tx, scanDeadRow, `SELECT id, statusChangedAt, dlqCounted FROM job FORCE INDEX (changed)
				WHERE consumerId = ? AND status = 1004 AND statusChangedAt >= ? AND (statusChangedAt > ? OR id > ?) AND statusChangedAt <= ?`+cond+`
				ORDER BY statusChangedAt, id LIMIT ? FOR UPDATE`, append(args, deadBatch)...)
			if err != nil || len(batch) == 0 {
				return err
			}
			moved, err = fn(tx, batch)
			return err
		})
		if err != nil {
			return total, err
		}
		total += moved
		if len(batch) < deadBatch {
			return total, nil
		}
		at, id = batch[len(batch)-1].at, batch[len(batch)-1].id
	}
}

// deadRow is a dead job: when it died, and whether (0 or 1) it is in dead_count.
type deadRow struct {
	id      ID
	at      time.Time
	counted int64
}

func scanDeadRow(rows *sql.Rows) (r deadRow, err error) {
	return r, rows.Scan(&r.id, &r.at, &r.counted)
}

// requeue sends locked dead jobs back to QUEUED.
func (s *Store) requeue(ctx context.Context, tx *sql.Tx, of owner, jobs []deadRow, by string) (int64, error) {
	n, err := affected(ctx, tx, `UPDATE job SET `+freshAgain+` WHERE id IN (`+placeholders("?", len(jobs))+`) AND status = 1004`, anyIDs(idsOf(jobs))...)
	if err != nil {
		return 0, err
	}
	return n, s.leftDead(ctx, tx, of, jobs, n, noteRetried, by)
}

// freshAgain makes a job that was dead or shelved what it was when it was new.
const freshAgain = `status = 1001, statusChangedAt = NOW(6), dueAt = NULL, retryAttemptCount = 0, noRetry = 0,
	incrementalTimeout = 0, leaseOwner = NULL, firstFailedAt = NULL, dlqCounted = 0`

// purge deletes locked dead jobs.
func (s *Store) purge(ctx context.Context, tx *sql.Tx, of owner, jobs []deadRow, by string) (int64, error) {
	n, err := affected(ctx, tx, `DELETE FROM job WHERE id IN (`+placeholders("?", len(jobs))+`) AND status = 1004`, anyIDs(idsOf(jobs))...)
	if err != nil {
		return 0, err
	}
	if err := s.leftDead(ctx, tx, of, jobs, n, noteDeleted, by); err != nil {
		return 0, err
	}
	counts := tallies{}
	counts.add(tallyJobs, of.key, -n)
	return n, counts.write(ctx, tx, jobs[0].id[len(ID{})-1])
}

// leftDead closes the records of jobs that left DEAD and takes them out of the count. They were locked when they were
// chosen, so all of them moved; if not, the transaction is void.
func (s *Store) leftDead(ctx context.Context, tx *sql.Tx, of owner, jobs []deadRow, moved int64, note, by string) error {
	if moved != int64(len(jobs)) {
		return errors.New("dead jobs changed under their lock")
	}
	if _, err := s.closeRecords(ctx, tx, of.engine, jobs, note, by); err != nil {
		return err
	}
	counted := int64(0)
	for _, j := range jobs {
		counted += j.counted
	}
	return uncount(ctx, tx, of.key, counted)
}

// uncount lowers dead_count by jobs that were in it and are dead no more. Locks are taken in the order job,
// engineDlq, dlq_summary, tally.
func uncount(ctx context.Context, tx *sql.Tx, consumerKey uint32, counted int64) error {
	if counted == 0 {
		return nil
	}
	_, err := tx.ExecContext(ctx, `UPDATE dlq_summary SET dead_count = dead_count - ? WHERE consumerId = ?`, counted, consumerKey)
	return err
}
