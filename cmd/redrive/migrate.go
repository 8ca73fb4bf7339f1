package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/redrive-mq/redrive/internal/app"
	"github.com/redrive-mq/redrive/migration"
	"github.com/redrive-mq/redrive/telemetry"
)

type migrateCmd struct {
	Up     migrateUpCmd     `cmd:"" help:"Bring the schema to the newest version."`
	Down   migrateDownCmd   `cmd:"" help:"Take back the newest migrations, with the data that they hold."`
	Status migrateStatusCmd `cmd:"" help:"Say at which version the schema is. Exit status 1: it is behind."`
	Force  migrateForceCmd  `cmd:"" help:"After a repair by hand: write down at which version the schema is."`
}

// withDatabase runs do on the configured database.
func withDatabase(ctx context.Context, p process, s *settings, do func(*app.Database) error) (err error) {
	if s.AdminToken == "" {
		s.AdminAuth = app.AdminOpen // there is no API here that a token would guard
	}
	if err := s.Check(); err != nil {
		return err
	}
	log, err := telemetry.NewLogger(p.err, "warn", telemetry.FormatText)
	if err != nil {
		return err
	}
	db, err := app.OpenDatabase(ctx, &s.Config, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return do(db)
}

type migrateUpCmd struct {
	settings
}

// Run implements the command.
func (c *migrateUpCmd) Run(ctx context.Context, p process) error {
	return withDatabase(ctx, p, &c.settings, func(db *app.Database) error {
		before, _, _, err := migration.Status(ctx, db.Store.DB())
		if err != nil {
			return err
		}
		if err := db.MigrateUp(ctx); err != nil {
			return err
		}
		after, _, _, err := migration.Status(ctx, db.Store.DB())
		if err != nil {
			return err
		}
		if before == after {
			fmt.Fprintf(p.out, "the schema is at version %d already\n", after)
			return nil
		}
		fmt.Fprintf(p.out, "the schema went from version %d to %d\n", before, after)
		return nil
	})
}

type migrateDownCmd struct {
	settings
	Steps int `arg:"" help:"How many."`
}

// Run implements the command.
func (c *migrateDownCmd) Run(ctx context.Context, p process) error {
	return withDatabase(ctx, p, &c.settings, func(db *app.Database) error {
		if err := db.MigrateDown(ctx, c.Steps); err != nil {
			return err
		}
		after, _, _, err := migration.Status(ctx, db.Store.DB())
		if err == nil {
			fmt.Fprintf(p.out, "the schema is at version %d now\n", after)
		}
		return err
	})
}

type migrateStatusCmd struct {
	settings
}

// Run implements the command.
func (c *migrateStatusCmd) Run(ctx context.Context, p process) error {
	return withDatabase(ctx, p, &c.settings, func(db *app.Database) error {
		current, latest, _, err := migration.Status(ctx, db.Store.DB())
		if err != nil {
			return err
		}
		fmt.Fprintf(p.out, "the schema is at version %d, this program needs %d\n", current, latest)
		return migration.Check(ctx, db.Store.DB())
	})
}

type migrateForceCmd struct {
	settings
	Version int `arg:"" help:"The version; -1: none."`
}

// Run implements the command.
func (c *migrateForceCmd) Run(ctx context.Context, p process) error {
	return withDatabase(ctx, p, &c.settings, func(db *app.Database) error {
		if err := db.MigrateForce(ctx, c.Version); err != nil {
			return err
		}
		fmt.Fprintf(p.out, "the schema is written down as version %d\n", c.Version)
		return nil
	})
}
