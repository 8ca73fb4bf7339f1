package storagetest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/redrive-mq/redrive/migration"
)

const createDatabase = "CREATE DATABASE %s DEFAULT CHARACTER SET utf8mb4"

// dbServer makes and drops databases on one server.
type dbServer struct {
	config *mysql.Config // without a database
	admin  *sql.DB

	mu     sync.Mutex
	schema string // what makes the newest schema in an empty database; empty: not yet known
}

func newServer(dsn string) (*dbServer, error) {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	cfg.DBName = ""
	admin := cfg.Clone()
	admin.MultiStatements = true // a schema in one round trip
	if admin.Params == nil {
		admin.Params = map[string]string{}
	}
	admin.Params["lock_wait_timeout"] = strconv.Itoa(int(lockTimeout / time.Second))
	admin.Params["foreign_key_checks"] = "0" // tables are made in the order of their names
	connector, err := mysql.NewConnector(admin)
	if err != nil {
		return nil, err
	}
	return &dbServer{config: cfg, admin: sql.OpenDB(connector)}, nil
}

func (s *dbServer) database(name string) *mysql.Config {
	cfg := s.config.Clone()
	cfg.DBName = name
	return cfg
}

func (s *dbServer) create(ctx context.Context, name string, empty bool) error {
	statements := fmt.Sprintf(createDatabase, name)
	if !empty {
		schema, err := s.newestSchema(ctx)
		if err != nil {
			return err
		}
		statements += "; USE " + name + "; " + schema
	}
	_, err := s.admin.ExecContext(ctx, statements)
	return err
}

// drop goes again when it lost a deadlock, until ctx ends. MySQL 9.7 was seen to answer so, rarely, when many databases come
// and go at once and nobody is connected to this one: DROP DATABASE takes locks of the server's own, in its dictionary.
// What it had dropped by then stays dropped. A transaction that a test left open is no deadlock: it is waited for, in vain.
func (s *dbServer) drop(ctx context.Context, name string) error {
	const lostDeadlock = 1213
	for {
		_, err := s.admin.ExecContext(ctx, "DROP DATABASE IF EXISTS "+name)
		if me, ok := errors.AsType[*mysql.MySQLError](err); !ok || me.Number != lostDeadlock || ctx.Err() != nil {
			return err
		}
	}
}

// newestSchema migrates one database the regular way and reads off it what makes the same in one step: that
// is three times as fast as migrating each.
func (s *dbServer) newestSchema(ctx context.Context) (_ string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.schema != "" {
		return s.schema, nil
	}
	name := newName()
	if err := s.create(ctx, name, true); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, s.drop(ctx, name)) }()
	if err := migration.Up(ctx, s.database(name)); err != nil {
		return "", err
	}
	s.schema, err = s.dump(ctx, name)
	return s.schema, err
}

// dump returns the statements that make the tables of a database and the rows in them.
func (s *dbServer) dump(ctx context.Context, database string) (string, error) {
	tables, err := column(ctx, s.admin, "SELECT table_name FROM information_schema.tables WHERE table_schema = ? ORDER BY table_name", database)
	if err != nil {
		return "", err
	}
	var statements strings.Builder
	for _, table := range tables {
		var name, create string
		if err := s.admin.QueryRowContext(ctx, "SHOW CREATE TABLE "+database+".`"+table+"`").Scan(&name, &create); err != nil {
			return "", err
		}
		statements.WriteString(create + ";\n")
		rows, err := s.dumpRows(ctx, database, table)
		if err != nil {
			return "", err
		}
		statements.WriteString(rows)
	}
	return statements.String(), nil
}

// dumpRows returns the INSERT of a table's rows, empty if it has none.
func (s *dbServer) dumpRows(ctx context.Context, database, table string) (string, error) {
	const where = " FROM information_schema.columns WHERE table_schema = ? AND table_name = ? " +
		"AND COALESCE(generation_expression, '') = '' ORDER BY ordinal_position"
	names, err := column(ctx, s.admin, "SELECT column_name"+where, database, table)
	if err != nil {
		return "", err
	}
	types, err := column(ctx, s.admin, "SELECT data_type"+where, database, table)
	if err != nil {
		return "", err
	}
	literals := make([]string, len(names))
	for i, name := range names {
		names[i] = "`" + name + "`"
		literals[i] = "QUOTE(" + names[i] + ")" // NULL becomes the word
		if strings.Contains(types[i], "binary") || strings.Contains(types[i], "blob") {
			literals[i] = "COALESCE(CONCAT('X''', HEX(" + names[i] + "), ''''), 'NULL')"
		}
	}
	table = "`" + table + "`"
	rows, err := column(ctx, s.admin, "SELECT CONCAT_WS(', ', "+strings.Join(literals, ", ")+") FROM "+database+"."+table)
	if err != nil || len(rows) == 0 {
		return "", err
	}
	return "INSERT INTO " + table + " (" + strings.Join(names, ", ") + ") VALUES (" + strings.Join(rows, "), (") + ");\n", nil
}

// dropOrphans drops what killed runs left on a server that outlives the tests.
func (s *dbServer) dropOrphans(ctx context.Context) error {
	names, err := column(ctx, s.admin, "SELECT schema_name FROM information_schema.schemata WHERE schema_name LIKE ?", namePrefix+"%")
	if err != nil {
		return err
	}
	for _, name := range names {
		if at, ours := madeAt(name); ours && time.Since(at) > orphanAge {
			if err := s.drop(ctx, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// createOn makes a database on a server of one test, which it is no use to learn the schema of.
func createOn(ctx context.Context, own OwnServer, name string, empty bool) (*mysql.Config, error) {
	server, err := newServer(own.DSN(""))
	if err != nil {
		return nil, err
	}
	defer server.admin.Close()
	cfg := server.database(name)
	if err := server.create(ctx, name, true); err != nil || empty {
		return cfg, err
	}
	return cfg, migration.Up(ctx, cfg)
}

func column(ctx context.Context, db *sql.DB, query string, args ...any) ([]string, error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var values []string
	for rows.Next() {
		var value string
		if err := rows.Scan(&value); err != nil {
			return nil, err
		}
		values = append(values, value)
	}
	return values, rows.Err()
}
