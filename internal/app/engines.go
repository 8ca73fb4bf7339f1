package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"

	"github.com/redrive-mq/redrive/engine"
	"github.com/redrive-mq/redrive/engine/alerts"
	"github.com/redrive-mq/redrive/engine/health"
	"github.com/redrive-mq/redrive/engine/hmac"
	"github.com/redrive-mq/redrive/storage"
)

// engines is what the settings say of engines: which there are, and where their dead letters and history are kept.
type engines struct {
	context  engine.Context
	settings map[string]engine.Setting
	tables   engine.Config
}

// engineSettings reads the settings of the group Engines. The errors are *SettingError.
func (c *Config) engineSettings() (engines, error) {
	var e engines
	name := c.EngineContext
	if name == "" {
		name = engine.Publisher
	}
	var err error
	if e.context, err = engine.Lookup(name); err != nil {
		return e, settingError("EngineContext", c.EngineContext)
	}
	if c.Engines != "" {
		if err = strictJSON(c.Engines, &e.settings); err == nil {
			e.context, err = e.context.WithSettings(e.settings)
		}
		if err == nil {
			err = e.executed()
		}
		if err != nil {
			return e, settingError("Engines", c.Engines).because(err)
		}
	}
	e.tables = engine.DefaultConfig()
	if c.EngineTablesConfig != "" {
		err = strictJSON(c.EngineTablesConfig, &e.tables)
	}
	if err == nil {
		err = errors.Join(e.tables.Validate(), c.inSchema(e.tables.StorageAccountName))
	}
	if err != nil {
		return e, settingError("EngineTablesConfig", c.EngineTablesConfig).because(err)
	}
	return e, nil
}

// executed refuses what is said of the runs of engines that nobody executes here.
func (e engines) executed() error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(e.settings)) {
		s := e.settings[name]
		if builtIn := name == alerts.Name || name == health.Name || name == hmac.Name; s.Endpoint == "" && s.OfRuns() && !builtIn {
			errs = append(errs, fmt.Errorf("engine %q: it needs an endpoint to be executed here", name))
		}
	}
	return errors.Join(errs...)
}

// inSchema checks that the tables are wanted where a death and its record can be one transaction.
func (c *Config) inSchema(name string) error {
	if name == "" || c.DatabaseDSN == "" {
		return nil
	}
	dsn, err := storage.Config(c.DatabaseDSN)
	if err == nil && dsn.DBName != name {
		return fmt.Errorf("storageAccountName is %q and the database is %q: a death and its dead letter are one transaction, so both are in one schema", name, dsn.DBName)
	}
	return nil // a wrong DSN is told of by itself
}

// strictJSON takes one JSON value and no field that is not known.
func strictJSON(text string, into any) error {
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more than one JSON value")
	}
	return nil
}

// open makes the pool of connections as the settings say.
func (c *Config) open(dsn string, connections int, log *slog.Logger) (*storage.Store, error) {
	sealKeys, err := c.sealKeys()
	if err != nil {
		return nil, err
	}
	e, err := c.engineSettings()
	if err != nil {
		return nil, err
	}
	return storage.Open(storage.Options{
		DSN: dsn, MaxOpenConns: connections, SealKeys: sealKeys, Log: log,
		DLQTable: e.tables.DLQTableName, HistoryTable: e.tables.HistoryTableName,
	})
}

// NewRetention prepares what removes dead letters and history entries that are past their retention.
func (d *Database) NewRetention(c *Config, log *slog.Logger) (*engine.Retention, error) {
	e, err := c.engineSettings()
	if err != nil {
		return nil, err
	}
	return engine.NewRetention(engine.RetentionOptions{Store: d.Store, Owner: storage.NewID().String(), Days: e.tables.RetentionDays, Log: log})
}

func (a *App) newRetention() (*engine.Retention, error) {
	return engine.NewRetention(engine.RetentionOptions{
		Store: a.store, Owner: a.instance.String(), Days: a.engines.tables.RetentionDays, Registerer: a.registry, Log: a.log,
	})
}

// tokenKey authenticates continuation tokens, on all instances alike.
func (a *App) tokenKey(ctx context.Context) ([]byte, error) {
	return a.store.DerivedKey(ctx, "continuation tokens")
}
