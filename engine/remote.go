package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/engine/durable"
)

// Remote says where an engine lives that does its work elsewhere.
type Remote struct {
	// URL gets a POST for each run.
	URL string
	// Client makes the requests; required. Each of them is bounded by Request (default 30 s).
	Client  *http.Client
	Request time.Duration
	// Header is sent with each request to URL's host, as what proves who asks.
	Header http.Header
	// Poll is the first wait between two looks at the status URL, unless the answer has Retry-After; default 1 s. It
	// grows by half each time, to 30 s at most, or to a thousandth of Definition.Timeout.
	Poll time.Duration
}

const (
	maxPoll       = 30 * time.Second
	maxLooks      = 1000 // about
	maxRetryAfter = 5 * time.Minute
	maxAnswer     = 256 << 10 // bytes of an answer that are read
	answerShown   = 300       // characters of an answer that an error shows
	pollTries     = 5         // of one look at the status URL that gets no answer
)

// errLongAnswer comes with the status code.
var errLongAnswer = fmt.Errorf("its answer is longer than %d bytes", maxAnswer)

// leftOut stands for an output that is too long.
var leftOut = json.RawMessage(`"(left out: too long)"`)

// remoteCall is what a remote engine is sent.
type remoteCall struct {
	Message

	Engine string `json:"engine"`
	RunID  string `json:"runId"`
}

// remoteAnswer is what a remote engine answered.
type remoteAnswer struct {
	Done   bool            `json:"done"`
	Failed string          `json:"failed,omitempty"` // why, where it failed
	Status string          `json:"status,omitempty"` // URL to look at again
	After  time.Duration   `json:"after,omitempty"`  // that the answer asked for
	Output json.RawMessage `json:"output,omitempty"`
}

// Define makes d, whose Run and Steps are not looked at, an engine that lives at the URL. A run POSTs the message with
// its engine and runId; the header Idempotency-Key is the same for each repetition of the same POST. What it answers:
//
//   - 200, 201 or 204: done. The body, where it is JSON, is the run's output; one of more than 256 KiB is left out.
//   - 202 with Location, or a JSON body with statusQueryGetUri (as durable HTTP functions answer): that URL is looked
//     at until it says how it ended, at most Definition.Timeout: 202, or runtimeStatus (or status) Pending, Running,
//     ContinuedAsNew or Suspended: not yet; Completed, or another 200: done, with its member output; Failed,
//     Terminated or Canceled: failed.
//   - anything else: failed.
func (r Remote) Define(d Definition) (Definition, error) {
	at, err := url.Parse(r.URL)
	if err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" {
		return d, fmt.Errorf("engine %q: its endpoint is no http or https URL", d.Name)
	}
	if at.User != nil { // it would get into status URLs, and those are stored
		return d, fmt.Errorf("engine %q: its endpoint has a user: what proves who asks comes from tokenFile", d.Name)
	}
	if r.Client == nil {
		return d, fmt.Errorf("engine %q: no HTTP client", d.Name)
	}
	if r.Request <= 0 {
		r.Request = 30 * time.Second
	}
	if r.Poll <= 0 {
		r.Poll = time.Second
	}
	d.Steps = map[string]Step{"call": r.call, "poll": r.look}
	// Each look is a handful of events in the run's history, of which it may have 10,000.
	most := max(maxPoll, d.Timeout/maxLooks)
	d.Run = func(run *Run) (any, error) {
		var answer remoteAnswer
		if err := run.Do("call", remoteCall{run.Message, run.engine, run.ID()}, &answer); err != nil {
			return nil, err
		}
		for wait := r.Poll; !answer.Done; wait = min(wait+wait/2, most) {
			if err := run.Sleep(max(wait, answer.After)); err != nil {
				return nil, err
			}
			at := answer.Status
			answer = remoteAnswer{}
			err := run.Try("poll", at, &answer, durable.Retry{Attempts: pollTries, Wait: time.Second, MaxWait: maxPoll})
			if err != nil {
				return nil, err
			}
			if answer.Status == "" {
				answer.Status = at
			}
		}
		if answer.Failed != "" {
			return nil, errors.New(answer.Failed)
		}
		return answer.Output, nil
	}
	return d, nil
}

func (r Remote) call(ctx context.Context, call Call) (any, error) {
	code, header, body, err := r.do(ctx, http.MethodPost, r.URL, call.Input, call.Key)
	done := code == http.StatusOK || code == http.StatusCreated || code == http.StatusNoContent
	switch {
	case done && errors.Is(err, errLongAnswer):
		return remoteAnswer{Done: true, Output: leftOut}, nil // what is said of the work is no reason to do it again
	case err != nil:
		return nil, err
	case done:
		return remoteAnswer{Done: true, Output: outputOf(body)}, nil
	case code == http.StatusAccepted:
		var named struct {
			Status string `json:"statusQueryGetUri"`
		}
		_ = json.Unmarshal(body, &named) // it need not be JSON
		if named.Status == "" {
			named.Status = header.Get("Location")
		}
		at, err := r.resolve(named.Status)
		if err != nil {
			return nil, err
		}
		return remoteAnswer{Status: at, After: retryAfter(header)}, nil
	}
	return nil, unexpected(code, body)
}

