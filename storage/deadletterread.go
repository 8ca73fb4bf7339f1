package storage

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

const letterColumns = `d.PartitionKey, d.RowKey, d.InstanceId, d.OriginalQueue, d.ErrorMessage, d.DequeueCount, d.FirstFailureAtUtc, d.LastFailureAtUtc,
	d.Status, COALESCE(d.ResolutionNotes, ''), d.ResolvedAtUtc, COALESCE(d.ResolvedBy, ''), d.CorrelationId, d.JobId, COALESCE(d.QueueMessageId, '')`

// scanLetter reads letterColumns and what else there is.
func scanLetter(scan func(...any) error, more ...any) (d DeadLetter, err error) {
	var resolved sql.NullTime
	var job []byte
	err = scan(append([]any{&d.Engine, &d.RowKey, &d.InstanceID, &d.OriginalQueue, &d.ErrorMessage, &d.DequeueCount, &d.FirstFailureAt, &d.LastFailureAt,
		&d.Status, &d.ResolutionNotes, &resolved, &d.ResolvedBy, &d.CorrelationID, &job, &d.QueueMessageID}, more...)...)
	if err != nil {
		return d, err
	}
	d.ResolvedAt = timeOf(resolved)
	if job != nil {
		err = d.Job.Scan(job)
	}
	return d, err
}

// letterFrom reads one dead letter; lock is empty or FOR UPDATE.
func (s *Store) letterFrom(ctx context.Context, q querier, engine, rowKey, lock string) (*DeadLetter, error) {
	var message sql.NullString
	d, err := scanLetter(q.QueryRowContext(ctx, `SELECT `+letterColumns+`, d.OriginalMessage FROM `+s.tables.dlq+` d
		WHERE d.PartitionKey = ? AND d.RowKey = ?`+lock, engine, rowKey).Scan, &message)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, ErrNotFound
	}
	if message.Valid {
		d.OriginalMessage = json.RawMessage(message.String)
	}
	return &d, err
}

// DeadLetter reads one dead letter with its message; ErrNotFound.
func (s *Store) DeadLetter(ctx context.Context, engine, rowKey string) (*DeadLetter, error) {
	d, err := s.letterFrom(ctx, s.db, engine, rowKey, "")
	if err != nil || d.OriginalMessage != nil || d.Job.IsZero() {
		return d, err
	}
	d.OriginalMessage, err = s.deliveredMessage(ctx, d.Job)
	return d, err
}

// deliveredMessage is the message of a job as dead letters show it, nil where it is gone.
func (s *Store) deliveredMessage(ctx context.Context, job ID) (json.RawMessage, error) {
	var m struct {
		MessageID   string          `json:"messageId"`
		ContentType string          `json:"contentType"`
		Priority    uint32          `json:"priority"`
		Headers     json.RawMessage `json:"headers"`
		Payload     *string         `json:"payload,omitempty"`
		Base64      []byte          `json:"payloadBase64,omitempty"`
	}
	var headers, body []byte
	err := s.db.QueryRowContext(ctx, `SELECT m.messageId, m.contentType, m.priority, p.headers, p.body
		FROM job j JOIN message m ON m.id = j.messageId JOIN message_payload p ON p.messageId = m.id WHERE j.id = ?`, job).
		Scan(&m.MessageID, &m.ContentType, &m.Priority, &headers, &body)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	m.Headers = headers
	if utf8.Valid(body) {
		text := string(body)
		m.Payload = &text
	} else {
		m.Base64 = body
	}
	return json.Marshal(m)
}

