package storage

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	entryKey     = `PartitionKey, Status, Operation, CreatedAtUtc, RowKey`
	entryColumns = `h.PartitionKey, h.RowKey, h.InstanceId, h.Operation, h.Status, h.DurationMs, COALESCE(h.Error, ''), h.CreatedAtUtc, h.CorrelationId`
)

func scanEntry(scan func(...any) error, more ...any) (h HistoryEntry, err error) {
	var ms int64
	err = scan(append([]any{&h.Engine, &h.RowKey, &h.InstanceID, &h.Operation, &h.Status, &ms, &h.Error, &h.CreatedAt, &h.CorrelationID}, more...)...)
	h.Duration = time.Duration(ms) * time.Millisecond
	return h, err
}

func scanEntries(rows *sql.Rows) (HistoryEntry, error) { return scanEntry(rows.Scan) }

const day = 24 * time.Hour

// historyWindows are the stretches of time that a list looks at, one after the other, until it has a page: the latest
// entries are most often in the last of many partitions, and a probe costs by partitions.
var historyWindows = []time.Duration{day, 8 * day}

// ListHistory lists history entries, the latest first, then by row key and engine, both descending, and tells whether there
// are more. after is the last one of the page before; nil: the first page.
//
// Of a correlation id it is one probe. Otherwise each engine, status and operation is one, as of ListDeadLetters.
func (s *Store) ListHistory(ctx context.Context, f HistoryFilter, after *TableCursor, limit int) (rows []HistoryEntry, more bool, err error) {
	if f.CorrelationID != "" {
		rows, err = s.historyOfCorrelation(ctx, f, after, limit)
	} else {
		rows, err = s.latestHistory(ctx, f, after, limit)
	}
	if more = len(rows) > limit; more {
		rows = rows[:limit]
	}
	return rows, more, err
}

func (s *Store) historyOfCorrelation(ctx context.Context, f HistoryFilter, after *TableCursor, limit int) ([]HistoryEntry, error) {
	where, args := `h.CorrelationId = ?`, []any{f.CorrelationID}
	for _, c := range []struct{ column, value string }{
		{"PartitionKey", f.Engine}, {"InstanceId", f.InstanceID}, {"Status", string(f.Status)}, {"Operation", f.Operation},
	} {
		if c.value != "" {
			where, args = where+` AND h.`+c.column+` = ?`, append(args, c.value)
		}
	}
	if f.From != nil {
		where, args = where+` AND h.CreatedAtUtc >= ?`, append(args, f.From.UTC())
	}
	if f.To != nil {
		where, args = where+` AND h.CreatedAtUtc < ?`, append(args, f.To.UTC())
	}
	if after != nil {
		at := after.At.UTC()
		where += ` AND h.CreatedAtUtc <= ? AND (h.CreatedAtUtc < ? OR h.RowKey < ? OR h.RowKey = ? AND h.PartitionKey < ?)`
		args = append(args, at, at, after.RowKey, after.RowKey, after.Engine)
	}
	return collect(ctx, s.db, scanEntries, `SELECT `+entryColumns+` FROM `+s.tables.history+` h FORCE INDEX (correlation) WHERE `+where+`
		ORDER BY h.CreatedAtUtc DESC, h.RowKey DESC, h.PartitionKey DESC LIMIT ?`, append(args, limit+1)...)
}

// latestHistory reads limit+1 entries, from the latest stretch of time that has so many.
func (s *Store) latestHistory(ctx context.Context, f HistoryFilter, after *TableCursor, limit int) ([]HistoryEntry, error) {
	var end time.Time
	switch {
	case after != nil:
		end = after.At.UTC()
	case f.To != nil:
		end = f.To.UTC()
	default:
		if err := s.db.QueryRowContext(ctx, `SELECT NOW(6)`).Scan(&end); err != nil {
			return nil, err
		}
	}
	for _, window := range historyWindows {
		start := end.Add(-window).Truncate(day)
		if f.From != nil && !f.From.Before(start) {
			break
		}
		in := f
		in.From = &start
		rows, err := s.historyWithin(ctx, in, after, limit)
		if err != nil || len(rows) > limit {
			return rows, err
		}
	}
	return s.historyWithin(ctx, f, after, limit)
}

func (s *Store) historyWithin(ctx context.Context, f HistoryFilter, after *TableCursor, limit int) ([]HistoryEntry, error) {
	kinds, err := s.kindsOf(ctx, f, after)
	if err != nil || len(kinds) == 0 {
		return nil, err
	}
	var probes []string
	var args []any
	for _, k := range kinds {
		index, where := `PRIMARY`, ``
		if f.InstanceID != "" {
			index, where = `instance`, `InstanceId = ? AND `
			args = append(args, f.InstanceID)
		}
		bounds, boundArgs := latestFirst("CreatedAtUtc", k.engine, f.From, f.To, after)
		probes = append(probes, `(SELECT `+entryKey+` FROM `+s.tables.history+` FORCE INDEX (`+index+`)
			WHERE `+where+`PartitionKey = ? AND Status = ? AND Operation = ?`+bounds+` ORDER BY CreatedAtUtc DESC, RowKey DESC LIMIT ?)`)
		args = append(append(append(args, k.engine, k.status, k.operation), boundArgs...), limit+1)
	}
	rows, err := collect(ctx, s.db, scanEntries, `SELECT STRAIGHT_JOIN `+entryColumns+` FROM (SELECT * FROM (`+strings.Join(probes, ` UNION ALL `)+`) probes
			ORDER BY CreatedAtUtc DESC, RowKey DESC, PartitionKey DESC LIMIT ?) page
		JOIN `+s.tables.history+` h FORCE INDEX (PRIMARY) ON h.PartitionKey = page.PartitionKey AND h.Status = page.Status AND h.Operation = page.Operation
			AND h.CreatedAtUtc = page.CreatedAtUtc AND h.RowKey = page.RowKey`, append(args, limit+1)...)
	slices.SortFunc(rows, func(a, b HistoryEntry) int {
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(b.RowKey, a.RowKey), cmp.Compare(b.Engine, a.Engine))
	})
	return rows, err
}

