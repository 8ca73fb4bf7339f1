package durable

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/cschleiden/go-workflows/activity"
	"github.com/cschleiden/go-workflows/core"
	"github.com/cschleiden/go-workflows/workflow"
)

const active = core.WorkflowInstanceStateActive

// Orchestration says in which order what is done. It must be deterministic; see the package's comment. Its result is
// encoded as JSON.
type Orchestration func(c *Context, input json.RawMessage) (any, error)

// Activity does something. It is executed at least once for each Context.Call; ctx ends when the lease was lost or the
// process stops. Its result is encoded as JSON. A panic is an error like any other.
type Activity func(ctx context.Context, call Call) (any, error)

// Call is what an activity is called with.
type Call struct {
	// Key is the idempotency key: the same in every attempt and execution of one Context.Call, and of no other call.
	Key string
	// Instance is the execution that called.
	Instance Execution
	// Attempt counts from 0. An execution that was broken off by the end of its process or lease is not counted.
	Attempt int
	// Input is JSON.
	Input json.RawMessage
}

// ErrCanceled is what waiting answers in an execution that was cancelled.
var ErrCanceled = errors.New("the execution was cancelled")

// ActivityError is an activity that failed, in its last attempt.
type ActivityError struct {
	Activity string
	Message  string
}

func (e *ActivityError) Error() string { return e.Activity + ": " + e.Message }

// FailedError is an orchestration that ended with an error.
type FailedError struct {
	Message  string
	Canceled bool // it ended with ErrCanceled
}

func (e *FailedError) Error() string { return "the orchestration failed: " + e.Message }

// Permanent marks an error of an activity that another attempt would meet again.
func Permanent(err error) error { return workflow.NewPermanentError(err) }

// canceledError is ErrCanceled as the runtime keeps it: it remembers an error by the name of its type.
type canceledError struct{ error }

const canceledType = "canceledError"

// Retry says how often an activity is tried. The zero value: once.
type Retry struct {
	// Attempts in all; fewer than 2: one.
	Attempts int
	// Wait before the second attempt; it doubles from one to the next, up to MaxWait (0: without bound).
	Wait, MaxWait time.Duration
}

// Context is an orchestration's way to everything outside of it. It is good for that execution's goroutine alone.
type Context struct {
	wf    workflow.Context
	calls *int
}

// Execution returns which execution this is.
func (c *Context) Execution() Execution { return executionOf(workflow.WorkflowInstance(c.wf)) }

func executionOf(i *workflow.Instance) Execution {
	return Execution{InstanceID: i.InstanceID, ExecutionID: i.ExecutionID}
}

// Now is the time at which this slice was first executed, by that process's clock.
func (c *Context) Now() time.Time { return workflow.Now(c.wf) }

// Sleep waits for d. It is stored, so a crash does not prolong it by more than Options.Idle and what is left of a lease.
func (c *Context) Sleep(d time.Duration) error { return ours("", workflow.Sleep(c.wf, d)) }

// Detached returns a Context that a cancellation does not reach, for what has to be done in the end all the same.
func (c *Context) Detached() *Context {
	return &Context{wf: workflow.NewDisconnectedContext(c.wf), calls: c.calls}
}

// envelope is an activity's input as stored.
type envelope struct {
	Key         string          `json:"key"`
	InstanceID  string          `json:"instanceId"`
	ExecutionID string          `json:"executionId"`
	Input       json.RawMessage `json:"input"`
}

// Call has an activity executed and waits for its result, which is decoded into output unless that is nil. It returns
// an *ActivityError or ErrCanceled. Input is encoded as JSON.
func (c *Context) Call(name string, input, output any, retry Retry) error {
	*c.calls++
	data, err := encode("input of "+name, input)
	if err != nil {
		return err
	}
	// The wait before attempt n (from 1) is the runtime's first interval times 2^n.
	options := workflow.ActivityOptions{RetryOptions: workflow.RetryOptions{
		MaxAttempts: retry.Attempts, FirstRetryInterval: retry.Wait / 2, BackoffCoefficient: 2, MaxRetryInterval: retry.MaxWait,
	}}
	execution := c.Execution()
	in := envelope{
		Key:        execution.ExecutionID + "/" + strconv.Itoa(*c.calls),
		InstanceID: execution.InstanceID, ExecutionID: execution.ExecutionID, Input: data,
	}
	result, err := workflow.ExecuteActivity[json.RawMessage](c.wf, options, name, in).Get(c.wf)
	if err != nil {
		return ours(name, err)
	}
	if output == nil {
		return nil
	}
	if err := json.Unmarshal(result, output); err != nil {
		return fmt.Errorf("the result of %q: %w", name, err)
	}
	return nil
}

// ours turns the runtime's errors into this package's.
func ours(name string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, workflow.Canceled):
		return ErrCanceled
	}
	return &ActivityError{Activity: name, Message: err.Error()}
}

// slices makes an orchestration what the runtime executes.
func (r *Runner) slices(fn Orchestration) any {
	return func(wf workflow.Context, input json.RawMessage) (result json.RawMessage, err error) {
		c := &Context{wf: wf, calls: new(int)}
		defer func() {
			// The runtime's own way would put the stack into the result, which callers see.
			if p := recover(); p != nil {
				r.o.Log.Error("an orchestration panicked", "instance", c.Execution().InstanceID, "panic", p, "stack", string(debug.Stack()))
				err = fmt.Errorf("panic: %v", p)
			}
		}()
		value, err := fn(c, input)
		if errors.Is(err, ErrCanceled) {
			return nil, &canceledError{err}
		}
		if err != nil {
			return nil, err
		}
		return encode("result of the orchestration", value)
	}
}

// executes makes an activity what the runtime executes.
func (r *Runner) executes(fn Activity) any {
	return func(ctx context.Context, in envelope) (json.RawMessage, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(r.broken, cancel)()
		value, err := fn(ctx, Call{
			Key: in.Key, Instance: Execution{in.InstanceID, in.ExecutionID}, Attempt: activity.Attempt(ctx), Input: in.Input,
		})
		if err != nil {
			return nil, err
		}
		result, err := encode("result", value)
		if err != nil {
			return nil, Permanent(err)
		}
		return result, nil
	}
}

// encode makes JSON of an input or result.
func encode(what string, value any) (json.RawMessage, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("the %s: %w", what, err)
	}
	if len(data) > MaxPayload {
		return nil, fmt.Errorf("the %s has %d bytes: %d are the most", what, len(data), MaxPayload)
	}
	return data, nil
}
