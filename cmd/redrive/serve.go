package main

import (
	"context"
	"fmt"
	"strings"

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
	for _, name := range unknownVariables(&c.Config, p.environ) {
		log.Warn("this environment variable is no setting; is its name right?", "variable", name)
	}
	instance, err := app.New(app.Options{Config: c.Config, Log: log})
	if err != nil {
		return err
	}
	return instance.Run(ctx)
}

// unknownVariables are those of Redrive's prefix that name no setting: most likely a typo.
func unknownVariables(c *app.Config, environ []string) []string {
	known := map[string]bool{app.EnvName(configFlag): true}
	for _, s := range c.Settings() {
		known[s.Env] = true
	}
	var unknown []string
	for _, pair := range environ {
		name, _, _ := strings.Cut(pair, "=")
		if strings.HasPrefix(name, "REDRIVE_") && !known[name] {
			unknown = append(unknown, name)
		}
	}
	return unknown
}

type versionCmd struct{}

// Run implements the command.
func (versionCmd) Run(p process) error {
	_, err := fmt.Fprintln(p.out, telemetry.ReadBuild())
	return err
}
