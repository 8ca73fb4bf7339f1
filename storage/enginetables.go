package storage

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// The names of the tables that the migrations make.
const (
	defaultDLQTable     = "engineDlq"
	defaultHistoryTable = "engineHistory"
)

// engineTables are the quoted names of the tables of dead letters and of history.
type engineTables struct{ dlq, history string }

var tableName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9]{2,62}$`)

func newEngineTables(dlq, history string) (engineTables, error) {
	if dlq == "" {
		dlq = defaultDLQTable
	}
	if history == "" {
		history = defaultHistoryTable
	}
	for _, name := range []string{dlq, history} {
		if !tableName.MatchString(name) {
			return engineTables{}, fmt.Errorf("the table name %q: it must be a letter and 2 to 62 more letters and digits", name)
		}
	}
	if dlq == history {
		return engineTables{}, fmt.Errorf("dead letters and history cannot share the table %q", dlq)
	}
	return engineTables{quoted(dlq), quoted(history)}, nil
}

func quoted(name string) string { return "`" + name + "`" }

// EnsureEngineTables makes the tables that Options names where they are not those of the schema, and gives every dead
// job that has none its record. It needs a migrated schema, and the right to make tables only where it makes one.
func (s *Store) EnsureEngineTables(ctx context.Context) error {
	made := false
	for _, t := range []struct{ name, like string }{{s.tables.dlq, quoted(defaultDLQTable)}, {s.tables.history, quoted(defaultHistoryTable)}} {
		if t.name == t.like {
			continue
		}
		var exists bool
		if err := s.db.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = ?)`,
			t.name[1:len(t.name)-1]).Scan(&exists); err != nil {
			return err
		}
		if exists {
			continue
		}
		if _, err := s.db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS `+t.name+` LIKE `+t.like); err != nil {
			return err
		}
		made = made || t.name == s.tables.dlq
	}
	if !made {
		return nil
	}
	cat, err := s.Catalog(ctx)
	if err != nil {
		return err
	}
	for k := range cat.Consumers {
		if err := s.recordMissing(ctx, k.Key); err != nil {
			return err
		}
	}
	return nil
}

// rowKeyTime is how times are written in row keys; rowKeyTimeSQL writes the same in SQL.
const rowKeyTime = "20060102T150405.000000Z"

func rowKeyTimeSQL(expr string) string { return `DATE_FORMAT(` + expr + `, '%Y%m%dT%H%i%s.%fZ')` }

// xidSQL is SQL for the wire form of an id: the base32hex digits of its 12 bytes, five bytes to eight digits.
func xidSQL(expr string) string {
	part := func(from, bytes, digits, fill string) string {
		return `LPAD(CONV(CONCAT(HEX(SUBSTRING(` + expr + `, ` + from + `, ` + bytes + `)), '` + fill + `'), 16, 32), ` + digits + `, '0')`
	}
	return `LOWER(CONCAT(` + part("1", "5", "8", "") + `, ` + part("6", "5", "8", "") + `, ` + part("11", "2", "4", "0") + `))`
}

// deathRowKey is the row key of the record of a job that died at a time.
func deathRowKey(job ID, diedAt time.Time) string {
	return job.String() + "-" + diedAt.UTC().Format(rowKeyTime)
}

// tellsOf tells whether a record is that of a death of its job. A record from outside the broker has a job, too, once it
// was retried: that of the message which it became.
func tellsOf(rowKey string, job ID) bool {
	return !job.IsZero() && strings.HasPrefix(rowKey, job.String()+"-")
}
