package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	requestTimeout = 10 * time.Second
	maxAnswer      = 8 << 20
)

// client speaks the broker's HTTP API.
type client struct {
	base string
	http *http.Client
}

func newClient(base string) *client {
	return &client{base: base, http: &http.Client{Timeout: requestTimeout}}
}

// call is one request.
type call struct {
	method, path string
	headers      map[string]string
	body         []byte
}

// statusError is an answer that was not wanted.
type statusError struct {
	call   call
	status int
	text   string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("%s %s: %d %s", e.call.method, e.call.path, e.status, e.text)
}

// do sends a request and returns the answer's body and header. A status of 400 and more is a *statusError.
func (c *client) do(ctx context.Context, q call) ([]byte, http.Header, error) {
	req, err := http.NewRequestWithContext(ctx, q.method, c.base+q.path, bytes.NewReader(q.body))
	if err != nil {
		return nil, nil, err
	}
	for name, value := range q.headers {
		req.Header.Set(name, value)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, nil, err
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return nil, nil, &statusError{q, resp.StatusCode, strings.TrimSpace(string(body))}
	}
	return body, resp.Header, nil
}

// get reads a JSON answer into out.
func (c *client) get(ctx context.Context, path string, headers map[string]string, out any) error {
	body, _, err := c.do(ctx, call{method: http.MethodGet, path: path, headers: headers})
	if err != nil {
		return err
	}
	return json.Unmarshal(body, out)
}

// ensure creates the resource at path, or updates it: an update must name the version that it changes, so it is read
// first, and once more where somebody else changed it in between.
func (c *client) ensure(ctx context.Context, path string, form map[string]string) error {
	values := url.Values{}
	for name, value := range form {
		values.Set(name, value)
	}
	const tries = 5
	var err error
	for range tries {
		put := call{
			method: http.MethodPut, path: path, body: []byte(values.Encode()),
			headers: map[string]string{"Content-Type": "application/x-www-form-urlencoded"},
		}
		_, header, getErr := c.do(ctx, call{method: http.MethodGet, path: path})
		switch {
		case getErr == nil:
			put.headers["If-Unmodified-Since"] = header.Get("Last-Modified")
		case !hasStatus(getErr, http.StatusNotFound):
			return getErr
		}
		_, _, err = c.do(ctx, put)
		if !hasStatus(err, http.StatusPreconditionFailed) && !hasStatus(err, http.StatusBadRequest) {
			return err // done, or an error that another try does not change
		}
	}
	return err
}

func hasStatus(err error, status int) bool {
	e, ok := err.(*statusError) //nolint:errorlint // ours, never wrapped
	return ok && e.status == status
}

// authorization of a consumer's requests.
func (k consumer) authorization() map[string]string {
	return map[string]string{"X-Broker-Channel-Token": channelToken, "X-Broker-Consumer-Token": k.token}
}
