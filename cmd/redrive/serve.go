package main

import (
	"context"
	"fmt"

	"github.com/redrive-mq/redrive/internal/app"
	"github.com/redrive-mq/redrive/telemetry"
)

type serveCmd struct {
	settings
}

// Run implements the command.
func (c *serveCmd) Run(ctx context.Context, p process) error {
	if err := c.Check(); err != nil {
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
	return instance.Run(ctx)
}

type versionCmd struct{}

// Run implements the command.
func (versionCmd) Run(p process) error {
	fmt.Fprintln(p.out, telemetry.ReadBuild())
	return nil
}
