package storage

import (
	"context"
	"database/sql"
	"encoding/binary"
	"time"
)

// PrunedMessage is a message that may leave the database, with its jobs, all of them DELIVERED.
type PrunedMessage struct {
	Message
	Jobs []Job
}

// PrunePage is a stretch of the messages, oldest first.
type PrunePage struct {
	Messages []PrunedMessage // the ones of the stretch that may go
	Last     ID              // where the next stretch begins
	More     bool
}

// Prunable looks at up to limit messages after a place and returns those that were dispatched longer than age ago and
// whose jobs are all DELIVERED. The cost is by messages looked at, not by messages kept.
func (s *Store) Prunable(ctx context.Context, age time.Duration, after ID, limit int) (PrunePage, error) {
	var out PrunePage
	var unix int64
	if err := s.db.QueryRowContext(ctx, `SELECT UNIX_TIMESTAMP()`).Scan(&unix); err != nil {
		return out, err
	}
	// An xid begins with its second, so the primary key is in the order of time.
	var before ID
	binary.BigEndian.PutUint32(before[:4], uint32(unix-int64(age/time.Second)))
	type candidate struct {
		id   ID
		open bool
	}
	stretch, err := collect(ctx, s.db, func(rows *sql.Rows) (c candidate, err error) { return c, rows.Scan(&c.id, &c.open) },
		`SELECT m.id, m.dispatchedAt IS NULL OR m.dispatchedAt > NOW(6) - INTERVAL ? MICROSECOND
			OR EXISTS (SELECT 1 FROM job j WHERE j.messageId = m.id AND j.status <> 1003)
		 FROM message m WHERE m.id > ? AND m.id < ? ORDER BY m.id LIMIT ?`, micros(age), after, before, limit)
	if err != nil || len(stretch) == 0 {
		return out, err
	}
	out.Last, out.More = stretch[len(stretch)-1].id, len(stretch) == limit
	var ids []ID
	for _, c := range stretch {
		if !c.open {
			ids = append(ids, c.id)
		}
	}
	if len(ids) > 0 {
		out.Messages, err = s.loadPruned(ctx, ids)
	}
	return out, err
}

func (s *Store) loadPruned(ctx context.Context, ids []ID) ([]PrunedMessage, error) {
	msgs, err := collect(ctx, s.db, func(rows *sql.Rows) (m PrunedMessage, err error) {
		var headers []byte
		if err := rows.Scan(&m.Key, &m.ChannelKey, &m.ProducerKey, &m.MessageID, &m.ContentType, &m.Priority, &m.ReceivedAt, &m.DispatchedAt, &headers, &m.Body); err != nil {
			return m, err
		}
		m.Headers, err = decodeHeaders(headers)
		return m, err
	}, `SELECT m.id, m.channelId, m.producerId, m.messageId, m.contentType, m.priority, m.receivedAt, m.dispatchedAt, p.headers, p.body
		FROM message m JOIN message_payload p ON p.messageId = m.id WHERE m.id IN (`+placeholders("?", len(ids))+`) ORDER BY m.id`, anyIDs(ids)...)
	if err != nil {
		return nil, err
	}
	jobs, err := collect(ctx, s.db, scanJob, `SELECT `+jobColumns+` FROM job j JOIN message m ON m.id = j.messageId
		WHERE j.messageId IN (`+placeholders("?", len(ids))+`) ORDER BY j.id`, anyIDs(ids)...)
	if err != nil {
		return nil, err
	}
	place := make(map[ID]int, len(msgs))
	for i := range msgs {
		place[msgs[i].Key] = i
	}
	for _, j := range jobs {
		if i, ok := place[j.MessageKey]; ok {
			msgs[i].Jobs = append(msgs[i].Jobs, j)
		}
	}
	return msgs, nil
}

// Prune deletes messages that Prunable returned, with all that belongs to them, in one transaction. A DELIVERED job
// never changes again, so what was prunable still is.
func (s *Store) Prune(ctx context.Context, shard uint8, msgs []PrunedMessage) error {
	if len(msgs) == 0 {
		return nil
	}
	ids := make([]ID, len(msgs))
	for i := range msgs {
		ids[i] = msgs[i].Key
	}
	in := `(` + placeholders("?", len(ids)) + `)`
	return s.inTurn(ctx, func(tx *sql.Tx) error {
		counts := tallies{}
		type ref struct {
			id       ID
			consumer uint32
		}
		jobs, err := collect(ctx, tx, func(rows *sql.Rows) (r ref, err error) { return r, rows.Scan(&r.id, &r.consumer) },
			`SELECT id, consumerId FROM job WHERE messageId IN `+in+` FOR UPDATE`, anyIDs(ids)...)
		if err != nil {
			return err
		}
		jobIDs := make([]ID, len(jobs))
		for i, j := range jobs {
			jobIDs[i] = j.id
			counts.add(tallyJobs, j.consumer, -1)
			counts.add(tallyDelivered, j.consumer, -1)
		}
		if len(jobIDs) > 0 {
			if _, err := tx.ExecContext(ctx, `DELETE FROM job WHERE id IN (`+placeholders("?", len(jobIDs))+`)`, anyIDs(jobIDs)...); err != nil {
				return err
			}
		}
		for _, stmt := range []string{`DELETE FROM schedule WHERE messageId IN `, `DELETE FROM message_payload WHERE messageId IN `} {
			if _, err := tx.ExecContext(ctx, stmt+in, anyIDs(ids)...); err != nil {
				return err
			}
		}
		// Another instance may have pruned some of them already; what this one deletes is what it counts.
		remaining, err := collect(ctx, tx, func(rows *sql.Rows) (m Message, err error) { return m, rows.Scan(&m.Key, &m.ChannelKey) },
			`SELECT id, channelId FROM message WHERE id IN `+in+` FOR UPDATE`, anyIDs(ids)...)
		if err != nil {
			return err
		}
		for _, m := range remaining {
			counts.add(tallyMessages, m.ChannelKey, -1)
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM message WHERE id IN `+in, anyIDs(ids)...); err != nil {
			return err
		}
		return counts.write(ctx, tx, shard)
	})
}
