package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
)

// server is the database server that brokers are measured on.
type server struct {
	config *mysql.Config // without a database
	admin  *sql.DB
	stop   func() // nil for a server that was there before
}

// database describes a server in the report.
type database struct {
	Flavour string `json:"flavour"` // MariaDB, MySQL or another that speaks its protocol
	Version string `json:"version"`
	// Durable says whether every commit is on disk before it is answered.
	Durable  bool              `json:"durable"`
	Settings map[string]string `json:"settings"`
	Private  bool              `json:"private"` // started for this run
}

// openServer connects to the server of dsn or, when that is empty, starts a private one under dir with a
// buffer pool of so many bytes.
func openServer(ctx context.Context, dsn, dir string, bufferPool int64) (*server, error) {
	s := &server{}
	if dsn == "" {
		var err error
		if dsn, s.stop, err = startPrivate(ctx, dir, bufferPool); err != nil {
			return nil, err
		}
	}
	if err := s.connect(ctx, dsn); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *server) connect(ctx context.Context, dsn string) error {
	config, err := mysql.ParseDSN(dsn)
	if err != nil {
		return fmt.Errorf("--dsn: %w", err)
	}
	config.DBName = ""
	config.ParseTime, config.Loc, config.InterpolateParams = true, time.UTC, true
	s.config = config
	if s.admin, err = s.open(""); err != nil {
		return err
	}
	if err := s.admin.PingContext(ctx); err != nil {
		return fmt.Errorf("connect to the database server at %s: %w", config.Addr, err)
	}
	return nil
}

// open returns a pool of connections to a database of the server.
func (s *server) open(name string) (*sql.DB, error) {
	config := s.config.Clone()
	config.DBName = name
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(seedWorkers + 2)
	return db, nil
}

// NewDatabase creates an empty database and returns its DSN, a pool of connections to it, and what drops it.
func (s *server) NewDatabase(ctx context.Context) (dsn string, db *sql.DB, drop func(context.Context) error, err error) {
	random := make([]byte, 6)
	_, _ = rand.Read(random) // never fails
	name := "redrive_bench_" + hex.EncodeToString(random)
	if _, err := s.admin.ExecContext(ctx, "CREATE DATABASE "+name+" CHARACTER SET utf8mb4"); err != nil {
		return "", nil, nil, fmt.Errorf("create a database: %w", err)
	}
	config := s.config.Clone()
	config.DBName = name
	if db, err = s.open(name); err != nil {
		return "", nil, nil, err
	}
	return config.FormatDSN(), db, func(ctx context.Context) error {
		err := db.Close()
		if _, dropErr := s.admin.ExecContext(ctx, "DROP DATABASE "+name); dropErr != nil {
			err = errors.Join(err, fmt.Errorf("drop the database: %w", dropErr))
		}
		return err
	}, nil
}

// Describe reads what the server is and whether its commits are durable.
func (s *server) Describe(ctx context.Context) (database, error) {
	d := database{Settings: map[string]string{}, Private: s.stop != nil}
	var version, comment string
	if err := s.admin.QueryRowContext(ctx, `SELECT VERSION(), @@version_comment`).Scan(&version, &comment); err != nil {
		return d, fmt.Errorf("ask the server its version: %w", err)
	}
	d.Version = version
	switch all := strings.ToLower(version + " " + comment); {
	case strings.Contains(all, "mariadb"):
		d.Flavour = "MariaDB"
	case strings.Contains(all, "tidb"):
		d.Flavour = "TiDB"
	case strings.Contains(all, "vitess"):
		d.Flavour = "Vitess"
	case strings.Contains(all, "percona"):
		d.Flavour = "Percona Server"
	default: // its comment is the packager's own: "(Debian)", "Source distribution"
		d.Flavour = "MySQL"
	}
	rows, err := s.admin.QueryContext(ctx, `
		SHOW GLOBAL VARIABLES WHERE Variable_name IN ('innodb_flush_log_at_trx_commit', 'sync_binlog', 'log_bin',
			'innodb_buffer_pool_size', 'innodb_doublewrite', 'innodb_flush_method')`)
	if err != nil {
		return d, fmt.Errorf("ask the server its settings: %w", err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return d, err
		}
		d.Settings[name] = value
	}
	d.Durable = d.Settings["innodb_flush_log_at_trx_commit"] == "1" &&
		(d.Settings["log_bin"] != "ON" || d.Settings["sync_binlog"] == "1")
	return d, rows.Err()
}

// Close ends the connections, and the server if it is the bench's own. It may be called again.
func (s *server) Close() error {
	var err error
	if s.admin != nil {
		err = s.admin.Close()
	}
	if s.stop != nil {
		s.stop()
	}
	return err
}

// lostLockRace says whether a transaction failed only because another had its locks, so that it may be tried again.
func lostLockRace(err error) bool {
	var e *mysql.MySQLError
	if !errors.As(err, &e) {
		return false
	}
	return e.Number == 1213 || e.Number == 1205 || e.Number == 1020
}
