package storage

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// Message is what a producer broadcast.
type Message struct {
	Key                     ID
	ChannelKey, ProducerKey uint32
	MessageID, ContentType  string
	Priority                uint32
	ReceivedAt              time.Time
	DispatchedAt            *time.Time // nil: it waits for its schedule
	ScheduledFor            *time.Time // nil: it was not scheduled
	Headers                 map[string]string
	Body                    []byte
}

// Message reads a message of a channel by its client's id, with its jobs; ErrNotFound.
func (s *Store) Message(ctx context.Context, channelKey uint32, messageID string) (*Message, []Job, error) {
	var m Message
	var headers []byte
	var dispatched, scheduled sql.NullTime
	err := s.db.QueryRowContext(ctx, `SELECT m.id, m.channelId, m.producerId, m.messageId, m.contentType, m.priority, m.receivedAt, m.dispatchedAt,
		s.scheduledFor, p.headers, p.body
		FROM message m JOIN message_payload p ON p.messageId = m.id LEFT JOIN schedule s ON s.messageId = m.id
		WHERE m.channelId = ? AND m.messageId = ?`, channelKey, messageID).
		Scan(&m.Key, &m.ChannelKey, &m.ProducerKey, &m.MessageID, &m.ContentType, &m.Priority, &m.ReceivedAt, &dispatched, &scheduled, &headers, &m.Body)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil, ErrNotFound
	}
	if err != nil {
		return nil, nil, err
	}
	m.DispatchedAt, m.ScheduledFor = timeOf(dispatched), timeOf(scheduled)
	if m.Headers, err = decodeHeaders(headers); err != nil {
		return nil, nil, err
	}
	// Jobs of a consumer that was deleted are on their way out and no longer shown.
	jobs, err := collect(ctx, s.db, scanJob, `SELECT `+jobColumns+` FROM job j JOIN message m ON m.id = j.messageId
		JOIN consumer c ON c.id = j.consumerId WHERE j.messageId = ? ORDER BY j.id`, m.Key)
	return &m, jobs, err
}

func timeOf(t sql.NullTime) *time.Time {
	if !t.Valid {
		return nil
	}
	return &t.Time
}

// MessageRef names a message in a list.
type MessageRef struct {
	Key       ID
	MessageID string // the client's
}

func scanRef(rows *sql.Rows) (r MessageRef, err error) { return r, rows.Scan(&r.Key, &r.MessageID) }

// Messages lists a channel's dispatched messages, the newest first. A cursor is a message's Key.
func (s *Store) Messages(ctx context.Context, channelKey uint32, cur *Cursor, limit int) ([]MessageRef, Paging, error) {
	k := newKeyset(cur, limit, "", "id")
	rows, err := collect(ctx, s.db, scanRef, `SELECT id, messageId FROM message FORCE INDEX (newest)
		WHERE channelId = ? AND dispatchedAt IS NOT NULL`+k.where+` ORDER BY id`+k.dir+` LIMIT ?`,
		append(append([]any{channelKey}, k.args...), k.limit)...)
	if err != nil {
		return nil, Paging{}, err
	}
	rows, paging := pageOf(cur, limit, rows)
	return rows, paging, nil
}

// ScheduledMessages lists a channel's scheduled messages, the newest first; dispatched nil: all of them.
func (s *Store) ScheduledMessages(ctx context.Context, channelKey uint32, dispatched *bool, cur *Cursor, limit int) ([]MessageRef, Paging, error) {
	k := newKeyset(cur, limit, "", "s.messageId")
	filter := ""
	if dispatched != nil {
		filter = " AND s.dispatchedAt IS NULL"
		if *dispatched {
			filter = " AND s.dispatchedAt IS NOT NULL"
		}
	}
	rows, err := collect(ctx, s.db, scanRef, `SELECT STRAIGHT_JOIN s.messageId, m.messageId FROM schedule s FORCE INDEX (newest) JOIN message m ON m.id = s.messageId
		WHERE s.channelId = ?`+filter+k.where+` ORDER BY s.messageId`+k.dir+` LIMIT ?`,
		append(append([]any{channelKey}, k.args...), k.limit)...)
	if err != nil {
		return nil, Paging{}, err
	}
	rows, paging := pageOf(cur, limit, rows)
	return rows, paging, nil
}

