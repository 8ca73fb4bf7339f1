package web

import (
	"errors"
	"net/http"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

// deadLetterItem is a dead letter in a list (RFC-72, 2.3).
type deadLetterItem struct {
	Engine         string            `json:"engine"`
	RowKey         string            `json:"rowKey"`
	InstanceID     string            `json:"instanceId"`
	OriginalQueue  string            `json:"originalQueue"`
	ErrorMessage   string            `json:"errorMessage"`
	DequeueCount   uint32            `json:"dequeueCount"`
	Status         storage.DLQStatus `json:"status"`
	FirstFailureAt time.Time         `json:"firstFailureAtUtc"`
	LastFailureAt  time.Time         `json:"lastFailureAtUtc"`
	CorrelationID  string            `json:"correlationId"`
}

// deadLetterModel is a dead letter with all of the table's columns.
type deadLetterModel struct {
	PartitionKey string `json:"partitionKey"`
	deadLetterItem
	OriginalMessage any        `json:"originalMessage"`
	ResolutionNotes *string    `json:"resolutionNotes"`
	ResolvedAt      *time.Time `json:"resolvedAtUtc"`
	ResolvedBy      *string    `json:"resolvedBy"`
	JobID           *string    `json:"jobId"`
	QueueMessageID  *string    `json:"queueMessageId"`
}

func newDeadLetterItem(d *storage.DeadLetter) deadLetterItem {
	return deadLetterItem{
		d.Engine, d.RowKey, d.InstanceID, d.OriginalQueue, d.ErrorMessage, d.DequeueCount, d.Status,
		d.FirstFailureAt.UTC(), d.LastFailureAt.UTC(), d.CorrelationID,
	}
}

func newDeadLetterModel(d *storage.DeadLetter) deadLetterModel {
	m := deadLetterModel{
		PartitionKey: d.Engine, deadLetterItem: newDeadLetterItem(d), OriginalMessage: jsonValue(d.OriginalMessage),
		ResolutionNotes: orNull(d.ResolutionNotes), ResolvedBy: orNull(d.ResolvedBy), JobID: jobOrNull(d.Job), QueueMessageID: orNull(d.QueueMessageID),
	}
	if d.ResolvedAt != nil {
		at := d.ResolvedAt.UTC()
		m.ResolvedAt = &at
	}
	return m
}

func jobOrNull(id storage.ID) *string {
	if id == (storage.ID{}) {
		return nil
	}
	return orNull(id.String())
}

func (s *Server) listDeadLetters(w http.ResponseWriter, r *http.Request) error {
	q, err := s.parseTableQuery(r, tokenDeadLetters)
	if err != nil {
		return err
	}
	f := storage.DLQFilter{Engine: q.filter["engine"], InstanceID: q.filter["instanceId"], From: q.from, To: q.to}
	if f.Status, err = oneOf(q, "status", storage.DLQPending, storage.DLQResolved, storage.DLQExpired); err != nil {
		return err
	}
	rows, more, err := s.o.EngineTables.ListDeadLetters(r.Context(), f, q.after, q.limit)
	if err != nil {
		return err
	}
	return succeedPage(s, w, r, q, rows, more, newDeadLetterItem, func(last *storage.DeadLetter) storage.TableCursor {
		return storage.TableCursor{At: last.LastFailureAt, Engine: last.Engine, RowKey: last.RowKey}
	})
}

func (s *Server) getDeadLetter(w http.ResponseWriter, r *http.Request) error {
	engine, rowKey, err := s.rowOf(r)
	if err != nil {
		return err
	}
	d, err := s.o.EngineTables.DeadLetter(r.Context(), engine, rowKey)
	if err != nil {
		return deadLetterError(err)
	}
	return s.succeed(w, r, http.StatusOK, newDeadLetterModel(d))
}

// deadLetterError says what a caller is told about a dead letter that could not be read or changed.
func deadLetterError(err error) error {
	switch {
	case errors.Is(err, storage.ErrNotFound):
		return notFound("there is no such dead letter")
	case errors.Is(err, storage.ErrBadResolution):
		return fail(http.StatusConflict, "only a dead letter that is Pending can be resolved or expired; this one is not")
	}
	return err
}

func (s *Server) patchDeadLetter(w http.ResponseWriter, r *http.Request) error {
	engine, rowKey, err := s.rowOf(r)
	if err != nil {
		return err
	}
	var status, notes string
	if err := s.readObject(w, r, map[string]any{"status": &status, "resolutionNotes": &notes}); err != nil {
		return err
	}
	if err := checkProse("resolutionNotes", notes, maxNotes); err != nil {
		return err
	}
	var d *storage.DeadLetter
	switch to := storage.DLQStatus(status); to {
	case storage.DLQResolved, storage.DLQExpired:
		d, err = s.o.EngineTables.ResolveDeadLetter(r.Context(), engine, rowKey, storage.Resolution{Status: to, Notes: notes, By: callerOf(r)})
	case storage.DLQPending:
		if d, err = s.o.EngineTables.DeadLetter(r.Context(), engine, rowKey); err == nil {
			return fail(http.StatusConflict, "a dead letter does not become Pending by hand; this one is "+string(d.Status))
		}
	default:
		return badRequest("status: " + quoted(status) + " is none of Resolved, Expired")
	}
	if err != nil {
		return deadLetterError(err)
	}
	return s.succeed(w, r, http.StatusOK, newDeadLetterModel(d))
}

// retryModel is what became of a retry (RFC-72, 2.4).
type retryModel struct {
	Retried        bool    `json:"retried"`
	JobID          *string `json:"jobId"`
	QueueMessageID *string `json:"queueMessageId"`
	Note           string  `json:"note"`
}

func (s *Server) retryDeadLetter(w http.ResponseWriter, r *http.Request) error {
	engine, rowKey, err := s.rowOf(r)
	if err != nil {
		return err
	}
	got, err := s.o.EngineTables.RetryDeadLetter(r.Context(), engine, rowKey, callerOf(r))
	if errors.Is(err, storage.ErrNoQueue) {
		d, err := s.o.EngineTables.DeadLetter(r.Context(), engine, rowKey)
		if err != nil {
			return deadLetterError(err)
		}
		return fail(http.StatusConflict, "its queue "+quoted(d.OriginalQueue)+" is no channel of this broker; nothing was changed")
	}
	if errors.Is(err, storage.ErrBadResolution) {
		return fail(http.StatusConflict, "its job is gone, or neither dead nor shelved because of it any more; nothing was changed")
	}
	if err != nil {
		return deadLetterError(err)
	}
	if got.ConsumerKey != 0 {
		s.o.Kicker.Kick(got.ConsumerKey)
	}
	out := retryModel{got.Again, jobOrNull(got.Job), orNull(got.QueueMessageID), "Retried"}
	if !got.Again {
		out.Note = "It had been retried before; nothing was changed"
	}
	return s.succeed(w, r, http.StatusOK, out)
}

// maxOlderThanDays is a hundred years.
const maxOlderThanDays = 36500

// expireDeadLetters goes on when its client has gone away, like purgeAll: many letters are expired in batches.
func (s *Server) expireDeadLetters(w http.ResponseWriter, r *http.Request) error {
	var days *int64
	var engine *string
	if err := s.readObject(w, r, map[string]any{"olderThanDays": &days, "engine": &engine}); err != nil {
		return err
	}
	if err := checkNumber("olderThanDays", days, 1, maxOlderThanDays); err != nil {
		return err
	}
	var of string // every engine
	if engine != nil {
		if of = *engine; s.checkEngine(of) != nil {
			return s.checkEngine(of)
		}
	}
	ctx, cancel := s.detached(w, r)
	defer cancel()
	n, err := s.o.EngineTables.ExpireDeadLetters(ctx, time.Duration(*days)*24*time.Hour, of, callerOf(r))
	if err != nil {
		return err
	}
	return s.succeed(w, r, http.StatusOK, struct {
		Expired int64 `json:"expired"`
	}{n})
}