// ListDeadLetters lists dead letters, the latest failure first, then by row key and engine, both descending, and tells
// whether there are more. after is the last one of the page before; nil: the first page.
//
// Each engine and status is one probe of an index that ends after a page, whatever the filter leaves open, so the cost
// is by engines and the page, not by the table.
func (s *Store) ListDeadLetters(ctx context.Context, f DLQFilter, after *TableCursor, limit int) (rows []DeadLetter, more bool, err error) {
	engines, err := s.enginesOf(ctx, s.db, f.Engine, f.InstanceID)
	if err != nil || len(engines) == 0 {
		return nil, false, err
	}
	statuses := []DLQStatus{DLQPending, DLQResolved, DLQExpired}
	if f.Status != "" {
		statuses = []DLQStatus{f.Status}
	}
	var probes []string
	var args []any
	for _, engine := range engines {
		for _, status := range statuses {
			index, where := `latest`, ``
			if f.InstanceID != "" {
				index, where = `instance`, `InstanceId = ? AND `
				args = append(args, f.InstanceID)
			}
			args = append(args, engine, status)
			bounds, boundArgs := latestFirst("LastFailureAtUtc", engine, f.From, f.To, after)
			probes = append(probes, `(SELECT PartitionKey, RowKey, LastFailureAtUtc FROM `+s.tables.dlq+` FORCE INDEX (`+index+`)
				WHERE `+where+`PartitionKey = ? AND Status = ?`+bounds+` ORDER BY LastFailureAtUtc DESC, RowKey DESC LIMIT ?)`)
			args = append(append(args, boundArgs...), limit+1)
		}
	}
	rows, err = collect(ctx, s.db, func(rows *sql.Rows) (DeadLetter, error) { return scanLetter(rows.Scan) },
		`SELECT STRAIGHT_JOIN `+letterColumns+` FROM (SELECT * FROM (`+strings.Join(probes, ` UNION ALL `)+`) probes
			ORDER BY LastFailureAtUtc DESC, RowKey DESC, PartitionKey DESC LIMIT ?) page
		 JOIN `+s.tables.dlq+` d ON d.PartitionKey = page.PartitionKey AND d.RowKey = page.RowKey`, append(args, limit+1)...)
	slices.SortFunc(rows, func(a, b DeadLetter) int {
		return cmp.Or(b.LastFailureAt.Compare(a.LastFailureAt), cmp.Compare(b.RowKey, a.RowKey), cmp.Compare(b.Engine, a.Engine))
	})
	if more = len(rows) > limit; more {
		rows = rows[:limit]
	}
	return rows, more, err
}

// latestFirst are the conditions on time and row key of one probe of a list that shows the latest first.
func latestFirst(column, engine string, from, to *time.Time, after *TableCursor) (where string, args []any) {
	if from != nil {
		where, args = where+` AND `+column+` >= ?`, append(args, from.UTC())
	}
	if to != nil {
		where, args = where+` AND `+column+` < ?`, append(args, to.UTC())
	}
	if after != nil {
		// Of rows of the same time and key, engines in descending order.
		beyond := `<`
		if engine < after.Engine {
			beyond = `<=`
		}
		at := after.At.UTC()
		where, args = where+` AND `+column+` <= ? AND (`+column+` < ? OR RowKey `+beyond+` ?)`, append(args, at, at, after.RowKey)
	}
	return where, args
}

// enginesOf lists the engines that have dead letters, of an instance where one is given. It skips from one to the next in
// the index, a statement each: servers read the whole index where a skip begins at what another part of it found. An
// engine that is given is all there is to look at.
func (s *Store) enginesOf(ctx context.Context, q querier, engine, instance string) ([]string, error) {
	if engine != "" {
		return []string{engine}, nil
	}
	index, where := `PRIMARY`, ``
	var args []any
	if instance != "" {
		index, where, args = `instance`, `InstanceId = ? AND `, []any{instance}
	}
	return skipEngines(ctx, q, `SELECT PartitionKey FROM `+s.tables.dlq+` FORCE INDEX (`+index+`) WHERE `+where, args)
}

// skipEngines runs a query for the next engine until there is none.
func skipEngines(ctx context.Context, q querier, query string, args []any) (engines []string, err error) {
	for last := ""; ; {
		next, err := collect(ctx, q, scanString, query+`PartitionKey > ? ORDER BY PartitionKey LIMIT 1`, append(slices.Clone(args), last)...)
		if err != nil || len(next) == 0 {
			return engines, err
		}
		last = next[0]
		engines = append(engines, last)
	}
}

func scanString(rows *sql.Rows) (v string, err error) { return v, rows.Scan(&v) }
