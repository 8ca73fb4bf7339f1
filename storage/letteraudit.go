package storage

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"time"
)

// letterChunk is how many dead jobs or dead letters one statement of an audit reads: some milliseconds. One statement
// over all of a million took 7 s, and a snapshot that is held so long holds up purge.
const letterChunk = 2000

// LetterDrift is where a consumer's dead jobs and its Pending dead letters differ.
type LetterDrift struct {
	Missing int64 // dead jobs without a Pending dead letter
	Stray   int64 // Pending dead letters without their dead job
}

// AuditDeadLetters finds what DeadLetterDrift finds, in many short statements, while jobs die and come back. It reads
// the index entries of all of the consumer's dead jobs and of the Pending dead letters of all consumers of its id, some
// 2 s for a million of each, and looks again at those that do not match: one that is reported had no counterpart
// in one snapshot. A consumer that is gone has no drift.
func (s *Store) AuditDeadLetters(ctx context.Context, consumerKey uint32) (LetterDrift, error) {
	of, err := ownerOf(ctx, s.db, consumerKey)
	if errors.Is(err, ErrNotFound) {
		return LetterDrift{}, nil
	}
	if err != nil {
		return LetterDrift{}, err
	}
	a := letterAudit{s: s, consumerKey: consumerKey, of: of}
	if err := a.merge(ctx); err != nil {
		return LetterDrift{}, err
	}
	return a.found, nil
}

// death is one as a job or as a dead letter tells of it.
type death struct {
	at     time.Time
	rowKey string
	job    ID // not of a dead letter
}

func (d *death) compare(o *death) int {
	return cmp.Or(d.at.Compare(o.at), cmp.Compare(d.rowKey, o.rowKey))
}

// deathReader reads deaths a chunk at a time.
type deathReader struct {
	read  func(ctx context.Context, after death) ([]death, error)
	chunk []death
	last  death
	ended bool // the latest chunk was not full
}

// peek is the next death, nil at the end.
func (r *deathReader) peek(ctx context.Context) (*death, error) {
	if len(r.chunk) == 0 && !r.ended {
		if r.last.at.IsZero() {
			r.last.at = time.Unix(0, 0).UTC()
		}
		var err error
		if r.chunk, err = r.read(ctx, r.last); err != nil {
			return nil, err
		}
		if r.ended = len(r.chunk) < letterChunk; len(r.chunk) > 0 {
			r.last = r.chunk[len(r.chunk)-1]
		}
	}
	if len(r.chunk) == 0 {
		return nil, nil
	}
	return &r.chunk[0], nil
}

// take goes on after what peek saw, and returns it.
func (r *deathReader) take() death {
	d := r.chunk[0]
	r.chunk = r.chunk[1:]
	return d
}

// letterAudit is an audit of one consumer.
type letterAudit struct {
	s           *Store
	consumerKey uint32
	of          owner
	found       LetterDrift

	// What has no counterpart in a chunk that was read at another time; less than a chunk of each.
	unmatchedJobs, unmatchedLetters []death
}

// merge walks over jobs and dead letters side by side. Both come in the order of time and row key: ids are written so
// that their text and their bytes have one order.
func (a *letterAudit) merge(ctx context.Context) error {
	jobs, letters := deathReader{read: a.jobs}, deathReader{read: a.letters}
	for {
		j, err := jobs.peek(ctx)
		if err != nil {
			return err
		}
		l, err := letters.peek(ctx)
		if err != nil {
			return err
		}
		switch {
		case j == nil && l == nil:
			return errOr(a.checkJobs(ctx), a.checkLetters(ctx))
		case l == nil || j != nil && j.compare(l) < 0:
			if a.unmatchedJobs = append(a.unmatchedJobs, jobs.take()); len(a.unmatchedJobs) == letterChunk {
				err = a.checkJobs(ctx)
			}
		case j == nil || j.compare(l) > 0:
			if a.unmatchedLetters = append(a.unmatchedLetters, letters.take()); len(a.unmatchedLetters) == letterChunk {
				err = a.checkLetters(ctx)
			}
		default:
			jobs.take()
			letters.take()
		}
		if err != nil {
			return err
		}
	}
}

