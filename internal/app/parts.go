package app

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/archive"
	"github.com/redrive-mq/redrive/broker"
	"github.com/redrive-mq/redrive/dlqsummary"
	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/telemetry"
	"github.com/redrive-mq/redrive/web"
)

// pingWithin bounds the question whether the database answers, at /readyz.
const pingWithin = 3 * time.Second

// parts is what works behind the gate.
type parts struct {
	background []background // in the order of their start; the broker is the first
	api        http.Handler
}

// background is a part that does its work beside the requests.
type background struct {
	name  string
	start func(context.Context)
	stop  func(context.Context) error
}

func (p *parts) start(ctx context.Context) {
	for _, b := range p.background {
		b.start(ctx)
	}
}

// assemble makes the parts and connects them. Requeues and purges of many end with detached.
func (a *App) assemble(ctx, detached context.Context) (*parts, error) {
	p := &parts{}
	r, err := a.newRuntime()
	if err != nil {
		return nil, err
	}
	b, err := a.newBroker(r.brokerEngines())
	if err != nil {
		return nil, err
	}
	r.kick = b.Kick
	if err := a.join(ctx, r); err != nil {
		return nil, err
	}
	summary, err := a.newSummary()
	if err != nil {
		return nil, err
	}
	retention, err := a.newRetention()
	if err != nil {
		return nil, err
	}
	p.background = []background{
		{"the broker", b.Start, b.Stop},
		{"the engines", r.Start, r.Stop},
		{"the dead-letter summary", summary.Start, summary.Stop},
		{"retention", retention.Start, retention.Stop},
		{"pruning", a.pruner.Start, a.pruner.Stop},
	}
	if p.api, err = a.newAPI(ctx, detached, b, summary, r); err != nil {
		return nil, err
	}
	return p, nil
}

func (a *App) newBroker(engines map[string]broker.Engine) (*broker.Broker, error) {
	c := &a.config
	return broker.New(broker.Options{
		Store: a.store, Registerer: a.registry, Log: a.log, InstanceID: a.instance, Engines: engines,
		MaxRetry: c.BrokerMaxRetry, Backoff: c.BrokerRetryBackoff,
		DeliveryTimeout: c.BrokerDeliveryTimeout, RationalDelay: c.BrokerRationalDelay,
		SchedulerInterval: c.SchedulerInterval, Concurrency: c.BrokerConcurrency,
		AllowPrivateDestinations: c.BrokerAllowPrivateDestinations, ConsumerTokenHeader: c.BrokerConsumerTokenHeader,
	})
}

func (a *App) newSummary() (*dlqsummary.Summary, error) {
	return dlqsummary.New(dlqsummary.Options{
		Store: a.store, Interval: a.config.DLQSummaryInterval, Owner: a.instance.String(), Registerer: a.registry, Log: a.log,
	})
}

func (a *App) newArchive() (*archive.Archive, error) {
	c := &a.config
	pruner, err := archive.New(archive.Options{
		Store: a.store, RetentionDays: c.PruneRetentionDays, Destination: c.exportPath(), Node: c.PruneNodeName,
		Interval: c.PruneInterval, Owner: a.instance.String(), Registerer: a.registry, Log: a.log,
	})
	if err != nil {
		e := settingError("PruneExportPath", withoutSecrets(c.exportPath()))
		e.Allowed += " (" + err.Error() + ")"
		return nil, e
	}
	return pruner, nil
}

