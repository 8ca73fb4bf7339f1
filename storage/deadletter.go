package storage

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// EngineDelivery is the engine of dead letters and history entries of the broker's own deliveries.
const EngineDelivery = "delivery"

// DLQStatus is the state of a dead letter (RFC-72, 1.1).
type DLQStatus string

// The states of a dead letter. Resolved and Expired are final, but for a retry.
const (
	DLQPending  DLQStatus = "Pending"
	DLQResolved DLQStatus = "Resolved"
	DLQExpired  DLQStatus = "Expired"
)

// DeadLetter is a row of engineDlq (RFC-72, 1.1). PartitionKey is Engine.
type DeadLetter struct {
	Engine          string
	RowKey          string          // {jobId}-{time of the last failure} of a job, at most 300 characters
	InstanceID      string          // of a delivery: the consumer's id
	OriginalQueue   string          // of a delivery: the channel's id
	OriginalMessage json.RawMessage // nil in lists; of a delivery made from the message as it is read, nil once that is gone
	ErrorMessage    string
	DequeueCount    uint32 // attempts
	FirstFailureAt  time.Time
	LastFailureAt   time.Time
	Status          DLQStatus
	ResolutionNotes string     // empty: none
	ResolvedAt      *time.Time // nil: it was never resolved or expired
	ResolvedBy      string     // empty: it was never resolved or expired
	CorrelationID   string
	Job             ID     // zero: no job of this broker
	QueueMessageID  string // of its last retry; empty: it was not retried
}

// DLQFilter selects dead letters; zero values select all.
type DLQFilter struct {
	Engine     string
	InstanceID string
	Status     DLQStatus
	From, To   *time.Time // of LastFailureAt: From <= it < To
}

// HistoryStatus is how an operation ended (RFC-72, 3.1).
type HistoryStatus string

// The outcomes of an operation.
const (
	HistorySucceeded HistoryStatus = "Succeeded"
	HistoryFailed    HistoryStatus = "Failed"
)

// HistoryEntry is a row of engineHistory (RFC-72, 3.1). PartitionKey is Engine.
type HistoryEntry struct {
	Engine        string
	RowKey        string // {correlationId}-{CreatedAt}, made unique; at most 300 characters
	InstanceID    string
	Operation     string
	Status        HistoryStatus
	Duration      time.Duration   // kept in milliseconds
	Input, Output json.RawMessage // nil: none; nil in lists
	Error         string          // empty: none
	CreatedAt     time.Time
	CorrelationID string
}

// HistoryFilter selects history entries; zero values select all.
type HistoryFilter struct {
	Engine        string
	InstanceID    string
	Status        HistoryStatus
	Operation     string
	CorrelationID string
	From, To      *time.Time // of CreatedAt: From <= it < To
}

// TableCursor is the last row of a page that was seen. Lists show the latest first.
type TableCursor struct {
	At     time.Time // LastFailureAt or CreatedAt
	Engine string
	RowKey string
}

// Resolution is what a person says about a dead letter.
type Resolution struct {
	Status DLQStatus // DLQResolved or DLQExpired
	Notes  string    // at most 1,024 characters
	By     string    // who says so
}

// Retried is what became of a retry.
type Retried struct {
	Again          bool   // false: it had been retried already, nothing was changed
	Job            ID     // the same as before; of a dead letter without a job: of the first new one
	QueueMessageID string // of the retry that took effect
	ConsumerKey    uint32 // whose job it is, to wake its lane; 0: none
}

// Errors of dead letters.
var (
	// ErrBadResolution: the dead letter is not Pending, so it can be neither resolved nor expired.
	ErrBadResolution = errors.New("the dead letter is not pending")
	// ErrNoQueue: the queue that the dead letter came from is no channel of this broker.
	ErrNoQueue = errors.New("the original queue is not served here")
	// ErrJobGone: the job of the dead letter was deleted, or is neither dead nor shelved, so it cannot be retried. It is
	// an ErrBadResolution, too.
	ErrJobGone = fmt.Errorf("its job can no longer be retried: %w", ErrBadResolution)
	// ErrReservedEngine: entries of EngineDelivery are written by the broker alone.
	ErrReservedEngine = errors.New("dead letters of this engine are written by the broker alone")
)
