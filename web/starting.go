package web

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/gorilla/mux"
)

// NewStarting builds what answers while there is no API yet: /livez, /_status and /openapi.yaml as the API does, and 503
// with what Ready says to everything else. Of the options it uses Ready, Status, Log, RequestTimeout, MaxBodyBytes and
// those of the gateway; it has no metrics.
func NewStarting(o Options) (*Server, error) {
	return newServer(o, (*Server).startingRoutes)
}

func (s *Server) startingRoutes() *mux.Router {
	m := newRouter()
	for path, handle := range map[string]handler{
		"/livez": s.live, "/_status": s.status, "/openapi.yaml": s.openAPI,
	} {
		m.Handle(path, s.answer(handle)).Methods(http.MethodGet, http.MethodHead)
	}
	m.Use(rememberRoute)
	m.NotFoundHandler = s.answer(func(_ http.ResponseWriter, r *http.Request) error {
		if s.o.Ready != nil {
			if err := s.o.Ready(r.Context()); err != nil {
				return fail(http.StatusServiceUnavailable, err.Error())
			}
		}
		return fail(http.StatusServiceUnavailable, detailUnavailable)
	})
	m.MethodNotAllowedHandler = s.methodNotAllowed(m)
	return m
}

// methodNotAllowed names the methods that there are.
func (s *Server) methodNotAllowed(m *mux.Router) http.Handler {
	return s.answer(func(w http.ResponseWriter, r *http.Request) error {
		w.Header().Set("Allow", strings.Join(allowed(m, r), ", "))
		return fail(http.StatusMethodNotAllowed, fmt.Sprintf("%s is not a method of this path", r.Method))
	})
}
