package web

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

// The headers of a signature by the Standard Webhooks specification.
const (
	headerWebhookID        = "Webhook-Id"
	headerWebhookTimestamp = "Webhook-Timestamp"
	headerWebhookSignature = "Webhook-Signature"
	prefixWebhook          = "Webhook-"
)

// checkSigned refuses a broadcast of a producer that has a signing secret by what its headers alone tell. verify does the rest.
func (s *Server) checkSigned(r *http.Request, p *storage.Producer) error {
	switch {
	case p.Sealed:
		return errSealedProducer()
	case p.Signing.None():
		return nil
	}
	id, timestamp := r.Header.Get(headerWebhookID), r.Header.Get(headerWebhookTimestamp)
	if id == "" || timestamp == "" || r.Header.Get(headerWebhookSignature) == "" {
		return unauthorized("the producer has a signing secret: webhook-id, webhook-timestamp and webhook-signature are required")
	}
	// The parts are signed with full stops between: with one in the id, the same signature would be that of another time and body.
	if strings.Contains(id, ".") {
		return unauthorized("webhook-id has a full stop")
	}
	seconds, err := strconv.ParseUint(timestamp, 10, 64)
	if err != nil || seconds > math.MaxInt64 {
		return unauthorized("webhook-timestamp is not a number of seconds since 1970")
	}
	// Compared as seconds: a duration overflows for times that an attacker may choose.
	away, tolerance := int64(seconds)-s.now().Unix(), int64(signatureTolerance/time.Second)
	if away > tolerance || away < -tolerance {
		return unauthorized("webhook-timestamp is more than 5 minutes from our time")
	}
	return nil
}

// verify refuses a broadcast whose body is not what its producer signed; who needs no signature passes. A secret that this
// process has not yet heard of is looked for before it refuses.
func (s *Server) verify(r *http.Request, b *Broadcast) error {
	if s.verified(r, b) {
		return nil
	}
	if err := s.authenticateBy(s.o.Store.Catalog, r, b); err != nil {
		return err
	}
	if !s.verified(r, b) {
		return unauthorized("webhook-signature has no signature that fits the body, made with a valid secret of the producer")
	}
	return nil
}

func (s *Server) verified(r *http.Request, b *Broadcast) bool {
	h := r.Header
	return b.Producer.Signing.None() ||
		b.Producer.Signing.Verify(h.Get(headerWebhookID), h.Get(headerWebhookTimestamp), h.Get(headerWebhookSignature), b.Body)
}

// errSealedProducer refuses what needs a secret that this instance cannot open: another may have the key.
func errSealedProducer() error {
	return fail(http.StatusServiceUnavailable, "this instance cannot read the producer's signing secret; its log says why")
}

type signingSecretModel struct {
	Secret    string          `json:"secret"`
	CreatedAt time.Time       `json:"createdAt"`
	Retiring  []retiringModel `json:"retiring"`
}

type retiringModel struct {
	RetiresAt time.Time `json:"retiresAt"`
}

// consumerSecret shows a consumer by which secret its deliveries are signed.
func (s *Server) consumerSecret(w http.ResponseWriter, r *http.Request) error {
	ref, err := s.authorizedConsumer(r, http.StatusNotFound)
	if err != nil {
		return err
	}
	return writeSecret(w, ref.consumer.Signing)
}

// producerSecret shows a producer the secret that it has to sign with.
func (s *Server) producerSecret(w http.ResponseWriter, r *http.Request) error {
	p, err := s.producerOf(r)
	if err != nil {
		return err
	}
	if !p.TokenMatches(r.Header.Get(headerProducerToken)) {
		return forbidden("the producer token does not match")
	}
	if p.Sealed {
		return errSealedProducer()
	}
	return writeSecret(w, p.Signing)
}

func writeSecret(w http.ResponseWriter, signing storage.SigningSecrets) error {
	w.Header().Set("Cache-Control", "no-store")
	revealed, ok := signing.Reveal()
	if !ok {
		return notFound("there is no signing secret")
	}
	out := signingSecretModel{Secret: revealed.Secret, CreatedAt: revealed.CreatedAt.UTC(), Retiring: make([]retiringModel, len(revealed.Retiring))}
	for i, at := range revealed.Retiring {
		out.Retiring[i].RetiresAt = at.UTC()
	}
	return writeJSON(w, out)
}
