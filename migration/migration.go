// Package migration owns the schema: the SQL files under sql, embedded in the binary, and the few ways
// to move a database along them. Files are numbered from 1 without gaps and never change once released;
// a new version adds a pair NNNNNN_name.up.sql and .down.sql.
//
// It does not know what the tables mean, never touches rows that a migration does not name, and never
// moves a schema backwards unless Down or Force is called.
package migration

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/go-sql-driver/mysql"
	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	migratemysql "github.com/golang-migrate/migrate/v4/database/mysql"
	"github.com/golang-migrate/migrate/v4/source/iofs"
)

//go:embed sql/*.sql
var files embed.FS

// BehindError says that the schema is older than this program needs.
type BehindError struct {
	Current uint // the schema's version, 0 for a database without any
	Latest  uint // the version that this program comes with
}

func (e *BehindError) Error() string {
	return fmt.Sprintf("the database schema is at version %d and this program needs %d: run `redrive migrate up`", e.Current, e.Latest)
}

// DirtyError says that the migration to Version has begun and has not ended: it failed half way (MySQL
// cannot roll back a change of tables), or another process is at it right now.
type DirtyError struct {
	Version uint
}

func (e *DirtyError) Error() string {
	before := int64(e.Version) - 1
	if before == 0 {
		before = noVersion
	}
	return fmt.Sprintf("the migration of the database schema to version %d began and did not end: wait if a `redrive migrate up` is running; "+
		"otherwise undo by hand what it changed, then run `redrive migrate force %d` and `redrive migrate up`", e.Version, before)
}

// noVersion is what Force takes for a schema without any migration: golang-migrate's number for it.
const noVersion = -1

// Latest returns the number of the newest migration that is embedded.
func Latest() (uint, error) {
	names, err := fs.Glob(files, "sql/*.up.sql")
	if err != nil {
		return 0, fmt.Errorf("listing the migrations: %w", err)
	}
	var latest uint
	for _, name := range names {
		number, _, _ := strings.Cut(strings.TrimPrefix(name, "sql/"), "_")
		n, err := strconv.ParseUint(number, 10, 32)
		if err != nil {
			return 0, fmt.Errorf("the migration %s has no number: %w", name, err)
		}
		latest = max(latest, uint(n))
	}
	return latest, nil
}

// Status reads the version of the schema that db is connected to, 0 where there is none, and the newest
// one that this program comes with. It changes nothing and needs no right but SELECT.
// Dirty means what DirtyError says.
func Status(ctx context.Context, db *sql.DB) (current, latest uint, dirty bool, err error) {
	if latest, err = Latest(); err != nil {
		return 0, 0, false, err
	}
	var version int64
	err = db.QueryRowContext(ctx, "SELECT version, dirty FROM "+migratemysql.DefaultMigrationsTable+" LIMIT 1").Scan(&version, &dirty)
	var refused *mysql.MySQLError
	switch {
	case errors.Is(err, sql.ErrNoRows), errors.As(err, &refused) && refused.Number == 1146: // no such table
		return 0, latest, false, nil
	case err != nil:
		return 0, latest, false, fmt.Errorf("reading the version of the database schema: %w", err)
	case version < 0: // Down failed in the first migration
		return 0, latest, dirty, nil
	}
	return uint(version), latest, dirty, nil
}

// Check returns nil if this program can work on the schema that db is connected to: one of its own
// version or a newer one, since migrations only add while an older program may still run (a rolling
// deployment). Otherwise the error is a *BehindError, a *DirtyError, or what the database said.
func Check(ctx context.Context, db *sql.DB) error {
	current, latest, dirty, err := Status(ctx, db)
	switch {
	case err != nil:
		return err
	case dirty:
		return &DirtyError{Version: current}
	case current < latest:
		return &BehindError{Current: current, Latest: latest}
	}
	return nil
}

