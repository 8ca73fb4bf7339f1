package storage

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
)

// Options says which database to use and how.
type Options struct {
	// DSN in the form of github.com/go-sql-driver/mysql: user:password@tcp(host:port)/database. What correctness
	// needs (UTC, READ COMMITTED, strict SQL mode, timeouts) is set whatever the DSN says.
	DSN string
	// MaxOpenConns bounds the connections of this process; default 32.
	MaxOpenConns int
	// SealKeys open consumer tokens and signing secrets, 32 bytes each; the first of them seals. A key that the database keeps, made on
	// first use, opens tokens as well, and seals where none is given.
	SealKeys [][]byte
	// DLQTable and HistoryTable are the tables of dead letters and of history: a letter and 2 to 62 more letters and
	// digits; default engineDlq and engineHistory. See EnsureEngineTables for others.
	DLQTable, HistoryTable string
	// WrapConnector is for tests: what it returns is used in place of the driver's connector.
	WrapConnector func(driver.Connector) driver.Connector
	// Log gets what an operator should know; default slog.Default().
	Log *slog.Logger
}

// Store is the handle to the database. It is safe for use by several goroutines; Close ends it.
type Store struct {
	db  *sql.DB
	log *slog.Logger

	sealKeys [][]byte // as of Options; see sealer
	sealMu   sync.Mutex
	seals    *sealer

	catalogMu sync.Mutex // one reload at a time
	catalog   atomicCatalog

	tables engineTables
	turns  turns
}

// Open prepares the pool. It does not connect: a database that is down shows in the first call, and Ping tells.
func Open(o Options) (*Store, error) {
	cfg, err := Config(o.DSN)
	if err != nil {
		return nil, err
	}
	if o.MaxOpenConns <= 0 {
		o.MaxOpenConns = 32
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	for _, key := range o.SealKeys {
		if len(key) != sealKeySize {
			return nil, fmt.Errorf("a seal key has %d bytes, it must have %d", len(key), sealKeySize)
		}
	}
	tables, err := newEngineTables(o.DLQTable, o.HistoryTable)
	if err != nil {
		return nil, err
	}
	cfg.Logger = driverLog{o.Log}
	inner, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("database DSN: %w", redactDSN(err))
	}
	var connector driver.Connector = sessionConnector{inner}
	if o.WrapConnector != nil {
		connector = o.WrapConnector(connector)
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(o.MaxOpenConns)
	db.SetMaxIdleConns(o.MaxOpenConns)
	db.SetConnMaxIdleTime(sessionIdle / 2)
	return &Store{db: db, log: o.Log, sealKeys: o.SealKeys, tables: tables}, nil
}

// Config reads a DSN and sets what Redrive needs of a connection.
func Config(dsn string) (*mysql.Config, error) {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, fmt.Errorf("database DSN: %w", redactDSN(err))
	}
	if cfg.DBName == "" {
		return nil, errors.New("database DSN: it names no database (user:password@tcp(host:port)/database)")
	}
	cfg.ParseTime = true
	cfg.Loc = time.UTC
	cfg.InterpolateParams = true
	cfg.RejectReadOnly = true
	cfg.MultiStatements = false
	cfg.ClientFoundRows = false // rows affected must mean rows changed
	if err := cfg.Apply(mysql.TimeTruncate(time.Microsecond)); err != nil {
		return nil, err
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 5 * time.Second
	}
	if cfg.ReadTimeout == 0 {
		cfg.ReadTimeout = 30 * time.Second
	}
	if cfg.WriteTimeout == 0 {
		cfg.WriteTimeout = 30 * time.Second
	}
	return cfg, nil
}

// driverLog takes in what the driver says of broken connections. The error reaches the caller as well, so it is for
// debugging only; the driver's own default writes plain lines to stderr.
type driverLog struct{ log *slog.Logger }

func (d driverLog) Print(v ...any) { d.log.Debug("database driver", "message", fmt.Sprint(v...)) }

// redactDSN keeps a parse error's reason without echoing the DSN, which may hold a password.
func redactDSN(err error) error {
	msg := err.Error()
	if i := strings.IndexByte(msg, ':'); i >= 0 && strings.HasPrefix(msg, "invalid DSN") {
		return errors.New("invalid DSN:" + msg[i+1:])
	}
	return errors.New("invalid DSN (user:password@tcp(host:port)/database)")
}

// sessionConnector gives every new connection the session that the SQL here relies on. The isolation level is set by
// a statement because the variable's name differs between the servers.
type sessionConnector struct{ driver.Connector }

func (c sessionConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	execer, ok := conn.(driver.ExecerContext)
	if !ok {
		_ = conn.Close()
		return nil, errors.New("storage: the driver cannot execute statements")
	}
	for _, stmt := range []string{
		"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
		"SET SESSION time_zone = '+00:00', sql_mode = 'STRICT_TRANS_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO', innodb_lock_wait_timeout = 10, wait_timeout = " + strconv.Itoa(int(sessionIdle/time.Second)),
	} {
		if _, err := execer.ExecContext(ctx, stmt, nil); err != nil {
			_ = conn.Close()
			return nil, err
		}
	}
	return conn, nil
}

// sessionIdle is how long the server keeps a session that says nothing. An instance that vanishes without a word (power,
// network) leaves its locks for no longer.
const sessionIdle = time.Minute

// Close closes the pool.
func (s *Store) Close() error { return s.db.Close() }

// Ping asks the database whether it is there.
func (s *Store) Ping(ctx context.Context) error { return s.db.PingContext(ctx) }

// Now is the database's time.
func (s *Store) Now(ctx context.Context) (now time.Time, err error) {
	return now, s.db.QueryRowContext(ctx, `SELECT NOW(6)`).Scan(&now)
}

// DB is the pool, for what has SQL of its own (tests, benches).
func (s *Store) DB() *sql.DB { return s.db }

// querier is what *sql.DB and *sql.Tx have in common.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// affected runs a statement and returns the number of rows it changed.
func affected(ctx context.Context, q querier, query string, args ...any) (int64, error) {
	res, err := q.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// collect runs a query and scans each row with scan.
func collect[T any](ctx context.Context, q querier, scan func(*sql.Rows) (T, error), query string, args ...any) ([]T, error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var out []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	if err := rows.Err(); err != nil {
		return nil, err // what was read so far must not pass for all there is
	}
	return out, nil
}

// placeholders is "group,group,..." n times, for VALUES and IN lists.
func placeholders(group string, n int) string {
	if n == 0 {
		return ""
	}
	return strings.Repeat(group+",", n-1) + group
}

// anyIDs makes bound arguments of ids.
func anyIDs(ids []ID) []any {
	args := make([]any, len(ids))
	for i := range ids {
		args[i] = ids[i][:]
	}
	return args
}

// micros is a duration as bound to INTERVAL ? MICROSECOND.
func micros(d time.Duration) int64 { return d.Microseconds() }
