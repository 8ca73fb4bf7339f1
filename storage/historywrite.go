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

// errTaken is why a batch of history is begun anew: a row key in it was taken meanwhile.
var errTaken = errors.New("a row key was taken meanwhile")

// AddHistory stores entries in one transaction and returns how many were new: an entry whose engine, correlation id and
// row key are there is left as it is, whatever its operation and status, and of several in one call the first counts.
// Without a row key it gets HistoryRowKey, without CreatedAt the database's time (cut to microseconds). ErrRowKey; texts
// that are too long are errors of the database.
func (s *Store) AddHistory(ctx context.Context, entries []HistoryEntry) (added int, err error) {
	var now time.Time
	if err := s.db.QueryRowContext(ctx, `SELECT NOW(6)`).Scan(&now); err != nil {
		return 0, err
	}
	keyed, err := withRowKeys(entries, now)
	if err != nil {
		return 0, err
	}
	for {
		err := s.inTx(ctx, func(tx *sql.Tx) error {
			added = 0
			for at := 0; at < len(keyed); at += historyBatch {
				n, err := s.addHistoryBatch(ctx, tx, keyed[at:min(at+historyBatch, len(keyed))])
				if err != nil {
					return err
				}
				added += n
			}
			return nil
		})
		switch {
		case err == nil:
			return added, nil
		case !errors.Is(err, errTaken): // otherwise it was committed, so the next attempt finds it
			return 0, err
		}
	}
}

// withRowKeys completes entries and leaves out those that are there twice.
func withRowKeys(entries []HistoryEntry, now time.Time) ([]HistoryEntry, error) {
	out := make([]HistoryEntry, 0, len(entries))
	seen := make(map[historyIdentity]bool, len(entries))
	for _, h := range entries {
		if h.CreatedAt.IsZero() {
			h.CreatedAt = now
		}
		h.CreatedAt = h.CreatedAt.UTC().Truncate(time.Microsecond)
		if h.RowKey == "" {
			h.RowKey = HistoryRowKey(h)
		} else if at, ok := createdAtOf(h.RowKey); !ok || !at.Equal(h.CreatedAt) {
			return nil, fmt.Errorf("%w: %q", ErrRowKey, h.RowKey)
		}
		if id := identityOf(h); !seen[id] {
			seen[id] = true
			out = append(out, h)
		}
	}
	return out, nil
}

// historyIdentity is what two entries must not share. The primary key does not see to it: lists want the operation and
// the status in it.
type historyIdentity struct{ engine, correlationID, rowKey string }

func identityOf(h HistoryEntry) historyIdentity {
	return historyIdentity{h.Engine, h.CorrelationID, h.RowKey}
}

// addHistoryBatch inserts those entries that are not there. Of two transactions that insert entries of one identity
// under several primary keys, each looks for the other's after its insert, with locks: so one waits for the other's
// end, or both do, which is a deadlock that one of them survives.
func (s *Store) addHistoryBatch(ctx context.Context, tx *sql.Tx, entries []HistoryEntry) (int, error) {
	there, err := s.countIdentities(ctx, tx, entries, ``)
	if err != nil {
		return 0, err
	}
	fresh := make([]HistoryEntry, 0, len(entries))
	for _, h := range entries {
		if there[identityOf(h)] == 0 {
			fresh = append(fresh, h)
		}
	}
	if len(fresh) == 0 {
		return 0, nil
	}
	n, err := s.insertHistory(ctx, tx, fresh)
	if err != nil {
		return 0, err
	}
	if there, err = s.countIdentities(ctx, tx, fresh, ` FOR UPDATE`); err != nil {
		return 0, err
	}
	for _, rows := range there {
		if rows > 1 {
			return 0, errTaken
		}
	}
	return int(n), nil
}

func (s *Store) countIdentities(ctx context.Context, tx *sql.Tx, entries []HistoryEntry, locking string) (map[historyIdentity]int, error) {
	args := make([]any, 0, 4*len(entries))
	for _, h := range entries {
		args = append(args, h.CorrelationID, h.CreatedAt, h.RowKey, h.Engine)
	}
	rows, err := collect(ctx, tx, func(rows *sql.Rows) (id historyIdentity, err error) {
		return id, rows.Scan(&id.engine, &id.correlationID, &id.rowKey)
	}, `SELECT PartitionKey, CorrelationId, RowKey FROM `+s.tables.history+` FORCE INDEX (correlation)
		WHERE `+alternatives(`CorrelationId = ? AND CreatedAtUtc = ? AND RowKey = ? AND PartitionKey = ?`, len(entries))+locking, args...)
	count := make(map[historyIdentity]int, len(rows))
	for _, id := range rows {
		count[id]++
	}
	return count, err
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
