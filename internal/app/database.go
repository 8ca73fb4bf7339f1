package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/redrive-mq/redrive/migration"
	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/storage/privatedb"
)

const (
	privateDatabase = "redrive" // its name in the private server
	privateRestarts = 5         // in a row, before the private database is given up

	firstRetry = 200 * time.Millisecond
	mostRetry  = 5 * time.Second
	// A database that stays away is mentioned in the log this often.
	remindEvery = 30 * time.Second
)

// database returns the DSN to use, of a private server that it starts where none is configured.
func (a *App) database(ctx context.Context, fail context.CancelCauseFunc) (dsn string, err error) {
	if a.config.DatabaseDSN != "" {
		return a.config.DatabaseDSN, nil
	}
	a.progress.waiting("the private database is starting")
	if a.private, dsn, err = startPrivate(ctx, &a.config, privatedb.Options{Log: a.log}); err != nil {
		return "", err
	}
	a.watchers.Go(func() { a.supervise(ctx, fail) })
	return dsn, nil
}

// startPrivate starts the private server that belongs to the data folder, and makes its database.
func startPrivate(ctx context.Context, c *Config, o privatedb.Options) (server *privatedb.Server, dsn string, err error) {
	o.Dir = c.databaseDir()
	if server, err = privatedb.Start(ctx, o); err != nil {
		return nil, "", err
	}
	if err = createDatabase(ctx, server); err != nil {
		return nil, "", errors.Join(err, server.Stop(context.WithoutCancel(ctx)))
	}
	return server, server.DSN(privateDatabase), nil
}

func createDatabase(ctx context.Context, server *privatedb.Server) error {
	db, err := sql.Open("mysql", server.DSN(""))
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	if _, err = db.ExecContext(ctx, "CREATE DATABASE IF NOT EXISTS "+privateDatabase); err != nil {
		return fmt.Errorf("private database: %w", err)
	}
	return nil
}

// supervise starts the private server again when it dies, until ctx ends. What was committed is still there; requests
// meanwhile get 503.
func (a *App) supervise(ctx context.Context, fail context.CancelCauseFunc) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.private.Done():
		}
		if ctx.Err() != nil {
			return
		}
		a.log.Error("the private database ended by itself; it is started again", "error", a.private.Err())
		if err := a.restart(ctx); err != nil {
			if ctx.Err() == nil {
				fail(fmt.Errorf("the private database cannot be kept alive: %w", err))
			}
			return
		}
	}
}

func (a *App) restart(ctx context.Context) (err error) {
	pause := firstRetry
	for range privateRestarts {
		if err = a.private.Restart(ctx); err == nil {
			return nil
		}
		a.log.Error("the private database did not start", "error", err)
		if !sleep(ctx, pause) {
			return ctx.Err()
		}
		pause = min(2*pause, mostRetry)
	}
	return err
}

// prepare waits for a database that answers and has the schema, and puts in what the seed file asks for. It returns an
// error only where waiting will not help.
func (a *App) prepare(ctx context.Context, dsn string) error {
	pause, reminded := firstRetry, time.Time{}
	for {
		err := a.prepareOnce(ctx, dsn)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case hopeless(err):
			return err
		}
		// What the database said goes to the log; /readyz, which anybody may read, says less.
		if a.progress.waiting("the database cannot be used yet") || time.Since(reminded) > remindEvery {
			reminded = time.Now()
			a.log.Warn("waiting for the database", "error", err)
		}
		if !sleep(ctx, pause) {
			return ctx.Err()
		}
		pause = min(2*pause, mostRetry)
	}
}

func (a *App) prepareOnce(ctx context.Context, dsn string) error {
	if err := a.store.Ping(ctx); err != nil {
		return err
	}
	if err := a.packetFits(ctx); err != nil {
		return err
	}
	if err := a.schema(ctx, dsn); err != nil {
		return err
	}
	if err := a.store.EnsureEngineTables(ctx); err != nil {
		return err
	}
	if err := a.secretsOpen(ctx); err != nil {
		return err
	}
	if err := a.ensureSigning(ctx); err != nil || a.seed == nil {
		return err
	}
	created, err := a.seed.plant(ctx, a.store)
	if isDataError(err) {
		err = a.seed.wrong(err)
	}
	if created > 0 {
		a.log.Info("seed file planted", "file", a.config.SeedFile, "created", created)
	}
	return err
}

