package storage

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"slices"
	"time"
)

// AddDeadLetter stores a dead letter of an engine outside the broker, unless it is there: created is false where its
// engine and row key are taken, and where, without a row key, the engine has one of the same correlation id and time of
// the last failure. Without a row key it gets {InstanceID}-{LastFailureAt}. It is Pending, whatever d says. Texts that are too
// long are errors of the database. ErrReservedEngine.
func (s *Store) AddDeadLetter(ctx context.Context, d DeadLetter) (created bool, err error) {
	if d.Engine == EngineDelivery {
		return false, ErrReservedEngine
	}
	if d.RowKey != "" {
		return s.insertLetter(ctx, s.db, d)
	}
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		created = false
		at := d.LastFailureAt.UTC()
		var there bool
		const same = `SELECT 1 FROM `
		probe := func(status DLQStatus) string {
			return `EXISTS (` + same + s.tables.dlq + ` FORCE INDEX (latest) WHERE PartitionKey = ? AND Status = '` + string(status) + `' AND LastFailureAtUtc = ? AND CorrelationId = ?)`
		}
		err := tx.QueryRowContext(ctx, `SELECT `+probe(DLQPending)+` OR `+probe(DLQResolved)+` OR `+probe(DLQExpired),
			d.Engine, at, d.CorrelationID, d.Engine, at, d.CorrelationID, d.Engine, at, d.CorrelationID).Scan(&there)
		if err != nil || there {
			return err
		}
		letter := d
		letter.RowKey = d.InstanceID + "-" + at.Format(rowKeyTime)
		if created, err = s.insertLetter(ctx, tx, letter); err != nil || created {
			return err
		}
		// The same failure has it, if another call was faster, or another one of the instance in the same microsecond.
		err = tx.QueryRowContext(ctx, `SELECT CorrelationId = ? AND LastFailureAtUtc = ? FROM `+s.tables.dlq+` WHERE PartitionKey = ? AND RowKey = ?`,
			d.CorrelationID, at, d.Engine, letter.RowKey).Scan(&there)
		if err != nil || there {
			return err
		}
		unique := sha256.Sum256([]byte(d.CorrelationID))
		letter.RowKey += "-" + hex.EncodeToString(unique[:4])
		created, err = s.insertLetter(ctx, tx, letter)
		return err
	})
	return created, err
}

func (s *Store) insertLetter(ctx context.Context, q querier, d DeadLetter) (created bool, err error) {
	var message sql.NullString
	if d.OriginalMessage != nil {
		message = sql.NullString{String: string(d.OriginalMessage), Valid: true}
	}
	n, err := affected(ctx, q, `INSERT INTO `+s.tables.dlq+` (PartitionKey, RowKey, InstanceId, OriginalQueue, OriginalMessage, ErrorMessage, DequeueCount,
		FirstFailureAtUtc, LastFailureAtUtc, Status, CorrelationId) VALUES (?,?,?,?,?,?,?,?,?,'Pending',?) ON DUPLICATE KEY UPDATE DequeueCount = DequeueCount`,
		d.Engine, d.RowKey, d.InstanceID, d.OriginalQueue, message, d.ErrorMessage, d.DequeueCount, d.FirstFailureAt.UTC(), d.LastFailureAt.UTC(), d.CorrelationID)
	return n > 0, err
}

// heldLetter is a dead letter under lock, with its job where it has one that may be retried.
type heldLetter struct {
	*DeadLetter
	now      time.Time // of the database
	status   Status    // of the job: DEAD or SHELVED because of this very dead letter; 0: neither
	consumer uint32
	deadRow  // of the job
}

