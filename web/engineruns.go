package web

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/gorilla/mux"
)

// EngineRunner executes engines in this process, for those of them that it has.
type EngineRunner interface {
	// Executed are the engines that are executed here, sorted by name.
	Executed() []ExecutedEngine
	// Begin starts a run of an engine. What it cannot begin it says by one of the errors below.
	Begin(ctx context.Context, engine string, m EngineMessage) (EngineRun, error)
}

// ExecutedEngine is an engine that is executed here.
type ExecutedEngine struct {
	Engine           string  `json:"engine"`
	Queue            string  `json:"queue"`
	MaxRetryAttempts int     `json:"maxRetryAttempts"`
	TimeoutSeconds   float64 `json:"timeoutSeconds"`
	EverySeconds     float64 `json:"everySeconds,omitempty"` // 0: it has no timer
	RegistryLock     bool    `json:"registryLock"`
	Interchangeable  bool    `json:"interchangeable"`
}

// EngineMessage is what a run is begun with; what is empty gets a default.
type EngineMessage struct {
	CorrelationID, InstanceID, Operation string
	Input                                json.RawMessage // nil: none
}

// EngineRun is a run that was begun.
type EngineRun struct {
	Engine        string `json:"engine"`
	Queue         string `json:"queue"`
	InstanceID    string `json:"instanceId"`
	Operation     string `json:"operation"`
	CorrelationID string `json:"correlationId"`
	Done          bool   `json:"done"` // it was done before, and nothing was begun
}

// Errors of EngineRunner.Begin; their texts are shown to the client.
var (
	// ErrEngineElsewhere: the engine is not executed here.
	ErrEngineElsewhere = errors.New("the engine is not executed by this instance")
	// ErrEngineMessage: the message is not one that the engine reads.
	ErrEngineMessage = errors.New("the engine cannot read this")
	// ErrEngineBusy: something else is under way for this instance id.
	ErrEngineBusy = errors.New("something else is under way for this instance")
)

func (s *Server) runRoutes(m *mux.Router) {
	m.Handle("/api/engines", s.answer(s.admin(s.listEngines))).Methods(http.MethodGet, http.MethodHead)
	m.Handle("/api/engines/{engine}/runs", s.answer(s.admin(s.beginRun))).Methods(http.MethodPost)
}

// listedEngine is an engine of the context.
type listedEngine struct {
	Engine     string          `json:"engine"`
	Operations []string        `json:"operations"`
	Executed   *ExecutedEngine `json:"executed"` // null: not here
}

func (s *Server) listEngines(w http.ResponseWriter, r *http.Request) error {
	executed := map[string]*ExecutedEngine{}
	if s.o.EngineRunner != nil {
		for _, e := range s.o.EngineRunner.Executed() {
			executed[e.Engine] = &e
		}
	}
	var list []listedEngine
	for _, name := range s.o.Engines.Names() {
		list = append(list, listedEngine{name, s.o.Engines.Operations(name), executed[name]})
	}
	return s.succeed(w, r, http.StatusOK, struct {
		Context string         `json:"context"`
		Items   []listedEngine `json:"items"`
	}{s.o.Engines.String(), list})
}

// beginRun starts a run on demand: 202, or 200 where the same was done before, or 409 where another one of the instance
// is under way.
func (s *Server) beginRun(w http.ResponseWriter, r *http.Request) error {
	engine, err := url.PathUnescape(mux.Vars(r)["engine"])
	if err != nil {
		return badRequest("engine is not percent-encoded correctly")
	}
	if err := checkLine("engine", engine, maxEngineName); err != nil {
		return err
	}
	if err := s.checkEngine(engine); err != nil {
		return err
	}
	m, err := s.readRun(w, r, engine)
	if err != nil {
		return err
	}
	if s.o.EngineRunner == nil {
		return notFound(ErrEngineElsewhere.Error())
	}
	run, err := s.o.EngineRunner.Begin(r.Context(), engine, m)
	switch {
	case errors.Is(err, ErrEngineElsewhere):
		return notFound(err.Error())
	case errors.Is(err, ErrEngineMessage):
		return badRequest(err.Error())
	case errors.Is(err, ErrEngineBusy):
		return fail(http.StatusConflict, err.Error())
	case err != nil:
		return err
	}
	w.Header().Set("Location", "/api/history?"+url.Values{"engine": {engine}, "correlationId": {run.CorrelationID}}.Encode())
	status := http.StatusAccepted
	if run.Done {
		status = http.StatusOK
	}
	return s.succeed(w, r, status, run)
}

func (s *Server) readRun(w http.ResponseWriter, r *http.Request, engine string) (EngineMessage, error) {
	var m EngineMessage
	err := s.readObject(w, r, map[string]any{
		"correlationId": &m.CorrelationID, "instanceId": &m.InstanceID, "operation": &m.Operation, "input": &m.Input,
	})
	if err != nil {
		return m, err
	}
	for _, l := range []line{{"correlationId", m.CorrelationID, maxCorrelationID}, {"instanceId", m.InstanceID, maxInstanceID}} {
		if l.text == "" {
			continue // it gets a default
		}
		if err := checkLine(l.name, l.text, l.most); err != nil {
			return m, err
		}
	}
	if m.Operation != "" {
		if err := checkOperation(engine, m.Operation, s.o.Engines.Operations(engine)); err != nil {
			return m, err
		}
	}
	m.Input = nullToNone(m.Input)
	if strings.TrimSpace(string(m.Input)) == "" {
		m.Input = nil
	}
	return m, nil
}
