package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"
)

// Setting is what a deployment's configuration says of an engine: what is new of one that the context has not, what
// differs of one that it has. Zero values leave the default.
type Setting struct {
	Engine

	// Endpoint is where the engine does its work, unless that is built in: see Remote.
	Endpoint string `json:"endpoint"`
	// TokenFile holds the bearer token that the endpoint is sent; it is read at the start.
	TokenFile string `json:"tokenFile"`

	MaxRetryAttempts *int       `json:"maxRetryAttempts"`
	Backoff          []Duration `json:"backoff"`
	Timeout          Duration   `json:"timeout"`
	Concurrency      int        `json:"concurrency"`
	Registry         *bool      `json:"registryLock"`
	Interchangeable  *bool      `json:"interchangeable"`
	Every            Duration   `json:"every"`
	Instances        []string   `json:"instances"`
}

// Duration is a time.Duration that is a text in JSON, as "30s" or "1h30m".
type Duration time.Duration

// UnmarshalJSON implements json.Unmarshaler.
func (d *Duration) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return errors.New(`a duration must be a text as "30s" or "1h30m"`)
	}
	value, err := time.ParseDuration(text)
	if err == nil && value <= 0 {
		err = fmt.Errorf("a duration of %s", text)
	}
	*d = Duration(value)
	return err
}

// WithSettings is the context with what settings say of queues and operations: of engines that it has, and of new ones.
// The error joins all that is wrong with them.
func (c Context) WithSettings(settings map[string]Setting) (Context, error) {
	engines := map[string]Engine{}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		s := settings[name]
		e, known := c.Engines[name]
		if s.Queue != "" || !known {
			e.Queue = s.Queue
		}
		if len(s.Operations) > 0 || !known {
			e.Operations = s.Operations
		}
		engines[name] = e
		if err := s.check(name, e); err != nil {
			errs = append(errs, err)
		}
	}
	out, err := c.With(engines)
	if err = errors.Join(append([]error{err}, errs...)...); err != nil {
		return Context{}, err
	}
	return out, nil
}

// check looks at what only a definition would find out.
func (s Setting) check(name string, e Engine) error {
	if (s.Endpoint != "" || s.Every > 0) && e.Queue == "" {
		return fmt.Errorf("engine %q: what is executed here has a queue", name)
	}
	if s.TokenFile != "" && s.Endpoint == "" {
		return fmt.Errorf("engine %q: a tokenFile without an endpoint", name)
	}
	for _, instance := range s.Instances {
		if !isPlain(instance, maxID) {
			return fmt.Errorf("engine %q: the instance %q must be 1 to %d printable characters", name, instance, maxID)
		}
	}
	if s.MaxRetryAttempts != nil && (*s.MaxRetryAttempts < 0 || *s.MaxRetryAttempts > maxRetries) {
		return fmt.Errorf("engine %q: maxRetryAttempts must be 0 to %d", name, maxRetries)
	}
	if s.Timeout > 0 && time.Duration(s.Timeout) < time.Second {
		return fmt.Errorf("engine %q: a timeout of %s: must be 1s or more", name, time.Duration(s.Timeout))
	}
	if s.Concurrency > maxConcurrency {
		return fmt.Errorf("engine %q: a concurrency of %d: must be at most %d", name, s.Concurrency, maxConcurrency)
	}
	d := s.Apply(Definition{Name: name, Run: func(*Run) (any, error) { return nil, nil }})
	if s.Endpoint != "" {
		if _, err := (Remote{URL: s.Endpoint, Client: http.DefaultClient}).Define(d); err != nil {
			return err
		}
	}
	_, err := d.withDefaults()
	return err
}

// OfRuns tells whether the setting says anything of how runs are executed, which only concerns who executes them.
func (s Setting) OfRuns() bool {
	return s.MaxRetryAttempts != nil || len(s.Backoff) > 0 || s.Timeout > 0 || s.Concurrency != 0 || s.Registry != nil ||
		s.Interchangeable != nil || s.Every > 0 || len(s.Instances) > 0
}

const (
	maxRetries     = 1000
	maxConcurrency = 10_000
)

// Apply changes a definition by what the setting says.
func (s Setting) Apply(d Definition) Definition {
	if s.MaxRetryAttempts != nil {
		if d.MaxRetryAttempts = *s.MaxRetryAttempts; d.MaxRetryAttempts == 0 {
			d.MaxRetryAttempts = -1 // a definition's word for none
		}
	}
	if len(s.Backoff) > 0 {
		d.Backoff = nil
		for _, wait := range s.Backoff {
			d.Backoff = append(d.Backoff, time.Duration(wait))
		}
	}
	if s.Timeout > 0 {
		d.Timeout = time.Duration(s.Timeout)
	}
	if s.Concurrency != 0 {
		d.Concurrency = s.Concurrency
	}
	if s.Registry != nil {
		d.Registry = *s.Registry
	}
	if s.Interchangeable != nil {
		d.Interchangeable = *s.Interchangeable
	}
	if s.Every > 0 {
		d.Every = time.Duration(s.Every)
	}
	if len(s.Instances) > 0 {
		d.Instances = fixed(s.Instances)
	}
	return d
}

// Remote is where the setting says that the engine lives. The error is of the token's file.
func (s Setting) Remote(client *http.Client) (Remote, error) {
	r := Remote{URL: s.Endpoint, Client: client}
	if s.TokenFile == "" {
		return r, nil
	}
	token, err := os.ReadFile(s.TokenFile)
	if err != nil {
		return r, fmt.Errorf("tokenFile: %w", err)
	}
	text := strings.TrimSpace(string(token))
	if !isPlain(text, maxToken) {
		return r, errors.New("tokenFile: it holds no token of printable characters")
	}
	r.Header = http.Header{"Authorization": {"Bearer " + text}}
	return r, nil
}

const maxToken = 8192 // characters

func fixed(instances []string) func(context.Context) ([]string, error) {
	return func(context.Context) ([]string, error) { return instances, nil }
}
