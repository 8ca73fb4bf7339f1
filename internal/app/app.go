// Package app puts an instance of Redrive together and runs it: it is the only package that knows all the others. It
// reads the configuration, starts the parts in a named order, says at /readyz how far it is, and stops the parts in a
// named order, each within a time.
//
// It decides nothing about messages, jobs or HTTP; signals and the command line are the business of cmd.
package app

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-mq/redrive/archive"
	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/storage/privatedb"
	"github.com/redrive-mq/redrive/telemetry"
)

// Options says how to make an App.
type Options struct {
	Config Config
	// Log gets everything; default slog.Default().
	Log *slog.Logger
	// Registry gets all metrics and is served at /metrics; default: a new one with what telemetry.NewRegistry puts in.
	Registry *prometheus.Registry
}

// App is one instance. Run runs it, once.
type App struct {
	config   Config
	log      *slog.Logger
	registry *prometheus.Registry
	seed     *Seed // nil: none
	progress *progress
	gate     *gate
	instance storage.ID

	listening chan struct{} // closed when listener is set
	listener  net.Listener
	served    chan struct{} // closed when the listener takes no more connections

	private *privatedb.Server // nil: the database is somebody else's
	store   *storage.Store
	engines engines
	pruner  *archive.Archive // of the parts; made early
	parts   *parts

	watchers sync.WaitGroup // the goroutines of Run
}

// New checks the configuration and reads the seed file. It opens nothing. What is wrong with a setting is a
// *SettingError.
func New(o Options) (*App, error) {
	if err := o.Config.Check(); err != nil {
		return nil, err
	}
	a := &App{config: o.Config, log: o.Log, registry: o.Registry, progress: newProgress(), instance: storage.NewID(), listening: make(chan struct{}), served: make(chan struct{})}
	if a.log == nil {
		a.log = slog.Default()
	}
	var err error
	if a.registry == nil {
		if a.registry, err = telemetry.NewRegistry(telemetry.ReadBuild()); err != nil {
			return nil, err
		}
	}
	if a.config.SeedFile != "" {
		if a.seed, err = readSeed(a.config.SeedFile, a.config.BrokerAllowPrivateDestinations); err != nil {
			return nil, err
		}
	}
	starting, err := a.newStarting()
	if err != nil {
		return nil, err
	}
	a.gate = newGate(starting)
	return a, nil
}

// Listening is closed once the port is taken; from then on URL answers.
func (a *App) Listening() <-chan struct{} { return a.listening }

// Ready is closed once the instance takes traffic for the first time.
func (a *App) Ready() <-chan struct{} { return a.progress.started }

// URL is the base URL of the API, as this machine reaches it. Listening must be closed.
func (a *App) URL() string {
	host, port, _ := net.SplitHostPort(a.listener.Addr().String())
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port)
}

// Run takes the port, starts the parts and works until ctx ends or something fails for good, then stops all that it
// started. A ctx that ends is no error. A database that is away at the start is waited for; a schema that is behind
// (unless AutoMigrate), a taken port, and a private database that cannot be kept alive are errors.
//
// Stopping: from the end of ctx on no more connections are taken, and on those that are open /readyz answers 503 and
// broadcasts are refused with 503; attempts under way may end, and what is in flight then is handed back; requests under
// way may end; the private database comes last. All of that takes 15 s at most.
func (a *App) Run(parent context.Context) error {
	ctx, fail := context.WithCancelCause(parent)
	defer fail(nil)

	var err error
	if a.listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", a.config.HTTPListen); err != nil {
		return fmt.Errorf("%s: %w", EnvName("HTTPListen"), err)
	}
	close(a.listening)
	detached, endDetached := context.WithCancel(context.WithoutCancel(parent))
	defer endDetached()
	server := a.serve(fail)

	err = a.start(ctx, detached, fail)
	if err == nil {
		<-ctx.Done()
	}
	if parent.Err() == nil && err == nil {
		err = context.Cause(ctx)
	}
	if parent.Err() != nil {
		err = nil // whatever came to an end did so because it was told to
	}
	a.log.Info("stopping")
	fail(err)
	a.stop(server, endDetached)
	return err
}

// start brings up everything behind the gate and opens it.
func (a *App) start(ctx, detached context.Context, fail context.CancelCauseFunc) error {
	dsn, err := a.database(ctx, fail)
	if err != nil {
		return err
	}
	if a.engines, err = a.config.engineSettings(); err != nil {
		return err
	}
	if a.store, err = a.config.open(dsn, a.config.DatabaseMaxConnections, a.log); err != nil {
		return err
	}
	if a.pruner, err = a.newArchive(); err != nil { // before the wait for the database, which may be long
		return err
	}
	if err := a.prepare(ctx, dsn); err != nil {
		return err
	}
	if a.parts, err = a.assemble(ctx, detached); err != nil {
		return err
	}
	a.parts.start(context.WithoutCancel(ctx)) // they end by stop, in order
	a.gate.open(a.parts.api)
	a.progress.ready()
	a.log.Info("ready", "url", a.URL(), "instance", a.instance.String())
	return nil
}
