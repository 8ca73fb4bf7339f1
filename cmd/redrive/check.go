package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/redrive-mq/redrive/internal/app"
)

type checkCmd struct {
	Ready  checkReadyCmd  `cmd:"" help:"Ask an instance whether it takes traffic. Exit status 0: it does. For health checks of containers."`
	Config checkConfigCmd `cmd:"" help:"Check the settings and the seed file as serve does before it opens anything, and show the settings without secrets."`
}

type checkReadyCmd struct {
	settings
	URL     string        `arg:"" optional:"" help:"URL of the instance, with or without /readyz. Default: where serve with these settings would listen on this machine."`
	Timeout time.Duration `default:"5s" help:"How long to wait for the answer."`
}

const maxProbeBody = 64 << 10

// Run implements the command.
func (c *checkReadyCmd) Run(ctx context.Context, p process) error {
	base := c.URL
	if base == "" {
		host, port, err := net.SplitHostPort(c.HTTPListen)
		if err != nil {
			return fmt.Errorf("REDRIVE_HTTP_LISTEN: %w", err)
		}
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			host = "127.0.0.1"
		}
		base = "http://" + net.JoinHostPort(host, port)
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(strings.TrimSuffix(base, "/"), "/readyz")+"/readyz", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("not ready: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxProbeBody))
	if err != nil {
		return fmt.Errorf("not ready: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		var problem struct{ Detail string }
		_ = json.Unmarshal(body, &problem) // without a reason the status must do
		return fmt.Errorf("not ready: %s %s", resp.Status, problem.Detail)
	}
	fmt.Fprintln(p.out, "ready")
	return nil
}

type checkConfigCmd struct {
	settings
}

// Run implements the command.
func (c *checkConfigCmd) Run(p process) error {
	if _, err := app.New(app.Options{Config: c.Config, Log: slog.New(slog.DiscardHandler)}); err != nil {
		return err
	}
	for _, name := range unknownVariables(&c.Config, p.environ) {
		fmt.Fprintf(p.err, "%s is no setting; is its name right?\n", name)
	}
	table := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	for _, s := range c.Settings() {
		fmt.Fprintf(table, "%s\t%s\n", s.Env, s.Value)
	}
	return table.Flush()
}
