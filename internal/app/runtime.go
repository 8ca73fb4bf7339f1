package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/redrive-mq/redrive/broker"
	"github.com/redrive-mq/redrive/engine"
	"github.com/redrive-mq/redrive/engine/alerts"
	"github.com/redrive-mq/redrive/engine/durable"
	"github.com/redrive-mq/redrive/engine/health"
	"github.com/redrive-mq/redrive/engine/hmac"
	"github.com/redrive-mq/redrive/internal/outbound"
	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/web"
)

// runtime is what executes engines, with what connects it to the broker and the API.
type runtime struct {
	*engine.Runtime

	store *storage.Store
	kick  func(consumerKey uint32) // set once there is a broker
}

// newRuntime makes the runtime with the engines that this deployment executes: those that are built in, and those for which
// it names an endpoint.
func (a *App) newRuntime() (*runtime, error) {
	runner, err := durable.New(a.store.DB(), durable.Options{Log: a.log, Lease: a.config.EngineLease})
	if err != nil {
		return nil, err
	}
	r := &runtime{store: a.store, kick: func(uint32) {}}
	r.Runtime, err = engine.NewRuntime(engine.RuntimeOptions{
		Context: a.engines.context, Tables: a.store, Queue: r, Durable: runner, Registerer: a.registry, Log: a.log,
	})
	if err != nil {
		return nil, err
	}
	definitions, err := a.definitions(r)
	if err != nil {
		return nil, err
	}
	for _, d := range definitions {
		if err := r.Register(d); err != nil {
			return nil, err
		}
	}
	if r.Executes(health.Name) {
		return r, a.registry.Register(health.NewCollector(health.CollectorOptions{Store: a.store, Log: a.log}))
	}
	return r, nil
}

// definitions are the engines to execute: where the settings name an endpoint, what lives there; otherwise what is built in.
func (a *App) definitions(r *runtime) ([]engine.Definition, error) {
	client := outbound.NewClient(outbound.Options{AllowPrivate: a.config.BrokerAllowPrivateDestinations})
	builtIn := map[string]engine.Definition{
		alerts.Name: alerts.New(alerts.Options{Channels: a.config.AlertChannels, Forward: r.forward}),
		health.Name: health.New(health.Options{Store: a.store, Client: client, Log: a.log}),
		hmac.Name: hmac.New(hmac.Options{
			Store: a.store, Queue: r.Runtime, Instance: a.engines.context.Instance(), MaxAge: a.config.SigningMaxAge, Overlap: a.config.SigningOverlap,
			NotifyChannel: a.config.SigningNotifyChannel, Forward: r.forward,
		}),
	}
	var out []engine.Definition
	for _, name := range a.engines.context.Names() {
		s := a.engines.settings[name]
		if d, ok := builtIn[name]; ok && s.Endpoint == "" && a.engines.context.Engines[name].Queue != "" {
			out = append(out, s.Apply(d))
			continue
		}
		if s.Endpoint == "" {
			continue
		}
		d, err := remote(name, s, client)
		if err != nil {
			return nil, settingError("Engines", a.config.Engines).because(err)
		}
		out = append(out, d)
	}
	return out, nil
}

// forward puts a message into a channel, once for its id.
func (r *runtime) forward(ctx context.Context, channel, messageID string, body []byte) error {
	_, jobs, err := r.store.Enqueue(ctx, storage.Enqueued{Queue: channel, MessageID: messageID, Body: body})
	switch {
	case errors.Is(err, storage.ErrDuplicate):
		return nil
	case errors.Is(err, storage.ErrNoQueue):
		return fmt.Errorf("there is no channel %q", channel)
	case err != nil:
		return err
	}
	for _, j := range jobs {
		r.kick(j.ConsumerKey)
	}
	return nil
}

// alerts takes alerts in, where the deployment has the engine.
func (r *runtime) alerts() web.AlertSink {
	if !r.Executes(alerts.Name) {
		return nil
	}
	return alerts.Intake{Put: func(ctx context.Context, id string, m engine.Message) (bool, error) {
		return r.Runtime.Put(ctx, alerts.Name, id, m)
	}}
}

func remote(name string, s engine.Setting, client *http.Client) (engine.Definition, error) {
	at, err := s.Remote(client)
	if err != nil {
		return engine.Definition{}, fmt.Errorf("engine %q: %w", name, err)
	}
	return at.Define(s.Apply(engine.Defaults(name)))
}

