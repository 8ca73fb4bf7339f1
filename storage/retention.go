package storage

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"
)

// PruneDeadLetters deletes up to limit dead letters that were Resolved longer than olderThan ago, or are Expired and last
// failed longer ago than that, with the shelved jobs of theirs, in one transaction, and tells whether there may be more. Pending
// ones stay. A dry run returns how many it would delete, of up to limit.
func (s *Store) PruneDeadLetters(ctx context.Context, olderThan time.Duration, limit int, dryRun bool) (n int64, more bool, err error) {
	engines, err := s.enginesOf(ctx, s.db, "", "")
	if err != nil || len(engines) == 0 {
		return 0, false, err
	}
	probes := []string{`(SELECT PartitionKey, RowKey, JobId FROM ` + s.tables.dlq + ` FORCE INDEX (ended)
		WHERE Status = 'Resolved' AND ResolvedAtUtc < NOW(6) - INTERVAL ? MICROSECOND ORDER BY ResolvedAtUtc LIMIT ?)`}
	args := []any{micros(olderThan), limit}
	for _, e := range engines {
		probes = append(probes, `(SELECT PartitionKey, RowKey, JobId FROM `+s.tables.dlq+` FORCE INDEX (latest)
			WHERE PartitionKey = ? AND Status = 'Expired' AND LastFailureAtUtc < NOW(6) - INTERVAL ? MICROSECOND ORDER BY LastFailureAtUtc, RowKey LIMIT ?)`)
		args = append(args, e, micros(olderThan), limit)
	}
	err = s.inTurn(ctx, func(tx *sql.Tx) error {
		n = 0
		old, err := collect(ctx, tx, scanLetterRef, strings.Join(probes, ` UNION ALL `)+` LIMIT ?`, append(args, limit)...)
		if more = len(old) == limit; err != nil || len(old) == 0 {
			return err
		}
		if dryRun {
			n = int64(len(old))
			return nil
		}
		n, err = s.deleteLetters(ctx, tx, olderThan, old)
		return err
	})
	return n, more, err
}

// deleteLetters deletes those of the dead letters that are as old as they were when they were chosen: one that was
// retried meanwhile is Resolved anew. A shelved job goes with the dead letter that shelved it.
func (s *Store) deleteLetters(ctx context.Context, tx *sql.Tx, olderThan time.Duration, old []letterRef) (int64, error) {
	shelved, err := lockJobs(ctx, tx, jobsOf(old), StatusShelved) // of records that tell of a job's death alone
	if err != nil {
		return 0, err
	}
	type letter struct {
		letterRef
		resolvedAt time.Time
	}
	args := []any{micros(olderThan), micros(olderThan)}
	for _, r := range old {
		args = append(args, r.engine, r.rowKey)
	}
	const key = `PartitionKey = ? AND RowKey = ?`
	rows, err := collect(ctx, tx, func(rows *sql.Rows) (l letter, err error) {
		var job []byte
		if err := rows.Scan(&l.engine, &l.rowKey, &job, &l.resolvedAt); err != nil || job == nil {
			return l, err
		}
		return l, l.job.Scan(job)
	}, `SELECT PartitionKey, RowKey, JobId, ResolvedAtUtc FROM `+s.tables.dlq+` FORCE INDEX (PRIMARY)
		WHERE (Status = 'Resolved' AND ResolvedAtUtc < NOW(6) - INTERVAL ? MICROSECOND OR Status = 'Expired' AND LastFailureAtUtc < NOW(6) - INTERVAL ? MICROSECOND)
			AND (`+alternatives(key, len(old))+`) FOR UPDATE`, args...)
	if err != nil || len(rows) == 0 {
		return 0, err
	}
	counts := tallies{}
	var jobs []ID
	args = nil
	for _, r := range rows {
		args = append(args, r.engine, r.rowKey)
		if j, ok := shelved[r.job]; ok && j.at.Equal(r.resolvedAt) {
			jobs = append(jobs, r.job)
			counts.add(tallyJobs, j.consumer, -1)
			counts.add(tallyShelved, j.consumer, -1)
		}
	}
	if len(jobs) > 0 {
		if _, err := tx.ExecContext(ctx, `DELETE FROM job WHERE id IN (`+placeholders("?", len(jobs))+`) AND status = 1005`, anyIDs(jobs)...); err != nil {
			return 0, err
		}
	}
	n, err := affected(ctx, tx, `DELETE FROM `+s.tables.dlq+` WHERE `+alternatives(key, len(rows)), args...)
	if err != nil {
		return 0, err
	}
	return n, counts.write(ctx, tx, 0)
}

