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

// Classes of runs that failed, as they stand with the job.
const (
	classMessage = "bad_message" // the message is not one that an engine reads
	classRun     = "run_failed"
	classEngine  = "engine" // the runtime itself
)

// Outcome is what became of an attempt at a message.
type Outcome struct {
	Err     error         // nil: done, unless Pending
	Class   string        // of Err
	Fatal   bool          // with Err: another attempt would meet it again
	Pending bool          // neither done nor failed: another look after Wait
	Wait    time.Duration // with Pending
	// What a dead letter says.
	InstanceID, CorrelationID string
}

const (
	// Until the next look whether a message's turn has come: an eighth of the time that it has waited, so that a thousand
	// messages of one instance do not spend their time asking.
	turnWait     = 2 * time.Second
	turnWaitMost = time.Minute
	turnShare    = 8

	outageWait = time.Second // until the next look after the database was away

	// A run that is older than it may be by so much has nobody who waits for it.
	orphanAfter = 5 * time.Second
)

func untilNextLook(received time.Time) time.Duration {
	if received.IsZero() { // just now
		return turnWait
	}
	return min(max(time.Since(received)/turnShare, turnWait), turnWaitMost)
}

// Execute attends to a message of an engine's queue, as RFC-72 (1.2) says: it is done where the history has its correlation id;
// otherwise an orchestration is started under the instance's id, or the one that is under way for this very message is
// waited for. It returns Pending when ctx ends first, or the runtime stops: the run goes on, and the next Execute waits
// for it.
func (rt *Runtime) Execute(ctx context.Context, engine string, job storage.ClaimedJob) Outcome {
	d, ok := rt.engine(engine)
	if !ok {
		return Outcome{Pending: true, Wait: turnWait} // some other process executes it
	}
	m, err := rt.read(d, job)
	o := Outcome{InstanceID: m.InstanceID, CorrelationID: m.CorrelationID}
	if err != nil {
		o.Err, o.Class, o.Fatal = err, classMessage, true
		rt.metrics.runs.WithLabelValues(d.Name, stateFatal).Inc()
		return o
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(rt.stopping, cancel)()
	ran, err := rt.attend(ctx, d, m)
	switch {
	case err != nil && (ctx.Err() != nil || storage.IsUnavailable(err)):
		o.Pending = true
		if ctx.Err() == nil {
			o.Wait = outageWait
		}
		return o
	case err != nil:
		o.Err, o.Class = err, classEngine
		ran.State = stateFailed
	case ran.State == stateWaiting, ran.State == stateBusy:
		o.Pending, o.Wait = true, untilNextLook(job.ReceivedAt)
	case ran.State == stateFailed, ran.State == stateFatal:
		o.Err, o.Class, o.Fatal = errors.New(ran.Error), classRun, ran.State == stateFatal
	}
	rt.metrics.runs.WithLabelValues(d.Name, ran.State).Inc()
	if ran.Duration > 0 {
		rt.metrics.duration.WithLabelValues(d.Name).Observe(ran.Duration.Seconds())
	}
	return o
}

// What else may become of a message than a run of its own.
const (
	stateSkipped = "skipped" // another message's run was under way, and one is as good as another
	stateWaiting = "waiting" // another message's run is under way
)

// read makes a message of a job. With an error it is what a dead letter can say of it.
func (rt *Runtime) read(d Definition, job storage.ClaimedJob) (Message, error) {
	return parseMessage(job.Body, rt.defaults(d, job.MessageID), rt.o.Context.Operations(d.Name))
}

func (rt *Runtime) defaults(d Definition, correlationID string) Message {
	return Message{CorrelationID: correlationID, InstanceID: rt.o.Context.Instance(), Operation: rt.o.Context.Operations(d.Name)[0]}
}

// attend gets a message's work done, or finds that it is not its turn. The error is of the database, of ctx, or says that
// the orchestration cannot be started or has failed as none should.
func (rt *Runtime) attend(ctx context.Context, d Definition, m Message) (result, error) {
	for {
		done, err := rt.succeeded(ctx, d.Name, m)
		if err != nil {
			return result{}, err
		}
		if done {
			return result{State: stateAlready}, nil
		}
		if locked, err := rt.lockedByOther(ctx, d, m); err != nil || locked {
			return result{State: stateBusy}, err
		}
		e, err := rt.o.Durable.Start(ctx, d.Name, instanceKey(d.Name, m.InstanceID), assignment{d.Name, m})
		if err == nil {
			return rt.await(ctx, d, m, durable.Running{Execution: e})
		}
		if !errors.Is(err, durable.ErrAlreadyRunning) {
			return result{}, err
		}
		running, whose, err := rt.active(ctx, d, m)
		switch {
		case errors.Is(err, durable.ErrNotFound):
			continue // it has ended meanwhile
		case err != nil:
			return result{}, err
		case whose == ofMessage:
			return rt.await(ctx, d, m, running)
		case whose == ofOther:
			return result{State: stateWaiting}, nil
		case running.Age > d.Timeout+orphanAfter:
			// Whoever waits for a run cancels it in time, so nobody does: its message is gone, or was never put.
			if err := rt.o.Durable.Cancel(ctx, running.Execution); err != nil && !errors.Is(err, durable.ErrNotFound) {
				return result{}, err
			}
			return result{State: stateWaiting}, nil
		case d.Interchangeable:
			return result{State: stateSkipped}, nil
		}
		return result{State: stateWaiting}, nil
	}
}

// lockedByOther tells whether the registry's lock is held by something else than the run that is under way.
func (rt *Runtime) lockedByOther(ctx context.Context, d Definition, m Message) (bool, error) {
	if !d.Registry {
		return false, nil
	}
	reg, err := rt.o.Tables.Registry(ctx, m.InstanceID)
	if err != nil || reg.LockJobID == "" {
		return false, err
	}
	running, err := rt.o.Durable.Active(ctx, instanceKey(d.Name, m.InstanceID))
	if err != nil && !errors.Is(err, durable.ErrNotFound) {
		return false, err
	}
	return running.ExecutionID != reg.LockJobID, nil
}

// Whose run it is that is under way.
const (
	ofMessage  = iota + 1 // this message's, or that of one with the same work
	ofInstance            // another message's of the instance
	ofOther               // of another engine's instance, whose names together read the same
)

// active finds the run of an instance that is under way, and whose it is.
func (rt *Runtime) active(ctx context.Context, d Definition, m Message) (_ durable.Running, whose int, err error) {
	running, err := rt.o.Durable.Active(ctx, instanceKey(d.Name, m.InstanceID))
	if err != nil {
		return running, 0, err
	}
	var of assignment
	if err := json.Unmarshal(running.Input, &of); err != nil {
		return running, 0, fmt.Errorf("the run under way of %q: %w", m.InstanceID, err)
	}
	switch {
	case of.Engine != d.Name || of.Message.InstanceID != m.InstanceID:
		return running, ofOther, nil
	case of.Message.CorrelationID == m.CorrelationID && of.Message.Operation == m.Operation:
		return running, ofMessage, nil
	}
	return running, ofInstance, nil
}

// await waits for a run to end, and cancels one that takes too long.
func (rt *Runtime) await(ctx context.Context, d Definition, m Message, running durable.Running) (result, error) {
	var out result
	inTime, cancel := context.WithTimeout(ctx, d.Timeout-running.Age)
	defer cancel()
	value, err := rt.o.Durable.Wait(inTime, running.Execution)
	if ctx.Err() == nil && inTime.Err() != nil && err != nil {
		if err := rt.o.Durable.Cancel(ctx, running.Execution); err != nil && !errors.Is(err, durable.ErrNotFound) {
			return out, err
		}
		value, err = rt.o.Durable.Wait(ctx, running.Execution)
	}
	if failed, ok := errors.AsType[*durable.FailedError](err); ok {
		// It ended where it could not be gone on with, as with the code of another version: so without its last step.
		if d.Registry {
			err = rt.o.Tables.UnlockRegistry(ctx, m.InstanceID, running.ExecutionID)
		} else {
			err = nil
		}
		return result{State: stateFailed, Error: failed.Message}, err
	}
	if err != nil {
		return out, err
	}
	return out, json.Unmarshal(value, &out)
}
