package web

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/gorilla/mux"

	"github.com/redrive-mq/redrive/storage"
)

// EngineTables keeps the dead letters and the history of all engines. storage.Store is one.
type EngineTables interface {
	// ListDeadLetters lists at most limit of those that the filter selects and that come after the cursor (nil: from the
	// start), the latest failure first, and tells whether there are more.
	ListDeadLetters(ctx context.Context, f storage.DLQFilter, after *storage.TableCursor, limit int) (page []storage.DeadLetter, more bool, err error)
	// DeadLetter reads one, or fails with storage.ErrNotFound.
	DeadLetter(ctx context.Context, engine, rowKey string) (*storage.DeadLetter, error)
	// AddDeadLetter adds one; created is false where it was there.
	AddDeadLetter(ctx context.Context, d storage.DeadLetter) (created bool, err error)
	// ResolveDeadLetter resolves or expires one that is Pending and returns it as it is then; storage.ErrBadResolution where it
	// is not Pending.
	ResolveDeadLetter(ctx context.Context, engine, rowKey string, r storage.Resolution) (*storage.DeadLetter, error)
	// RetryDeadLetter queues its message again, once; storage.ErrNoQueue where its queue is not served here.
	RetryDeadLetter(ctx context.Context, engine, rowKey, by string) (storage.Retried, error)
	// ExpireDeadLetters expires those that are Pending and whose last failure is longer ago; engine "": of all engines.
	ExpireDeadLetters(ctx context.Context, olderThan time.Duration, engine, by string) (int64, error)
	// ListHistory lists like ListDeadLetters, the latest entry first.
	ListHistory(ctx context.Context, f storage.HistoryFilter, after *storage.TableCursor, limit int) (page []storage.HistoryEntry, more bool, err error)
	// HistoryEntry reads one, or fails with storage.ErrNotFound.
	HistoryEntry(ctx context.Context, engine, rowKey string) (*storage.HistoryEntry, error)
	// AddHistory adds those that are not there and tells how many these were.
	AddHistory(ctx context.Context, entries []storage.HistoryEntry) (added int, err error)
}

// EngineContext tells which engines this deployment has. engine.Context is one.
type EngineContext interface {
	String() string                    // the context's name
	Names() []string                   // the engines, sorted
	Operations(engine string) []string // what an engine records itself; nil: there is no such engine
	Recorded(engine string) []string   // what its history may show, operators' actions included
}

// Limits of the columns, in characters.
const (
	maxEngineName    = 64
	maxInstanceID    = 255
	maxQueueName     = 255
	maxCorrelationID = 255
	maxRowKey        = 300
	maxErrorMessage  = 4096
	maxNotes         = 1024
)

// minTokenKey is the least number of bytes of Options.TokenKey.
const minTokenKey = 16

func (o *Options) checkEngines() error {
	if o.EngineTables != nil && (o.Engines == nil || len(o.TokenKey) < minTokenKey) {
		return errors.New("web: EngineTables wants Engines and a TokenKey of at least 16 bytes")
	}
	return nil
}

// engineRoutes adds the API of RFC-72, and what the health engine knows; all of it is for admins.
func (s *Server) engineRoutes(m *mux.Router) {
	const (
		row     = "/{engine}/{rowKey}"
		dlq     = "/api/dlq"
		history = "/api/history"
	)
	for _, route := range []struct {
		method, path string
		handle       handler
	}{
		{"GET", dlq, s.listDeadLetters},
		{"POST", dlq, s.postDeadLetter},
		{"POST", dlq + "/expire", s.expireDeadLetters},
		{"GET", dlq + row, s.getDeadLetter},
		{"PATCH", dlq + row, s.patchDeadLetter},
		{"POST", dlq + row + "/retry", s.retryDeadLetter},
		{"GET", history, s.listHistory},
		{"POST", history, s.postHistoryEntry},
		{"GET", history + row, s.getHistoryEntry},
		{"GET", "/api/destinations", s.listDestinations},
	} {
		methods := []string{route.method}
		if route.method == http.MethodGet {
			methods = append(methods, http.MethodHead)
		}
		m.Handle(route.path, s.answer(s.admin(route.handle))).Methods(methods...)
	}
}

