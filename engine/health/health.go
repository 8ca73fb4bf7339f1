package health

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/engine"
	"github.com/redrive-mq/redrive/engine/durable"
	"github.com/redrive-mq/redrive/storage"
)

// Name is the engine's, in a context.
const Name = "health"

// The operations of RFC-72. A run checks and then aggregates; one whose own operation is aggregate only does that.
const (
	OperationCheck     = "check"
	OperationAggregate = "aggregate"
)

const (
	stepList      = "list"
	stepCheck     = "check"
	stepStore     = "store"
	stepAggregate = "aggregate"

	chunk    = 50  // destinations in a step, all probed at once
	maxTold  = 100 // destinations that a document names; their number is told besides
	document = "health"
)

// Store is what the engine works on: storage.Store.
type Store interface {
	Now(ctx context.Context) (time.Time, error)
	Catalog(ctx context.Context) (*storage.Catalog, error)
	DestinationHealth(ctx context.Context) ([]storage.DestinationHealth, error)
	DestinationHealthOf(ctx context.Context, consumerKeys []uint32) ([]storage.DestinationHealth, error)
	PutDestinationHealth(ctx context.Context, found []storage.DestinationHealth) error
}

// Options configures the engine. Zero values mean the default that is named.
type Options struct {
	Store Store // required
	// Client sends the probes; required. It has to refuse the addresses that deliveries refuse. Its redirects and cookies
	// are not used.
	Client     *http.Client
	Every      time.Duration // between two runs of all instances; default 1 min
	Timeout    time.Duration // of one probe; default 10 s
	Thresholds Thresholds
	// Changed is told of each destination whose state changed, at least once, after that is stored. It should not take long.
	// Optional.
	Changed func(ctx context.Context, c Change)
	Log     *slog.Logger // default slog.Default()
}

// Change is a destination that got into another state.
type Change struct {
	ConsumerKey uint32              `json:"-"`
	ChannelID   string              `json:"channel"`
	ConsumerID  string              `json:"consumer"`
	From        storage.HealthState `json:"from"`
	To          storage.HealthState `json:"to"`
	Class       string              `json:"class,omitempty"` // why the last probe failed
	At          time.Time           `json:"at"`
}

// Summary is the member "health" of the registry's document, which the engine's runs keep. The other members are others'.
type Summary struct {
	Healthy   int       `json:"healthy"`
	Unhealthy int       `json:"unhealthy"`
	Unknown   int       `json:"unknown"`
	CheckedAt time.Time `json:"checkedAt"`
	// Destinations are those that are unhealthy, 100 at most.
	Destinations []UnhealthyDestination `json:"unhealthyDestinations"`
}

// UnhealthyDestination is a line of a Summary.
type UnhealthyDestination struct {
	ChannelID  string    `json:"channel"`
	ConsumerID string    `json:"consumer"`
	Since      time.Time `json:"since"`
	Class      string    `json:"class"`
}

type health struct {
	o      Options
	prober prober
}

