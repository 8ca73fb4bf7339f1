package app

import (
	"context"
	"errors"
	"log/slog"

	"github.com/redrive-mq/redrive/migration"
	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/storage/privatedb"
)

// Database is the configured database, for commands that work on it without an instance: the one that the DSN names,
// or the private one, which Database then runs.
type Database struct {
	Store *storage.Store

	dsn     string
	private *privatedb.Server
}

// OpenDatabase connects to the database and returns once it answers. The private database cannot be opened while an
// instance uses it: *privatedb.InUseError.
func OpenDatabase(ctx context.Context, c *Config, log *slog.Logger) (*Database, error) {
	var err error
	d := &Database{dsn: c.DatabaseDSN}
	if d.dsn == "" {
		if d.private, d.dsn, err = startPrivate(ctx, c, privatedb.Options{Log: log}); err != nil {
			return nil, err
		}
	}
	if d.Store, err = c.open(d.dsn, 4, log); err == nil {
		err = d.Store.Ping(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// Close closes the connections and ends the private database.
func (d *Database) Close() error {
	var errs []error
	if d.Store != nil {
		errs = append(errs, d.Store.Close())
	}
	if d.private != nil {
		ctx, cancel := context.WithTimeout(context.Background(), stopDatabaseWithin)
		defer cancel()
		errs = append(errs, d.private.Stop(ctx))
	}
	return errors.Join(errs...)
}

// MigrateUp brings the schema to the newest version.
func (d *Database) MigrateUp(ctx context.Context) error { return migrateUp(ctx, d.dsn) }

// MigrateDown takes the newest steps migrations back, with the data that they hold.
func (d *Database) MigrateDown(ctx context.Context, steps int) error {
	cfg, err := storage.Config(d.dsn)
	if err != nil {
		return err
	}
	return migration.Down(ctx, cfg, steps)
}

// MigrateForce writes down that the schema is at version (-1: none) and clean, after a repair by hand.
func (d *Database) MigrateForce(ctx context.Context, version int) error {
	cfg, err := storage.Config(d.dsn)
	if err != nil {
		return err
	}
	return migration.Force(ctx, cfg, version)
}