// join makes the queues of engines that the settings name, or whose channel is there already. The others' are made when
// something is put into them.
func (a *App) join(ctx context.Context, r *runtime) error {
	catalog, err := a.store.Catalog(ctx)
	if err != nil {
		return err
	}
	for _, d := range r.Engines() {
		queue := a.engines.context.Engines[d.Name].Queue
		_, named := a.engines.settings[d.Name]
		if _, there := catalog.Channel(queue); !named && !there && d.Every == 0 {
			continue
		}
		_, err := a.store.PutEngineQueue(ctx, d.Name, queue)
		if errors.Is(err, storage.ErrEngineNameTaken) {
			// A consumer that somebody made is no reason for nothing to be delivered.
			a.log.Error("an engine is not executed: rename or delete the consumer", "engine", d.Name, "queue", queue, "error", err)
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Put implements engine.Queue.
func (r *runtime) Put(ctx context.Context, name, queue, messageID string, body []byte) (created bool, err error) {
	catalog, err := r.store.Catalog(ctx)
	if err != nil {
		return false, err
	}
	if !hasEngine(catalog, name, queue) {
		if _, err := r.store.PutEngineQueue(ctx, name, queue); err != nil {
			return false, err
		}
	}
	_, jobs, err := r.store.Enqueue(ctx, storage.Enqueued{Queue: queue, MessageID: messageID, Body: body})
	if errors.Is(err, storage.ErrDuplicate) {
		return false, nil
	}
	for _, j := range jobs {
		r.kick(j.ConsumerKey)
	}
	return err == nil, err
}

func hasEngine(catalog *storage.Catalog, name, queue string) bool {
	channel, ok := catalog.Channel(queue)
	if !ok {
		return false
	}
	k, ok := catalog.Consumer(channel, name)
	return ok && k.Type == storage.TypeEngine
}

// brokerEngines are the runtime's engines as the broker takes them.
func (r *runtime) brokerEngines() map[string]broker.Engine {
	out := map[string]broker.Engine{}
	for _, d := range r.Engines() {
		out[d.Name] = broker.Engine{
			Executor: executor{r.Runtime, d.Name}, MaxRetry: d.MaxRetryAttempts, Backoff: d.Backoff, Concurrency: d.Concurrency,
		}
	}
	return out
}

// executor lets the broker hand jobs to an engine: neither knows the other.
type executor struct {
	runtime *engine.Runtime
	name    string
}

func (x executor) Execute(ctx context.Context, job storage.ClaimedJob) broker.Execution {
	o := x.runtime.Execute(ctx, x.name, job)
	return broker.Execution{
		Err: o.Err, Class: o.Class, Fatal: o.Fatal, Pending: o.Pending, Wait: o.Wait,
		Subject: storage.Subject{InstanceID: o.InstanceID, CorrelationID: o.CorrelationID},
	}
}

// Executed implements web.EngineRunner.
func (r *runtime) Executed() []web.ExecutedEngine {
	var out []web.ExecutedEngine
	for _, d := range r.Engines() {
		out = append(out, web.ExecutedEngine{
			Engine: d.Name, Queue: r.QueueOf(d.Name), MaxRetryAttempts: d.MaxRetryAttempts, TimeoutSeconds: d.Timeout.Seconds(),
			EverySeconds: d.Every.Seconds(), RegistryLock: d.Registry, Interchangeable: d.Interchangeable,
		})
	}
	return out
}

// Begin implements web.EngineRunner.
func (r *runtime) Begin(ctx context.Context, name string, m web.EngineMessage) (web.EngineRun, error) {
	b, err := r.Runtime.Begin(ctx, name, engine.Message{CorrelationID: m.CorrelationID, InstanceID: m.InstanceID, Operation: m.Operation, Input: m.Input})
	switch {
	case errors.Is(err, engine.ErrElsewhere):
		err = fmt.Errorf("%w: %q", web.ErrEngineElsewhere, name)
	case errors.Is(err, engine.ErrBadMessage):
		err = fmt.Errorf("%w: %w", web.ErrEngineMessage, err)
	case errors.Is(err, engine.ErrRunning), errors.Is(err, engine.ErrLocked):
		err = fmt.Errorf("%w: %w", web.ErrEngineBusy, err)
	}
	return web.EngineRun{Engine: name, Queue: b.Queue, InstanceID: b.InstanceID, Operation: b.Operation, CorrelationID: b.CorrelationID, Done: b.Done}, err
}
