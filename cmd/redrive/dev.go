package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"

	"github.com/redrive-mq/redrive/internal/app"
	"github.com/redrive-mq/redrive/internal/demo"
	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/telemetry"
)

type devCmd struct {
	settings
	NoDemo bool `help:"Without the demo's traffic."`
}

// Run implements the command.
func (c *devCmd) Run(ctx context.Context, p process) error {
	if err := c.adapt(p); err != nil {
		return err
	}
	if err := c.Check(); err != nil {
		return err
	}
	if err := c.ownDatabase(ctx); err != nil {
		return err
	}
	log, err := telemetry.NewLogger(p.err, c.LogLevel, c.LogFormat)
	if err != nil {
		return err
	}
	instance, err := app.New(app.Options{Config: c.Config, Log: log})
	if err != nil {
		return err
	}
	fmt.Fprintf(p.out, "Starting on %s, data in %s ...\n", c.HTTPListen, c.DataDir)

	// The instance outlives ctx, so that the demo stops sending before the broker stops, and goes on receiving.
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	acting, endActing := context.WithCancel(ctx)
	defer endActing()
	ended := make(chan error, 1)
	go func() {
		defer endActing()
		ended <- instance.Run(running)
	}()
	traffic, demoErr := c.perform(acting, p, instance, log)
	if ctx.Err() != nil {
		fmt.Fprintln(p.out, "Stopping ...")
	}
	stop()
	err = errors.Join(demoErr, <-ended)
	if traffic != nil {
		err = errors.Join(err, traffic.Close())
	}
	return err
}

// perform runs the demo on the instance until ctx ends. What it returns still receives: it is to be closed.
func (c *devCmd) perform(ctx context.Context, p process, instance *app.App, log *slog.Logger) (*demo.Demo, error) {
	select {
	case <-ctx.Done():
		return nil, nil
	case <-instance.Ready():
	}
	if c.NoDemo {
		fmt.Fprintf(p.out, "Redrive runs at %s. Ctrl-C stops it.\n", instance.URL())
		<-ctx.Done()
		return nil, nil
	}
	traffic, err := demo.New(ctx, demo.Options{
		URL: instance.URL(), Listen: demoAddress(c.HTTPListen), Data: c.DataDir, Out: p.out, Log: log,
	})
	if err != nil {
		return nil, err
	}
	return traffic, traffic.Run(ctx)
}

// adapt makes sure of what dev promises, whatever the environment says for serve: on loopback, open, unsigned.
func (c *devCmd) adapt(p process) error {
	host, port, err := net.SplitHostPort(c.HTTPListen)
	if err != nil {
		return c.listenError("host:port or :port")
	}
	if moved, ok := p.lookupEnv("PORT"); ok && moved != "" {
		if _, set := p.lookupEnv(app.EnvName("HTTPListen")); !set {
			if _, err := strconv.ParseUint(moved, 10, 16); err != nil {
				return &app.SettingError{Env: "PORT", Value: moved, Allowed: "a number from 0 to 65535"}
			}
			port = moved
		}
	}
	if host == "" {
		host = "127.0.0.1"
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return c.listenError("a loopback address with `redrive dev`, as 127.0.0.1:8080 or :8080: everything is open to whoever reaches it")
	}
	c.HTTPListen = net.JoinHostPort(host, port)
	c.AdminAuth, c.GatewayAuthMode = app.AdminOpen, app.GatewayNone
	c.AutoMigrate = true
	return nil
}

// ownDatabase refuses a database that somebody works with: dev migrates it, sends demo traffic, and lets everybody in.
// One that does not answer yet is waited for later, and an empty one is fine.
func (c *devCmd) ownDatabase(ctx context.Context) error {
	if c.DatabaseDSN == "" {
		return nil
	}
	store, err := storage.Open(storage.Options{DSN: c.DatabaseDSN, MaxOpenConns: 1})
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	var others int
	err = store.DB().QueryRowContext(ctx, `SELECT COUNT(*) FROM channel WHERE channelId <> ?`, demo.ChannelID).Scan(&others)
	if err == nil && others > 0 {
		return &app.SettingError{Env: app.EnvName("DatabaseDSN"), Secret: true, Value: fmt.Sprintf("that database has %d channels of somebody else", others),
			Allowed: "a database of dev's own, or empty: dev migrates it, sends demo traffic, and lets everybody in"}
	}
	return nil
}

func (c *devCmd) listenError(allowed string) error {
	return &app.SettingError{Env: app.EnvName("HTTPListen"), Value: c.HTTPListen, Allowed: allowed}
}

// demoAddress is the port after the instance's, on the same address.
func demoAddress(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	n, convErr := strconv.Atoi(port)
	if err != nil || convErr != nil || n == 0 || n == 65535 {
		return net.JoinHostPort(host, "0")
	}
	return net.JoinHostPort(host, strconv.Itoa(n+1))
}