// envelope is every answer of the engines' API that is no problem (RFC-72, 2.3).
type envelope struct {
	Status        string    `json:"status"`
	CorrelationID string    `json:"correlationId"` // of this exchange: the request id
	Timestamp     time.Time `json:"timestamp"`
	Data          any       `json:"data"`
}

func (s *Server) succeed(w http.ResponseWriter, r *http.Request, status int, data any) error {
	return writeJSONStatus(w, status, envelope{"Succeeded", exchangeOf(r).requestID, s.now().UTC(), data})
}

// checkEngine says whether the context has an engine, and what it has where it does not.
func (s *Server) checkEngine(name string) error {
	if s.o.Engines.Operations(name) != nil {
		return nil
	}
	return badRequest("engine: " + quoted(name) + " is none of " + s.o.Engines.String() + "'s engines: " + strings.Join(s.o.Engines.Names(), ", "))
}

// checkRecorded says whether the history of an engine (empty: of any) may show an operation.
func (s *Server) checkRecorded(engine, operation string) error {
	engines := []string{engine}
	if engine == "" {
		engines = s.o.Engines.Names()
	}
	var known []string
	for _, e := range engines {
		known = append(known, s.o.Engines.Recorded(e)...)
	}
	return checkOperation(engine, operation, known)
}

func checkOperation(engine, operation string, known []string) error {
	if slices.Contains(known, operation) {
		return nil
	}
	whose := "any engine"
	if engine != "" {
		whose = engine
	}
	known = slices.Clone(known)
	slices.Sort(known)
	return badRequest("operation: " + quoted(operation) + " is none of " + whose + "'s operations: " + strings.Join(slices.Compact(known), ", "))
}

// quoted shows what a client sent, cut where it is long.
func quoted(text string) string {
	const most = 64
	if utf8.RuneCountInString(text) > most {
		text = string([]rune(text)[:most]) + "..."
	}
	return strconv.Quote(text)
}

// checkLine checks a text of one line that may not be empty: an id, a key, a name. most is in characters.
func checkLine(name, text string, most int) error {
	switch {
	case text == "":
		return badRequest(name + " is missing or empty")
	case !utf8.ValidString(text):
		return badRequest(name + " is not valid UTF-8")
	case utf8.RuneCountInString(text) > most:
		return badRequest(name + " is longer than " + strconv.Itoa(most) + " characters")
	case strings.ContainsFunc(text, unicode.IsControl):
		return badRequest(name + " has a control character")
	case strings.TrimSpace(text) != text:
		return badRequest(name + " begins or ends with white space")
	}
	return nil
}

// checkProse checks a text for people, which may be empty and have lines. most is in characters.
func checkProse(name, text string, most int) error {
	switch {
	case utf8.RuneCountInString(text) > most:
		return badRequest(name + " is longer than " + strconv.Itoa(most) + " characters")
	case strings.ContainsFunc(text, func(c rune) bool { return unicode.IsControl(c) && c != '\n' && c != '\r' && c != '\t' }):
		return badRequest(name + " has a control character")
	}
	return nil
}

// rowOf reads the two keys of a path.
func (s *Server) rowOf(r *http.Request) (engine, rowKey string, err error) {
	for _, v := range []struct {
		name string
		most int
		into *string
	}{{"engine", maxEngineName, &engine}, {"rowKey", maxRowKey, &rowKey}} {
		if *v.into, err = url.PathUnescape(mux.Vars(r)[v.name]); err != nil {
			return "", "", badRequest(v.name + " is not percent-encoded correctly")
		}
		if err := checkLine(v.name, *v.into, v.most); err != nil {
			return "", "", err
		}
	}
	return engine, rowKey, s.checkEngine(engine)
}

// jsonValue makes a member of what a table has as JSON; null of what is not there, and a string of what is no JSON,
// since somebody else may have written it.
func jsonValue(raw json.RawMessage) any {
	switch {
	case len(raw) == 0:
		return nil
	case !json.Valid(raw):
		return string(raw)
	}
	return raw
}

// orNull is text, or null where it is empty.
func orNull(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}
