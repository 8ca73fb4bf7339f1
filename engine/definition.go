package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redrive-mq/redrive/engine/durable"
)

// Definition is an engine that runs in this process.
type Definition struct {
	// Name is one of the context's engines.
	Name string
	// Run says in which order what is done for a message: it calls steps, sleeps, and returns the run's output, which is
	// encoded as JSON for the history (at most 512 KiB). It must be deterministic, as package durable says: whatever has
	// an effect, or reads something, is a step. A release that changes the order of steps makes runs that are under way
	// fail, to be tried again, as long as instances of both releases are there.
	Run func(r *Run) (output any, err error)
	// Steps are what Run may call, by name.
	Steps map[string]Step

	// MaxRetryAttempts is how often a run that failed is tried again before its message is dead; default 5, negative: never.
	MaxRetryAttempts int
	// Backoff are the waits before these; the last one repeats. Default: the broker's.
	Backoff []time.Duration
	// Timeout bounds a run, its sleeps included; default 1 h. One that takes longer is cancelled and has failed.
	Timeout time.Duration
	// Concurrency is how many messages one process works on at a time; default 16.
	Concurrency int

	// Registry: runs change the registry of their instance, so each takes its lock (RFC-72, 1.8) for as long as it runs,
	// Timeout and a minute at most.
	Registry bool
	// Interchangeable: one run of an instance is as good as another, so a message that comes while another one's run is
	// under way is done without a run of its own. Otherwise it waits for its turn.
	Interchangeable bool

	// Every is the interval at which a message for each of Instances is put into the engine's queue; 0: never. All
	// processes together put one.
	Every time.Duration
	// Instances lists the instance ids of timed runs; nil: the context's own.
	Instances func(ctx context.Context) ([]string, error)
}

// Step does something. It is executed at least once for each Run.Do; Call.Key is the same each time. ctx ends when the
// process stops, and when its run has taken longer than Definition.Timeout: a run ends when its step has. Its result is encoded as JSON. A panic is an error like any other.
type Step func(ctx context.Context, call Call) (any, error)

// Call is what a step is called with.
type Call = durable.Call

// Defaults is what the definition of an engine begins with where RFC-72's engines differ from each other: those that change
// secrets are tried 3 times again and not 5, for another attempt may lock somebody out; those that change the registry (RFC-72,
// 1.5) take its lock.
func Defaults(name string) Definition {
	d := Definition{Name: name}
	switch name {
	case "hmac", "tls", "spn":
		d.MaxRetryAttempts = 3
	case "health", "update":
		d.Registry = true
	}
	return d
}

const (
	defaultRetries     = 5
	defaultTimeout     = time.Hour
	defaultConcurrency = 16
	maxTimeout         = 30 * day
	maxName            = 64 // of a step, with its engine's name and a dot
)

func (d Definition) withDefaults() (Definition, error) {
	switch {
	case d.Run == nil:
		return d, fmt.Errorf("engine %q: it has nothing to run", d.Name)
	case d.Timeout < 0 || d.Timeout > maxTimeout:
		return d, fmt.Errorf("engine %q: a timeout of %s: must be at most %s", d.Name, d.Timeout, maxTimeout)
	case d.Every < 0 || d.Every > 0 && d.Every < time.Second:
		return d, fmt.Errorf("engine %q: a run every %s: must be 1s or more", d.Name, d.Every)
	case d.Concurrency < 0:
		return d, fmt.Errorf("engine %q: a concurrency of %d", d.Name, d.Concurrency)
	}
	for name := range d.Steps {
		if len(d.Name)+1+len(name) > maxName {
			return d, fmt.Errorf("engine %q: the name of the step %q is too long: %d characters are the most for both", d.Name, name, maxName-1)
		}
	}
	if d.MaxRetryAttempts == 0 {
		d.MaxRetryAttempts = defaultRetries
	}
	d.MaxRetryAttempts = max(d.MaxRetryAttempts, 0)
	if d.Timeout == 0 {
		d.Timeout = defaultTimeout
	}
	if d.Concurrency == 0 {
		d.Concurrency = defaultConcurrency
	}
	return d, nil
}

// fatalError is what another attempt would meet again.
type fatalError struct{ error }

func (f fatalError) Unwrap() error { return f.error }

// Fatal marks an error that Run returns as one that another attempt would meet again: the message is dead at once.
func Fatal(err error) error { return fatalError{err} }

func isFatal(err error) bool {
	_, fatal := errors.AsType[fatalError](err)
	return fatal
}
