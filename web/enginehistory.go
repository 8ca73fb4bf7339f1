package web

import (
	"errors"
	"net/http"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

// historyItem is a history entry in a list (RFC-72, 4.3).
type historyItem struct {
	Engine        string                `json:"engine"`
	RowKey        string                `json:"rowKey"`
	InstanceID    string                `json:"instanceId"`
	Operation     string                `json:"operation"`
	Status        storage.HistoryStatus `json:"status"`
	DurationMs    int64                 `json:"durationMs"`
	CreatedAt     time.Time             `json:"createdAtUtc"`
	CorrelationID string                `json:"correlationId"`
}

// historyModel is a history entry with all of the table's columns.
type historyModel struct {
	PartitionKey string `json:"partitionKey"`
	historyItem
	Input  any     `json:"input"`
	Output any     `json:"output"`
	Error  *string `json:"error"`
}

func newHistoryItem(e *storage.HistoryEntry) historyItem {
	return historyItem{
		e.Engine, e.RowKey, e.InstanceID, e.Operation, e.Status, e.Duration.Milliseconds(), e.CreatedAt.UTC(), e.CorrelationID,
	}
}

func (s *Server) listHistory(w http.ResponseWriter, r *http.Request) error {
	q, err := s.parseTableQuery(r, tokenHistory, "operation", "correlationId")
	if err != nil {
		return err
	}
	f := storage.HistoryFilter{
		Engine: q.filter["engine"], InstanceID: q.filter["instanceId"], Operation: q.filter["operation"], CorrelationID: q.filter["correlationId"],
		From: q.from, To: q.to,
	}
	if f.Status, err = oneOf(q, "status", storage.HistorySucceeded, storage.HistoryFailed); err != nil {
		return err
	}
	if f.Operation != "" {
		if err := s.checkRecorded(f.Engine, f.Operation); err != nil {
			return err
		}
	}
	if f.CorrelationID != "" {
		if err := checkLine("correlationId", f.CorrelationID, maxCorrelationID); err != nil {
			return err
		}
	}
	rows, more, err := s.o.EngineTables.ListHistory(r.Context(), f, q.after, q.limit)
	if err != nil {
		return err
	}
	return succeedPage(s, w, r, q, rows, more, newHistoryItem, func(last *storage.HistoryEntry) storage.TableCursor {
		return storage.TableCursor{At: last.CreatedAt, Engine: last.Engine, RowKey: last.RowKey}
	})
}

func (s *Server) getHistoryEntry(w http.ResponseWriter, r *http.Request) error {
	engine, rowKey, err := s.rowOf(r)
	if err != nil {
		return err
	}
	e, err := s.o.EngineTables.HistoryEntry(r.Context(), engine, rowKey)
	if errors.Is(err, storage.ErrNotFound) {
		return notFound("there is no such history entry")
	}
	if err != nil {
		return err
	}
	return s.succeed(w, r, http.StatusOK, historyModel{e.Engine, newHistoryItem(e), jsonValue(e.Input), jsonValue(e.Output), orNull(e.Error)})
}
