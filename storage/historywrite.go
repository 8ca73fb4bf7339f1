package storage

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// ErrRowKey says that the row key of a history entry does not end in -{CreatedAt} or -{CreatedAt}-{suffix}, the time
// written as 20060102T150405.000000Z, by which the entry is found.
var ErrRowKey = errors.New("the row key does not end in the entry's time")

// HistoryRowKey is the row key that an entry without one gets: the same for the same correlation id, time, instance,
// operation and status.
func HistoryRowKey(h HistoryEntry) string {
	unique := sha256.Sum256([]byte(strings.Join([]string{h.InstanceID, h.Operation, string(h.Status)}, "\x00")))
	return h.CorrelationID + "-" + h.CreatedAt.UTC().Format(rowKeyTime) + "-" + hex.EncodeToString(unique[:4])
}

// historyBatch is how many entries one statement inserts at most.
const historyBatch = 500

// AddHistory stores entries in one transaction and returns how many were new: an entry whose engine and row key are there is left as it
// is. Without a row key it gets HistoryRowKey, without CreatedAt the database's time (cut to microseconds). ErrRowKey;
// texts that are too long are errors of the database.
func (s *Store) AddHistory(ctx context.Context, entries []HistoryEntry) (added int, err error) {
	fresh := make([]HistoryEntry, 0, len(entries))
	var now time.Time
	if err := s.db.QueryRowContext(ctx, `SELECT NOW(6)`).Scan(&now); err != nil {
		return 0, err
	}
	for _, h := range entries {
		if h.CreatedAt.IsZero() {
			h.CreatedAt = now
		}
		h.CreatedAt = h.CreatedAt.UTC().Truncate(time.Microsecond)
		if h.RowKey == "" {
			h.RowKey = HistoryRowKey(h)
			fresh = append(fresh, h)
			continue
		}
		if at, ok := createdAtOf(h.RowKey); !ok || !at.Equal(h.CreatedAt) {
			return 0, fmt.Errorf("%w: %q", ErrRowKey, h.RowKey)
		}
		// The primary key holds status and operation too, so one that differs in them would be another row.
		if _, err := s.HistoryEntry(ctx, h.Engine, h.RowKey); err == nil {
			continue
		} else if !errors.Is(err, ErrNotFound) {
			return 0, err
		}
		fresh = append(fresh, h)
	}
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		added = 0
		for at := 0; at < len(fresh); at += historyBatch {
			n, err := s.insertHistory(ctx, tx, fresh[at:min(at+historyBatch, len(fresh))])
			if err != nil {
				return err
			}
			added += int(n)
		}
		return nil
	})
	return added, err
}

func (s *Store) insertHistory(ctx context.Context, q querier, entries []HistoryEntry) (int64, error) {
	args := make([]any, 0, 11*len(entries))
	for _, h := range entries {
		args = append(args, h.Engine, h.RowKey, h.InstanceID, h.Operation, h.Status, h.Duration.Milliseconds(),
			nullJSON(h.Input), nullJSON(h.Output), sql.NullString{String: h.Error, Valid: h.Error != ""}, h.CreatedAt, h.CorrelationID)
	}
	return affected(ctx, q, `INSERT INTO `+s.tables.history+` (PartitionKey, RowKey, InstanceId, Operation, Status, DurationMs, Input, Output, Error, CreatedAtUtc, CorrelationId) VALUES `+
		placeholders(`(?,?,?,?,?,?,?,?,?,?,?)`, len(entries))+keepFirst, args...)
}

func nullJSON(m json.RawMessage) sql.NullString {
	return sql.NullString{String: string(m), Valid: m != nil}
}
