package storage

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// NewMessage is a message to accept, with the jobs that it becomes.
type NewMessage struct {
	Key                     ID
	ChannelKey, ProducerKey uint32
	MessageID, ContentType  string
	Priority                uint32
	Headers                 map[string]string // passed on with every delivery
	Body                    []byte
	ScheduledFor            *time.Time // nil: now
	Jobs                    []NewJob   // none while it is scheduled
	// Duplicate is set by Accept: the message id was taken in the channel, nothing of this message was stored.
	Duplicate bool
}

// NewJob is a job to be made for one consumer.
type NewJob struct {
	ID          ID
	ConsumerKey uint32
	// Leased: the accepting instance delivers it right away, so it is stored INFLIGHT under the given lease.
	Leased bool
}

// Lease is the right to attempt jobs for a while.
type Lease struct {
	Owner ID     // the instance
	Token uint64 // another one for every claim: it fences off whoever had the job before
	For   time.Duration
}

// Accept stores messages and their jobs in one transaction of seven round trips, however many they are. A message
// whose id is taken is marked Duplicate and left out; its neighbours are stored.
func (s *Store) Accept(ctx context.Context, shard uint8, lease Lease, msgs []*NewMessage) error {
	if len(msgs) == 0 {
		return nil
	}
	return s.inTx(ctx, func(tx *sql.Tx) error {
		if err := insertMessages(ctx, tx, msgs); err != nil {
			return err
		}
		fresh := make([]*NewMessage, 0, len(msgs))
		for _, m := range msgs {
			if !m.Duplicate {
				fresh = append(fresh, m)
			}
		}
		if len(fresh) == 0 {
			return nil
		}
		if err := insertPayloads(ctx, tx, fresh); err != nil {
			return err
		}
		if err := insertSchedules(ctx, tx, fresh); err != nil {
			return err
		}
		return insertJobs(ctx, tx, shard, lease, fresh)
	})
}

// insertMessages inserts those whose id is free and marks the others.
func insertMessages(ctx context.Context, tx *sql.Tx, msgs []*NewMessage) error {
	args := make([]any, 0, 7*len(msgs))
	for _, m := range msgs {
		m.Duplicate = false // the transaction may be running again
		args = append(args, m.Key, m.ChannelKey, m.ProducerKey, m.MessageID, m.ContentType, m.Priority, m.ScheduledFor != nil)
	}
	n, err := affected(ctx, tx, `INSERT INTO message (id, channelId, producerId, messageId, contentType, priority, receivedAt, dispatchedAt) VALUES `+
		placeholders(`(?,?,?,?,?,?,NOW(6),IF(?,NULL,NOW(6)))`, len(msgs))+` ON DUPLICATE KEY UPDATE id = message.id`, args...)
	if err != nil || n == int64(len(msgs)) {
		return err
	}
	keys := make([]ID, len(msgs))
	for i, m := range msgs {
		keys[i] = m.Key
	}
	stored, err := collect(ctx, tx, scanID, `SELECT id FROM message WHERE id IN (`+placeholders("?", len(keys))+`)`, anyIDs(keys)...)
	if err != nil {
		return err
	}
	there := make(map[ID]bool, len(stored))
	for _, id := range stored {
		there[id] = true
	}
	for _, m := range msgs {
		m.Duplicate = !there[m.Key]
	}
	return nil
}

func scanID(rows *sql.Rows) (id ID, err error) { return id, rows.Scan(&id) }

func insertPayloads(ctx context.Context, tx *sql.Tx, msgs []*NewMessage) error {
	args := make([]any, 0, 3*len(msgs))
	for _, m := range msgs {
		headers, err := encodeHeaders(m.Headers)
		if err != nil {
			return err
		}
		body := m.Body
		if body == nil {
			body = []byte{} // the column is NOT NULL
		}
		args = append(args, m.Key, headers, body)
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO message_payload (messageId, headers, body) VALUES `+placeholders(`(?,?,?)`, len(msgs)), args...)
	return err
}

func insertSchedules(ctx context.Context, tx *sql.Tx, msgs []*NewMessage) error {
	var args []any
	for _, m := range msgs {
		if m.ScheduledFor != nil {
			args = append(args, m.Key, m.ChannelKey, m.ScheduledFor.UTC())
		}
	}
	if len(args) == 0 {
		return nil
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO schedule (messageId, channelId, scheduledFor) VALUES `+placeholders(`(?,?,?)`, len(args)/3), args...)
	return err
}

// insertJobs stores the jobs of messages that are dispatched and counts both.
func insertJobs(ctx context.Context, tx *sql.Tx, shard uint8, lease Lease, msgs []*NewMessage) error {
	counts := tallies{}
	var sqlText strings.Builder
	sqlText.WriteString(`INSERT INTO job (id, messageId, consumerId, status, statusChangedAt, dueAt, precedence, leaseOwner, leaseToken) VALUES `)
	var args []any
	for _, m := range msgs {
		if m.ScheduledFor == nil {
			counts.add(tallyMessages, m.ChannelKey, 1)
		}
		for _, j := range m.Jobs {
			if len(args) > 0 {
				sqlText.WriteByte(',')
			}
			counts.add(tallyJobs, j.ConsumerKey, 1)
			if j.Leased {
				sqlText.WriteString(`(?,?,?,1002,NOW(6),NOW(6) + INTERVAL ? MICROSECOND,?,?,?)`)
				args = append(args, j.ID, m.Key, j.ConsumerKey, micros(lease.For), precedence(m.Priority), lease.Owner, lease.Token)
			} else {
				sqlText.WriteString(`(?,?,?,1001,NOW(6),NULL,?,NULL,0)`)
				args = append(args, j.ID, m.Key, j.ConsumerKey, precedence(m.Priority))
			}
		}
	}
	if len(args) > 0 {
		if _, err := tx.ExecContext(ctx, sqlText.String(), args...); err != nil {
			return err
		}
	}
	return counts.write(ctx, tx, shard)
}

// precedence orders claims: the highest priority has the lowest.
func precedence(priority uint32) int32 { return -int32(min(priority, MaxPriority)) }

// MaxPriority is the highest priority that is told apart from higher ones.
const MaxPriority = 1<<31 - 1

func encodeHeaders(h map[string]string) ([]byte, error) {
	if len(h) == 0 {
		return []byte(`{}`), nil
	}
	b, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("metadata headers: %w", err)
	}
	return b, nil
}

func decodeHeaders(b []byte) (map[string]string, error) {
	var h map[string]string
	if err := json.Unmarshal(b, &h); err != nil {
		return nil, fmt.Errorf("stored metadata headers: %w", err)
	}
	return h, nil
}
