package web

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

const (
	headerProducerID    = "X-Broker-Producer-ID"
	headerProducerToken = "X-Broker-Producer-Token"
	headerMessageID     = "X-Broker-Message-ID"
	headerPriority      = "X-Broker-Message-Priority"
	headerScheduledFor  = "X-Broker-Scheduled-For"

	defaultContentType = "application/octet-stream"
	maxPriority        = math.MaxInt32

	// maxStaleRetries bounds how often a broadcast is authenticated again while its channel keeps changing.
	maxStaleRetries = 3
)

// broadcast takes a message in. Everything that the headers decide is decided before the body is read.
func (s *Server) broadcast(w http.ResponseWriter, r *http.Request) error {
	var b Broadcast
	if err := s.authenticate(r, &b); err != nil {
		return err
	}
	if err := s.describeMessage(r, &b); err != nil {
		return err
	}
	var err error
	if b.Body, err = s.readBody(w, r); err != nil {
		return err
	}
	if err := s.verify(r, &b); err != nil {
		return err
	}
	id, err := s.o.Broadcaster.Accept(r.Context(), b)
	for retry := 0; retry < maxStaleRetries && s.isStale(err); retry++ {
		if err := s.authenticateBy(s.o.Store.Catalog, r, &b); err != nil {
			return err
		}
		if err := s.verify(r, &b); err != nil {
			return err
		}
		id, err = s.o.Broadcaster.Accept(r.Context(), b)
	}
	if err != nil {
		return err
	}
	location := messageURL(b.Channel.ID, id)
	if b.ScheduledFor != nil {
		location = scheduledURL(b.Channel.ID, id)
	}
	w.Header().Set("Location", location)
	w.WriteHeader(http.StatusCreated)
	return nil
}

func (s *Server) isStale(err error) bool { return err != nil && s.o.Stale != nil && s.o.Stale(err) }

// authenticate checks who sends and where to. By a remembered catalog it may let through what the broker will find
// stale; it refuses nothing by it.
func (s *Server) authenticate(r *http.Request, b *Broadcast) error {
	if s.o.Stale != nil {
		if err := s.authenticateBy(s.o.Store.LastCatalog, r, b); err == nil {
			return nil
		}
	}
	return s.authenticateBy(s.o.Store.Catalog, r, b)
}

// authenticateBy checks the channel's token before the producer, so that who does not have it learns nothing about
// producers.
func (s *Server) authenticateBy(catalog func(context.Context) (*storage.Catalog, error), r *http.Request, b *Broadcast) error {
	id, err := pathID(r, "channelId")
	if err != nil {
		return err
	}
	cat, err := catalog(r.Context())
	if err != nil {
		return err
	}
	ch, ok := cat.Channel(id)
	if !ok {
		return errNoChannel()
	}
	if !ch.TokenMatches(r.Header.Get(headerChannelToken)) {
		return forbidden("the channel token does not match")
	}
	p, ok := cat.Producer(r.Header.Get(headerProducerID))
	if !ok {
		return unauthorized("there is no such producer")
	}
	if !p.TokenMatches(r.Header.Get(headerProducerToken)) {
		return forbidden("the producer token does not match")
	}
	if err := s.checkSigned(r, p); err != nil {
		return err
	}
	b.Channel, b.Producer = ch, p
	return nil
}

// describeMessage reads what the headers say about the message.
func (s *Server) describeMessage(r *http.Request, b *Broadcast) (err error) {
	if b.MessageID = r.Header.Get(headerMessageID); b.MessageID == "" {
		b.MessageID = storage.NewID().String()
	} else if err := CheckText(headerMessageID, b.MessageID); err != nil {
		return err
	}
	if b.ContentType = r.Header.Get("Content-Type"); b.ContentType == "" {
		b.ContentType = defaultContentType
	} else if err := CheckText("Content-Type", b.ContentType); err != nil {
		return err
	}
	b.Priority = parsePriority(r.Header.Get(headerPriority))
	if b.Headers, err = metadataHeaders(r.Header); err != nil {
		return err
	}
	b.ScheduledFor, err = s.parseSchedule(r.Header.Get(headerScheduledFor))
	return err
}

// parsePriority is the absolute value of a whole number, at most 2^31-1; 0 for everything else.
func parsePriority(header string) uint32 {
	n, err := strconv.ParseInt(header, 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0
	}
	// ParseInt gives the nearest number for one that is out of range.
	if n > maxPriority || n < -maxPriority {
		return maxPriority
	}
	return uint32(max(n, -n))
}

func (s *Server) parseSchedule(header string) (*time.Time, error) {
	if header == "" {
		return nil, nil
	}
	at, err := time.Parse(time.RFC3339, header)
	if at = at.UTC().Truncate(time.Microsecond); err != nil || at.After(latest) {
		return nil, badRequest(headerScheduledFor + " is not an RFC 3339 time")
	}
	if at.Before(s.now().Add(s.o.MinScheduleDelay)) {
		return nil, fail(http.StatusPreconditionFailed, headerScheduledFor+" must be at least "+max(s.o.MinScheduleDelay, 0).String()+" ahead")
	}
	return &at, nil
}
