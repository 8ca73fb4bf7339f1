package storage

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"slices"
	"time"
)

// Attempt is what the history keeps of an attempt, where its channel's policy says so.
type Attempt struct {
	Code      int // the destination's HTTP status; 0: there was no answer
	Duration  time.Duration
	Answer    string // the first part of its answer, cut to 256 characters
	Retry     int    // retries before this attempt
	MessageID string // the client's; empty: it is looked up, which costs a read a batch
}

const (
	opDeliver = "deliver"
	maxAnswer = 256
)

// HistoryPolicy says which attempts of a channel's deliveries the history keeps.
type HistoryPolicy uint8

// The policies.
const (
	HistoryAll      HistoryPolicy = iota // the default
	HistoryFailures                      // failed ones alone
	HistoryOff
)

var historyPolicies = [...]string{HistoryAll: "all", HistoryFailures: "failures", HistoryOff: "off"}

// String is its name: all, failures or off.
func (p HistoryPolicy) String() string { return historyPolicies[p] }

// ParseHistoryPolicy finds the policy of a name.
func ParseHistoryPolicy(name string) (HistoryPolicy, bool) {
	i := slices.Index(historyPolicies[:], name)
	return HistoryPolicy(max(i, 0)), i >= 0
}

func (p HistoryPolicy) keeps(v Verdict) bool {
	return v != HandBack && (p == HistoryAll || p == HistoryFailures && v != Delivered)
}

// attemptRow is an attempt that the history keeps.
type attemptRow struct{ consumerID, messageID string }

type attemptLog map[ID]attemptRow

// attemptsOf prepares what the history keeps of outcomes, outside the transaction that writes it.
func (s *Store) attemptsOf(ctx context.Context, outcomes []Outcome) (attemptLog, error) {
	var log attemptLog
	var unknown []ID
	for _, o := range outcomes {
		if o.Attempt == nil {
			continue
		}
		cat, err := s.LastCatalog(ctx)
		if err != nil {
			return nil, err
		}
		// A consumer that is not there was deleted: nobody asks for its history.
		k, ok := cat.ConsumerByKey(o.ConsumerKey)
		if !ok {
			continue
		}
		if ch, ok := cat.ChannelByKey(k.ChannelKey); ok && ch.History.keeps(o.Verdict) {
			if log == nil {
				log = make(attemptLog, len(outcomes))
			}
			log[o.JobID] = attemptRow{k.ID, o.Attempt.MessageID}
			if o.Attempt.MessageID == "" {
				unknown = append(unknown, o.JobID)
			}
		}
	}
	if len(unknown) == 0 {
		return log, nil
	}
	type row struct {
		job     ID
		message string
	}
	rows, err := collect(ctx, s.db, func(rows *sql.Rows) (r row, err error) { return r, rows.Scan(&r.job, &r.message) },
		`SELECT STRAIGHT_JOIN j.id, m.messageId FROM job j FORCE INDEX (PRIMARY) JOIN message m ON m.id = j.messageId
		 WHERE j.id IN (`+placeholders("?", len(unknown))+`)`, anyIDs(unknown)...)
	for _, r := range rows {
		log[r.job] = attemptRow{log[r.job].consumerID, r.message}
	}
	return log, err
}

// recordAttempts writes the history of outcomes that took effect, all of them in one statement. The unique part of a
// row key is the part of the job's id that differs between the jobs of one message.
func (s *Store) recordAttempts(ctx context.Context, tx *sql.Tx, outcomes []Outcome, log attemptLog) error {
	if len(log) == 0 {
		return nil
	}
	var args []any
	n := 0
	for _, o := range outcomes {
		row, kept := log[o.JobID]
		if !kept || o.Attempt == nil {
			continue
		}
		output, err := json.Marshal(struct {
			Code   int    `json:"statusCode"`
			Retry  int    `json:"retry"`
			Answer string `json:"answer"`
		}{o.Attempt.Code, o.Attempt.Retry, clip(o.Attempt.Answer, maxAnswer)})
		if err != nil {
			return err
		}
		status, failure := HistorySucceeded, sql.NullString{}
		if o.Verdict != Delivered {
			status, failure = HistoryFailed, sql.NullString{String: o.ErrorClass + ": " + clip(o.Error, 512), Valid: true}
		}
		n++
		args = append(args, row.messageID, hex.EncodeToString(o.JobID[7:]), row.consumerID, status, o.Attempt.Duration.Milliseconds(), string(output), failure, row.messageID)
	}
	if n == 0 {
		return nil
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO `+s.tables.history+` (PartitionKey, RowKey, InstanceId, Operation, Status, DurationMs, Output, Error, CreatedAtUtc, CorrelationId) VALUES `+
		placeholders(`('delivery',CONCAT(?,'-',`+rowKeyTimeSQL("NOW(6)")+`,'-',?),?,'`+opDeliver+`',?,?,?,?,NOW(6),?)`, n)+keepFirst, args...)
	return err
}

// keepFirst makes an insert into the history leave rows alone that are there.
const keepFirst = ` ON DUPLICATE KEY UPDATE DurationMs = DurationMs`

// The operations of operators on the broker's dead letters.
const (
	opRequeue = "requeue"
	opPurge   = "purge"
	opResolve = "resolve"
	opExpire  = "expire"
)

// operation is what an operator did, for the history.
type operation struct {
	engine, instance, name, by string
	rowKey                     string // of the dead letter; empty: it was about more than one
	job                        ID     // as rowKey
	correlationID              string // empty: a new one
	count                      int64
	began                      stopwatch
	failure                    error
}

// recordBatches writes the history of an operation that worked in batches, also of one that broke off, and returns why
// it did. One that changed nothing is not an operation.
func (s *Store) recordBatches(ctx context.Context, op operation, n int64, failure error) error {
	if n == 0 {
		return failure
	}
	op.count, op.failure = n, failure
	// What was done was done: that it is written down must not hang on a client that went away.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordWithin)
	defer cancel()
	return errOr(failure, s.recordOperation(ctx, s.db, op))
}

const recordWithin = 5 * time.Second

func (s *Store) recordOperation(ctx context.Context, q querier, op operation) error {
	in := struct {
		By     string `json:"by"`
		RowKey string `json:"rowKey,omitempty"`
		Job    string `json:"jobId,omitempty"`
	}{By: op.by, RowKey: op.rowKey}
	if !op.job.IsZero() {
		in.Job = op.job.String()
	}
	input, err := json.Marshal(in)
	if err != nil {
		return err
	}
	output, err := json.Marshal(struct {
		Count int64 `json:"count"`
	}{op.count})
	if err != nil {
		return err
	}
	if op.correlationID == "" {
		op.correlationID = NewID().String()
	}
	status, failure := HistorySucceeded, sql.NullString{}
	if op.failure != nil {
		status, failure = HistoryFailed, sql.NullString{String: clip(op.failure.Error(), 512), Valid: true}
	}
	_, err = q.ExecContext(ctx, `INSERT INTO `+s.tables.history+` (PartitionKey, RowKey, InstanceId, Operation, Status, DurationMs, Input, Output, Error, CreatedAtUtc, CorrelationId)
		VALUES (?,CONCAT(?,'-',`+rowKeyTimeSQL("NOW(6)")+`,'-',?),?,?,?,?,?,?,?,NOW(6),?)`,
		op.engine, op.correlationID, NewID().String(), op.instance, op.name, status, op.began.elapsed().Milliseconds(),
		string(input), string(output), failure, op.correlationID)
	return err
}
