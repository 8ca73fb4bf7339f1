package alerts

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

// ErrUnreadable is of a body that is not a webhook that is understood here. What wraps it says why, for whoever sent it.
var ErrUnreadable = errors.New("no alerts can be read from this")

func unreadable(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrUnreadable, fmt.Errorf(format, args...))
}

// Parse reads the body of a webhook: Alertmanager's, version 4, or Azure Monitor's, common alert schema. Members that it
// does not know are left alone. Any error is ErrUnreadable.
func Parse(body []byte) ([]Alert, error) {
	if !utf8.Valid(body) {
		return nil, unreadable("it is not valid UTF-8")
	}
	var kind struct {
		SchemaID *string `json:"schemaId"`
		Version  *string `json:"version"`
	}
	if err := decode("the body", body, &kind); err != nil {
		return nil, unreadable("%w", err)
	}
	var found []Alert
	var err error
	switch {
	case kind.SchemaID != nil && *kind.SchemaID == azureSchema:
		found, err = parseAzure(body)
	case kind.SchemaID != nil:
		err = fmt.Errorf("schemaId: %.64q is not %s: enable the common alert schema in the action group", *kind.SchemaID, azureSchema)
	case kind.Version != nil && *kind.Version == alertmanagerVersion:
		found, err = parseAlertmanager(body)
	case kind.Version != nil:
		err = fmt.Errorf("version: %.64q is not %q, Alertmanager's", *kind.Version, alertmanagerVersion)
	default:
		err = errors.New("it has neither Alertmanager's version nor Azure Monitor's schemaId")
	}
	if err != nil {
		return nil, unreadable("%w", err)
	}
	return found, nil
}

// bounded is an alert that fits, if need be without Raw.
func (a Alert) bounded() (Alert, error) {
	for {
		text, err := json.Marshal(a)
		switch {
		case err != nil:
			return a, err
		case len(text) <= MaxBytes:
			return a, nil
		case a.Raw == nil:
			return a, fmt.Errorf("it has %d bytes: %d are the most", len(text), MaxBytes)
		}
		a.Raw = nil
	}
}

// decode is json.Unmarshal with errors for whoever sent the text.
func decode(what string, text []byte, into any) error {
	err := json.Unmarshal(text, into)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		if wrong.Field != "" {
			what = wrong.Field
		}
		return fmt.Errorf("%s: %s is not the type of value that is wanted here", what, wrong.Value)
	}
	if err != nil {
		return fmt.Errorf("%s is not JSON: %w", what, err)
	}
	return nil
}

// parseTime reads a time of RFC 3339; empty is the zero time.
func parseTime(name, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if at = at.UTC(); err != nil || at.Year() < 1 || at.Year() > 9999 {
		return time.Time{}, fmt.Errorf("%s: %.64q is no time of RFC 3339 (2026-01-31T12:00:00Z)", name, text)
	}
	return at, nil
}