// holdLetter locks a dead letter's job and then the dead letter.
func (s *Store) holdLetter(ctx context.Context, tx *sql.Tx, engine, rowKey string) (*heldLetter, error) {
	d, err := s.letterFrom(ctx, tx, engine, rowKey, "")
	if err != nil {
		return nil, err
	}
	h := heldLetter{deadRow: deadRow{id: d.Job}}
	if tellsOf(rowKey, d.Job) {
		err = tx.QueryRowContext(ctx, `SELECT status, consumerId, statusChangedAt, dlqCounted FROM job WHERE id = ? FOR UPDATE`, d.Job).
			Scan(&h.status, &h.consumer, &h.at, &h.counted)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return nil, err
		}
	}
	if h.DeadLetter, err = s.letterFrom(ctx, tx, engine, rowKey, ` FOR UPDATE`); err != nil {
		return nil, err
	}
	dead := h.status == StatusDead && h.Status == DLQPending && deathRowKey(h.id, h.at) == rowKey
	shelved := h.status == StatusShelved && h.Status != DLQPending && h.ResolvedAt != nil && h.ResolvedAt.Equal(h.at)
	if !dead && !shelved {
		h.status = 0
	}
	return &h, tx.QueryRowContext(ctx, `SELECT NOW(6)`).Scan(&h.now)
}

// closeLetter gives a dead letter that is held its new state.
func (s *Store) closeLetter(ctx context.Context, tx *sql.Tx, h *heldLetter) error {
	var queueMessage, job any
	if h.QueueMessageID != "" {
		queueMessage = h.QueueMessageID
	}
	if !h.Job.IsZero() {
		job = h.Job
	}
	h.ResolvedAt = &h.now
	return guarded(affected(ctx, tx, `UPDATE `+s.tables.dlq+` SET Status = ?, ResolutionNotes = NULLIF(?, ''), ResolvedBy = ?, ResolvedAtUtc = ?, QueueMessageId = ?, JobId = ?
		WHERE PartitionKey = ? AND RowKey = ?`, h.Status, h.ResolutionNotes, h.ResolvedBy, h.now, queueMessage, job, h.Engine, h.RowKey))
}

func (h *heldLetter) operation(name, by string, began stopwatch) operation {
	return operation{engine: h.Engine, instance: h.InstanceID, name: name, by: by, rowKey: h.RowKey, job: h.Job, correlationID: h.CorrelationID, count: 1, began: began}
}

