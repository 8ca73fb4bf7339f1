package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// deadStore is what the scenarios need of the broker's database.
type deadStore interface {
	Seed(ctx context.Context, spec seedSpec) error
	Owed(ctx context.Context) (int64, error)
	Rows(ctx context.Context, channel, consumer string, status int) (int64, error)
	SeedHistory(ctx context.Context, spec historySpec) error
	HistoryRows(ctx context.Context) (int64, error)
	Clock(ctx context.Context) (time.Time, error)
}

// broker is what the scenarios need of the broker's process.
type broker interface {
	ResetPeak() error
	PeakMemory() (int64, error)
}

// world is one broker on a database of its own, with the consumers' endpoint. Each run of a scenario gets a
// new one, so that none inherits another's rows, connections or memory.
type world struct {
	url   string
	api   *api
	sink  *sink
	store deadStore
	proc  broker
	died  <-chan struct{} // closed when the broker has ended
	cause func() error    // why; after died
	close func(ctx context.Context) error

	history string // policy of new channels; empty: the broker's default
}

// worldOptions say how to open a world.
type worldOptions struct {
	Server *server
	Binary string
	Dir    string            // for logs and data
	Env    map[string]string // on top of what every run has
	Log    io.Writer
}

// openWorld makes a database, starts a broker on it and a server for its deliveries.
func openWorld(ctx context.Context, o worldOptions) (_ *world, err error) {
	var closers []func(context.Context) error
	closeAll := func(ctx context.Context) error {
		var errs []error
		for _, c := range slices.Backward(closers) {
			errs = append(errs, c(ctx))
		}
		return errors.Join(errs...)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, closeAll(context.WithoutCancel(ctx)))
		}
	}()

	dsn, db, drop, err := o.Server.NewDatabase(ctx)
	if err != nil {
		return nil, err
	}
	closers = append(closers, drop)
	s, err := newSink()
	if err != nil {
		return nil, err
	}
	closers = append(closers, func(context.Context) error { return s.Close() })

	env := map[string]string{
		"REDRIVE_DATABASE_DSN":                      dsn,
		"REDRIVE_DATA_DIR":                          o.Dir,
		"REDRIVE_ADMIN_AUTH":                        "open",
		"REDRIVE_BROKER_MAX_RETRY":                  strconv.Itoa(maxRetry),
		"REDRIVE_AUTO_MIGRATE":                      "true",
		"REDRIVE_BROKER_ALLOW_PRIVATE_DESTINATIONS": "true",
	}
	maps.Copy(env, o.Env)
	p, err := startProcess(ctx, o.Binary, o.Dir, env)
	if err != nil {
		return nil, err
	}
	closers = append(closers, func(context.Context) error { return p.Stop() })
	client := newAPI(p.URL)
	closers = append(closers, func(context.Context) error { client.client.CloseIdleConnections(); return nil })
	return &world{
		url: p.URL, api: client, sink: s, store: &sqlStore{db: db}, proc: p,
		died: p.done, cause: p.died, close: closeAll,
	}, nil
}

// watch returns a context that ends, with the reason as its cause, when the broker does.
func (w *world) watch(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-w.died:
			cancel(w.cause())
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// route is a channel with its producer and consumers, made for one load.
type route struct {
	world     *world
	channel   string
	consumers []string
	receipts  []*receipts
	flow      *flow
}

// newRoute makes a channel, its producer and n consumers of flow.
func (w *world) newRoute(ctx context.Context, channel string, n int, f *flow, failFirst bool) (*route, error) {
	if err := w.api.putProducer(ctx, producerOf(channel)); err != nil {
		return nil, err
	}
	if err := w.api.putChannel(ctx, channel, w.history); err != nil {
		return nil, err
	}
	r := &route{world: w, channel: channel, flow: f}
	for i := range n {
		name := fmt.Sprintf("%s-consumer-%d", channel, i)
		callback, got := w.sink.consumer(f, failFirst)
		if err := w.api.putConsumer(ctx, channel, name, "push", callback); err != nil {
			return nil, err
		}
		r.consumers, r.receipts = append(r.consumers, name), append(r.receipts, got)
	}
	return r, nil
}

func producerOf(channel string) string { return channel + "-producer" }

// loader returns a load generator for the route, over the caller's transport.
func (r *route) loader(payloadBytes int, transport *http.Transport) *loader {
	return &loader{
		URL: r.world.url, Channel: r.channel, ChannelToken: token,
		Producer: producerOf(r.channel), ProducerToken: token,
		PayloadBytes: payloadBytes, Flow: r.flow, Transport: transport,
	}
}

// drain waits until every consumer has all accepted messages, or nothing more comes.
func (r *route) drain(ctx context.Context, stall time.Duration) error {
	want := r.flow.acceptedCount()
	for _, got := range r.receipts {
		if err := got.wait(ctx, want, stall); err != nil {
			return err
		}
	}
	return nil
}
