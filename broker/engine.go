package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

// Engine is an engine that this instance has: the jobs of consumers of storage.TypeEngine with its name as their id are
// executed here. Those of others are left to instances that have theirs.
type Engine struct {
	Executor    Executor        // required
	MaxRetry    int             // retries after the first attempt, 0 or more; there is no default
	Backoff     []time.Duration // waits before the retries; default Options.Backoff; see Schedule
	Concurrency int             // attempts at a time, in this instance; default 16
}

// Executor does the jobs of an engine's queue.
type Executor interface {
	// Execute does a job, or goes on with what an earlier attempt began: the same job may come again, also while an
	// attempt on another instance, which lost its lease, still goes on. It may take its time: the lease is extended. It
	// must return when ctx ends, which it does when the lease is lost and when the broker stops; an error after a
	// stop is no failure, the job is handed back. A panic is a failure.
	Execute(ctx context.Context, job storage.ClaimedJob) Execution
}

// Execution is what became of an attempt.
type Execution struct {
	Err     error           // nil: done, unless Pending
	Class   string          // of Err: at most 32 ASCII characters from a closed set; default "engine", or "timeout"
	Fatal   bool            // with Err: dead at once, whatever attempts are left
	Pending bool            // neither done nor failed, whatever Err says: no attempt is counted, it is claimed again after Wait
	Wait    time.Duration   // of Pending; default Options.PollInterval
	Subject storage.Subject // what a dead letter is about
}

const engineConcurrency = 16

// enginesWithDefaults checks the engines and returns a copy of them.
func (o Options) enginesWithDefaults() (map[string]Engine, error) {
	engines := maps.Clone(o.Engines)
	for name, e := range engines {
		switch {
		case e.Executor == nil:
			return nil, fmt.Errorf("broker: the engine %q has no executor", name)
		case e.MaxRetry < 0 || e.MaxRetry > maxRetryLimit:
			return nil, fmt.Errorf("broker: %d retries of the engine %q, allowed are 0 to %d", e.MaxRetry, name, maxRetryLimit)
		case e.Concurrency < 0:
			return nil, fmt.Errorf("broker: a concurrency of %d of the engine %q", e.Concurrency, name)
		}
		if e.Concurrency == 0 {
			e.Concurrency = engineConcurrency
		}
		if len(e.Backoff) == 0 {
			e.Backoff = o.Backoff
		}
		engines[name] = e
	}
	return engines, nil
}

// engineMeans are how the jobs of each engine are done. None waits in memory: an attempt takes a millisecond where there is
// nothing to do yet and minutes where there is, so that past ones tell nothing.
func engineMeans(o Options) map[string]*means {
	out := make(map[string]*means, len(o.Engines))
	for name, e := range o.Engines {
		run := executing{e.Executor, o}
		out[name] = &means{do: run.do, maxRetry: e.MaxRetry, schedule: e.Backoff, concurrency: e.Concurrency, extends: true}
	}
	return out
}

// executing does jobs by an executor.
type executing struct {
	executor Executor
	o        Options
}

func (x executing) do(ctx context.Context, k *storage.Consumer, job storage.ClaimedJob) (r result) {
	defer func() {
		if p := recover(); p != nil {
			x.o.Log.LogAttrs(context.WithoutCancel(ctx), slog.LevelError, "an engine panicked", slog.String("consumer", k.ID),
				slog.String("job", job.ID.String()), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			r = result{fail: &failure{classPanic, printable(fmt.Sprint("panic: ", p))}}
		}
	}()
	done := x.executor.Execute(ctx, job)
	if done.Subject != (storage.Subject{}) {
		r.subject = &done.Subject
	}
	switch {
	case done.Pending:
		r.pending, r.wait = true, done.Wait
		if r.wait <= 0 {
			r.wait = x.o.PollInterval
		}
	case done.Err != nil:
		r.fail, r.fatal = &failure{classOfExecution(done), printable(done.Err.Error())}, done.Fatal
	}
	return r
}

const maxClass = 32 // characters, of its column

func classOfExecution(x Execution) string {
	for _, r := range x.Class {
		if r <= ' ' || r > '~' {
			return classEngine
		}
	}
	switch {
	case len(x.Class) > maxClass:
		return classEngine
	case x.Class != "":
		return x.Class
	case errors.Is(x.Err, context.DeadlineExceeded):
		return classTimeout
	}
	return classEngine
}