// ResolveDeadLetter resolves or expires a dead letter that is Pending. A job whose death it tells of is SHELVED with it: it is not
// dead any more, and a retry can still bring it back. ErrNotFound; ErrBadResolution where it is not Pending, or r.Status
// is neither Resolved nor Expired.
func (s *Store) ResolveDeadLetter(ctx context.Context, engine, rowKey string, r Resolution) (*DeadLetter, error) {
	name, known := map[DLQStatus]string{DLQResolved: opResolve, DLQExpired: opExpire}[r.Status]
	if !known {
		return nil, ErrBadResolution
	}
	began := newStopwatch()
	var out *DeadLetter
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		h, err := s.holdLetter(ctx, tx, engine, rowKey)
		if err != nil {
			return err
		}
		if h.Status != DLQPending {
			return ErrBadResolution
		}
		h.Status, h.ResolutionNotes, h.ResolvedBy = r.Status, r.Notes, r.By
		if h.status == StatusDead {
			if err := shelve(ctx, tx, []ID{h.id}, h.now); err != nil {
				return err
			}
		}
		if err := s.closeLetter(ctx, tx, h); err != nil {
			return err
		}
		out = h.DeadLetter
		if err := s.recordOperation(ctx, tx, h.operation(name, r.By, began)); err != nil || h.status != StatusDead {
			return err
		}
		return tallyShelving(ctx, tx, map[uint32]shelving{h.consumer: {1, h.counted}})
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// shelve sets locked dead jobs aside. The time is the one at which their records are resolved: by it they belong together.
func shelve(ctx context.Context, tx *sql.Tx, ids []ID, at time.Time) error {
	n, err := affected(ctx, tx, `UPDATE job SET status = 1005, statusChangedAt = ?, dueAt = NULL, leaseOwner = NULL, dlqCounted = 0
		WHERE id IN (`+placeholders("?", len(ids))+`) AND status = 1004`, append([]any{at}, anyIDs(ids)...)...)
	if err == nil && n != int64(len(ids)) {
		return errors.New("dead jobs changed under their lock")
	}
	return err
}

// shelving is how many jobs of a consumer were shelved, and how many of them were in dead_count.
type shelving struct{ jobs, counted int64 }

func tallyShelving(ctx context.Context, tx *sql.Tx, of map[uint32]shelving) error {
	counts := tallies{}
	keys := make([]uint32, 0, len(of))
	for k := range of {
		keys = append(keys, k)
	}
	slices.Sort(keys) // one order for all who lock several summaries
	for _, k := range keys {
		if err := uncount(ctx, tx, k, of[k].counted); err != nil {
			return err
		}
		counts.add(tallyShelved, k, of[k].jobs)
	}
	return counts.write(ctx, tx, 0)
}

// RetryDeadLetter sends what died back to its queue and resolves the dead letter, "Retried". A job of this broker, dead or
// shelved, is QUEUED again under its own id. Of a dead letter from outside a new message is broadcast to the channel that
// OriginalQueue names, with OriginalMessage as its body; ErrNoQueue where there is no such channel. A dead letter that was
// retried before is left as it is: Again is false. ErrNotFound; ErrJobGone. by is at most 255 characters.
func (s *Store) RetryDeadLetter(ctx context.Context, engine, rowKey, by string) (Retried, error) {
	cat, err := s.Catalog(ctx)
	if err != nil {
		return Retried{}, err
	}
	began := newStopwatch()
	var out Retried
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		h, err := s.holdLetter(ctx, tx, engine, rowKey)
		if err != nil {
			return err
		}
		out = Retried{Job: h.Job, QueueMessageID: h.QueueMessageID, ConsumerKey: h.consumer}
		if h.QueueMessageID != "" {
			return nil
		}
		h.QueueMessageID = NewID().String()
		from := h.status
		var msg *NewMessage
		switch {
		case engine != EngineDelivery && !tellsOf(rowKey, h.Job):
			if msg, err = jsonMessage(cat, h.OriginalQueue, "", h.OriginalMessage); err != nil {
				return err
			}
			h.QueueMessageID = msg.Key.String()
			if len(msg.Jobs) > 0 {
				h.Job, out.ConsumerKey = msg.Jobs[0].ID, msg.Jobs[0].ConsumerKey
			}
		case from == 0:
			return ErrJobGone
		default:
			if err := guarded(affected(ctx, tx, `UPDATE job SET `+freshAgain+` WHERE id = ? AND status = ?`, h.id, from)); err != nil {
				return err
			}
		}
		h.Status, h.ResolutionNotes, h.ResolvedBy = DLQResolved, noteRetried, by
		out.Again, out.Job, out.QueueMessageID = true, h.Job, h.QueueMessageID
		if err := s.closeLetter(ctx, tx, h); err != nil {
			return err
		}
		if err := s.recordOperation(ctx, tx, h.operation(opRequeue, by, began)); err != nil {
			return err
		}
		switch {
		case msg != nil:
			return storeMessage(ctx, tx, msg)
		case from == StatusShelved:
			return tallyShelving(ctx, tx, map[uint32]shelving{h.consumer: {-1, 0}})
		}
		return uncount(ctx, tx, h.consumer, h.counted)
	})
	if err != nil {
		return Retried{}, err
	}
	return out, nil
}

// ExpireDeadLetters expires the dead letters that are Pending and whose last failure is longer ago than olderThan, of one
// engine or, where engine is empty, of all, as ResolveDeadLetter does, and returns how many. It works in batches of a
// transaction each; an error leaves what was committed. by is at most 255 characters.
func (s *Store) ExpireDeadLetters(ctx context.Context, olderThan time.Duration, engine, by string) (int64, error) {
	began := newStopwatch()
	engines, err := s.enginesOf(ctx, s.db, engine, "")
	if err != nil {
		return 0, err
	}
	var total int64
	for _, e := range engines {
		op := operation{engine: e, name: opExpire, by: by, began: began}
		n := int64(0)
		for err == nil {
			var read int
			var expired int64
			if read, expired, err = s.expireBatch(ctx, olderThan, e, by); err == nil {
				n += expired
			}
			if read < deadBatch {
				break
			}
		}
		total += n
		if err = s.recordBatches(ctx, op, n, err); err != nil {
			return total, err
		}
	}
	return total, nil
}

