package storage

import (
	"context"
	"database/sql"
	"slices"
	"time"
)

// DeadCount is the number of a consumer's dead jobs.
type DeadCount struct {
	ConsumerKey              uint32
	ChannelID, ChannelName   string
	ConsumerID, ConsumerName string
	Dead                     int64
	LastCheckedAt            *time.Time // the last counting cycle that covered it; nil: none yet
}

// DeadCounts is the truth of one instant.
type DeadCounts struct {
	Consumers     []DeadCount // of every consumer, in the order of channel and consumer id
	AsOf          time.Time   // the instant, by the database's clock
	LastCheckedAt *time.Time  // the last counting cycle; nil: none yet
	Uncounted     int64       // rows that the next cycle has to fold in
}

// DeadCounts reads what the counting cycles have added up, plus what they have not seen yet, in one statement and so
// of one snapshot: the number is exact whatever the counter has or has not done.
func (s *Store) DeadCounts(ctx context.Context) (DeadCounts, error) {
	var out DeadCounts
	rows, err := s.db.QueryContext(ctx, `SELECT c.id, ch.channelId, ch.name, c.consumerId, c.name,
			COALESCE(s.dead_count, 0) + COALESCE(d.delta, 0), COALESCE(d.uncounted, 0),
			NULLIF(s.last_checked_at, `+never+`), NOW(6)
		FROM consumer c
		JOIN channel ch ON ch.id = c.channelId
		LEFT JOIN dlq_summary s ON s.consumerId = c.id
		LEFT JOIN (SELECT consumerId, SUM(dlqDelta) AS delta, COUNT(*) AS uncounted FROM job FORCE INDEX (uncounted)
		           WHERE dlqDelta IN (-1, 1) GROUP BY consumerId) d ON d.consumerId = c.id`)
	if err != nil {
		return out, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var c DeadCount
		var uncounted int64
		var checked sql.NullTime
		if err := rows.Scan(&c.ConsumerKey, &c.ChannelID, &c.ChannelName, &c.ConsumerID, &c.ConsumerName, &c.Dead, &uncounted, &checked, &out.AsOf); err != nil {
			return out, err
		}
		c.LastCheckedAt = timeOf(checked)
		if checked.Valid && (out.LastCheckedAt == nil || checked.Time.After(*out.LastCheckedAt)) {
			out.LastCheckedAt = c.LastCheckedAt
		}
		out.Uncounted += uncounted
		out.Consumers = append(out.Consumers, c)
	}
	if err := rows.Err(); err != nil {
		return out, err
	}
	if len(out.Consumers) == 0 {
		err = s.db.QueryRowContext(ctx, `SELECT NOW(6)`).Scan(&out.AsOf)
	}
	slices.SortFunc(out.Consumers, func(a, b DeadCount) int {
		return slices.Compare([]string{a.ChannelID, a.ConsumerID}, []string{b.ChannelID, b.ConsumerID})
	})
	return out, err
}

// SinceLastCycle returns how long ago the last counting cycle was, by the database's clock; ok is false before the
// first one.
func (s *Store) SinceLastCycle(ctx context.Context) (d time.Duration, ok bool, err error) {
	var us sql.NullInt64
	err = s.db.QueryRowContext(ctx, `SELECT TIMESTAMPDIFF(MICROSECOND, MAX(last_checked_at), NOW(6)) FROM dlq_summary WHERE last_checked_at > `+never).Scan(&us)
	return time.Duration(us.Int64) * time.Microsecond, us.Valid, err
}

// Folded is what one CountBatch did.
type Folded struct {
	Read    int // rows that were looked at
	Counted int // deaths added to the counts
	Undone  int // jobs taken out that were counted and are dead no more
	More    bool
}

// CountBatch folds up to limit uncounted rows into dead_count: it reads ids whose dlqDelta is not null, and in one
// transaction a consumer flips their dlqCounted by primary key and adds as many as it flipped. Any number of
// instances may do this at once; each row is counted once.
func (s *Store) CountBatch(ctx context.Context, limit int) (Folded, error) {
	type owed struct {
		id       ID
		consumer uint32
		delta    int
	}
	// The two signs apart: an IN over both would sort.
	var rows []owed
	for _, delta := range []int{1, -1} {
		part, err := collect(ctx, s.db, func(r *sql.Rows) (o owed, err error) { o.delta = delta; return o, r.Scan(&o.id, &o.consumer) },
			`SELECT id, consumerId FROM job FORCE INDEX (uncounted) WHERE dlqDelta = ? ORDER BY consumerId, id LIMIT ?`, delta, limit-len(rows))
		if err != nil {
			return Folded{}, err
		}
		if rows = append(rows, part...); len(rows) >= limit {
			break
		}
	}
	out := Folded{Read: len(rows), More: len(rows) >= limit}
	type sets struct{ up, down []ID }
	byConsumer := map[uint32]*sets{}
	var order []uint32
	for _, r := range rows {
		b := byConsumer[r.consumer]
		if b == nil {
			b = &sets{}
			byConsumer[r.consumer] = b
			order = append(order, r.consumer)
		}
		if r.delta > 0 {
			b.up = append(b.up, r.id)
		} else {
			b.down = append(b.down, r.id)
		}
	}
	for _, consumer := range order {
		counted, undone, err := s.fold(ctx, consumer, byConsumer[consumer].up, byConsumer[consumer].down)
		if err != nil {
			return out, err
		}
		out.Counted += int(counted)
		out.Undone += int(undone)
	}
	return out, nil
}

// fold flips rows of one consumer and moves its count by the rows flipped, in one transaction.
func (s *Store) fold(ctx context.Context, consumer uint32, up, down []ID) (counted, undone int64, err error) {
	err = s.inTurn(ctx, func(tx *sql.Tx) error {
		var err error
		if counted, err = flip(ctx, tx, `UPDATE job SET dlqCounted = 1 WHERE status = 1004 AND dlqCounted = 0 AND id IN (`, up); err != nil {
			return err
		}
		if undone, err = flip(ctx, tx, `UPDATE job SET dlqCounted = 0 WHERE status <> 1004 AND dlqCounted = 1 AND id IN (`, down); err != nil {
			return err
		}
		if counted == undone {
			return nil
		}
		// A consumer that was deleted gets no row, and its jobs are on their way out.
		_, err = tx.ExecContext(ctx, `INSERT INTO dlq_summary (consumerId, consumerName, channelId, channelName, dead_count, last_checked_at)
			SELECT c.id, c.name, ch.channelId, ch.name, ?, `+never+` FROM consumer c JOIN channel ch ON ch.id = c.channelId WHERE c.id = ?
			ON DUPLICATE KEY UPDATE dead_count = dead_count + ?`, counted-undone, consumer, counted-undone)
		return err
	})
	return counted, undone, err
}

func flip(ctx context.Context, tx *sql.Tx, update string, ids []ID) (int64, error) {
	if len(ids) == 0 {
		return 0, nil
	}
	return affected(ctx, tx, update+placeholders("?", len(ids))+`)`, anyIDs(ids)...)
}

// StampCycle records that a counting cycle has covered every consumer.
func (s *Store) StampCycle(ctx context.Context) error {
	_, err := s.db.ExecContext(ctx, `UPDATE dlq_summary SET last_checked_at = NOW(6)`)
	return err
}
