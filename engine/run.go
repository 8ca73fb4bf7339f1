package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/redrive-mq/redrive/engine/durable"
	"github.com/redrive-mq/redrive/storage"
)

// Run is one run of an engine, for one message. It is good for the goroutine of Definition.Run alone.
type Run struct {
	Message

	engine  string
	c       *durable.Context
	started time.Time // by the database's clock
	began   time.Time // the same moment, by Context.Now: not before begin, which another process may have scheduled
	entries []storage.HistoryEntry

	registryVersion uint64
	registry        json.RawMessage
}

// ID tells runs apart: no other has it.
func (r *Run) ID() string { return r.c.Execution().ExecutionID }

// Now is the time, by the database's clock as of the beginning of the run and the same in every replay. Where another
// process goes on with the run, it is as wrong as their clocks differ.
func (r *Run) Now() time.Time {
	return r.started.Add(r.c.Now().Sub(r.began)).Truncate(time.Microsecond)
}

// Sleep waits, over crashes as well.
func (r *Run) Sleep(d time.Duration) error { return r.c.Sleep(d) }

// Do has a step executed, with an input that is encoded as JSON, and decodes its result into output, unless that is nil.
// A step that fails is not executed again but by another run: see Try.
func (r *Run) Do(step string, input, output any) error {
	return r.Try(step, input, output, durable.Retry{})
}

// Try is Do of a step that is tried several times within the run.
func (r *Run) Try(step string, input, output any, retry durable.Retry) error {
	return r.c.Call(r.engine+"."+step, input, output, retry)
}

// Record is Try of a step that is an operation of its own, of those that the context lists and not the run's: it gets its
// own history entry, beside the run's, for which input and output may have 960 KiB together.
func (r *Run) Record(operation, step string, input any, output *json.RawMessage, retry durable.Retry) error {
	if operation == r.Operation {
		return fmt.Errorf("the operation %q is that of the run", operation) // whose success ends all repetitions
	}
	before := r.Now()
	var result json.RawMessage
	err := r.Try(step, input, &result, retry)
	if output != nil {
		*output = result
	}
	in, encodeErr := json.Marshal(input)
	if encodeErr != nil {
		return encodeErr
	}
	if size := len(in) + len(result); size > maxInput+maxOutput {
		return fmt.Errorf("the operation %q: its input and output have %d bytes: %d are the most", operation, size, maxInput+maxOutput)
	}
	r.entries = append(r.entries, r.entry(operation, before, in, result, err))
	return err
}

// Registry decodes the registry's document of the run's instance into value, which is left alone where there is none.
// Of engines with Definition.Registry alone.
func (r *Run) Registry(value any) error {
	if r.registry == nil {
		return nil
	}
	return json.Unmarshal(r.registry, value)
}

// SetRegistry changes the registry's document of the run's instance, under the run's lock. The error is that of
// a lock that was lost: somebody else may have changed it.
func (r *Run) SetRegistry(value any) error {
	document, err := json.Marshal(value)
	if err != nil {
		return err
	}
	in := registryChange{r.InstanceID, r.ID(), r.registryVersion, document}
	if err := r.c.Call(activityRegistry, in, &r.registryVersion, patient); err != nil {
		return err
	}
	r.registry = document
	return nil
}

// entry is the history of an operation that began at a time and ends now.
func (r *Run) entry(operation string, began time.Time, input, output json.RawMessage, failure error) storage.HistoryEntry {
	now := r.Now()
	e := storage.HistoryEntry{
		Engine: r.engine, InstanceID: r.InstanceID, Operation: operation, Status: storage.HistorySucceeded, Duration: now.Sub(began),
		Input: input, Output: output, CreatedAt: now, CorrelationID: r.CorrelationID,
	}
	if failure != nil {
		e.Status, e.Error, e.Output = storage.HistoryFailed, clip(failure.Error(), maxErrorText), nil
	}
	return e
}

const (
	maxErrorText = 4096 // characters
	maxOutput    = maxInput - 64<<10
	maxEnding    = durable.MaxPayload - 8<<10 // bytes of entries in a call, beside whose registry is unlocked
)

func clip(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most])
	}
	return text
}

