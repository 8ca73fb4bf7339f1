package web

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

// rowKeyTime is how times are written in row keys.
const rowKeyTime = "20060102T150405.000000Z"

// newRowKey makes the row key of an entry whose writer gave none: RFC-72's name and time, and a digest of the rest
// that tells it from others of that moment. The same entry always gets the same key, so that it may be sent again.
// Of the longest name the result has 296 characters.
func newRowKey(name string, at time.Time, rest ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(rest, "\x00")))
	return name + "-" + at.UTC().Format(rowKeyTime) + "-" + hex.EncodeToString(sum[:8])
}

// added is the answer to an entry that was sent in.
type added struct {
	Created bool   `json:"created"` // false: it was there
	Engine  string `json:"engine"`
	RowKey  string `json:"rowKey"`
}

// succeedAdded answers 201 with the entry's place, or 200 where it was there.
func (s *Server) succeedAdded(w http.ResponseWriter, r *http.Request, a added) error {
	w.Header().Set("Location", r.URL.EscapedPath()+"/"+segment(a.Engine)+"/"+segment(a.RowKey))
	if a.Created {
		return s.succeed(w, r, http.StatusCreated, a)
	}
	return s.succeed(w, r, http.StatusOK, a)
}

// checkWriter says whether an engine's entries may come from outside.
func (s *Server) checkWriter(engine string) error {
	if err := checkLine("engine", engine, maxEngineName); err != nil {
		return err
	}
	if err := s.checkEngine(engine); err != nil {
		return err
	}
	if engine == storage.EngineDelivery {
		return fail(http.StatusConflict, "the entries of the engine delivery are the broker's own")
	}
	return nil
}

// line is a text of one line to check.
type line struct {
	name, text string
	most       int // characters
}

