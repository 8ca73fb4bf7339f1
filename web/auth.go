package web

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"log/slog"
	"net/http"
	"strings"

	"github.com/gorilla/mux"

	"github.com/redrive-mq/redrive/storage"
)

const (
	headerChannelToken  = "X-Broker-Channel-Token"
	headerConsumerToken = "X-Broker-Consumer-Token"
)

// AdminToken is a token that may change producers, channels and consumers, or, as one of Options.AlertTokens, send alerts. The token
// itself is not kept.
type AdminToken struct {
	Name string // who holds it, for the log
	Hash [sha256.Size]byte
}

// NewAdminToken makes an AdminToken of a token.
func NewAdminToken(name, token string) AdminToken {
	return AdminToken{Name: name, Hash: sha256.Sum256([]byte(token))}
}

// anonymous is the caller where nobody has to say who they are.
const anonymous = "anonymous"

type callerKey struct{}

// callerOf is who sent a request that admin let through: the name of the admin token, anonymous where anybody may.
func callerOf(r *http.Request) string {
	if name, ok := r.Context().Value(callerKey{}).(string); ok {
		return name
	}
	return anonymous
}

// admin lets only holders of an admin token through, and logs what they changed.
func (s *Server) admin(h handler) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		if !s.o.AdminOpen {
			name, err := s.adminName(w, r)
			if err != nil {
				return err
			}
			r = r.WithContext(context.WithValue(r.Context(), callerKey{}, name))
		}
		err := h(w, r)
		reads := r.Method == http.MethodGet || r.Method == http.MethodHead
		if !reads && (err == nil || errors.Is(err, errConnectionLost)) { // it was changed, whoever still heard of it
			s.audit(r)
		}
		return err
	}
}

// adminName finds the name of the admin token that the request carries.
func (s *Server) adminName(w http.ResponseWriter, r *http.Request) (string, error) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if token = strings.TrimSpace(token); !strings.EqualFold(scheme, "Bearer") || token == "" {
		w.Header().Set("WWW-Authenticate", `Bearer realm="redrive"`)
		return "", unauthorized("this needs an admin token: Authorization: Bearer ...")
	}
	name, ok := holder(s.o.AdminTokens, token)
	if !ok {
		w.Header().Set("WWW-Authenticate", `Bearer realm="redrive", error="invalid_token"`)
		return "", unauthorized("the admin token is not one of ours")
	}
	return name, nil
}

// holder finds who holds a token.
func holder(tokens []AdminToken, token string) (name string, ok bool) {
	hash := sha256.Sum256([]byte(token))
	for i := range tokens { // all of them, so that the time tells nothing
		if subtle.ConstantTimeCompare(hash[:], tokens[i].Hash[:]) == 1 {
			name, ok = tokens[i].Name, true
		}
	}
	return name, ok
}

// audit leaves a line of a change: who changed what, and no secret.
func (s *Server) audit(r *http.Request) {
	ex := exchangeOf(r)
	attrs := []slog.Attr{
		slog.String("caller", callerOf(r)), slog.String("method", r.Method), slog.String("route", ex.route), slog.String("requestId", ex.requestID),
	}
	for _, name := range []string{"producerId", "channelId", "consumerId", "engine", "rowKey"} {
		if _, ok := mux.Vars(r)[name]; !ok {
			continue
		}
		if id, err := pathID(r, name); err == nil {
			attrs = append(attrs, slog.String(name, id))
		}
	}
	s.log.LogAttrs(context.WithoutCancel(r.Context()), slog.LevelInfo, "changed by an admin", attrs...)
}

// channelOf finds the channel that the path names.
func (s *Server) channelOf(r *http.Request) (*storage.Catalog, *storage.Channel, error) {
	id, err := pathID(r, "channelId")
	if err != nil {
		return nil, nil, err
	}
	cat, err := s.o.Store.Catalog(r.Context())
	if err != nil {
		return nil, nil, err
	}
	ch, ok := cat.Channel(id)
	if !ok {
		return nil, nil, errNoChannel()
	}
	return cat, ch, nil
}

// producerOf finds the producer that the path names.
func (s *Server) producerOf(r *http.Request) (*storage.Producer, error) {
	id, err := pathID(r, "producerId")
	if err != nil {
		return nil, err
	}
	cat, err := s.o.Store.Catalog(r.Context())
	if err != nil {
		return nil, err
	}
	p, ok := cat.Producer(id)
	if !ok {
		return nil, notFound("there is no such producer")
	}
	return p, nil
}

func errNoChannel() error { return notFound("there is no such channel") }

// consumerRef is the consumer that a path names, with what it belongs to.
type consumerRef struct {
	catalog  *storage.Catalog
	channel  *storage.Channel
	consumer *storage.Consumer
}

// consumerOf finds the consumer that the path names.
func (s *Server) consumerOf(r *http.Request) (consumerRef, error) {
	id, err := pathID(r, "consumerId")
	if err != nil {
		return consumerRef{}, err
	}
	cat, ch, err := s.channelOf(r)
	if err != nil {
		return consumerRef{}, err
	}
	k, ok := cat.Consumer(ch, id)
	if !ok {
		return consumerRef{}, notFound("there is no such consumer")
	}
	return consumerRef{cat, ch, k}, nil
}

// authorizedConsumer finds the consumer that the path names for a request that must carry the channel's and the
// consumer's token. The channel's token is looked at before the consumer, so that who does not have it learns nothing
// about consumers. unknown is the status of a consumer that is not there: the contract has two.
func (s *Server) authorizedConsumer(r *http.Request, unknown int) (consumerRef, error) {
	id, err := pathID(r, "consumerId")
	if err != nil {
		return consumerRef{}, err
	}
	cat, ch, err := s.channelOf(r)
	if err != nil {
		return consumerRef{}, err
	}
	if !ch.TokenMatches(r.Header.Get(headerChannelToken)) {
		return consumerRef{}, forbidden("the channel token does not match")
	}
	k, ok := cat.Consumer(ch, id)
	if !ok {
		return consumerRef{}, fail(unknown, "there is no such consumer")
	}
	if k.Sealed {
		return consumerRef{}, errSealed()
	}
	if !k.TokenMatches(r.Header.Get(headerConsumerToken)) {
		return consumerRef{}, forbidden("the consumer token does not match")
	}
	return consumerRef{cat, ch, k}, nil
}

// errSealed refuses what needs the token of a consumer whose secrets this instance cannot open: another may have the key.
func errSealed() error {
	return fail(http.StatusServiceUnavailable, "this instance cannot read the consumer's secrets; its log says why")
}
