package web

import (
	"net/http"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

// The numbers of a scheduled message's status in queries, as clients of the wire contract know them.
const (
	scheduledWaiting    = 101
	scheduledDispatched = 102
)

type scheduledModel struct {
	ID               string            `json:"id"`
	MessageID        string            `json:"messageId"`
	ContentType      string            `json:"contentType"`
	Priority         uint32            `json:"priority"`
	ProducedBy       string            `json:"producedBy"` // the producer's id
	DispatchSchedule time.Time         `json:"dispatchSchedule"`
	DispatchedAt     *time.Time        `json:"dispatchedAt"`
	Status           string            `json:"status"`
	Payload          string            `json:"payload"`
	Headers          map[string]string `json:"headers"`
}

func (s *Server) getScheduled(w http.ResponseWriter, r *http.Request) error {
	cat, m, _, err := s.messageOf(r)
	if err != nil {
		return err
	}
	if m.ScheduledFor == nil {
		return notFound("the message was not scheduled")
	}
	out := scheduledModel{
		ID: m.Key.String(), MessageID: m.MessageID, ContentType: m.ContentType, Priority: m.Priority,
		DispatchSchedule: m.ScheduledFor.UTC(), DispatchedAt: m.DispatchedAt, Status: "SCHEDULED",
		Payload: string(m.Body), Headers: headersModel(m.Headers),
	}
	if m.DispatchedAt != nil {
		out.Status = "DISPATCHED"
	}
	if p, ok := cat.ProducerByKey(m.ProducerKey); ok {
		out.ProducedBy = p.ID
	}
	return writeJSON(w, out)
}

type scheduledListModel struct {
	Result []string          `json:"result"`
	Pages  map[string]string `json:"pages"`
}

func (s *Server) listScheduled(w http.ResponseWriter, r *http.Request) error {
	q, err := parsePage(r, placeID)
	if err != nil {
		return err
	}
	wanted, err := statusNumbers(r)
	if err != nil {
		return err
	}
	_, ch, err := s.channelOf(r)
	if err != nil {
		return err
	}
	var refs []storage.MessageRef
	waiting, dispatched := wanted[scheduledWaiting], wanted[scheduledDispatched]
	if len(wanted) == 0 || waiting || dispatched {
		only := &dispatched
		if waiting == dispatched {
			only = nil // both
		}
		if refs, _, err = s.o.Store.ScheduledMessages(r.Context(), ch.Key, only, q.cursor(), pageSize); err != nil {
			return err
		}
	}
	return writeJSON(w, scheduledListModel{messageURLs(refs, ch.ID, scheduledURL), pageLinks(r, refs, placeOfMessage)})
}
