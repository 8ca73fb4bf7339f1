package web

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/gorilla/mux"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/redrive-mq/redrive/storage"
)

// What Options leave out is this.
const (
	DefaultMaxBodyBytes     = 1 << 20
	DefaultMinScheduleDelay = 2 * time.Minute
	DefaultRequestTimeout   = 30 * time.Second
	DefaultPullLease        = 32 * time.Second
)

// Broadcast is a message that passed the checks of the API.
type Broadcast struct {
	Channel                *storage.Channel
	Producer               *storage.Producer
	MessageID, ContentType string // never empty
	Priority               uint32
	Headers                map[string]string // the metadata headers to pass on, by the names that the producer gave
	Body                   []byte
	ScheduledFor           *time.Time // nil: now
}

// Broadcaster takes messages in.
type Broadcaster interface {
	// Accept returns the message's id once the message is committed. A taken id is storage.ErrDuplicate; see
	// Options.Stale for a channel or producer that changed.
	Accept(ctx context.Context, b Broadcast) (messageID string, err error)
}

// Kicker is told that a consumer has work that did not come by a broadcast.
type Kicker interface {
	Kick(consumerKey uint32)
}

// DeadCounter tells how many jobs are dead. exact is false where an audit by this instance found one to
// be off.
type DeadCounter interface {
	Counts(ctx context.Context) (counts storage.DeadCounts, exact bool, err error)
}

// AppStatus is what /_status shows.
type AppStatus struct {
	SeedData  any // an object: what the seed file asked for, without tokens; nil: there is none
	AppStatus int // one of AppNotStarted, AppStarting, AppStarted
}

// How far this instance is.
const (
	AppNotStarted = 1
	AppStarting   = 2
	AppStarted    = 3
)

// Options says what the API works on and how. Store, Broadcaster, Kicker and DeadCounter are required, and so is
// either AdminTokens or AdminOpen.
type Options struct {
	Store       *storage.Store
	Broadcaster Broadcaster
	Kicker      Kicker
	DeadCounter DeadCounter

	// EngineTables are the dead letters and the history of all engines. Optional: without it nothing is under /api.
	EngineTables EngineTables
	// Engines tells which engines there are. Required with EngineTables.
	Engines EngineContext
	// TokenKey authenticates continuation tokens: at least 16 bytes, the same on all instances. Required with EngineTables.
	TokenKey []byte
	// Alerts takes what comes to /api/alerts. Optional: without it that is a 404.
	Alerts AlertSink

	// Unavailable tells further errors, apart from storage.IsUnavailable, that are a 503: the same request may
	// succeed later. Optional.
	Unavailable func(error) bool
	// Stale tells the error by which Broadcaster refuses a message whose channel or producer changed after it was
	// authenticated; the API then authenticates it again. Where it is given, broadcasts are authenticated by the
	// catalog as this process last saw it, and the database is asked only before one is refused. Optional.
	Stale func(error) bool
	// Ready says why no traffic should come here, nil when it should. Optional.
	Ready func(ctx context.Context) error
	// Status is what /_status shows; default: started, and no seed data.
	Status func(ctx context.Context) (AppStatus, error)
	// Metrics serves /metrics. Optional: without it there is no such path.
	Metrics http.Handler
	// Registerer gets the API's own metrics. Optional.
	Registerer prometheus.Registerer
	// Log gets a debug event for each request, an info event for each change by an admin and an error for each fault;
	// default slog.Default().
	Log *slog.Logger
	// Now is the clock that schedules and signatures are checked against; default time.Now.
	Now func() time.Time

	// EngineRunner executes engines here; nil: none is.
	EngineRunner EngineRunner

	// AdminTokens may change producers, channels and consumers.
	AdminTokens []AdminToken
	// AdminOpen lets anybody change producers, channels and consumers, and send alerts.
	AdminOpen bool
	// AlertTokens may send alerts, as AdminTokens may, and nothing else.
	AlertTokens []AdminToken
	// GatewaySecret, if set, demands a signature made with it on every request that is not exempt.
	GatewaySecret []byte
	// GatewayExempt are the prefixes of the paths that need no signature; nil: DefaultGatewayExempt.
	GatewayExempt []string

	// MaxBodyBytes bounds a request's body; default 1 MiB.
	MaxBodyBytes int64
	// MinScheduleDelay is how far ahead a schedule must be; default 2 minutes, negative: no minimum.
	MinScheduleDelay time.Duration
	// PullLease is how long a pull consumer has for a job, before the time that it asks for on top; default 32 s.
	PullLease time.Duration
	// MaxRetry is the number of retries after which a dead job may be deleted.
	MaxRetry int
	// RequestTimeout bounds one request, the reading of its body included; requeueing and purging all dead jobs
	// of a consumer may take longer. Default 30 s.
	RequestTimeout time.Duration
	// AllowPrivateDestinations takes callback URLs that name loopback, private and link-local addresses.
	AllowPrivateDestinations bool
	// Shutdown, once done, ends requeues and purges that outlive their request; default: never.
	Shutdown context.Context
}

