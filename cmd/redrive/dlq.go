package main

import (
	"context"
	"encoding/json"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/redrive-mq/redrive/internal/app"
	"github.com/redrive-mq/redrive/storage"
)

type dlqCmd struct {
	Status  dlqStatusCmd  `cmd:"" help:"Count the dead jobs of every consumer, exactly."`
	Requeue dlqRequeueCmd `cmd:"" help:"Bring back all dead jobs of a consumer."`
	Purge   dlqPurgeCmd   `cmd:"" help:"Delete all dead jobs of a consumer whose retries are exhausted."`
	Repair  dlqRepairCmd  `cmd:"" help:"Compare the counts with the jobs and set right what somebody wrote past Redrive."`
}

type dlqStatusCmd struct {
	settings
	JSON bool `help:"Print JSON."`
}

// Run implements the command.
func (c *dlqStatusCmd) Run(ctx context.Context, p process) error {
	return withDatabase(ctx, p, &c.settings, func(db *app.Database) error {
		counts, err := db.Store.DeadCounts(ctx)
		if err != nil {
			return err
		}
		if c.JSON {
			return printDeadJSON(p, counts)
		}
		table := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "CHANNEL\tCONSUMER\tDEAD\tLAST CHECKED")
		for _, k := range counts.Consumers {
			fmt.Fprintf(table, "%s\t%s\t%d\t%s\n", k.ChannelID, k.ConsumerID, k.Dead, timeOrNever(k.LastCheckedAt))
		}
		return table.Flush()
	})
}

func timeOrNever(t *time.Time) string {
	if t == nil {
		return "never"
	}
	return t.UTC().Format(time.RFC3339)
}

// printDeadJSON prints what /dlq-status answers.
func printDeadJSON(p process, counts storage.DeadCounts) error {
	type consumer struct {
		ChannelID    string `json:"channelId"`
		ChannelName  string `json:"channelName"`
		ConsumerID   string `json:"consumerId"`
		ConsumerName string `json:"consumerName"`
		DeadCount    int64  `json:"deadCount"`
	}
	consumers := make([]consumer, len(counts.Consumers))
	for i, k := range counts.Consumers {
		consumers[i] = consumer{k.ChannelID, k.ChannelName, k.ConsumerID, k.ConsumerName, k.Dead}
	}
	encoder := json.NewEncoder(p.out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(map[string]any{"consumers": consumers, "asOf": counts.AsOf, "lastCheckedAt": counts.LastCheckedAt})
}

// oneConsumer names a consumer on the command line.
type oneConsumer struct {
	Channel  string `required:"" help:"The channel's id."`
	Consumer string `required:"" help:"The consumer's id."`
}

func (o *oneConsumer) find(ctx context.Context, store *storage.Store) (*storage.Consumer, error) {
	catalog, err := store.Catalog(ctx)
	if err != nil {
		return nil, err
	}
	channel, ok := catalog.Channel(o.Channel)
	if !ok {
		return nil, fmt.Errorf("there is no channel %q", o.Channel)
	}
	consumer, ok := catalog.Consumer(channel, o.Consumer)
	if !ok {
		return nil, fmt.Errorf("the channel %q has no consumer %q", o.Channel, o.Consumer)
	}
	return consumer, nil
}

type dlqRequeueCmd struct {
	settings
	oneConsumer
}

// Run implements the command.
func (c *dlqRequeueCmd) Run(ctx context.Context, p process) error {
	return withDatabase(ctx, p, &c.settings, func(db *app.Database) error {
		consumer, err := c.find(ctx, db.Store)
		if err != nil {
			return err
		}
		n, err := db.Store.RequeueAll(ctx, consumer.Key, "redrive dlq")
		fmt.Fprintf(p.out, "%d dead jobs requeued\n", n) // also when it broke off: that many are
		return err
	})
}

type dlqPurgeCmd struct {
	settings
	oneConsumer
	Yes bool `help:"Without it nothing is deleted: the number is shown." short:"y"`
}

// Run implements the command.
func (c *dlqPurgeCmd) Run(ctx context.Context, p process) error {
	return withDatabase(ctx, p, &c.settings, func(db *app.Database) error {
		consumer, err := c.find(ctx, db.Store)
		if err != nil {
			return err
		}
		if !c.Yes {
			return c.ask(ctx, p, db.Store, consumer)
		}
		n, err := db.Store.PurgeAll(ctx, consumer.Key, c.BrokerMaxRetry, "redrive dlq")
		fmt.Fprintf(p.out, "%d dead jobs deleted\n", n)
		return err
	})
}

func (c *dlqPurgeCmd) ask(ctx context.Context, p process, store *storage.Store, consumer *storage.Consumer) error {
	counts, err := store.DeadCounts(ctx)
	if err != nil {
		return err
	}
	for _, k := range counts.Consumers {
		if k.ConsumerKey == consumer.Key {
			fmt.Fprintf(p.err, "%d jobs of %s are dead; add --yes to delete those whose retries are exhausted\n", k.Dead, c.Consumer)
		}
	}
	return errQuiet
}

type dlqRepairCmd struct {
	settings
}

// Run implements the command.
func (c *dlqRepairCmd) Run(ctx context.Context, p process) error {
	return withDatabase(ctx, p, &c.settings, func(db *app.Database) error {
		catalog, err := db.Store.Catalog(ctx)
		if err != nil {
			return err
		}
		consumers, wrong := 0, 0
		for _, channel := range catalog.Channels() {
			for _, consumer := range catalog.ConsumersOf(channel) {
				letters, err := db.Store.AuditDeadLetters(ctx, consumer.Key)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", channel.ID, consumer.ID, err)
				}
				drift, err := db.Store.RepairDeadCount(ctx, consumer.Key)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", channel.ID, consumer.ID, err)
				}
				consumers++
				if drift != 0 {
					wrong++
					fmt.Fprintf(p.out, "%s, %s: the count was off by %+d\n", channel.ID, consumer.ID, drift)
				}
				if (letters != storage.LetterDrift{}) {
					fmt.Fprintf(p.out, "%s, %s: %d dead letters were missing, %d had no dead job\n", channel.ID, consumer.ID, letters.Missing, letters.Stray)
				}
			}
		}
		fmt.Fprintf(p.out, "%d consumers checked, %d counts repaired\n", consumers, wrong)
		return nil
	})
}
