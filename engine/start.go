package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/redrive-mq/redrive/engine/durable"
	"github.com/redrive-mq/redrive/storage"
)

// Errors of Begin.
var (
	// ErrUnknown: the context has no such engine.
	ErrUnknown = errors.New("no such engine")
	// ErrElsewhere: the engine is not executed by this process.
	ErrElsewhere = errors.New("the engine is not executed here")
	// ErrBadMessage: the message is not one that the engine reads.
	ErrBadMessage = errors.New("the message is not one that the engine reads")
	// ErrRunning: a run of the instance is under way, for another message.
	ErrRunning = errors.New("a run of this instance is under way")
	// ErrLocked: another job has the instance's registry.
	ErrLocked = errors.New("the instance's registry is locked")
)

// Begun is what Begin answers.
type Begun struct {
	Message        // with what was left out filled in
	Done    bool   // the history says that it was done before; nothing was begun
	Queue   string // of the engine
}

// Begin starts a run on demand and puts its message into the engine's queue, so that it is tried again as any
// other: of any number of callers at once one gets the run of an instance and the others ErrRunning. A repetition with the same correlation
// id, instance and operation changes nothing and is no error. The errors: ErrUnknown, ErrElsewhere, ErrBadMessage, ErrRunning,
// ErrLocked, or the database's, after which it may have begun.
func (rt *Runtime) Begin(ctx context.Context, engine string, m Message) (Begun, error) {
	if rt.o.Context.Operations(engine) == nil {
		return Begun{}, fmt.Errorf("%w: %q is none of %s's: %v", ErrUnknown, engine, rt.o.Context, rt.o.Context.Names())
	}
	d, ok := rt.engine(engine)
	if !ok {
		return Begun{}, fmt.Errorf("%w: %q", ErrElsewhere, engine)
	}
	m = m.or(rt.defaults(d, storage.NewID().String()))
	if m.Input == nil {
		m.Input = json.RawMessage(`{}`)
	}
	if err := m.check(rt.o.Context.Operations(engine)); err != nil {
		return Begun{}, fmt.Errorf("%w: %w", ErrBadMessage, err)
	}
	out := Begun{Message: m, Queue: rt.QueueOf(engine)}
	var err error
	if out.Done, err = rt.succeeded(ctx, engine, m); err != nil || out.Done {
		return out, err
	}
	if locked, err := rt.lockedByOther(ctx, d, m); err != nil || locked {
		return out, errOr(err, ErrLocked)
	}
	_, err = rt.o.Durable.Start(ctx, engine, instanceKey(engine, m.InstanceID), assignment{engine, m})
	if errors.Is(err, durable.ErrAlreadyRunning) {
		var whose int
		if _, whose, err = rt.active(ctx, d, m); whose != ofMessage && (err == nil || errors.Is(err, durable.ErrNotFound)) {
			err = ErrRunning // or it was, as this one would have been started
		}
	}
	if err != nil {
		return out, err
	}
	// The job that this makes finds the run, or its history.
	_, err = rt.put(ctx, engine, messageID(m), m)
	return out, err
}

func errOr(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

func (rt *Runtime) put(ctx context.Context, engine, id string, m Message) (created bool, err error) {
	body, err := json.Marshal(m)
	if err != nil {
		return false, err
	}
	return rt.o.Queue.Put(ctx, engine, rt.QueueOf(engine), id, body)
}

// messageID is the same for the same work.
func messageID(m Message) string {
	return fit(m.CorrelationID + "/" + m.Operation + "/" + m.InstanceID)
}

// instanceKey names the orchestration of an instance: at most one of a name is active.
func instanceKey(engine, instanceID string) string {
	return fit(engine + "-" + instanceID)
}

// fit shortens a text of too many bytes to one that is as good as unique.
func fit(text string) string {
	if len(text) <= maxID { // bytes: durable.MaxInstanceID, too
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// Put puts a message into an engine's queue, without starting anything: it is attended to when its turn comes. The id is
// the message's; one that was put before is left out, and created is false. ErrElsewhere, ErrBadMessage, or the
// database's, after which it may have been put.
func (rt *Runtime) Put(ctx context.Context, engine, id string, m Message) (created bool, err error) {
	d, ok := rt.engine(engine)
	if !ok {
		return false, fmt.Errorf("%w: %q", ErrElsewhere, engine)
	}
	m = m.or(rt.defaults(d, id))
	if err := m.check(rt.o.Context.Operations(engine)); err != nil {
		return false, fmt.Errorf("%w: %w", ErrBadMessage, err)
	}
	return rt.put(ctx, engine, fit(id), m)
}

const timerTries = 4 // looks at the clock in an interval, 15 s apart at most

// keepTime puts a message for each of a timed engine's instances into its queue when their time comes. The time is the
// database's, and the message's id is made of it, so many processes put one.
func (rt *Runtime) keepTime(ctx context.Context, d Definition) {
	ticker := time.NewTicker(min(max(d.Every/timerTries, 100*time.Millisecond), 15*time.Second))
	defer ticker.Stop()
	var last time.Time
	failing := false
	for {
		slot, err := rt.putTimed(ctx, d, last)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			last = slot
		case !failing:
			rt.log.Warn("a timed run could not be put into its queue, trying again", "engine", d.Name, "error", err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// putTimed puts the messages of the present slot, unless it was the last one.
func (rt *Runtime) putTimed(ctx context.Context, d Definition, last time.Time) (time.Time, error) {
	now, err := rt.o.Tables.Now(ctx)
	if err != nil {
		return last, err
	}
	slot := now.UTC().Truncate(d.Every)
	if slot.Equal(last) {
		return slot, nil
	}
	instances := []string{rt.o.Context.Instance()}
	if d.Instances != nil {
		if instances, err = d.Instances(ctx); err != nil {
			return last, err
		}
	}
	for _, instance := range instances {
		id := fit("timer/" + slot.Format(time.RFC3339) + "/" + instance)
		m := Message{CorrelationID: id, InstanceID: instance, Input: json.RawMessage(`{"trigger":"timer"}`)}
		if _, err := rt.put(ctx, d.Name, id, m.or(rt.defaults(d, id))); err != nil {
			return last, err
		}
	}
	return slot, nil
}
