package broker

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-mq/redrive/storage"
)

// Options configures a Broker. Zero values mean the default that is named.
type Options struct {
	Store      *storage.Store        // required
	Registerer prometheus.Registerer // default: a registry of its own that nobody reads
	Log        *slog.Logger          // default slog.Default()
	InstanceID storage.ID            // owner of this instance's leases; default a new one

	MaxRetry        int             // retries after the first attempt, 0 or more; there is no default
	Backoff         []time.Duration // waits before the retries; default 5s,30s,60s,120s,180s; see Schedule
	DeliveryTimeout time.Duration   // bound of one attempt; default 30 s
	RationalDelay   time.Duration   // on top of it, before a lease ends; default 2 s

	PollInterval      time.Duration // how often waiting work of all instances is looked for; default 500 ms
	SchedulerInterval time.Duration // how often due scheduled messages are looked for; default 1 s
	Concurrency       int           // attempts at a time for each consumer, in this instance; default 64

	Engines map[string]Engine // that this instance has, by their names; default none

	AllowPrivateDestinations bool   // push to loopback, private and link-local addresses
	ConsumerTokenHeader      string // default X-Broker-Consumer-Token
	UserAgent                string // default Redrive
}

func (o Options) withDefaults() (Options, error) {
	if o.Store == nil {
		return o, errors.New("broker: no store")
	}
	if o.MaxRetry < 0 || o.MaxRetry > maxRetryLimit {
		return o, fmt.Errorf("broker: %d retries, allowed are 0 to %d", o.MaxRetry, maxRetryLimit)
	}
	if len(o.Backoff) == 0 {
		o.Backoff = []time.Duration{5 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 3 * time.Minute}
	}
	if o.Registerer == nil {
		o.Registerer = prometheus.NewRegistry()
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.InstanceID.IsZero() {
		o.InstanceID = storage.NewID()
	}
	if o.Concurrency == 0 {
		o.Concurrency = 64
	}
	if o.ConsumerTokenHeader == "" {
		o.ConsumerTokenHeader = "X-Broker-Consumer-Token"
	}
	if o.UserAgent == "" {
		o.UserAgent = "Redrive"
	}
	for _, d := range []struct {
		value *time.Duration
		other time.Duration
		name  string
	}{
		{&o.DeliveryTimeout, 30 * time.Second, "delivery timeout"},
		{&o.RationalDelay, 2 * time.Second, "rational delay"},
		{&o.PollInterval, 500 * time.Millisecond, "poll interval"},
		{&o.SchedulerInterval, time.Second, "scheduler interval"},
	} {
		if *d.value == 0 {
			*d.value = d.other
		}
		if *d.value < 0 {
			return o, fmt.Errorf("broker: a %s of %v", d.name, *d.value)
		}
	}
	if o.Concurrency < 0 {
		return o, fmt.Errorf("broker: a concurrency of %d", o.Concurrency)
	}
	var err error
	o.Engines, err = o.enginesWithDefaults()
	return o, err
}

// The column that counts retries holds 16 bits.
const maxRetryLimit = 1<<16 - 2

// lease is how long an attempt may take before its job is somebody else's.
func (o Options) lease() time.Duration { return o.DeliveryTimeout + o.RationalDelay }
