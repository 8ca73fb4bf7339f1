package web

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/redrive-mq/redrive/storage"
)

const (
	typeProblem = "application/problem+json"
	// retryAfter is what a 503 asks for, in seconds: a database that restarts is back after a few.
	retryAfter = 2
	// statusClientGone is never seen by anybody but the log and the metrics.
	statusClientGone = 499

	detailInternal    = "something went wrong here; the request id finds it in our log"
	detailUnavailable = "the broker cannot do this right now; try again shortly"
)

// failure is an error that says what its client is told.
type failure struct {
	status int
	detail string
}

// Error is the text that the client gets.
func (f *failure) Error() string { return f.detail }

func fail(status int, detail string) error { return &failure{status, detail} }

func badRequest(detail string) error   { return fail(http.StatusBadRequest, detail) }
func unauthorized(detail string) error { return fail(http.StatusUnauthorized, detail) }
func forbidden(detail string) error    { return fail(http.StatusForbidden, detail) }
func notFound(detail string) error     { return fail(http.StatusNotFound, detail) }

// errConnectionLost is the error of an answer that could not be written: there is nobody left to tell.
var errConnectionLost = errors.New("the client went away")

func connectionLost(err error) error {
	if err == nil {
		return nil
	}
	return errConnectionLost
}

// explain is the one place where errors become answers.
func (s *Server) explain(r *http.Request, err error) *failure {
	var f *failure
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &f):
		return f
	case errors.As(err, &tooLarge):
		return &failure{http.StatusRequestEntityTooLarge, "the body is over the limit of " + strconv.FormatInt(tooLarge.Limit, 10) + " bytes"}
	case errors.Is(err, storage.ErrNotFound):
		return &failure{http.StatusNotFound, "not found"}
	case errors.Is(err, storage.ErrDuplicate):
		return &failure{http.StatusConflict, "a message with this id is in the channel already"}
	case errors.Is(err, storage.ErrEngineConsumer):
		return &failure{http.StatusConflict, "the consumer is an engine: the broker made it, and it cannot be changed"}
	case errors.Is(err, storage.ErrPreconditionMissing):
		return &failure{http.StatusBadRequest, "an update needs If-Unmodified-Since with the Last-Modified of what it changes"}
	case errors.Is(err, storage.ErrPreconditionFailed):
		return &failure{http.StatusPreconditionFailed, "it was changed since; If-Unmodified-Since must equal its Last-Modified"}
	case errors.Is(err, storage.ErrNotDead):
		return &failure{http.StatusBadRequest, "the job is not dead"}
	case errors.Is(err, storage.ErrBadTransition):
		return &failure{http.StatusBadRequest, "the job cannot change from its state to that one"}
	case errors.Is(err, context.Canceled) && errors.Is(r.Context().Err(), context.Canceled), errors.Is(err, errConnectionLost):
		return &failure{statusClientGone, "the client went away"}
	case storage.IsUnavailable(err), errors.Is(err, context.Canceled), s.isStale(err), s.o.Unavailable != nil && s.o.Unavailable(err):
		return &failure{http.StatusServiceUnavailable, detailUnavailable}
	}
	return &failure{http.StatusInternalServerError, detailInternal}
}

// writeError answers with err and logs it where it is our fault.
func (s *Server) writeError(w http.ResponseWriter, r *http.Request, err error) {
	ex := exchangeOf(r)
	ex.err = err
	f := s.explain(r, err)
	if f == err { //nolint:errorlint // identity is meant: a refusal that we made ourselves is no fault to log
		s.refuse(w, r, f)
		return
	}
	attrs := []slog.Attr{
		slog.String("requestId", ex.requestID), slog.String("method", r.Method), slog.String("route", ex.route), slog.Any("error", err),
	}
	ctx := context.WithoutCancel(r.Context())
	switch f.status {
	case http.StatusInternalServerError:
		s.log.LogAttrs(ctx, slog.LevelError, "request failed", attrs...)
	case http.StatusServiceUnavailable:
		s.outages.Do(func() { s.log.LogAttrs(ctx, slog.LevelWarn, "request refused, others like it may follow", attrs...) })
	}
	s.refuse(w, r, f)
}

func (s *Server) refuse(w http.ResponseWriter, r *http.Request, f *failure) {
	if exchangeOf(r).status == 0 { // else the answer has begun, and its end is all that is left
		writeFailure(w, r, f)
	}
}

// writeFailure sends the answer of a failure in the form that the client asked for.
func writeFailure(w http.ResponseWriter, r *http.Request, f *failure) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Del("Last-Modified")
	switch f.status {
	case http.StatusServiceUnavailable:
		h.Set("Retry-After", strconv.Itoa(retryAfter))
	case http.StatusRequestEntityTooLarge, http.StatusRequestTimeout:
		h.Set("Connection", "close") // what is left of the body is not worth reading
	}
	if !acceptsProblem(r) && !isOwnEndpoint(r) {
		h.Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(f.status)
		_, _ = io.WriteString(w, f.detail)
		return
	}
	h.Set("Content-Type", typeProblem)
	w.WriteHeader(f.status)
	_ = json.NewEncoder(w).Encode(struct {
		Type      string `json:"type"`
		Title     string `json:"title"`
		Status    int    `json:"status"`
		Detail    string `json:"detail"`
		RequestID string `json:"requestId"`
	}{"about:blank", http.StatusText(f.status), f.status, f.detail, exchangeOf(r).requestID})
}

// isOwnEndpoint tells the endpoints that the wire contract does not have: their errors are always problems.
func isOwnEndpoint(r *http.Request) bool {
	switch r.URL.Path {
	case "/livez", "/readyz", "/openapi.yaml":
		return true
	}
	return strings.HasPrefix(r.URL.Path, "/api/") || signingSecretPath.MatchString(r.URL.EscapedPath())
}

// signingSecretPath is of paths as they are sent: an id may have a slash in it, and may be "signing-secret".
var signingSecretPath = regexp.MustCompile(`^(/producer/[^/]+|/channel/[^/]+/consumer/[^/]+)/signing-secret$`)

// acceptsProblem tells whether the client names application/problem+json among what it accepts. A wildcard does not
// count: every HTTP library sends one.
func acceptsProblem(r *http.Request) bool {
	for _, line := range r.Header.Values("Accept") {
		for part := range strings.SplitSeq(line, ",") {
			mediaType, params, err := mime.ParseMediaType(part)
			if err != nil || mediaType != typeProblem {
				continue
			}
			q, err := strconv.ParseFloat(params["q"], 64)
			return err != nil || q > 0 // no q is q=1
		}
	}
	return false
}

// bodyError says what went wrong with a body while it was read.
func bodyError(err error) error {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fail(http.StatusRequestTimeout, "the body did not arrive in time")
	}
	return badRequest("the body ended early or is malformed")
}

// writeJSON answers 200 with v. Strings that are not UTF-8 (a binary payload) have the bytes that are not replaced by
// U+FFFD, as in every JSON form of this API: the payload itself goes to consumers unchanged.
func writeJSON(w http.ResponseWriter, v any) error { return writeJSONStatus(w, http.StatusOK, v) }

func writeJSONStatus(w http.ResponseWriter, status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, err = w.Write(body)
	return connectionLost(err)
}