// partition is a day, or what is older, of the history.
type partition struct {
	name string
	end  time.Time // exclusive
	rows int64     // the server's estimate
}

// The partition for what no day was split off for yet.
const lastPartition = "pmax"

// historyPartitions lists them in the order of time, the one without an end left out.
func (s *Store) historyPartitions(ctx context.Context) ([]partition, error) {
	return collect(ctx, s.db, func(rows *sql.Rows) (p partition, err error) {
		var end string
		if err := rows.Scan(&p.name, &end, &p.rows); err != nil {
			return p, err
		}
		end = strings.Trim(end, "'")
		if p.end, err = time.Parse(time.DateTime, end[:min(len(end), len(time.DateTime))]); err != nil {
			return p, fmt.Errorf("partition %s of the history: %w", p.name, err)
		}
		return p, nil
	}, `SELECT PARTITION_NAME, PARTITION_DESCRIPTION, TABLE_ROWS FROM information_schema.PARTITIONS
		WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ? AND PARTITION_NAME <> ? ORDER BY PARTITION_ORDINAL_POSITION`,
		strings.Trim(s.tables.history, "`"), lastPartition)
}

// EnsureHistoryPartitions makes a partition for each day up to daysAhead days from now, by the database's clock. Called
// once a day or oftener it moves no rows; where it was not called for a while, what was stored since moves into them.
func (s *Store) EnsureHistoryPartitions(ctx context.Context, daysAhead int) error {
	have, err := s.historyPartitions(ctx)
	if err != nil {
		return err
	}
	var now time.Time
	if err := s.db.QueryRowContext(ctx, `SELECT NOW(6)`).Scan(&now); err != nil {
		return err
	}
	// The first one takes in all that is older than its day.
	from := now.Truncate(day)
	if len(have) > 0 && have[len(have)-1].end.After(from) {
		from = have[len(have)-1].end
	}
	var parts []string
	for d := from; !d.After(now.Add(time.Duration(daysAhead) * day)); d = d.Add(day) {
		parts = append(parts, `PARTITION p`+d.Format("20060102")+` VALUES LESS THAN ('`+d.Add(day).Format(time.DateTime)+`')`)
	}
	if len(parts) == 0 {
		return nil
	}
	_, err = s.db.ExecContext(ctx, `ALTER TABLE `+s.tables.history+` REORGANIZE PARTITION `+lastPartition+` INTO (`+
		strings.Join(parts, `, `)+`, PARTITION `+lastPartition+` VALUES LESS THAN (MAXVALUE))`)
	if mysqlErrno(err) == errSamePartition {
		return nil // another instance did it at the same time
	}
	return err
}

const errSamePartition = 1517

// countUpTo is the number of rows, by the server's estimate, up to which a partition is counted before it is dropped.
const countUpTo = 1_000_000

// DropHistoryPartitions drops the partitions that hold nothing from before on, and returns their names and how many
// entries they had: the number of those that have up to about a million, the server's estimate of others. A dry run
// drops nothing. An error leaves those dropped that are returned.
func (s *Store) DropHistoryPartitions(ctx context.Context, before time.Time, dryRun bool) (dropped []string, rows int64, err error) {
	have, err := s.historyPartitions(ctx)
	if err != nil {
		return nil, 0, err
	}
	for _, p := range have {
		if p.end.After(before) {
			break
		}
		n := p.rows
		if n < countUpTo {
			if err := s.db.QueryRowContext(ctx, `SELECT COUNT(*) FROM `+s.tables.history+` PARTITION (`+p.name+`)`).Scan(&n); err != nil {
				return dropped, rows, err
			}
		}
		if !dryRun {
			if _, err := s.db.ExecContext(ctx, `ALTER TABLE `+s.tables.history+` DROP PARTITION `+p.name); err != nil {
				return dropped, rows, err
			}
		}
		dropped, rows = append(dropped, p.name), rows+n
	}
	return dropped, rows, nil
}
