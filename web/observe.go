package web

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-mq/redrive/storage"
)

const (
	headerRequestID = "X-Request-ID"
	maxRequestID    = 255 // bytes
	routeUnmatched  = "unmatched"
)

// exchange is one request and its answer: what the log and the metrics tell of it.
type exchange struct {
	http.ResponseWriter
	requestID string
	route     string // the template of the path
	status    int    // 0: nothing was written yet
	bytes     int64
	err       error // why the answer is an error, as the log needs it
}

type exchangeKey struct{}

// exchangeOf finds the exchange of a request. A request that did not come through ServeHTTP has an empty one.
func exchangeOf(r *http.Request) *exchange {
	if ex, ok := r.Context().Value(exchangeKey{}).(*exchange); ok {
		return ex
	}
	return &exchange{}
}

// WriteHeader notes the status.
func (e *exchange) WriteHeader(status int) {
	if e.status == 0 {
		e.status = status
	}
	e.ResponseWriter.WriteHeader(status)
}

// Write notes the number of bytes.
func (e *exchange) Write(b []byte) (int, error) {
	if e.status == 0 {
		e.status = http.StatusOK
	}
	n, err := e.ResponseWriter.Write(b)
	e.bytes += int64(n)
	return n, err
}

// Unwrap is for http.ResponseController.
func (e *exchange) Unwrap() http.ResponseWriter { return e.ResponseWriter }

// requestID is the caller's, where it can go into headers and logs as it is, or a new one.
func requestID(r *http.Request) string {
	id := r.Header.Get(headerRequestID)
	if id == "" || len(id) > maxRequestID {
		return storage.NewID().String()
	}
	for i := range len(id) {
		if id[i] < ' ' || id[i] > '~' {
			return storage.NewID().String()
		}
	}
	return id
}

// recovered answers a panic with 500.
func (s *Server) recovered(ex *exchange, r *http.Request) {
	v := recover()
	if v == nil {
		return
	}
	if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		ex.status = statusClientGone
		panic(v) // the way to tell net/http to cut the connection
	}
	s.log.LogAttrs(r.Context(), slog.LevelError, "request panicked",
		slog.String("requestId", ex.requestID), slog.String("method", r.Method), slog.String("route", ex.route),
		slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
	if ex.status != 0 {
		panic(http.ErrAbortHandler) // half an answer must not look like a whole one
	}
	writeFailure(ex, r, &failure{status: http.StatusInternalServerError, detail: detailInternal})
}

// finished logs and counts an exchange that is over.
func (s *Server) finished(ex *exchange, r *http.Request, took time.Duration) {
	if ex.status == 0 {
		ex.status = http.StatusOK // what net/http sends for a handler that wrote nothing
	}
	s.metrics.observe(r.Method, ex.route, ex.status, took)
	if !s.log.Enabled(r.Context(), slog.LevelDebug) {
		return
	}
	attrs := []slog.Attr{
		slog.String("requestId", ex.requestID), slog.String("method", r.Method), slog.String("route", ex.route),
		slog.String("path", r.URL.Path), slog.Int("status", ex.status), slog.Int64("bytes", ex.bytes), slog.Duration("took", took),
	}
	if ex.err != nil && ex.status < http.StatusInternalServerError {
		attrs = append(attrs, slog.String("reason", ex.err.Error()))
	}
	s.log.LogAttrs(context.WithoutCancel(r.Context()), slog.LevelDebug, "request", attrs...)
}

// metrics of the API. Every label is of a closed set.
type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "redrive_http_requests_total",
			Help: "Requests answered, by method, route (the template of the path) and status code.",
		}, []string{"method", "route", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "redrive_http_request_duration_seconds",
			Help:    "Time from the request's header to the end of its answer.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"method", "route"}),
	}
	if reg == nil {
		return m, nil
	}
	return m, errors.Join(reg.Register(m.requests), reg.Register(m.duration))
}

func (m *metrics) observe(method, route string, status int, took time.Duration) {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPut, http.MethodPost, http.MethodDelete, http.MethodOptions, http.MethodPatch:
	default:
		method = "other" // clients may send any word
	}
	m.requests.WithLabelValues(method, route, strconv.Itoa(status)).Inc()
	m.duration.WithLabelValues(method, route).Observe(took.Seconds())
}