// Server answers the API. It is an http.Handler.
type Server struct {
	o       Options
	log     *slog.Logger
	now     func() time.Time
	metrics *metrics
	// handler is the router inside everything that holds for all requests.
	handler http.Handler
	// outages thins out the log while the database is away, when every request fails for the same reason.
	outages *rate.Sometimes
}

// New checks the options and builds the API.
func New(o Options) (*Server, error) {
	if o.Store == nil || o.Broadcaster == nil || o.Kicker == nil || o.DeadCounter == nil {
		return nil, errors.New("web: Store, Broadcaster, Kicker and DeadCounter are required")
	}
	if !o.AdminOpen && len(o.AdminTokens) == 0 {
		return nil, errors.New("web: there is no admin token; without one nobody could create a channel (or say that anybody may)")
	}
	if err := o.checkEngines(); err != nil {
		return nil, err
	}
	return newServer(o, (*Server).routes)
}

func newServer(o Options, routes func(*Server) *mux.Router) (*Server, error) {
	s := &Server{o: o.withDefaults(), outages: &rate.Sometimes{First: 1, Interval: time.Second}}
	s.log, s.now = s.o.Log, s.o.Now
	var err error
	if s.metrics, err = newMetrics(s.o.Registerer); err != nil {
		return nil, err
	}
	var h http.Handler = routes(s)
	if len(s.o.GatewaySecret) > 0 {
		h = s.gateway(h)
	}
	s.handler = s.limited(h)
	return s, nil
}

func (o Options) withDefaults() Options {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.MaxBodyBytes <= 0 {
		o.MaxBodyBytes = DefaultMaxBodyBytes
	}
	if o.MinScheduleDelay == 0 {
		o.MinScheduleDelay = DefaultMinScheduleDelay
	}
	if o.PullLease <= 0 {
		o.PullLease = DefaultPullLease
	}
	if o.RequestTimeout <= 0 {
		o.RequestTimeout = DefaultRequestTimeout
	}
	if o.GatewayExempt == nil {
		o.GatewayExempt = DefaultGatewayExempt()
	}
	if o.Shutdown == nil {
		o.Shutdown = context.Background()
	}
	return o
}

// ServeHTTP answers one request: it gives it an id, answers a panic with 500, and logs and measures it.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ex := &exchange{ResponseWriter: w, requestID: requestID(r), route: routeUnmatched}
	r = r.WithContext(context.WithValue(r.Context(), exchangeKey{}, ex))
	w.Header().Set(headerRequestID, ex.requestID)
	start := time.Now()
	defer func() { s.finished(ex, r, time.Since(start)) }()
	defer s.recovered(ex, r)
	s.handler.ServeHTTP(ex, r)
}

// limited bounds the time that a client may take over its request, on top of what the http.Server allows it.
func (s *Server) limited(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body != nil && r.Body != http.NoBody {
			// Not every ResponseWriter has deadlines; the http.Server's has.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.o.RequestTimeout))
		}
		ctx, cancel := context.WithTimeout(r.Context(), s.o.RequestTimeout)
		defer cancel()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// detached is the context for work that goes on when its client has gone away or has waited longer than a request
// usually takes; it ends with the server.
func (s *Server) detached(w http.ResponseWriter, r *http.Request) (context.Context, context.CancelFunc) {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Time{})
	_ = rc.SetWriteDeadline(time.Time{})
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	stop := context.AfterFunc(s.o.Shutdown, cancel)
	return ctx, func() { stop(); cancel() }
}