// historyKind is a stretch of the primary key in which entries are in the order of time.
type historyKind struct{ engine, status, operation string }

// kindsOf lists the kinds that a filter selects from, skipping from one to the next in the index as enginesOf does: first
// over the engines, then over the operations of all engines and statuses at a time. It looks at whole days, so that a
// skip never reads through entries of the right kind and the wrong time.
func (s *Store) kindsOf(ctx context.Context, f HistoryFilter, after *TableCursor) (kinds []historyKind, err error) {
	index, where := `PRIMARY`, ``
	var args []any
	if f.InstanceID != "" {
		index, where, args = `instance`, `InstanceId = ? AND `, append(args, f.InstanceID)
	}
	if f.From != nil {
		where, args = where+`CreatedAtUtc >= ? AND `, append(args, f.From.UTC().Truncate(day))
	}
	to := f.To
	if after != nil && (to == nil || after.At.Before(*to)) {
		to = &after.At
	}
	if to != nil {
		where, args = where+`CreatedAtUtc < ? AND `, append(args, to.UTC().Truncate(day).Add(day))
	}
	from := ` FROM ` + s.tables.history + ` FORCE INDEX (` + index + `) WHERE ` + where
	engines := []string{f.Engine}
	if f.Engine == "" {
		if engines, err = skipEngines(ctx, s.db, `SELECT PartitionKey`+from, args); err != nil {
			return nil, err
		}
	}
	statuses := []string{string(f.Status)}
	if f.Status == "" {
		statuses = []string{string(HistorySucceeded), string(HistoryFailed)}
	}
	var open []historyKind // their next operation is to be found
	for _, engine := range engines {
		for _, status := range statuses {
			open = append(open, historyKind{engine, status, f.Operation})
		}
	}
	if f.Operation != "" {
		return open, nil
	}
	for len(open) > 0 {
		var probes []string
		var all []any
		for _, k := range open {
			probes = append(probes, `(SELECT PartitionKey, Status, Operation`+from+`PartitionKey = ? AND Status = ? AND Operation > ? ORDER BY Operation LIMIT 1)`)
			all = append(append(all, args...), k.engine, k.status, k.operation)
		}
		open, err = collect(ctx, s.db, func(rows *sql.Rows) (k historyKind, err error) {
			return k, rows.Scan(&k.engine, &k.status, &k.operation)
		},
			strings.Join(probes, ` UNION ALL `), all...)
		if err != nil {
			return nil, err
		}
		kinds = append(kinds, open...)
	}
	return kinds, nil
}

var timeInRowKey = regexp.MustCompile(`-(\d{8}T\d{6}\.\d{6}Z)(?:-[^-]*)?$`)

// createdAtOf reads the time out of a row key of the history.
func createdAtOf(rowKey string) (time.Time, bool) {
	m := timeInRowKey.FindStringSubmatch(rowKey)
	if m == nil {
		return time.Time{}, false
	}
	at, err := time.Parse(rowKeyTime, m[1])
	return at, err == nil
}

// HistoryEntry reads one history entry with its input and output; ErrNotFound. The time in the row key leads to it.
func (s *Store) HistoryEntry(ctx context.Context, engine, rowKey string) (*HistoryEntry, error) {
	at, ok := createdAtOf(rowKey)
	if !ok {
		return nil, ErrNotFound
	}
	next := at.Add(time.Microsecond)
	kinds, err := s.kindsOf(ctx, HistoryFilter{Engine: engine, From: &at, To: &next}, nil)
	if err != nil {
		return nil, err
	}
	if len(kinds) == 0 {
		return nil, ErrNotFound
	}
	var probes []string
	var args []any
	for _, k := range kinds {
		probes = append(probes, `(SELECT `+entryColumns+`, h.Input, h.Output FROM `+s.tables.history+` h FORCE INDEX (PRIMARY)
			WHERE h.PartitionKey = ? AND h.Status = ? AND h.Operation = ? AND h.CreatedAtUtc = ? AND h.RowKey = ?)`)
		args = append(args, k.engine, k.status, k.operation, at, rowKey)
	}
	var input, output sql.NullString
	h, err := scanEntry(s.db.QueryRowContext(ctx, strings.Join(probes, ` UNION ALL `)+` LIMIT 1`, args...).Scan, &input, &output)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	if input.Valid {
		h.Input = []byte(input.String)
	}
	if output.Valid {
		h.Output = []byte(output.String)
	}
	return &h, nil
}
