package web

import (
	"net/http"
	"strconv"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

// The numbers of a message's status in queries, as clients of the wire contract know them. A message is dispatched in
// the transaction that takes it in, so none is ever found in the first.
const (
	messageAcknowledged = 101
	messageDispatched   = 102
)

// jobModel is a job as its message shows it.
type jobModel struct {
	ListenerEndpoint, ListenerName, Status string
	StatusChangedAt                        time.Time
}

func newJobModel(k *storage.Consumer, j *storage.Job) jobModel {
	return jobModel{k.CallbackURL, k.Name, j.Status.String(), j.StatusChangedAt.UTC()}
}

type messageModel struct {
	ID, Payload, ContentType string
	ProducedBy               string // the producer's name
	ReceivedAt               time.Time
	DispatchedAt             *time.Time
	Status                   string
	Headers                  map[string]string
	Jobs                     []jobModel
}

// getMessage shows a message that was dispatched. One that waits for its schedule is a scheduled message until then.
func (s *Server) getMessage(w http.ResponseWriter, r *http.Request) error {
	cat, m, jobs, err := s.messageOf(r)
	if err != nil {
		return err
	}
	if m.DispatchedAt == nil && m.ScheduledFor != nil {
		return notFound("the message is scheduled and was not dispatched yet")
	}
	out := messageModel{
		ID: m.MessageID, Payload: string(m.Body), ContentType: m.ContentType, ReceivedAt: m.ReceivedAt.UTC(),
		DispatchedAt: m.DispatchedAt, Status: "ACKNOWLEDGED", Headers: headersModel(m.Headers), Jobs: make([]jobModel, 0, len(jobs)),
	}
	if m.DispatchedAt != nil {
		out.Status = "DISPATCHED"
	}
	if p, ok := cat.ProducerByKey(m.ProducerKey); ok {
		out.ProducedBy = p.Name
	}
	for i := range jobs {
		if k, ok := cat.ConsumerByKey(jobs[i].ConsumerKey); ok { // else it was deleted a moment ago
			out.Jobs = append(out.Jobs, newJobModel(k, &jobs[i]))
		}
	}
	return writeJSON(w, out)
}

// messageOf finds the message that the path names.
func (s *Server) messageOf(r *http.Request) (*storage.Catalog, *storage.Message, []storage.Job, error) {
	id, err := pathID(r, "messageId")
	if err != nil {
		return nil, nil, nil, err
	}
	cat, ch, err := s.channelOf(r)
	if err != nil {
		return nil, nil, nil, err
	}
	m, jobs, err := s.o.Store.Message(r.Context(), ch.Key, id)
	return cat, m, jobs, err
}

// headersModel makes an empty object of no headers.
func headersModel(h map[string]string) map[string]string {
	if h == nil {
		return map[string]string{}
	}
	return h
}

func (s *Server) listMessages(w http.ResponseWriter, r *http.Request) error {
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
	if len(wanted) == 0 || wanted[messageDispatched] {
		if refs, _, err = s.o.Store.Messages(r.Context(), ch.Key, q.cursor(), pageSize); err != nil {
			return err
		}
	}
	return writeJSON(w, listModel{messageURLs(refs, ch.ID, messageURL), pageLinks(r, refs, placeOfMessage)})
}

// statusNumbers reads the numbers of the query parameter status. A number that is no status matches nothing.
func statusNumbers(r *http.Request) (map[int]bool, error) {
	query, err := parseQuery(r)
	if err != nil {
		return nil, err
	}
	wanted := map[int]bool{}
	for _, value := range query["status"] {
		n, err := strconv.Atoi(value)
		if err != nil {
			return nil, badRequest("status is not a number")
		}
		wanted[n] = true
	}
	return wanted, nil
}

func placeOfMessage(m storage.MessageRef) place { return place{kind: placeID, id: m.Key} }

func messageURLs(refs []storage.MessageRef, channel string, urlOf func(channel, message string) string) []string {
	urls := make([]string, len(refs))
	for i, m := range refs {
		urls[i] = urlOf(channel, m.MessageID)
	}
	return urls
}

type countModel struct {
	Count int64
	Links map[string]string
}

type messagesStatusModel struct {
	Counts map[string]countModel `json:"counts"`
	Next   *time.Time            `json:"next_scheduled_message_at"`
}

func (s *Server) messagesStatus(w http.ResponseWriter, r *http.Request) error {
	_, ch, err := s.channelOf(r)
	if err != nil {
		return err
	}
	c, err := s.o.Store.MessageCounts(r.Context(), ch.Key)
	if err != nil {
		return err
	}
	count := func(n int64, list string, status int) countModel {
		return countModel{n, map[string]string{"messages": channelURL(ch.ID) + list + "?status=" + strconv.Itoa(status)}}
	}
	return writeJSON(w, messagesStatusModel{
		Counts: map[string]countModel{
			"ACKNOWLEDGED":         count(0, "/messages", messageAcknowledged),
			"DISPATCHED":           count(c.Dispatched, "/messages", messageDispatched),
			"SCHEDULED_SCHEDULED":  count(c.ScheduledWaiting, "/scheduled-messages", scheduledWaiting),
			"SCHEDULED_DISPATCHED": count(c.ScheduledDispatched, "/scheduled-messages", scheduledDispatched),
		},
		Next: c.NextScheduledAt,
	})
}
