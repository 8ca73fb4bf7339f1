package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-mq/redrive/engine/durable"
)

// RuntimeOptions configures a Runtime. Zero values mean the default that is named.
type RuntimeOptions struct {
	Context Context         // required: which engines the deployment has
	Tables  Tables          // required
	Queue   Queue           // required
	Durable *durable.Runner // required; the Runtime runs it

	// Keep is how long ended orchestrations are kept for looking into; default 24 h. What they did is in the history.
	Keep       time.Duration
	Registerer prometheus.Registerer // default: none
	Log        *slog.Logger          // default slog.Default()
}

// Queue takes messages for engines.
type Queue interface {
	// Put makes an engine's queue, if it is not there, and stores a message in it. One whose id was put before is left
	// out: created is false, and that is no error.
	Put(ctx context.Context, engine, queue, messageID string, body []byte) (created bool, err error)
}

// Runtime executes engines: at least once for each message of their queues, one run at a time of each instance, and
// none again of what the history says was done. The broker hands it the jobs (Execute) and keeps what RFC-72 says
// of retries and dead letters.
type Runtime struct {
	o       RuntimeOptions
	metrics *runtimeMetrics
	log     *slog.Logger

	mu      sync.Mutex
	engines map[string]Definition
	started bool

	stopping context.Context // ends with Stop: nothing waits for a run any more
	stop     context.CancelFunc
	cancel   context.CancelFunc
	work     sync.WaitGroup
	ended    chan error // of Durable.Run
}

// NewRuntime checks the options and registers the metrics.
func NewRuntime(o RuntimeOptions) (*Runtime, error) {
	if o.Tables == nil || o.Queue == nil || o.Durable == nil || o.Context.Engines == nil {
		return nil, errors.New("engine: a runtime wants a context, tables, a queue and a durable runner")
	}
	if o.Keep <= 0 {
		o.Keep = day
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	rt := &Runtime{o: o, log: o.Log, engines: map[string]Definition{}, ended: make(chan error, 1)}
	rt.stopping, rt.stop = context.WithCancel(context.Background())
	var err error
	if rt.metrics, err = newRuntimeMetrics(o.Registerer); err != nil {
		return nil, err
	}
	return rt, errors.Join(
		o.Durable.RegisterActivity(activityBegin, rt.begin),
		o.Durable.RegisterActivity(activityEnd, rt.end),
		o.Durable.RegisterActivity(activityRegistry, rt.changeRegistry),
	)
}

// Register makes the runtime execute an engine of the context. It is an error after Start.
func (rt *Runtime) Register(d Definition) error {
	if rt.o.Context.Operations(d.Name) == nil {
		return fmt.Errorf("engine %q: it is none of %s's engines: %v", d.Name, rt.o.Context, rt.o.Context.Names())
	}
	d, err := d.withDefaults()
	if err != nil {
		return err
	}
	if rt.QueueOf(d.Name) == "" {
		return fmt.Errorf("engine %q: it has no queue", d.Name)
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if rt.started {
		return fmt.Errorf("engine %q is registered too late", d.Name)
	}
	for name, step := range d.Steps {
		if err := rt.o.Durable.RegisterActivity(d.Name+"."+name, rt.bounded(d, step)); err != nil {
			return fmt.Errorf("engine %q: step: %w", d.Name, err)
		}
	}
	if err := rt.o.Durable.RegisterOrchestration(d.Name, rt.orchestrate(d)); err != nil {
		return fmt.Errorf("engine %q: %w", d.Name, err)
	}
	rt.engines[d.Name] = d
	return nil
}

// Engines are those that are executed here, sorted by name, with their defaults.
func (rt *Runtime) Engines() []Definition {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	var out []Definition
	for _, name := range slices.Sorted(maps.Keys(rt.engines)) {
		out = append(out, rt.engines[name])
	}
	return out
}

// Executes tells whether an engine is executed here.
func (rt *Runtime) Executes(name string) bool {
	_, ok := rt.engine(name)
	return ok
}

func (rt *Runtime) engine(name string) (Definition, bool) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	d, ok := rt.engines[name]
	return d, ok
}

// QueueOf is the queue of an engine; empty: the context has no such engine, or it has none.
func (rt *Runtime) QueueOf(engine string) string { return rt.o.Context.Engines[engine].Queue }

// Start executes what is under way, runs timed engines, and removes ended orchestrations, until Stop. It is called once.
func (rt *Runtime) Start(ctx context.Context) {
	rt.mu.Lock()
	rt.started = true
	rt.mu.Unlock()
	ctx, rt.cancel = context.WithCancel(ctx)
	go func() { rt.ended <- rt.o.Durable.Run(ctx) }()
	for _, d := range rt.Engines() {
		if d.Every > 0 {
			rt.work.Go(func() { rt.keepTime(ctx, d) })
		}
	}
	rt.work.Go(func() { rt.removeEnded(ctx) })
}

// Stop ends it: steps under way may end within the durable runner's StopTimeout, what is not done goes on elsewhere or
// at the next start. It waits at most until ctx ends.
func (rt *Runtime) Stop(ctx context.Context) error {
	rt.stop()
	if rt.cancel == nil {
		return nil
	}
	rt.cancel()
	waited := make(chan struct{})
	go func() { rt.work.Wait(); close(waited) }()
	var err error
	select {
	case err = <-rt.ended:
		rt.ended <- err // for another Stop
	case <-ctx.Done():
		return fmt.Errorf("engines: still at work: %w", ctx.Err())
	}
	select {
	case <-waited:
	case <-ctx.Done():
		return errors.Join(err, fmt.Errorf("engines: still at work: %w", ctx.Err()))
	}
	return err
}

const removeEvery = time.Hour

func (rt *Runtime) removeEnded(ctx context.Context) {
	ticker := time.NewTicker(removeEvery)
	defer ticker.Stop()
	for {
		if n, err := rt.o.Durable.RemoveEnded(ctx, rt.o.Keep); err != nil && ctx.Err() == nil {
			rt.log.Warn("ended orchestrations could not be removed, trying again", "error", err)
		} else if n > 0 {
			rt.log.Info("removed ended orchestrations", "orchestrations", n)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// runtimeMetrics are what every engine has.
type runtimeMetrics struct {
	runs     *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

func newRuntimeMetrics(r prometheus.Registerer) (*runtimeMetrics, error) {
	m := &runtimeMetrics{
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "redrive_engine_runs_total",
			Help: "Messages of engines' queues that this instance attended to, by what became of it: done, already, skipped, waiting, failed, fatal."},
			[]string{"engine", "result"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "redrive_engine_run_duration_seconds",
			Help: "How long runs of engines took, their sleeps included.", Buckets: prometheus.ExponentialBuckets(0.01, 4, 10)}, []string{"engine"}),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.runs, m.duration} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("engine: %w", err)
		}
	}
	return m, nil
}
