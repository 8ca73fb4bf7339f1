package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/redrive-mq/redrive/engine/durable"
	"github.com/redrive-mq/redrive/storage"
)

// What every run does beside its own steps.
const (
	activityBegin    = "engine.begin"
	activityEnd      = "engine.end"
	activityRegistry = "engine.registry"
)

// patient is for what only a database that is away can make fail.
var patient = durable.Retry{Attempts: 10, Wait: time.Second, MaxWait: 30 * time.Second}

// Tables is what a Runtime keeps in the database: storage.Store.
type Tables interface {
	Now(ctx context.Context) (time.Time, error)
	ListHistory(ctx context.Context, f storage.HistoryFilter, after *storage.TableCursor, limit int) (page []storage.HistoryEntry, more bool, err error)
	AddHistory(ctx context.Context, entries []storage.HistoryEntry) (added int, err error)
	Registry(ctx context.Context, id string) (storage.Registry, error)
	LockRegistry(ctx context.Context, id, jobID string, duration time.Duration) (storage.Registry, error)
	UpdateRegistry(ctx context.Context, id, jobID string, version uint64, document json.RawMessage) (uint64, error)
	UnlockRegistry(ctx context.Context, id, jobID string) error
}

type beginning struct {
	assignment

	Lock  bool          `json:"lock"`
	JobID string        `json:"jobId"`
	For   time.Duration `json:"for"`
}

type begun struct {
	State           string          `json:"state"` // empty: go on
	At              time.Time       `json:"at"`
	RegistryVersion uint64          `json:"registryVersion"`
	Registry        json.RawMessage `json:"registry,omitempty"`
}

// begin looks once more whether the work was done: from here on no other run of the instance can be doing it. Then it
// takes the registry's lock.
func (rt *Runtime) begin(ctx context.Context, call Call) (any, error) {
	var in beginning
	if err := json.Unmarshal(call.Input, &in); err != nil {
		return nil, durable.Permanent(err)
	}
	done, err := rt.succeeded(ctx, in.Engine, in.Message)
	if err != nil {
		return nil, err
	}
	if done {
		return begun{State: stateAlready}, nil
	}
	var out begun
	if in.Lock {
		reg, err := rt.o.Tables.LockRegistry(ctx, in.Message.InstanceID, in.JobID, in.For)
		if errors.Is(err, storage.ErrRegistryLocked) {
			return begun{State: stateBusy}, nil
		}
		if err != nil {
			return nil, err
		}
		out.RegistryVersion, out.Registry = reg.Version, reg.Document
	}
	out.At, err = rt.o.Tables.Now(ctx)
	return out, err
}

type ending struct {
	Entries []storage.HistoryEntry `json:"entries"`
	Unlock  string                 `json:"unlock,omitempty"` // the registry; empty: none
	JobID   string                 `json:"jobId,omitempty"`
}

// end writes the history, once however often it is executed, and gives the lock back.
func (rt *Runtime) end(ctx context.Context, call Call) (any, error) {
	var in ending
	if err := json.Unmarshal(call.Input, &in); err != nil {
		return nil, durable.Permanent(err)
	}
	for i := range in.Entries {
		e := &in.Entries[i]
		e.Input, e.Output = noneIfNull(e.Input), noneIfNull(e.Output)
	}
	if _, err := rt.o.Tables.AddHistory(ctx, in.Entries); err != nil {
		return nil, err
	}
	if in.Unlock == "" {
		return nil, nil
	}
	return nil, rt.o.Tables.UnlockRegistry(ctx, in.Unlock, in.JobID)
}

// noneIfNull undoes what encoding makes of a value that is not there.
func noneIfNull(value json.RawMessage) json.RawMessage {
	if bytes.Equal(value, []byte("null")) {
		return nil
	}
	return value
}

type registryChange struct {
	ID       string          `json:"id"`
	JobID    string          `json:"jobId"`
	Version  uint64          `json:"version"`
	Document json.RawMessage `json:"document"`
}

// changeRegistry returns the version that the change made, also where it was made by an earlier execution of it.
func (rt *Runtime) changeRegistry(ctx context.Context, call Call) (any, error) {
	var in registryChange
	if err := json.Unmarshal(call.Input, &in); err != nil {
		return nil, durable.Permanent(err)
	}
	version, err := rt.o.Tables.UpdateRegistry(ctx, in.ID, in.JobID, in.Version, in.Document)
	if !errors.Is(err, storage.ErrRegistryChanged) {
		return version, err
	}
	there, readErr := rt.o.Tables.Registry(ctx, in.ID)
	if readErr != nil {
		return nil, readErr
	}
	if there.LockJobID == in.JobID && there.Version == in.Version+1 && bytes.Equal(there.Document, in.Document) {
		return there.Version, nil
	}
	return nil, durable.Permanent(err)
}

// succeeded tells whether the history says that a message's work was done.
func (rt *Runtime) succeeded(ctx context.Context, engine string, m Message) (bool, error) {
	found, _, err := rt.o.Tables.ListHistory(ctx, storage.HistoryFilter{
		Engine: engine, InstanceID: m.InstanceID, Operation: m.Operation, CorrelationID: m.CorrelationID, Status: storage.HistorySucceeded,
	}, nil, 1)
	return len(found) > 0, err
}