// withoutSecrets leaves of a URL what holds no credentials; a folder is shown as it is.
func withoutSecrets(destination string) string {
	scheme, _, isURL := strings.Cut(destination, "://")
	if !isURL {
		return destination
	}
	u, err := url.Parse(destination)
	if err != nil {
		return scheme + "://..."
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

func (a *App) newAPI(ctx, detached context.Context, b *broker.Broker, s *dlqsummary.Summary, r *runtime) (*web.Server, error) {
	c := &a.config
	secret, err := c.gatewaySecret()
	if err != nil {
		return nil, err
	}
	minSchedule := c.BrokerMinScheduleDelay
	if minSchedule == 0 {
		minSchedule = -1 // the API's word for none
	}
	tokenKey, err := a.tokenKey(ctx)
	if err != nil {
		return nil, err
	}
	return web.New(web.Options{
		EngineTables: a.store, Engines: a.engines.context, EngineRunner: r, TokenKey: tokenKey,
		Alerts: r.alerts(), AlertTokens: namedTokens(c.AlertTokens),
		Store: a.store, Broadcaster: broadcaster{b}, Kicker: b, DeadCounter: deadCounter{s},
		Unavailable: unavailable, Stale: func(err error) bool { return errors.Is(err, broker.ErrStale) }, Ready: a.ready, Status: a.status,
		Metrics: telemetry.MetricsHandler(a.registry, a.log), Registerer: a.registry, Log: a.log,
		AdminTokens: c.adminTokens(), AdminOpen: c.AdminAuth == AdminOpen,
		GatewaySecret: secret, GatewayExempt: c.GatewayAuthExempt,
		MaxBodyBytes: c.BrokerMaxBodyBytes, MinScheduleDelay: minSchedule, PullLease: c.pullLease(), MaxRetry: c.BrokerMaxRetry,
		AllowPrivateDestinations: c.BrokerAllowPrivateDestinations, Shutdown: detached,
	})
}

// newStarting makes what answers until the API does.
func (a *App) newStarting() (*web.Server, error) {
	c := &a.config
	secret, err := c.gatewaySecret()
	if err != nil {
		return nil, err
	}
	return web.NewStarting(web.Options{
		Ready: func(context.Context) error { return a.progress.err() }, Status: a.status, Log: a.log,
		GatewaySecret: secret, GatewayExempt: c.GatewayAuthExempt, MaxBodyBytes: c.BrokerMaxBodyBytes,
	})
}

func (c *Config) adminTokens() []web.AdminToken {
	var tokens []web.AdminToken
	if c.AdminToken != "" {
		tokens = append(tokens, web.NewAdminToken("admin", c.AdminToken))
	}
	return append(tokens, namedTokens(c.AdminTokens)...)
}

func namedTokens(named map[string]string) (tokens []web.AdminToken) {
	for name, token := range named {
		tokens = append(tokens, web.NewAdminToken(name, token))
	}
	return tokens
}

// ready says why no traffic should come here.
func (a *App) ready(ctx context.Context) error {
	if err := a.progress.err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, pingWithin)
	defer cancel()
	if err := a.store.Ping(ctx); err != nil {
		a.log.Debug("not ready", "error", err)
		return errors.New("the database does not answer")
	}
	return nil
}

func (a *App) status(context.Context) (web.AppStatus, error) {
	status := web.AppStatus{AppStatus: a.progress.status()}
	if a.seed != nil {
		status.SeedData = a.seed.status()
	}
	return status, nil
}

// unavailable tells the broker's errors after which the same broadcast may succeed, here or at another instance.
func unavailable(err error) bool {
	return errors.Is(err, broker.ErrDraining) || errors.Is(err, broker.ErrBusy) || errors.Is(err, broker.ErrStale)
}

// broadcaster lets the API hand messages to the broker: neither knows the other.
type broadcaster struct{ broker *broker.Broker }

func (b broadcaster) Accept(ctx context.Context, m web.Broadcast) (string, error) {
	return b.broker.Accept(ctx, broker.Broadcast(m))
}

// deadCounter does the same for the dead counts.
type deadCounter struct{ summary *dlqsummary.Summary }

func (d deadCounter) Counts(ctx context.Context) (storage.DeadCounts, bool, error) {
	counts, err := d.summary.Counts(ctx)
	return counts.DeadCounts, counts.Exact, err
}