// Up brings the schema of the database that cfg names to the newest version. Any number of processes may
// call it at once: one works, the others wait for it. A schema that is current or newer is no error and
// needs no rights to change tables. A migration that failed leaves the schema dirty: *DirtyError from then on.
//
// When ctx ends, Up stops before the next migration, never inside one; waiting for another process it
// returns within 10 s. It opens two connections of its own and closes them.
func Up(ctx context.Context, cfg *mysql.Config) error {
	return run(ctx, cfg, func(m *migrate.Migrate, db *sql.DB) error {
		for {
			current, latest, dirty, err := Status(ctx, db)
			if err != nil || ctx.Err() != nil || current >= latest && !dirty {
				return err
			}
			// One at a time: the migrator reads ahead, and leaves goroutines behind when a migration fails. Dirty may only
			// mean that another process is at work: it looks again under the lock. Where that one has done it there is none.
			if err := m.Steps(1); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	})
}

// Down takes back the newest steps migrations, with the data that they hold. Steps beyond the first
// migration are an error, and take back all the same what there is.
func Down(ctx context.Context, cfg *mysql.Config, steps int) error {
	if steps < 1 {
		return fmt.Errorf("%d migrations to take back: must be at least 1", steps)
	}
	return run(ctx, cfg, func(m *migrate.Migrate, db *sql.DB) error {
		if current, _, dirty, err := Status(ctx, db); err != nil || current == 0 && !dirty {
			return errors.Join(err, errors.New("there is no migration to take back"))
		}
		return m.Steps(-steps)
	})
}

// Force writes down that the schema is at version, or without any migration for -1, and clean. It changes no table:
// it is for a person who has repaired by hand what a failed migration left.
func Force(ctx context.Context, cfg *mysql.Config, version int) error {
	latest, err := Latest()
	if err != nil {
		return err
	}
	if version != noVersion && (version < 1 || uint(version) > latest) {
		return fmt.Errorf("schema version %d: must be 1 to %d, or -1 for none", version, latest)
	}
	return run(ctx, cfg, func(m *migrate.Migrate, _ *sql.DB) error { return m.Force(version) })
}

// run calls do with a migrator on a pool of its own, again and again while another process holds the lock.
func run(ctx context.Context, cfg *mysql.Config, do func(*migrate.Migrate, *sql.DB) error) error {
	own := cfg.Clone()
	own.MultiStatements = true               // a migration is one file of many statements
	own.ReadTimeout, own.WriteTimeout = 0, 0 // altering a big table takes as long as it takes
	connector, err := mysql.NewConnector(own)
	if err != nil {
		return fmt.Errorf("migrating the database schema: %w", err)
	}
	db := sql.OpenDB(connector)
	defer db.Close()
	db.SetMaxOpenConns(2) // the migrator's, and one to read the status

	for {
		err := attempt(ctx, db, do)
		if !errors.Is(err, database.ErrLocked) && !errors.Is(err, migrate.ErrLockTimeout) {
			return named(err)
		}
		// The server had us wait 10 s for the lock: no need to pause before the next try.
		if ctx.Err() != nil {
			return fmt.Errorf("migrating the database schema: another process is migrating it: %w", context.Cause(ctx))
		}
	}
}

func attempt(ctx context.Context, db *sql.DB, do func(*migrate.Migrate, *sql.DB) error) (err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close() // the session's end also gives back a lock that an error left behind
	driver, err := migratemysql.WithConnection(ctx, conn, &migratemysql.Config{})
	if err != nil {
		return err
	}
	source, err := iofs.New(files, "sql")
	if err != nil {
		return err
	}
	defer source.Close()
	m, err := migrate.NewWithInstance("embedded", source, "mysql", driver)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { m.GracefulStop <- true }) // buffered: never blocks
	defer stop()
	if err := do(m, db); err != nil && !errors.Is(err, migrate.ErrNoChange) {
		return err
	}
	return ctx.Err() // a graceful stop is no error to the migrator, and not a finished migration to us
}

// named puts our own words around what the migrator and the database say.
func named(err error) error {
	if err == nil {
		return nil
	}
	if dirty, ok := errors.AsType[migrate.ErrDirty](err); ok {
		return &DirtyError{Version: uint(max(dirty.Version, 0))}
	}
	if failed, ok := errors.AsType[database.Error](err); ok {
		// Its own text repeats the whole file.
		return fmt.Errorf("migrating the database schema: %w", failed.OrigErr)
	}
	if failed, ok := errors.AsType[*database.Error](err); ok {
		return fmt.Errorf("migrating the database schema: %w", failed.OrigErr)
	}
	if short, ok := errors.AsType[migrate.ErrShortLimit](err); ok {
		return fmt.Errorf("taking back migrations of the database schema: there were %d fewer than asked for", short.Short)
	}
	return fmt.Errorf("migrating the database schema: %w", err)
}
