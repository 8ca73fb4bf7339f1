package web

import (
	"context"
	"net/http"
	"strings"
)

// AlertSink takes the webhooks of monitoring systems in. alerts.Intake is one.
type AlertSink interface {
	// Take puts the alerts of a body into the queue of the engine alerts: queued are new there, repeated were taken before. After an
	// error some may be in the queue; the same body may be taken again.
	Take(ctx context.Context, body []byte) (queued, repeated int, err error)
	// Unreadable tells the errors of Take that are the sender's fault; their text is the answer.
	Unreadable(err error) bool
}

const (
	paramToken     = "token"
	alertChallenge = `Bearer realm="redrive", Basic realm="redrive"`
)

// taken is the answer to a webhook.
type taken struct {
	Received int `json:"received"`
	Queued   int `json:"queued"`
	Repeated int `json:"repeated"`
}

// postAlerts takes a webhook of Alertmanager or Azure Monitor.
func (s *Server) postAlerts(w http.ResponseWriter, r *http.Request) error {
	if s.o.Alerts == nil {
		return notFound("alerts are not taken in this deployment")
	}
	if err := s.checkAlertToken(w, r); err != nil {
		return err
	}
	body, err := s.readJSON(w, r)
	if err != nil {
		return err
	}
	queued, repeated, err := s.o.Alerts.Take(r.Context(), body)
	switch {
	case err != nil && s.o.Alerts.Unreadable(err):
		return badRequest(err.Error())
	case err != nil:
		return err
	}
	return s.succeed(w, r, http.StatusAccepted, taken{queued + repeated, queued, repeated})
}

// checkAlertToken lets holders of an alerts token or an admin token through: as a bearer, as the password of Basic, or,
// for Azure's action groups, which cannot set headers, in the query. Queries are in no log of ours.
func (s *Server) checkAlertToken(w http.ResponseWriter, r *http.Request) error {
	query, err := parseQuery(r)
	if err != nil {
		return err
	}
	for name, values := range query {
		if name != paramToken || len(values) != 1 || values[0] == "" {
			return badRequest("the query may have one " + paramToken + ", and nothing else")
		}
	}
	if s.o.AdminOpen {
		return nil
	}
	token := query.Get(paramToken)
	if header := r.Header.Get("Authorization"); header != "" {
		scheme, rest, _ := strings.Cut(header, " ")
		if _, password, ok := r.BasicAuth(); ok {
			token = password
		} else if token = strings.TrimSpace(rest); !strings.EqualFold(scheme, "Bearer") {
			token = ""
		}
	}
	if token == "" {
		w.Header().Set("WWW-Authenticate", alertChallenge)
		return unauthorized("this needs an alerts token or an admin token: Authorization: Bearer ..., the password of Basic, or ?token=...")
	}
	_, isAlert := holder(s.o.AlertTokens, token)
	if _, isAdmin := holder(s.o.AdminTokens, token); !isAlert && !isAdmin {
		w.Header().Set("WWW-Authenticate", alertChallenge)
		return unauthorized("the token is not one of ours")
	}
	return nil
}
