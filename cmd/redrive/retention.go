package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/redrive-mq/redrive/internal/app"
)

type retentionCmd struct {
	settings
	DryRun bool `help:"Remove nothing, only say what would go."`
}

// Run implements the command.
func (c *retentionCmd) Run(ctx context.Context, p process) error {
	return withDatabase(ctx, p, &c.settings, func(db *app.Database) error {
		retention, err := db.NewRetention(&c.Config, slog.New(slog.DiscardHandler)) // what it did is printed below
		if err != nil {
			return err
		}
		removed, err := retention.Run(ctx, c.DryRun)
		verb := "removed"
		if c.DryRun {
			verb = "would go"
		}
		fmt.Fprintf(p.out, "%d dead letters and %d history entries %s.\n", removed.DeadLetters, removed.History, verb)
		if len(removed.Partitions) > 0 {
			fmt.Fprintf(p.out, "The history's partitions: %s.\n", strings.Join(removed.Partitions, ", "))
		}
		return err
	})
}