// resolve makes the status URL absolute.
func (r Remote) resolve(status string) (string, error) {
	if status == "" {
		return "", errors.New("it answered 202 without Location or statusQueryGetUri: nobody can tell how it ends")
	}
	base, err := url.Parse(r.URL)
	if err != nil {
		return "", err
	}
	at, err := base.Parse(status)
	if err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" {
		return "", errors.New("it answered 202 with a status URL that is none")
	}
	return at.String(), nil
}

// look asks once how it stands.
func (r Remote) look(ctx context.Context, call Call) (any, error) {
	var at string
	if err := json.Unmarshal(call.Input, &at); err != nil {
		return nil, durable.Permanent(err)
	}
	code, header, body, err := r.do(ctx, http.MethodGet, at, nil, "")
	if err != nil {
		return nil, err
	}
	if code != http.StatusOK && code != http.StatusAccepted {
		err := fmt.Errorf("its status URL: %w", unexpected(code, body))
		if code >= http.StatusInternalServerError || code == http.StatusTooManyRequests || code == http.StatusRequestTimeout {
			return nil, err // asked again
		}
		return remoteAnswer{Done: true, Failed: err.Error()}, nil
	}
	var says struct {
		RuntimeStatus string          `json:"runtimeStatus"`
		Status        string          `json:"status"`
		Output        json.RawMessage `json:"output"`
		Error         json.RawMessage `json:"error"`
	}
	known := json.Unmarshal(body, &says) == nil
	if says.RuntimeStatus == "" {
		says.RuntimeStatus = says.Status
	}
	switch strings.ToLower(says.RuntimeStatus) {
	case "completed", "succeeded":
		return remoteAnswer{Done: true, Output: outputOf(says.Output)}, nil
	case "failed", "terminated", "canceled", "cancelled":
		why := noneIfNull(says.Error)
		if why == nil {
			why = noneIfNull(says.Output)
		}
		return remoteAnswer{Done: true, Failed: strings.TrimSuffix(says.RuntimeStatus+": "+shown(why), ": ")}, nil
	case "pending", "running", "continuedasnew", "suspended":
		return remoteAnswer{After: retryAfter(header)}, nil
	}
	if code == http.StatusAccepted {
		return remoteAnswer{After: retryAfter(header)}, nil
	}
	if known && says.Output != nil {
		return remoteAnswer{Done: true, Output: outputOf(says.Output)}, nil
	}
	return remoteAnswer{Done: true, Output: outputOf(body)}, nil
}

// do makes one request and reads the first maxAnswer bytes of its answer.
func (r Remote) do(ctx context.Context, method, at string, body []byte, key string) (code int, header http.Header, answer []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.Request)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, at, bytes.NewReader(body))
	if err != nil {
		return 0, nil, nil, errors.New("the URL cannot be used")
	}
	if base, err := url.Parse(r.URL); err == nil && origin(base) == origin(req.URL) {
		maps.Copy(req.Header, r.Header)
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "Redrive")
	if key != "" {
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := r.Client.Do(req)
	if err != nil {
		if urlErr, ok := errors.AsType[*url.Error](err); ok {
			err = urlErr.Err // without the URL, which may hold secrets
		}
		return 0, nil, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err == nil && len(answer) > maxAnswer {
		err = errLongAnswer
	}
	return resp.StatusCode, resp.Header, answer, err
}

// origin is scheme, host and port, however they are written.
func origin(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return u.Scheme + "://" + strings.ToLower(u.Hostname()) + ":" + port
}

// outputOf is an answer's body as the run's output: JSON as it is, other text as a string.
func outputOf(body []byte) json.RawMessage {
	var value any = json.RawMessage(body)
	switch body = bytes.TrimSpace(body); {
	case len(body) == 0:
		return nil
	case !json.Valid(body):
		value = strings.ToValidUTF8(string(body), "\uFFFD")
	}
	text, err := json.Marshal(value)
	if err != nil || len(text) > maxOutput { // neither can fail; encoding may make six bytes of one
		return leftOut
	}
	return noneIfNull(text)
}

func unexpected(code int, body []byte) error {
	text := strconv.Itoa(code) + " " + http.StatusText(code)
	if more := shown(body); more != "" {
		text += ": " + more
	}
	return errors.New(text)
}

// shown is the first part of what somebody answered, on one line.
func shown(body []byte) string {
	text := strings.Map(func(r rune) rune {
		if !isPrintable(r) {
			return ' '
		}
		return r
	}, string(body))
	return clip(strings.TrimSpace(text), answerShown)
}

// retryAfter reads the header in its form of seconds; 0 where there is none.
func retryAfter(header http.Header) time.Duration {
	seconds, err := strconv.Atoi(header.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	return min(time.Duration(seconds)*time.Second, maxRetryAfter)
}