// How a run ended, as its orchestration stores it.
const (
	stateDone    = "done"
	stateAlready = "already" // the same work was done before
	stateBusy    = "busy"    // another job has the registry's lock
	stateFailed  = "failed"
	stateFatal   = "fatal"
)

// result is what an orchestration returns.
type result struct {
	State    string        `json:"state"`
	Error    string        `json:"error,omitempty"`
	Duration time.Duration `json:"duration"`
}

// assignment is the input of an orchestration.
type assignment struct {
	Engine  string  `json:"engine"`
	Message Message `json:"message"`
}

// orchestrate makes of a definition what the durable runtime executes: begin, the run itself, end.
func (rt *Runtime) orchestrate(d Definition) durable.Orchestration {
	return func(c *durable.Context, input json.RawMessage) (any, error) {
		var in assignment
		if err := json.Unmarshal(input, &in); err != nil {
			return nil, err
		}
		var b begun
		err := c.Call(activityBegin, beginning{in, d.Registry, c.Execution().ExecutionID, lockFor(d)}, &b, patient)
		if err != nil {
			if d.Registry { // it may have the lock
				_ = c.Detached().Call(activityEnd, ending{Unlock: in.Message.InstanceID, JobID: c.Execution().ExecutionID}, nil, patient)
			}
			return result{State: stateFailed, Error: "it could not begin: " + err.Error()}, nil
		}
		if b.State != "" {
			return result{State: b.State}, nil
		}
		r := &Run{
			Message: in.Message, engine: d.Name, c: c, started: b.At, began: c.Now(),
			registryVersion: b.RegistryVersion, registry: b.Registry,
		}
		output, err := d.call(r)
		if errors.Is(err, durable.ErrCanceled) {
			err = fmt.Errorf("it was cancelled: it took longer than %s", d.Timeout)
		}
		last := r.entry(r.Operation, r.started, r.Input, output, err)
		// What was done is written down whatever becomes of the run: a cancellation does not reach it.
		ends := endings(append(r.entries, last))
		if d.Registry {
			end := &ends[len(ends)-1]
			end.Unlock, end.JobID = r.InstanceID, r.ID()
		}
		for _, end := range ends {
			if failure := c.Detached().Call(activityEnd, end, nil, patient); failure != nil {
				return result{State: stateFailed, Error: "its history could not be written: " + failure.Error()}, nil //nolint:nilerr // a result tells of it
			}
		}
		out := result{State: stateDone, Duration: last.Duration}
		if err != nil {
			out.State, out.Error = stateFailed, last.Error
			if isFatal(err) {
				out.State = stateFatal
			}
		}
		return out, nil
	}
}

// endings puts entries, of which there is one at least, into as few calls as can hold them.
func endings(entries []storage.HistoryEntry) (out []ending) {
	size := maxEnding
	for _, e := range entries {
		text, _ := json.Marshal(e) // of texts and JSON: it fails nowhere
		if size += len(text) + 1; size > maxEnding {
			out, size = append(out, ending{}), len(text)+1
		}
		last := &out[len(out)-1]
		last.Entries = append(last.Entries, e)
	}
	return out
}

// lockFor is how long a run takes the registry's lock for: it is cancelled before that is over.
func lockFor(d Definition) time.Duration { return d.Timeout + time.Minute }

// call runs the definition, makes an error of a panic, and encodes the output.
func (d Definition) call(r *Run) (output json.RawMessage, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	value, err := d.Run(r)
	if err != nil {
		return nil, err
	}
	if value == nil {
		return nil, nil
	}
	if output, err = json.Marshal(value); err != nil {
		return nil, fmt.Errorf("its output: %w", err)
	}
	if len(output) > maxOutput {
		return nil, fmt.Errorf("its output has %d bytes: %d are the most", len(output), maxOutput)
	}
	return output, nil
}

// bounded is a step that ends with its run's time. A cancellation waits for it, so one that hangs would keep its run, its instance
// and one of the process's places for steps for ever.
func (rt *Runtime) bounded(d Definition, step Step) durable.Activity {
	return func(ctx context.Context, call Call) (any, error) {
		age, err := rt.o.Durable.Age(ctx, call.Instance)
		if err != nil {
			age = 0 // what can be said of it is that it has begun
		}
		ctx, cancel := context.WithTimeout(ctx, max(d.Timeout-age, 0))
		defer cancel()
		return step(ctx, call)
	}
}