func checkLines(lines ...line) error {
	for _, l := range lines {
		if err := checkLine(l.name, l.text, l.most); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) readDeadLetter(w http.ResponseWriter, r *http.Request) (storage.DeadLetter, error) {
	d := storage.DeadLetter{Status: storage.DLQPending}
	var rowKey *string
	var count *int64
	err := s.readObject(w, r, map[string]any{
		"engine": &d.Engine, "rowKey": &rowKey, "instanceId": &d.InstanceID, "originalQueue": &d.OriginalQueue, "originalMessage": &d.OriginalMessage,
		"errorMessage": &d.ErrorMessage, "dequeueCount": &count, "firstFailureAtUtc": &d.FirstFailureAt, "lastFailureAtUtc": &d.LastFailureAt,
		"correlationId": &d.CorrelationID,
	})
	if err != nil {
		return d, err
	}
	if err := s.checkWriter(d.Engine); err != nil {
		return d, err
	}
	if err := checkLines(line{"instanceId", d.InstanceID, maxInstanceID}, line{"originalQueue", d.OriginalQueue, maxQueueName},
		line{"correlationId", d.CorrelationID, maxCorrelationID}); err != nil {
		return d, err
	}
	if d.OriginalMessage == nil {
		return d, badRequest("originalMessage is missing; it may be any JSON value")
	}
	if d.ErrorMessage == "" {
		return d, badRequest("errorMessage is missing or empty")
	}
	if err := checkProse("errorMessage", d.ErrorMessage, maxErrorMessage); err != nil {
		return d, err
	}
	if err := checkNumber("dequeueCount", count, 0, math.MaxInt32); err != nil {
		return d, err
	}
	d.DequeueCount = uint32(*count)
	if err := s.checkTime("firstFailureAtUtc", &d.FirstFailureAt); err != nil {
		return d, err
	}
	if err := s.checkTime("lastFailureAtUtc", &d.LastFailureAt); err != nil {
		return d, err
	}
	if d.FirstFailureAt.After(d.LastFailureAt) {
		return d, badRequest("firstFailureAtUtc is after lastFailureAtUtc")
	}
	if rowKey == nil {
		d.RowKey = newRowKey(d.InstanceID, d.LastFailureAt, d.CorrelationID)
		return d, nil
	}
	d.RowKey = *rowKey
	return d, checkLine("rowKey", d.RowKey, maxRowKey)
}

func (s *Server) postDeadLetter(w http.ResponseWriter, r *http.Request) error {
	d, err := s.readDeadLetter(w, r)
	if err != nil {
		return err
	}
	created, err := s.o.EngineTables.AddDeadLetter(r.Context(), d)
	if err != nil {
		return err
	}
	if !created {
		there, err := s.o.EngineTables.DeadLetter(r.Context(), d.Engine, d.RowKey)
		if err != nil && !errors.Is(err, storage.ErrNotFound) { // not found: retention was faster
			return err
		}
		if err == nil && there.CorrelationID != d.CorrelationID {
			return errRowKeyTaken()
		}
	}
	return s.succeedAdded(w, r, added{created, d.Engine, d.RowKey})
}

func errRowKeyTaken() error {
	return fail(http.StatusConflict, "the row key is that of another entry; nothing was changed")
}

func (s *Server) readHistoryEntry(w http.ResponseWriter, r *http.Request) (storage.HistoryEntry, error) {
	var e storage.HistoryEntry
	var rowKey, failure *string
	var status string
	var duration *int64
	err := s.readObject(w, r, map[string]any{
		"engine": &e.Engine, "rowKey": &rowKey, "instanceId": &e.InstanceID, "operation": &e.Operation, "status": &status, "durationMs": &duration,
		"input": &e.Input, "output": &e.Output, "error": &failure, "createdAtUtc": &e.CreatedAt, "correlationId": &e.CorrelationID,
	})
	if err != nil {
		return e, err
	}
	if err := s.checkWriter(e.Engine); err != nil {
		return e, err
	}
	if err := checkOperation(e.Engine, e.Operation, s.o.Engines.Operations(e.Engine)); err != nil {
		return e, err
	}
	if err := checkLines(line{"instanceId", e.InstanceID, maxInstanceID}, line{"correlationId", e.CorrelationID, maxCorrelationID}); err != nil {
		return e, err
	}
	switch e.Status = storage.HistoryStatus(status); e.Status {
	case storage.HistorySucceeded, storage.HistoryFailed:
	default:
		return e, badRequest("status: " + quoted(status) + " is none of Succeeded, Failed")
	}
	// Longer ones do not fit a time.Duration: 292 years.
	if err := checkNumber("durationMs", duration, 0, math.MaxInt64/int64(time.Millisecond)); err != nil {
		return e, err
	}
	e.Duration = time.Duration(*duration) * time.Millisecond
	if failure != nil {
		e.Error = *failure
	}
	if err := checkProse("error", e.Error, maxErrorMessage); err != nil {
		return e, err
	}
	if err := s.checkTime("createdAtUtc", &e.CreatedAt); err != nil {
		return e, err
	}
	e.Input, e.Output = nullToNone(e.Input), nullToNone(e.Output)
	// History is found by the correlation id and the time that its row keys begin with.
	prefix := e.CorrelationID + "-" + e.CreatedAt.Format(rowKeyTime)
	if rowKey == nil {
		e.RowKey = newRowKey(e.CorrelationID, e.CreatedAt, e.InstanceID, e.Operation, string(e.Status))
		return e, nil
	}
	e.RowKey = *rowKey
	suffix, ok := strings.CutPrefix(e.RowKey, prefix)
	if ok && suffix != "" {
		suffix, ok = strings.CutPrefix(suffix, "-")
	}
	if !ok || strings.Contains(suffix, "-") {
		return e, badRequest("rowKey is not {correlationId}-{createdAtUtc as " + e.CreatedAt.Format(rowKeyTime) + "}, with one more -... after it where that is not unique")
	}
	return e, checkLine("rowKey", e.RowKey, maxRowKey)
}

func nullToNone(raw json.RawMessage) json.RawMessage {
	if string(raw) == "null" {
		return nil
	}
	return raw
}

func (s *Server) postHistoryEntry(w http.ResponseWriter, r *http.Request) error {
	e, err := s.readHistoryEntry(w, r)
	if err != nil {
		return err
	}
	n, err := s.o.EngineTables.AddHistory(r.Context(), []storage.HistoryEntry{e})
	if errors.Is(err, storage.ErrRowKey) { // a correlation id that itself ends in a time
		return badRequest("rowKey cannot be told from one of another time; leave it out, or give it one more -... at its end")
	}
	if err != nil {
		return err
	}
	if n == 0 {
		there, err := s.o.EngineTables.HistoryEntry(r.Context(), e.Engine, e.RowKey)
		if err != nil && !errors.Is(err, storage.ErrNotFound) { // not found: retention was faster
			return err
		}
		if err == nil && (there.InstanceID != e.InstanceID || there.Operation != e.Operation || there.Status != e.Status) {
			return errRowKeyTaken()
		}
	}
	return s.succeedAdded(w, r, added{n > 0, e.Engine, e.RowKey})
}
