// Package webtest holds an HTTP API to its description: a transport for test clients that validates every request and
// answer against docs/openapi.yaml. Only tests import it.
package webtest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"github.com/redrive-mq/redrive/docs"
)

// spec is the parsed document; parsing takes tens of milliseconds, so it is done once for all tests of a process.
var spec = sync.OnceValues(func() (routers.Router, error) {
	doc, err := openapi3.NewLoader().LoadFromData(docs.OpenAPI)
	if err != nil {
		return nil, err
	}
	return gorillamux.NewRouter(doc)
})

// NewTransport returns a transport that sends requests through next (nil: http.DefaultTransport) and fails t where
//
//   - an answer is not one that the document describes: its status, headers or body;
//   - a request that the document forbids was answered as if it were fine (below 400), so one of the two is wrong;
//   - a path or method that the document does not know was not answered with 404 or 405 (or 401 or 403).
//
// Requests that tests make wrong on purpose are thus fine, as long as they are refused. Bodies are read whole; answers
// to HEAD are not validated. It is safe for use by several goroutines, until t ends.
func NewTransport(t testing.TB, next http.RoundTripper) http.RoundTripper {
	t.Helper()
	router, err := spec()
	if err != nil {
		t.Fatalf("docs/openapi.yaml: %v", err)
	}
	if next == nil {
		next = http.DefaultTransport
	}
	return &transport{t: t, router: router, next: next}
}

// NewClient is a client with such a transport that follows no redirects.
func NewClient(t testing.TB) *http.Client {
	t.Helper()
	return &http.Client{
		Transport:     NewTransport(t, nil),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

type transport struct {
	t      testing.TB
	router routers.Router
	next   http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (v *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	sent, err := readAll(r.Body)
	if err != nil {
		return nil, err
	}
	out := r.Clone(r.Context())
	if r.Body != nil {
		out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(sent)), int64(len(sent))
		if len(sent) == 0 {
			out.Body = http.NoBody
		}
	}
	res, err := v.next.RoundTrip(out)
	if err != nil {
		return nil, err
	}
	got, err := readAll(res.Body)
	if err != nil {
		return nil, err
	}
	res.Body = io.NopCloser(bytes.NewReader(got))
	if r.Method != http.MethodHead {
		v.validate(r, sent, res, got)
	}
	return res, nil
}

func readAll(body io.ReadCloser) ([]byte, error) {
	if body == nil {
		return nil, nil
	}
	defer func() { _ = body.Close() }()
	return io.ReadAll(body)
}

func (v *transport) validate(r *http.Request, sent []byte, res *http.Response, got []byte) {
	v.t.Helper()
	what := r.Method + " " + r.URL.RequestURI()
	route, params, err := v.router.FindRoute(r)
	if err != nil {
		want := http.StatusNotFound
		if errors.Is(err, routers.ErrMethodNotAllowed) {
			want = http.StatusMethodNotAllowed
		}
		switch res.StatusCode {
		case want, http.StatusUnauthorized, http.StatusForbidden: // a gateway that refuses does not look at paths
		default:
			v.t.Errorf("%s is not in docs/openapi.yaml (%v), so it should be answered with %d, not with %d", what, err, want, res.StatusCode)
		}
		return
	}
	for name, value := range params { // the router hands them on as they stood in the path
		if text, err := url.PathUnescape(value); err == nil {
			params[name] = text
		}
	}
	request := r.Clone(context.Background())
	request.Body, request.ContentLength = io.NopCloser(bytes.NewReader(sent)), int64(len(sent))
	input := &openapi3filter.RequestValidationInput{
		Request: request, PathParams: params, Route: route,
		Options: &openapi3filter.Options{
			AuthenticationFunc:    openapi3filter.NoopAuthenticationFunc,
			IncludeResponseStatus: true,
			SkipSettingDefaults:   true,
		},
	}
	if err := openapi3filter.ValidateRequest(request.Context(), input); err != nil && res.StatusCode < http.StatusBadRequest {
		v.t.Errorf("%s is against docs/openapi.yaml and was answered with %d: %v", what, res.StatusCode, err)
	}
	if err := openapi3filter.ValidateResponse(request.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input, Status: res.StatusCode, Header: res.Header,
		Body: io.NopCloser(bytes.NewReader(got)), Options: input.Options,
	}); err != nil {
		v.t.Errorf("the answer %d to %s is against docs/openapi.yaml: %v\n%.500s", res.StatusCode, what, err, got)
	}
}
