// Package demo is traffic to look at: a producer of orders and four consumers of them, one healthy, one that always
// fails, one that fails until it is healed, and one that pulls. `redrive dev` runs it.
//
// It is an ordinary client: everything it does goes through the public HTTP API. It keeps the database small by
// sending less the more dead letters wait, and it is not for measuring anything.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// What the demo makes. The tokens are no secrets: the demo runs on loopback and lets anybody change anything.
const (
	ChannelID     = "order-events" // all of its traffic
	channelToken  = "demo-channel-token"
	producerID    = "order-service"
	producerToken = "demo-producer-token"
)

// consumer is one of the four.
type consumer struct {
	id, name, token string
	kind            string // push or pull
	behaviour       string // for the banner
}

var (
	healthy = consumer{"payment-service", "Payment Service", "demo-payment-token", "push", "healthy"}
	failing = consumer{"legacy-erp", "Legacy ERP", "demo-erp-token", "push", "always fails, with HTTP 500"}
	ailing  = consumer{"email-service", "E-mail Service", "demo-email-token", "push", "fails until you heal it, with HTTP 503"}
	pulling = consumer{"warehouse", "Warehouse", "demo-warehouse-token", "pull", "pulls; rejects orders of discontinued articles"}
)

// Options says where to send traffic. URL and Out are required.
type Options struct {
	URL    string    // base URL of the broker, on this machine
	Listen string    // where the demo's consumers listen, loopback; taken: any free port there
	Data   string    // folder of the data, for the banner
	Out    io.Writer // for the person who looks
	Log    *slog.Logger
	// Interval is the time between two orders while few dead letters wait; default 500 ms.
	Interval time.Duration
}

// Demo is the producer and the consumers.
type Demo struct {
	o      Options
	api    *client
	server *http.Server
	url    string // of the consumers

	healed  atomic.Bool
	dead    atomic.Int64 // dead letters of all consumers, as last seen
	serving sync.WaitGroup
}

// New starts to listen for deliveries. Close ends that.
func New(ctx context.Context, o Options) (*Demo, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Interval <= 0 {
		o.Interval = 500 * time.Millisecond
	}
	d := &Demo{o: o, api: newClient(o.URL)}
	if err := d.listen(ctx); err != nil {
		return nil, err
	}
	return d, nil
}

// Run sets the stage, says what there is to see, and keeps traffic going until ctx ends, which is no error.
func (d *Demo) Run(ctx context.Context) error {
	err := d.setStage(ctx)
	switch {
	case ctx.Err() != nil: // told to stop, which is no error
		return nil //nolint:nilerr // the error is that ctx ended
	case err != nil:
		return fmt.Errorf("demo: %w", err)
	}
	if err := d.banner(); err != nil {
		return err
	}
	var acts sync.WaitGroup
	for _, act := range []func(context.Context){d.produce, d.pull, d.watch} {
		acts.Go(func() { act(ctx) })
	}
	acts.Wait()
	return nil
}

// Close ends the listener. Deliveries under way are cut off.
func (d *Demo) Close() error {
	err := d.server.Close()
	d.serving.Wait()
	return err
}

// setStage creates what the demo needs, or brings it up to date where an earlier run made it: the consumers may have
// another port now.
func (d *Demo) setStage(ctx context.Context) error {
	err := errors.Join(
		d.api.ensure(ctx, "/producer/"+producerID, map[string]string{"name": "Order Service", "token": producerToken}),
		d.api.ensure(ctx, "/channel/"+ChannelID, map[string]string{"name": "Order Events", "token": channelToken}),
	)
	if err != nil {
		return err
	}
	for _, k := range []consumer{healthy, failing, ailing, pulling} {
		if err := d.api.ensure(ctx, k.path(), map[string]string{
			"name": k.name, "token": k.token, "type": k.kind, "callbackUrl": d.url + "/" + k.id,
		}); err != nil {
			return err
		}
	}
	return nil
}

func (k consumer) path() string { return "/channel/" + ChannelID + "/consumer/" + k.id }

// pause waits and reports whether ctx is still alive.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
