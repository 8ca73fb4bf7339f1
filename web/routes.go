package web

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/gorilla/mux"

	"github.com/redrive-mq/redrive/docs"
)

// handler answers a request or says why not.
type handler func(w http.ResponseWriter, r *http.Request) error

// newRouter matches paths in their encoded form, so that an id may hold any character, and as they are sent: see tidy.
func newRouter() *mux.Router { return mux.NewRouter().UseEncodedPath().SkipClean(true) }

// routes is the whole API.
func (s *Server) routes() *mux.Router {
	m := newRouter()
	const (
		channel  = "/channel/{channelId}"
		consumer = channel + "/consumer/{consumerId}"
		job      = consumer + "/job/{jobId}"
	)
	for _, route := range []struct {
		method, path string
		handle       handler
	}{
		{"GET", "/producers", s.listProducers},
		{"GET", "/producer/{producerId}", s.getProducer},
		{"PUT", "/producer/{producerId}", s.admin(s.putProducer)},
		{"POST", "/producer/{producerId}/signing-secret", s.producerSecret},
		{"GET", "/channels", s.listChannels},
		{"GET", channel, s.getChannel},
		{"PUT", channel, s.admin(s.putChannel)},
		{"GET", channel + "/consumers", s.listConsumers},
		{"GET", consumer, s.getConsumer},
		{"PUT", consumer, s.admin(s.putConsumer)},
		{"DELETE", consumer, s.admin(s.deleteConsumer)},
		{"POST", consumer + "/signing-secret", s.consumerSecret},

		{"POST", channel + "/broadcast", s.broadcast},
		{"GET", channel + "/message/{messageId}", s.getMessage},
		{"GET", channel + "/messages", s.listMessages},
		{"GET", channel + "/messages-status", s.messagesStatus},
		{"GET", channel + "/scheduled-messages", s.listScheduled},
		{"GET", channel + "/scheduled-message/{messageId}", s.getScheduled},

		{"GET", consumer + "/queued-jobs", s.queuedJobs},
		{"GET", job, s.getJob},
		{"POST", job, s.postJob},
		{"DELETE", job, s.deleteJob},
		{"POST", job + "/requeue-dead-job", s.requeueJob},
		{"GET", consumer + "/dlq", s.listDead},
		{"POST", consumer + "/dlq", s.requeueAll},
		{"DELETE", consumer + "/dlq", s.purgeAll},

		{"POST", "/api/alerts", s.postAlerts},

		{"GET", "/dlq-status", s.dlqStatus},
		{"GET", "/job-status", s.jobStatus},
		{"GET", "/_status", s.status},
		{"GET", "/livez", s.live},
		{"GET", "/readyz", s.ready},
		{"GET", "/openapi.yaml", s.openAPI},
	} {
		methods := []string{route.method}
		if route.method == http.MethodGet {
			methods = append(methods, http.MethodHead)
		}
		m.Handle(route.path, s.answer(route.handle)).Methods(methods...)
	}
	if s.o.EngineTables != nil {
		s.engineRoutes(m)
		s.runRoutes(m)
	}
	if s.o.Metrics != nil {
		m.Handle("/metrics", s.o.Metrics).Methods(http.MethodGet, http.MethodHead)
	}
	m.Use(rememberRoute)
	m.NotFoundHandler = s.answer(func(w http.ResponseWriter, r *http.Request) error {
		if to := tidy(m, r); to != "" {
			return redirect(w, r, to)
		}
		return notFound("there is nothing at this path; /openapi.yaml describes what there is")
	})
	m.MethodNotAllowedHandler = s.methodNotAllowed(m)
	return m
}

// tidy is the path of r without further slashes at its ends, where that has something and the path as it was sent has not:
// clients join a base URL that ends with a slash and a path that begins with one. Empty: there is none.
func tidy(m *mux.Router, r *http.Request) string {
	sent := r.URL.EscapedPath()
	clean := "/" + strings.Trim(sent, "/")
	u, err := url.ParseRequestURI(clean)
	if err != nil || clean == sent {
		return ""
	}
	at := *r
	at.URL = u
	if len(allowed(m, &at)) == 0 {
		return ""
	}
	return clean
}

// redirect sends the client to another path of ours. Whatever it sent but a GET is to be sent again as it is: a POST must
// not become a GET on the way.
func redirect(w http.ResponseWriter, r *http.Request, to string) error {
	if r.URL.RawQuery != "" {
		to += "?" + r.URL.RawQuery
	}
	status := http.StatusPermanentRedirect
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		status = http.StatusMovedPermanently
	}
	w.Header().Set("Location", to)
	w.WriteHeader(status)
	return nil
}

// allowed finds the methods that the path of r has.
func allowed(m *mux.Router, r *http.Request) []string {
	var methods []string
	for _, method := range []string{"GET", "HEAD", "PUT", "POST", "PATCH", "DELETE"} {
		probe := *r // Match reads method and URL only
		probe.Method = method
		var match mux.RouteMatch
		if m.Match(&probe, &match) && match.MatchErr == nil && match.Route != nil {
			methods = append(methods, method)
		}
	}
	return methods
}

// rememberRoute notes which route answers, for the log and the metrics: never the raw path, whose values are endless.
func rememberRoute(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if route := mux.CurrentRoute(r); route != nil {
			if template, err := route.GetPathTemplate(); err == nil {
				exchangeOf(r).route = template
			}
		}
		next.ServeHTTP(w, r)
	})
}

// answer makes an http.Handler of h; its error becomes the answer.
func (s *Server) answer(h handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := h(w, r); err != nil {
			s.writeError(w, r, err)
		}
	})
}

func (s *Server) openAPI(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/yaml")
	_, err := w.Write(docs.OpenAPI)
	return connectionLost(err)
}