// MessageCounts counts a channel's messages.
type MessageCounts struct {
	Dispatched          int64 // scheduled ones that were dispatched included
	ScheduledWaiting    int64
	ScheduledDispatched int64
	NextScheduledAt     *time.Time
}

// MessageCounts reads the counters of a channel; only scheduled messages are counted row by row.
func (s *Store) MessageCounts(ctx context.Context, channelKey uint32) (MessageCounts, error) {
	var c MessageCounts
	var next sql.NullTime
	err := s.db.QueryRowContext(ctx, `SELECT
		(SELECT COALESCE(SUM(n), 0) FROM tally WHERE kind = ? AND refId = ?),
		(SELECT COUNT(*) FROM schedule FORCE INDEX (status) WHERE channelId = ? AND dispatchedAt IS NULL),
		(SELECT COUNT(*) FROM schedule FORCE INDEX (status) WHERE channelId = ? AND dispatchedAt IS NOT NULL),
		(SELECT MIN(scheduledFor) FROM schedule WHERE channelId = ? AND dispatchedAt IS NULL)`,
		tallyMessages, channelKey, channelKey, channelKey, channelKey).Scan(&c.Dispatched, &c.ScheduledWaiting, &c.ScheduledDispatched, &next)
	c.NextScheduledAt = timeOf(next)
	return c, err
}

// Scheduled is a message whose time has come.
type Scheduled struct {
	Key        ID
	ChannelKey uint32
	Priority   uint32
}

// dispatchJobs is the most jobs that one transaction makes of scheduled messages, unless a single one makes more.
const dispatchJobs = 2000

// DispatchScheduled makes the jobs of up to limit scheduled messages whose time has come, the longest due first, for
// the consumers that consumersOf names, and returns how many messages it dispatched. Each is dispatched once, however
// many instances do this at the same time.
func (s *Store) DispatchScheduled(ctx context.Context, shard uint8, limit int, consumersOf func(channelKey uint32) []uint32) (int, error) {
	var done int
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		done = 0
		due, err := collect(ctx, tx, func(rows *sql.Rows) (m Scheduled, err error) { return m, rows.Scan(&m.Key, &m.ChannelKey, &m.Priority) },
			`SELECT s.messageId, s.channelId, m.priority FROM schedule s FORCE INDEX (due) JOIN message m ON m.id = s.messageId
			 WHERE s.dispatchedAt IS NULL AND s.scheduledFor <= NOW(6) ORDER BY s.scheduledFor LIMIT ? FOR UPDATE SKIP LOCKED`, limit)
		if err != nil || len(due) == 0 {
			return err
		}
		var keys []ID
		var msgs []*NewMessage
		jobs := 0
		for _, m := range due {
			consumers := consumersOf(m.ChannelKey)
			if jobs += len(consumers); jobs > dispatchJobs && len(msgs) > 0 {
				break // the others come with the next call
			}
			msg := &NewMessage{Key: m.Key, ChannelKey: m.ChannelKey, Priority: m.Priority}
			for _, consumer := range consumers {
				msg.Jobs = append(msg.Jobs, NewJob{ID: NewID(), ConsumerKey: consumer})
			}
			keys, msgs = append(keys, m.Key), append(msgs, msg)
		}
		// The guard decides between two instances where SKIP LOCKED locks nothing: the loser rolls back.
		n, err := affected(ctx, tx, `UPDATE schedule SET dispatchedAt = NOW(6) WHERE messageId IN (`+placeholders("?", len(keys))+`) AND dispatchedAt IS NULL`, anyIDs(keys)...)
		if err != nil {
			return err
		}
		if n != int64(len(keys)) {
			return fmt.Errorf("dispatch of scheduled messages: %w", ErrLocked)
		}
		if _, err := tx.ExecContext(ctx, `UPDATE message SET dispatchedAt = NOW(6) WHERE id IN (`+placeholders("?", len(keys))+`)`, anyIDs(keys)...); err != nil {
			return err
		}
		done = len(keys)
		return insertJobs(ctx, tx, shard, Lease{}, msgs)
	})
	if errors.Is(err, ErrLocked) {
		return 0, nil
	}
	return done, err
}