const (
	// The broker stores messages together, as long as their bodies have no more than this: or one message alone.
	bodiesTogether = 4 << 20
	// Metadata headers and the rest of a statement.
	besideBodies = 1 << 20
)

// packetFits checks that the server takes the longest statement that storing messages may need: with every byte of the
// bodies escaped, which doubles them. Otherwise it would end the connection in the middle of a broadcast.
func (a *App) packetFits(ctx context.Context) error {
	var packet int64
	if err := a.store.DB().QueryRowContext(ctx, `SELECT @@max_allowed_packet`).Scan(&packet); err != nil {
		return err
	}
	needs := func(bodies int64) int64 { return 2*bodies + besideBodies }
	switch body := a.config.BrokerMaxBodyBytes; {
	case packet < needs(bodiesTogether):
		e := settingError("DatabaseDSN", fmt.Sprintf("its server's max_allowed_packet is %d", packet))
		e.Allowed = fmt.Sprintf("of a server whose max_allowed_packet is %d or more", needs(max(body, bodiesTogether)))
		return e
	case packet < needs(body):
		e := settingError("BrokerMaxBodyBytes", strconv.FormatInt(body, 10))
		e.Allowed = fmt.Sprintf("at most %d while the database's max_allowed_packet is %d; or that must be %d or more", (packet-besideBodies)/2, packet, needs(body))
		return e
	}
	return nil
}

// secretsOpen checks that this instance can open every consumer's token and every signing secret: one that cannot had better
// not start. What becomes unreadable later, as another instance was given another key, costs that consumer or producer alone.
func (a *App) secretsOpen(ctx context.Context) error {
	catalog, err := a.store.Catalog(ctx)
	if err != nil {
		return err
	}
	var sealed []string
	for k := range catalog.Consumers {
		if k.Sealed && k.Type != storage.TypeEngine { // nobody needs an engine's
			sealed = append(sealed, k.ChannelID+"/"+k.ID)
		}
	}
	slices.Sort(sealed)
	for _, p := range catalog.Producers() {
		if p.Sealed {
			sealed = append(sealed, p.ID)
		}
	}
	if len(sealed) == 0 {
		return nil
	}
	return settingError("SealKey", fmt.Sprintf("none of its keys, nor the database's own, opens what is sealed of %d consumers and producers, the first of them %q", len(sealed), sealed[0]))
}

// signingBatch bounds the consumers that one transaction gives their first signing secret.
const signingBatch = 500

// ensureSigning gives consumers that were made by a version without signatures their first signing secret. It comes after
// secretsOpen: a wrong key must not seal anything.
func (a *App) ensureSigning(ctx context.Context) error {
	for more := true; more; {
		made, left, err := a.store.EnsureSigningSecrets(ctx, signingBatch)
		if err != nil {
			return err
		}
		if made > 0 {
			a.log.Info("consumers were given signing secrets", "consumers", made)
		}
		more = left
	}
	return nil
}

// schema checks the schema and, where that is wanted, brings it up to date.
func (a *App) schema(ctx context.Context, dsn string) error {
	err := migration.Check(ctx, a.store.DB())
	var behind *migration.BehindError
	var dirty *migration.DirtyError
	if !errors.As(err, &behind) && !errors.As(err, &dirty) || !a.config.AutoMigrate && a.private == nil {
		return err
	}
	// Dirty may mean that another instance is at it: Up waits for that one, and then knows better.
	a.progress.waiting("the database schema is being migrated")
	a.log.Info("migrating the database schema", "reason", err)
	return migrateUp(ctx, dsn)
}

func migrateUp(ctx context.Context, dsn string) error {
	cfg, err := storage.Config(dsn)
	if err != nil {
		return err
	}
	return migration.Up(ctx, cfg)
}

// hopeless tells errors that a person has to see to.
func hopeless(err error) bool {
	var behind *migration.BehindError
	var dirty *migration.DirtyError
	var setting *SettingError
	return errors.As(err, &behind) || errors.As(err, &dirty) || errors.As(err, &setting) || isDataError(err)
}

// isDataError tells errors that say that what was to be stored cannot be (SQLSTATE classes 22 and 23).
func isDataError(err error) bool {
	var server *mysql.MySQLError
	return errors.As(err, &server) && (string(server.SQLState[:2]) == "22" || string(server.SQLState[:2]) == "23")
}

// sleep returns false when ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