// expireBatch is one transaction of ExpireDeadLetters, over the longest dead.
func (s *Store) expireBatch(ctx context.Context, olderThan time.Duration, engine, by string) (read int, expired int64, err error) {
	err = s.inTurn(ctx, func(tx *sql.Tx) error {
		read, expired = 0, 0
		var now time.Time
		if err := tx.QueryRowContext(ctx, `SELECT NOW(6)`).Scan(&now); err != nil {
			return err
		}
		old, err := collect(ctx, tx, scanLetterRef, `SELECT PartitionKey, RowKey, JobId FROM `+s.tables.dlq+` FORCE INDEX (latest)
			WHERE PartitionKey = ? AND Status = 'Pending' AND LastFailureAtUtc < ? - INTERVAL ? MICROSECOND ORDER BY LastFailureAtUtc, RowKey LIMIT ?`,
			engine, now, micros(olderThan), deadBatch)
		if err != nil || len(old) == 0 {
			return err
		}
		read = len(old)
		dead, err := lockJobs(ctx, tx, jobsOf(old), StatusDead)
		if err != nil {
			return err
		}
		args := []any{by, now, engine}
		for _, r := range old {
			args = append(args, r.rowKey)
		}
		in := `PartitionKey = ? AND RowKey IN (` + placeholders("?", len(old)) + `) AND Status = 'Pending'`
		// Locked, so that those that are Pending still are the ones that are updated.
		open, err := collect(ctx, tx, scanLetterRef, `SELECT PartitionKey, RowKey, JobId FROM `+s.tables.dlq+` FORCE INDEX (PRIMARY) WHERE `+in+` FOR UPDATE`, args[2:]...)
		if err != nil || len(open) == 0 {
			return err
		}
		shelved := map[uint32]shelving{}
		var ids []ID
		for _, r := range open {
			if j, ok := dead[r.job]; ok && deathRowKey(r.job, j.at) == r.rowKey {
				ids = append(ids, r.job)
				sh := shelved[j.consumer]
				shelved[j.consumer] = shelving{sh.jobs + 1, sh.counted + j.counted}
			}
		}
		if len(ids) > 0 {
			if err := shelve(ctx, tx, ids, now); err != nil {
				return err
			}
		}
		if expired, err = affected(ctx, tx, `UPDATE `+s.tables.dlq+` FORCE INDEX (PRIMARY) SET Status = 'Expired', ResolvedBy = ?, ResolvedAtUtc = ? WHERE `+in, args...); err != nil {
			return err
		}
		return tallyShelving(ctx, tx, shelved)
	})
	return read, expired, err
}

// letterRef names a dead letter and its job, which may be none.
type letterRef struct {
	engine, rowKey string
	job            ID
}

func scanLetterRef(rows *sql.Rows) (r letterRef, err error) {
	var job []byte
	if err := rows.Scan(&r.engine, &r.rowKey, &job); err != nil || job == nil {
		return r, err
	}
	return r, r.job.Scan(job)
}

// jobsOf are the jobs whose deaths the dead letters tell of.
func jobsOf(letters []letterRef) []ID {
	var ids []ID
	for _, r := range letters {
		if tellsOf(r.rowKey, r.job) {
			ids = append(ids, r.job)
		}
	}
	return ids
}

type lockedJob struct {
	deadRow
	consumer uint32
}

// lockJobs locks those of the jobs that have the status.
func lockJobs(ctx context.Context, tx *sql.Tx, ids []ID, status Status) (map[ID]lockedJob, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	rows, err := collect(ctx, tx, func(rows *sql.Rows) (j lockedJob, err error) {
		return j, rows.Scan(&j.id, &j.at, &j.counted, &j.consumer)
	}, `SELECT id, statusChangedAt, dlqCounted, consumerId FROM job FORCE INDEX (PRIMARY)
		WHERE id IN (`+placeholders("?", len(ids))+`) AND status = ? ORDER BY id FOR UPDATE`, append(anyIDs(ids), status)...)
	out := make(map[ID]lockedJob, len(rows))
	for _, j := range rows {
		out[j.id] = j
	}
	return out, err
}
