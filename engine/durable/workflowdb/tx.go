package workflowdb

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
)

func isDuplicate(err error) bool { return errno(err) == 1062 }

func errno(err error) uint16 {
	if me, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return me.Number
	}
	return 0
}

// querier is what *sql.DB and *sql.Tx have in common.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func affected(ctx context.Context, q querier, query string, args ...any) (int64, error) {
	res, err := q.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func exec(ctx context.Context, q querier, query string, args ...any) error {
	_, err := q.ExecContext(ctx, query, args...)
	return err
}

// collect runs a query and scans each row with scan.
func collect[T any](ctx context.Context, q querier, scan func(*sql.Rows) (T, error), query string, args ...any) ([]T, error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, rows.Err()
}

// A statement inserts at most this many rows, and stops adding to them beyond this many bytes: servers take packets
// of 16 MiB and more.
const (
	insertRows  = 200
	insertBytes = 1 << 20
)

// insertAll inserts rows of arguments; group is the placeholders of one, "(?, ...)".
func insertAll(ctx context.Context, q querier, insert, group string, rows [][]any) error {
	for len(rows) > 0 {
		n, size := 0, 0
		var args []any
		for n < len(rows) && n < insertRows && size < insertBytes {
			for _, arg := range rows[n] {
				if data, ok := arg.([]byte); ok {
					size += len(data)
				}
			}
			args = append(args, rows[n]...)
			n++
		}
		if err := exec(ctx, q, insert+strings.Repeat(group+", ", n-1)+group, args...); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

// marks is n placeholders, for an IN list.
func marks(n int) string { return strings.Repeat("?, ", n-1) + "?" }

func micros(d time.Duration) int64 { return d.Microseconds() }