func (a *letterAudit) jobs(ctx context.Context, after death) ([]death, error) {
	return collect(ctx, a.s.db, func(rows *sql.Rows) (d death, err error) {
		err = rows.Scan(&d.job, &d.at)
		d.rowKey = deathRowKey(d.job, d.at)
		return d, err
	}, `SELECT id, statusChangedAt FROM job FORCE INDEX (changed)
		WHERE consumerId = ? AND status = 1004 AND statusChangedAt >= ? AND (statusChangedAt > ? OR id > ?)
		ORDER BY statusChangedAt, id LIMIT ?`, a.consumerKey, after.at, after.at, after.job, letterChunk)
}

// letters are also those of other channels' consumers of this id, and of an engine what came from outside: the keys do not
// hold the channel, and a chunk that looked for one channel's alone might have to read all.
func (a *letterAudit) letters(ctx context.Context, after death) ([]death, error) {
	index, where, args := `latest`, ``, []any{}
	if a.of.engine == EngineDelivery {
		index, where, args = `instance`, `InstanceId = ? AND `, []any{a.of.id}
	}
	return collect(ctx, a.s.db, func(rows *sql.Rows) (d death, err error) { return d, rows.Scan(&d.at, &d.rowKey) },
		`SELECT LastFailureAtUtc, RowKey FROM `+a.s.tables.dlq+` FORCE INDEX (`+index+`)
		WHERE `+where+`PartitionKey = ? AND Status = 'Pending' AND LastFailureAtUtc >= ? AND (LastFailureAtUtc > ? OR RowKey > ?)
		ORDER BY LastFailureAtUtc, RowKey LIMIT ?`, append(args, a.of.engine, after.at, after.at, after.rowKey, letterChunk)...)
}

// rowKeyOfJob is SQL for the row key of the dead letter of job j.
var rowKeyOfJob = `CONCAT(` + xidSQL("j.id") + `, '-', ` + rowKeyTimeSQL("j.statusChangedAt") + `)`

// checkJobs counts the unmatched jobs that are dead and have no Pending dead letter, in one statement.
func (a *letterAudit) checkJobs(ctx context.Context) error {
	if len(a.unmatchedJobs) == 0 {
		return nil
	}
	args := make([]any, 0, len(a.unmatchedJobs)+2)
	for _, d := range a.unmatchedJobs {
		args = append(args, d.job)
	}
	a.unmatchedJobs = a.unmatchedJobs[:0]
	var n int64
	err := a.s.db.QueryRowContext(ctx, `SELECT COUNT(*) FROM job j FORCE INDEX (PRIMARY)
		WHERE j.id IN (`+placeholders("?", len(args))+`) AND j.consumerId = ? AND j.status = 1004 AND NOT EXISTS (SELECT 1 FROM `+a.s.tables.dlq+` d FORCE INDEX (PRIMARY)
			WHERE d.PartitionKey = ? AND d.Status = 'Pending' AND d.RowKey = `+rowKeyOfJob+`)`, append(args, a.consumerKey, a.of.engine)...).Scan(&n)
	a.found.Missing += n
	return err
}

// checkLetters counts the unmatched dead letters of this channel that are Pending and whose job is not dead, or died
// another time, in one statement.
func (a *letterAudit) checkLetters(ctx context.Context) error {
	if len(a.unmatchedLetters) == 0 {
		return nil
	}
	args := make([]any, 0, len(a.unmatchedLetters)+3)
	args = append(args, a.of.engine)
	for _, d := range a.unmatchedLetters {
		args = append(args, d.rowKey)
	}
	a.unmatchedLetters = a.unmatchedLetters[:0]
	var n int64
	err := a.s.db.QueryRowContext(ctx, `SELECT COUNT(*) FROM `+a.s.tables.dlq+` d FORCE INDEX (PRIMARY)
		WHERE d.PartitionKey = ? AND d.RowKey IN (`+placeholders("?", len(args)-1)+`) AND d.Status = 'Pending' AND d.OriginalQueue = ? AND d.JobId IS NOT NULL
			AND NOT EXISTS (SELECT 1 FROM job j FORCE INDEX (PRIMARY) WHERE j.id = d.JobId AND j.consumerId = ? AND j.status = 1004 AND d.RowKey = `+rowKeyOfJob+`)`,
		append(args, a.of.channelID, a.consumerKey)...).Scan(&n)
	a.found.Stray += n
	return err
}
