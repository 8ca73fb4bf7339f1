package archive

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redrive-mq/redrive/storage"
)

// Record is one line of an archive file: a JSON object, in UTF-8, ended by a line feed. Times are RFC 3339 in UTC. Ids
// of channels, producers and consumers are the ones that clients chose.
type Record struct {
	ID              string            `json:"id"`        // the broker's own, an xid
	MessageID       string            `json:"messageId"` // the client's; the broker's where the client gave none
	ChannelID       string            `json:"channelId"`
	ProducerID      string            `json:"producerId"`
	ContentType     string            `json:"contentType"`
	Priority        uint32            `json:"priority"`
	ReceivedAt      time.Time         `json:"receivedAt"`
	DispatchedAt    *time.Time        `json:"dispatchedAt"`
	Headers         map[string]string `json:"headers"`                   // the metadata headers that were passed on
	Payload         string            `json:"payload"`                   // as it was received, where that is UTF-8
	PayloadEncoding string            `json:"payloadEncoding,omitempty"` // "base64" where it is not; else left out
	Jobs            []JobRecord       `json:"jobs"`                      // empty for a channel without consumers
}

// JobRecord is the message's job for one consumer.
type JobRecord struct {
	ID                string    `json:"id"`
	ConsumerID        string    `json:"consumerId,omitempty"` // left out where the consumer was deleted
	Status            string    `json:"status"`               // always DELIVERED
	StatusChangedAt   time.Time `json:"statusChangedAt"`
	RetryAttemptCount uint16    `json:"retryAttemptCount"` // retries after the first attempt
}

func newRecord(cat *storage.Catalog, m *storage.PrunedMessage) Record {
	r := Record{
		ID: m.Key.String(), MessageID: m.MessageID, ContentType: m.ContentType, Priority: m.Priority,
		ReceivedAt: m.ReceivedAt, DispatchedAt: m.DispatchedAt, Headers: m.Headers, Jobs: make([]JobRecord, len(m.Jobs)),
	}
	if ch, ok := cat.ChannelByKey(m.ChannelKey); ok {
		r.ChannelID = ch.ID
	}
	if p, ok := cat.ProducerByKey(m.ProducerKey); ok {
		r.ProducerID = p.ID
	}
	if utf8.Valid(m.Body) {
		r.Payload = string(m.Body)
	} else {
		r.Payload, r.PayloadEncoding = base64.StdEncoding.EncodeToString(m.Body), "base64"
	}
	for i, j := range m.Jobs {
		r.Jobs[i] = JobRecord{ID: j.ID.String(), Status: j.Status.String(), StatusChangedAt: j.StatusChangedAt, RetryAttemptCount: j.RetryAttemptCount}
		if k, ok := cat.ConsumerByKey(j.ConsumerKey); ok {
			r.Jobs[i].ConsumerID = k.ID
		}
	}
	return r
}

// line is the record with its line feed; '<' and the like stay as they are.
func (r Record) line() ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	err := enc.Encode(r)
	return buf.Bytes(), err
}

// fileNames makes {node}_{time}.jsonl, each another one.
type fileNames struct {
	node string
	now  func() time.Time
	last time.Time
}

func (n *fileNames) next() string {
	at := n.now().UTC().Truncate(time.Millisecond)
	if !at.After(n.last) {
		at = n.last.Add(time.Millisecond)
	}
	n.last = at
	return n.node + "_" + at.Format("20060102T150405.000Z") + ".jsonl"
}

// safeName replaces what is not plain in file names of every system.
func safeName(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '.', r == '_', r == '-':
			return r
		}
		return '-'
	}, s)
}