// New makes the engine, for Runtime.Register, which refuses it where something required is missing.
func New(o Options) engine.Definition {
	d := engine.Defaults(Name)
	d.Interchangeable, d.Every = true, o.Every
	if d.Every == 0 {
		d.Every = time.Minute
	}
	if o.Store == nil || o.Client == nil {
		return d
	}
	if o.Timeout <= 0 {
		o.Timeout = 10 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	h := &health{o, newProber(o.Client, o.Timeout)}
	d.Run = h.run
	d.Steps = map[string]engine.Step{stepList: h.list, stepCheck: h.check, stepStore: h.store, stepAggregate: h.aggregate}
	return d
}

// retry is for a database that is away for a moment: the next run is never far.
var retry = durable.Retry{Attempts: 3, Wait: time.Second}

// report is the output of a run.
type report struct {
	Checked int      `json:"checked"`
	Changed int      `json:"changed"`
	Changes []Change `json:"changes,omitempty"` // 100 at most
}

func (h *health) run(r *engine.Run) (any, error) {
	if r.Operation == OperationAggregate {
		var sum Summary
		if err := r.Try(stepAggregate, r.Now(), &sum, retry); err != nil {
			return nil, err
		}
		return sum, h.publish(r, sum)
	}
	var out report
	var keys []uint32
	if err := r.Try(stepList, nil, &keys, retry); err != nil {
		return nil, err
	}
	for part := range slices.Chunk(keys, chunk) {
		var found []checked
		if err := r.Try(stepCheck, checkInput{part}, &found, retry); err != nil {
			return nil, err
		}
		if len(found) == 0 {
			continue // all of them were deleted meanwhile
		}
		if err := r.Try(stepStore, found, nil, retry); err != nil {
			return nil, err
		}
		out.add(found)
	}
	var sum json.RawMessage
	if err := r.Record(OperationAggregate, stepAggregate, r.Now(), &sum, retry); err != nil {
		return nil, err
	}
	return out, h.publish(r, sum)
}

func (r *report) add(found []checked) {
	for _, c := range found {
		r.Checked++
		if c.From == c.State {
			continue
		}
		r.Changed++
		if len(r.Changes) < maxTold {
			r.Changes = append(r.Changes, c.change())
		}
	}
}

// publish sets this engine's member of the registry's document.
func (h *health) publish(r *engine.Run, summary any) error {
	members := map[string]json.RawMessage{}
	if err := r.Registry(&members); err != nil {
		return engine.Fatal(err) // it is no object, so it has no members to keep or to set
	}
	data, err := json.Marshal(summary)
	if err != nil {
		return err
	}
	if members == nil { // null
		members = map[string]json.RawMessage{}
	}
	members[document] = data
	return r.SetRegistry(members)
}

// list returns the keys of all push consumers, the oldest first.
func (h *health) list(ctx context.Context, _ engine.Call) (any, error) {
	cat, err := h.o.Store.Catalog(ctx)
	if err != nil {
		return nil, err
	}
	keys := []uint32{}
	for k := range cat.Consumers {
		if k.Type == storage.TypePush {
			keys = append(keys, k.Key)
		}
	}
	slices.Sort(keys)
	return keys, nil
}

type checkInput struct {
	Keys []uint32 `json:"keys"`
}

// checked is a destination after a probe.
type checked struct {
	storage.DestinationHealth

	From storage.HealthState
}

func (c checked) change() Change {
	return Change{c.ConsumerKey, c.ChannelID, c.ConsumerID, c.From, c.State, c.Class, c.CheckedAt}
}

// check probes some destinations. It stores nothing, so a second execution of it counts no failure twice.
func (h *health) check(ctx context.Context, call engine.Call) (any, error) {
	var in checkInput
	if err := json.Unmarshal(call.Input, &in); err != nil {
		return nil, durable.Permanent(err)
	}
	cat, err := h.o.Store.Catalog(ctx)
	if err != nil {
		return nil, err
	}
	known, err := h.o.Store.DestinationHealthOf(ctx, in.Keys)
	if err != nil {
		return nil, err
	}
	// Of the database and not of the run, which goes by the clocks of all processes that it meets: one that is ahead would
	// make what later runs find older than what is stored.
	at, err := h.o.Store.Now(ctx)
	if err != nil {
		return nil, err
	}
	found := make([]checked, 0, len(known))
	var probes sync.WaitGroup
	for _, before := range known {
		k, ok := cat.ConsumerByKey(before.ConsumerKey)
		if !ok {
			continue
		}
		found = append(found, checked{before, before.State})
		c := &found[len(found)-1] // stays where it is: there is room for all
		probes.Go(func() {
			c.DestinationHealth = Evaluate(before, h.prober.probe(ctx, k.CallbackURL), at, h.o.Thresholds)
		})
	}
	probes.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err // this process stops; that is nothing against the destinations
	}
	return found, nil
}

// store keeps what was found, and tells of changes.
func (h *health) store(ctx context.Context, call engine.Call) (any, error) {
	var found []checked
	if err := json.Unmarshal(call.Input, &found); err != nil {
		return nil, durable.Permanent(err)
	}
	rows := make([]storage.DestinationHealth, len(found))
	for i, c := range found {
		rows[i] = c.DestinationHealth
	}
	if err := h.o.Store.PutDestinationHealth(ctx, rows); err != nil {
		return nil, err
	}
	for _, c := range found {
		if c.From == c.State {
			continue
		}
		level := slog.LevelInfo
		switch {
		case c.State == storage.Unhealthy:
			level = slog.LevelWarn
		case c.From == storage.HealthUnknown:
			level = slog.LevelDebug // a new consumer
		}
		h.o.Log.Log(ctx, level, "a destination is "+string(c.State), "channel", c.ChannelID, "consumer", c.ConsumerID, "before", c.From,
			"class", c.Class, "error", c.Error)
		if h.o.Changed != nil {
			h.o.Changed(ctx, c.change())
		}
	}
	return nil, nil
}

// aggregate sums up what is stored. Its input is when the destinations were checked.
func (h *health) aggregate(ctx context.Context, call engine.Call) (any, error) {
	sum := Summary{Destinations: []UnhealthyDestination{}}
	if err := json.Unmarshal(call.Input, &sum.CheckedAt); err != nil {
		return nil, durable.Permanent(err)
	}
	all, err := h.o.Store.DestinationHealth(ctx)
	if err != nil {
		return nil, err
	}
	for _, d := range all {
		switch d.State {
		case storage.Healthy:
			sum.Healthy++
		case storage.Unhealthy:
			if sum.Unhealthy++; len(sum.Destinations) < maxTold {
				sum.Destinations = append(sum.Destinations, UnhealthyDestination{d.ChannelID, d.ConsumerID, d.Since, d.Class})
			}
		default:
			sum.Unknown++
		}
	}
	return sum, nil
}
