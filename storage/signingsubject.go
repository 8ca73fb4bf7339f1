package storage

import (
	"fmt"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"
)

// SigningKind is what has signing secrets.
type SigningKind uint8

// The kinds, as they are stored.
const (
	SigningConsumer SigningKind = 1
	SigningProducer SigningKind = 2
)

const (
	subjectConsumer = "consumer:"
	subjectProducer = "producer:"
	maxSubjectID    = 255 // bytes of an id that a client chose
)

// SigningSubject names a consumer or a producer by its ids on the wire.
type SigningSubject struct {
	Kind      SigningKind
	ChannelID string // of a consumer
	ID        string // the consumer's or the producer's
	// CreatedAt of its current secret, where SigningSubjects lists it.
	CreatedAt time.Time
}

// String is the subject as one text, with the ids path-escaped: consumer:{channelId}/{consumerId} or producer:{producerId}.
func (s SigningSubject) String() string {
	if s.Kind == SigningConsumer {
		return subjectConsumer + url.PathEscape(s.ChannelID) + "/" + url.PathEscape(s.ID)
	}
	return subjectProducer + url.PathEscape(s.ID)
}

// ParseSigningSubject reads what String makes. Characters that need no escape may be escaped as well: to compare subjects,
// compare their String.
func ParseSigningSubject(text string) (SigningSubject, error) {
	var s SigningSubject
	var parts []*string
	rest, ok := strings.CutPrefix(text, subjectConsumer)
	if ok {
		s.Kind, parts = SigningConsumer, []*string{&s.ChannelID, &s.ID}
	} else if rest, ok = strings.CutPrefix(text, subjectProducer); ok {
		s.Kind, parts = SigningProducer, []*string{&s.ID}
	}
	escaped := strings.Split(rest, "/")
	if !ok || len(escaped) != len(parts) {
		return SigningSubject{}, fmt.Errorf("%q is no subject: it must be consumer:{channelId}/{consumerId} or producer:{producerId}, with the ids path-escaped", text)
	}
	for i, part := range escaped {
		id, err := url.PathUnescape(part)
		if err != nil || id == "" || len(id) > maxSubjectID || !utf8.ValidString(id) {
			return SigningSubject{}, fmt.Errorf("%q is no subject: %q is not a path-escaped id of 1 to %d bytes of UTF-8", text, part, maxSubjectID)
		}
		*parts[i] = id
	}
	return s, nil
}
