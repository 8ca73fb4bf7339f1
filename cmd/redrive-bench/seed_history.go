package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
)

const (
	// historySpread is how long ago the oldest entry of a seeded history was made.
	historySpread = 30 * day
	// historyInstances are as many as a large installation has consumers.
	historyInstances = 200
	// historyCorrelated is how many entries share a correlation id.
	historyCorrelated = 5

	statusSucceeded = "Succeeded"
	statusFailed    = "Failed"

	day = 24 * time.Hour
	// partitionsWithin is how long the broker may take to make the partitions of the coming days.
	partitionsWithin = time.Minute
)

// historySpec says which history to put into the database.
type historySpec struct {
	Total    int
	Until    time.Time      // of the latest entry; the oldest is historySpread older
	Progress func(done int) // as of seedSpec
}

func (s historySpec) began() time.Time { return s.Until.UTC().Add(-historySpread) }

// entry is the i-th of a history of so many: seven of ten are deliveries, one of ten failed, the oldest comes first.
func (s historySpec) entry(i int) historyEntry {
	e := historyEntry{
		Engine: "delivery", Operation: "deliver", Status: statusSucceeded,
		InstanceID:    fmt.Sprintf("instance-%03d", i/10%historyInstances),
		CorrelationID: fmt.Sprintf("correlation-%09d", i/historyCorrelated),
		CreatedAt:     s.began().Add(time.Duration(float64(historySpread) * float64(i) / float64(s.Total))).Truncate(time.Microsecond),
	}
	switch i % 10 {
	case 7:
		e.Engine, e.Operation = "hmac", "rotate"
	case 8:
		e.Engine, e.Operation = "tls", "renew"
	case 9:
		e.Engine, e.Operation = "alerts", "process"
	}
	if i/7%10 == 0 {
		e.Status = statusFailed
	}
	return e
}

// latest are the entries that a list with this filter begins with, the latest first.
func (s historySpec) latest(filter url.Values, most int) (out []historyEntry) {
	for i := s.Total - 1; i >= 0 && len(out) < most; i-- {
		if e := s.entry(i); listed(e, filter) {
			out = append(out, e)
		}
	}
	return out
}

// SeedHistory inserts a history, into a partition a day as it would have come to be in as many days.
func (s *sqlStore) SeedHistory(ctx context.Context, spec historySpec) error {
	if err := s.splitHistory(ctx, spec.began()); err != nil {
		return err
	}
	err := s.seedParallel(ctx, spec.Total, spec.Progress, func(ctx context.Context, tx *sql.Tx, _, from, to int) error {
		rows := make([]any, 0, (to-from)*10)
		for i := from; i < to; i++ {
			e := spec.entry(i)
			failure := sql.NullString{String: "http_5xx: seeded", Valid: e.Status == statusFailed}
			rows = append(rows, e.Engine, fmt.Sprintf("%s-%s-%x", e.CorrelationID, e.CreatedAt.Format(deathTime), i), e.InstanceID, e.Operation, e.Status,
				i%1000, `{"statusCode":200,"retry":0,"answer":"thank you"}`, failure, e.CreatedAt, e.CorrelationID)
		}
		return insertRows(ctx, tx, `INSERT INTO engineHistory
			(PartitionKey, RowKey, InstanceId, Operation, Status, DurationMs, Output, Error, CreatedAtUtc, CorrelationId) VALUES `,
			`(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, to-from, rows)
	})
	if err != nil {
		return fmt.Errorf("seed %d history entries: %w", spec.Total, err)
	}
	return nil
}

// splitHistory makes the partitions of the days since then: those of a broker that was only just started begin today.
func (s *sqlStore) splitHistory(ctx context.Context, since time.Time) error {
	for deadline := time.Now().Add(partitionsWithin); ; {
		var name, end string
		err := s.db.QueryRowContext(ctx, `SELECT PARTITION_NAME, PARTITION_DESCRIPTION FROM information_schema.PARTITIONS
			WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'engineHistory' AND PARTITION_DESCRIPTION <> 'MAXVALUE'
			ORDER BY PARTITION_ORDINAL_POSITION LIMIT 1`).Scan(&name, &end)
		switch {
		case err == nil:
			return s.splitPartition(ctx, name, strings.Trim(end, "'"), since)
		case !errors.Is(err, sql.ErrNoRows):
			return err
		case time.Now().After(deadline):
			return fmt.Errorf("the broker made no partitions of the history within %v", partitionsWithin)
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// splitPartition splits days off the first partition, which holds all that is older than its end.
func (s *sqlStore) splitPartition(ctx context.Context, name, end string, since time.Time) error {
	last, err := time.Parse(time.DateTime, end[:min(len(end), len(time.DateTime))])
	if err != nil {
		return fmt.Errorf("partition %s of the history: %w", name, err)
	}
	var parts []string
	for d := since.Truncate(day); d.Before(last.Add(-day)); d = d.Add(day) {
		parts = append(parts, fmt.Sprintf(`PARTITION p%s VALUES LESS THAN ('%s')`, d.Format("20060102"), d.Add(day).Format(time.DateTime)))
	}
	if len(parts) == 0 {
		return nil // they are there
	}
	parts = append(parts, fmt.Sprintf(`PARTITION %s VALUES LESS THAN ('%s')`, name, last.Format(time.DateTime)))
	_, err = s.db.ExecContext(ctx, `ALTER TABLE engineHistory REORGANIZE PARTITION `+name+` INTO (`+strings.Join(parts, ", ")+`)`)
	return err
}

// HistoryRows counts the history entries that Seed made.
func (s *sqlStore) HistoryRows(ctx context.Context) (n int64, err error) {
	err = s.db.QueryRowContext(ctx, `SELECT COUNT(*) FROM engineHistory WHERE InstanceId LIKE 'instance-%'`).Scan(&n)
	return n, err
}
